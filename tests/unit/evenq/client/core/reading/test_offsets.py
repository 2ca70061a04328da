"""A file of progress that is not ours is refused with its name."""

import pytest

from evenq.client.core.reading.offsets import decode_offsets
from evenq.errors import StoreCorrupted


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"format": 9, "offsets": []}', b'{"format": 1, "offsets": [{}]}']
)
def test_garbage_is_refused_and_named(content: bytes) -> None:
    with pytest.raises(StoreCorrupted, match=r"offsets\.json"):
        decode_offsets(content, name="offsets.json")
