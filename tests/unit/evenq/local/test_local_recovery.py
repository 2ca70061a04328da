"""Walking over the message store."""

from __future__ import annotations

import zlib

import pytest

from evenq.errors import StoreCorrupted
from evenq.local import local_recovery, records
from evenq.local.local_recovery import check_end, walk
from evenq.local.messages import Message
from evenq.local.partitions import Partitions
from evenq.local.statuses import ReadStatus
from evenq.store.io.files import ReadFiles
from evenq.store.io.memory_disk import MemoryDisk


@pytest.fixture
def store():
    disk = MemoryDisk()
    return Partitions(disk, "messageStore", 1_000, ReadFiles(disk, 4))


def fill(store, bodies):
    place = 0
    for offset, body in enumerate(bodies):
        message = Message("T", 0, body)
        payload = records.pack_payload(message)
        size = records.HEADER_BYTES + len(payload)
        left = 1_000 - place % 1_000
        if size > left:
            store.fill(place, [records.filler(left)])
            place += left
        message.offset, message.store_offset, message.stored_ms = offset, place, 1
        store.write(place, [records.pack_local(message, payload, zlib.crc32(payload)), payload], size)
        place += size
    return place


@pytest.mark.parametrize("chunk", [64, 120, 500, 4_096])
def test_it_finds_every_record_whatever_it_reads_at_once(store, chunk, monkeypatch):
    monkeypatch.setattr(local_recovery, "CHUNK_BYTES", chunk)
    bodies = [bytes([index % 256]) * (index * 37 % 700) for index in range(60)]
    end = fill(store, bodies)
    found = []
    walked = walk(store, 0, lambda message, _: found.append(message.body))
    assert found == bodies
    assert (walked.end, walked.status, walked.count) == (end, ReadStatus.EMPTY, 60)


def test_an_exactly_full_file_leads_to_the_next(store):
    end = fill(store, [bytes(450), bytes(450), b"x"])
    assert walk(store, 0, lambda *_: None).end == end == 1_051


def test_it_stops_at_damage_and_says_what_is_there(store):
    fill(store, [bytes(100)] * 3)
    store.write(160, [b"\1"], 1)
    walked = walk(store, 0, lambda *_: None)
    assert (walked.end, walked.count, walked.status) == (150, 1, ReadStatus.BAD_CHECKSUM)
    check_end(store, walked, 150)
    with pytest.raises(StoreCorrupted, match=r"0{20} at byte 150 \(store offset 150\): BAD_CHECKSUM"):
        check_end(store, walked, 151)


def test_an_empty_store_ends_where_it_begins(store):
    assert walk(store, 0, lambda *_: None).end == 0
