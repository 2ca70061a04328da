"""A manifest comes back as it was, and damage or another version is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenq.errors import StoreCorrupted, StoreError
from evenq.store.timers.keys import key_of
from evenq.store.timers.manifest import CRC_END, Manifest, RunUse, crc32c, pack, unpack

NUMBER = st.integers(0, 1 << 60)


@given(
    uses=st.lists(st.builds(RunUse, NUMBER, NUMBER, NUMBER), max_size=4), ended=st.sets(NUMBER, max_size=5),
    timers=st.lists(st.tuples(NUMBER, NUMBER), max_size=5), data=st.data(),
)  # fmt: skip
def test_what_was_packed_is_unpacked_and_any_flipped_byte_is_seen(uses, ended, timers, data):
    keys = [key_of(*timer, 1) for timer in timers]
    packed = pack(Manifest(next_run=3, floor=4, runs=tuple(uses), ended=ended, keys=keys))
    found = unpack(packed)
    assert (found.next_run, found.floor, found.runs) == (3, 4, tuple(uses))
    assert set(found.ended) == ended
    assert found.keys == sorted(keys)
    flipped = bytearray(packed)
    flipped[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(StoreCorrupted):
        unpack(bytes(flipped))
    with pytest.raises(StoreCorrupted):
        unpack(packed[:-1])


def test_an_unknown_version_is_refused_by_name():
    packed = bytearray(pack(Manifest(next_run=1, floor=0, keys=[])))
    packed[11] = 9
    packed[4:8] = crc32c(bytes(packed[CRC_END:])).to_bytes(4, "big")
    with pytest.raises(StoreError, match="format version 9"):
        unpack(bytes(packed))
