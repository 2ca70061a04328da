from collections.abc import Callable, Sequence
from typing import Any, final

__version__: str  # of evenq, to which it belongs

# Reader of plain requests under the limits of one broker.
@final
class PlainReader:
    # `append` makes an entry for the store of (0, queue id, tag hash, born ms, head, system). `tag_hash_of` returns 0
    # for a tag that no message may have. Raises ValueError for an unknown digest or too many digits.
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
        digest: str,
        digest_head: bytes,
        system_end: bytes,
        key_digits: int,
    ) -> PlainReader: ...

    # Returns topic, entries, message ids and keys of a SendMessageRequest; None: it is not plain.
    def read(self, request: bytes) -> tuple[str, list[Any], list[bytes], list[bytes]] | None: ...

    # Returns topic, queue id, entries, message ids and keys of a PublishRequest; None: it is not plain.
    def read_block(self, request: bytes) -> tuple[str, int, list[Any], list[bytes], list[bytes]] | None: ...
