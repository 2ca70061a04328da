from collections.abc import Callable, Sequence
from typing import Any, final

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
