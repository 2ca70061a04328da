"""The checkpoint comes back as it was written, or not at all."""

import struct
from dataclasses import replace

import pytest
from crc32c import crc32c

from evenq.errors import StoreError
from evenq.store.io.disk import read_whole, write_whole
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.opening import checkpoint
from evenq.store.opening.checkpoint import Checkpoint

GOOD = Checkpoint(
    log_offset=4_096, clean=True, last_store_ms=7, queues={(1, 0): (0, 5), (2, 3): (10, 20)}, log_start=64
)


def saved():
    disk = MemoryDisk()
    checkpoint.save(disk, GOOD)
    return disk, read_whole(disk, checkpoint.PATH)


def test_it_comes_back_as_it_was_written():
    disk, _ = saved()
    assert checkpoint.load(disk) == GOOD
    assert checkpoint.load(MemoryDisk()) is None


def test_any_flipped_or_missing_byte_is_seen():
    disk, data = saved()
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1
        write_whole(disk, checkpoint.PATH, bytes(damaged))
        assert checkpoint.load(disk) is None, place
        write_whole(disk, checkpoint.PATH, data[:place])
        assert checkpoint.load(disk) is None, place


def test_a_format_of_the_future_is_refused_not_guessed(monkeypatch):
    monkeypatch.setattr(checkpoint, "VERSION", 3)
    disk, data = saved()
    monkeypatch.setattr(checkpoint, "VERSION", 2)
    assert struct.unpack_from(">H", data, 8) == (3,)
    with pytest.raises(StoreError, match="has format version 3; this program reads versions 1 to 2: start a newer"):
        checkpoint.load(disk)


def test_version_1_is_still_read():
    disk, data = saved()
    body = struct.pack(">H", 1) + data[10:32] + data[40:]
    write_whole(disk, checkpoint.PATH, data[:4] + crc32c(body).to_bytes(4, "big") + body)
    assert checkpoint.load(disk) == replace(GOOD, log_start=0)
