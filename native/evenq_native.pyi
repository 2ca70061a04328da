from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, final

__version__: str  # of evenq, to which it belongs

# Reader of plain requests under the limits of one broker.
@final
class PlainReader:
    # `append` makes an entry for the store of (0, queue id, tag hash, born ms, head, system). `tag_hash_of` returns 0
    # for a tag that no message may have. `crc32_head` and `md5_head` stand in front of the digits of a digest.
    def __new__(
        cls,
        *,
        append: Callable[[int, int, int, int, bytes, bytes], object],
        tag_hash_of: Callable[[bytes], int],
        broker_name: str,
        body_bytes_max: int,
        properties_max: int,
        properties_bytes_max: int,
        keys_max: int,
        reserved_properties: Sequence[str],
        crc32_head: bytes,
        md5_head: bytes,
        system_end: bytes,
    ) -> PlainReader: ...

    # Returns topic, entries, message ids and keys of a SendMessageRequest; None: it is not plain. The digest of a body
    # whose CRC32 is below `crc_min` is MD5.
    def read(self, request: bytes, crc_min: int) -> tuple[str, list[Any], list[bytes], list[bytes]] | None: ...

    # Returns topic, queue id, entries, message ids and keys of a PublishRequest; None: it is not plain.
    def read_block(
        self, request: bytes, crc_min: int
    ) -> tuple[str, int, list[Any], list[bytes], list[bytes]] | None: ...

# Bytes of the frames, end in the log, and for each queue: itself, its new end, bytes of its entries, its messages.
Packed: TypeAlias = tuple[bytes, int, list[tuple[Any, int, bytes, list[Any]]]]

# Packs the messages of a call from `log_offset` on, and sets their places. None, and nothing is changed: they do not
# fit before `segment_end`, or a value does not fit its field. `queue_of` returns a queue by topic id and queue id, with
# its next offset, the stem of its messages, and that of the last one of a call; `more`: further records follow.
def pack_messages(
    entries: Iterable[Any],
    queue_of: Callable[[int, int], tuple[Any, int, bytes, bytes]],
    log_offset: int,
    segment_end: int,
    synced_end: int,
    store_ms: int,
    more: bool,
) -> Packed | None: ...
