"""The table of epochs: what it becomes when the log grows, is cut and loses its beginning, and what its file says."""

from __future__ import annotations

import json

import pytest

from evenq.errors import StoreError
from evenq.store.copies import epoch_file
from evenq.store.copies.epoch_file import EpochStarts, derive
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log.record import pack, pack_padding

SEGMENT = 4096
TABLE = EpochStarts(((1, 0), (3, 100), (7, 900)), led=7)


def test_a_table_grows_and_is_cut_with_its_log():
    assert (TABLE.last, EpochStarts().last) == (7, 0)
    assert [TABLE.epoch_at(place) for place in (0, 99, 100, 899, 900, 5_000)] == [1, 1, 3, 3, 7, 7]
    assert TABLE.grown([], led=7) is TABLE
    assert TABLE.grown([]) == EpochStarts(TABLE.entries), "what was copied behind it is not of this folder's leader"
    assert TABLE.grown([(9, 950)], led=9) == EpochStarts((*TABLE.entries, (9, 950)), led=9)
    assert TABLE.cut(900) == TABLE.cut(101) == EpochStarts(((1, 0), (3, 100)))
    assert TABLE.cut(100).entries == ((1, 0),)
    assert TABLE.cut(0) == EpochStarts()
    assert TABLE.begun(500) == EpochStarts(((3, 500), (7, 900)), led=7)
    assert TABLE.begun(900) == EpochStarts(((7, 900),), led=7)
    assert TABLE.begun(0) == TABLE


def test_a_file_says_what_was_saved_or_nothing():
    disk = MemoryDisk()
    assert epoch_file.load(disk) is None
    epoch_file.save(disk, TABLE)
    assert epoch_file.load(disk) == TABLE
    whole = bytes(disk.files["epochs"].data)
    for place in range(len(whole)):
        disk.files["epochs"].data[:] = whole
        disk.files["epochs"].data[place] ^= 1
        try:
            found = epoch_file.load(disk)
        except StoreError:
            continue  # of the format
        assert found is None
    disk.files["epochs"].data[:] = whole[:-3]
    assert epoch_file.load(disk) is None
    disk.files["epochs"].data[:] = json.dumps({**json.loads(whole), "format": 2}).encode()
    with pytest.raises(StoreError, match="epochs has format 2; this program reads format 1: start a newer program"):
        epoch_file.load(disk)


@pytest.mark.parametrize("epochs", [[1] * 40, [1] * 12 + [2] * 14 + [5] * 14, [2, 3, 4] + [9] * 30, list(range(1, 40))])
def test_a_table_is_derived_from_headers_and_old_files_are_not_walked(monkeypatch, epochs):
    data, wanted = bytearray(), []
    for epoch in epochs:
        rest = SEGMENT - len(data) % SEGMENT
        if rest < 900:
            data += pack_padding(len(data), rest, epoch=epoch, synced_offset=0, store_ms=0).ljust(rest, b"\0")
            if rest >= 88 and epoch > (wanted[-1][0] if wanted else 0):
                wanted.append((epoch, len(data) - rest))
        if epoch > (wanted[-1][0] if wanted else 0):
            wanted.append((epoch, len(data)))
        data += pack(
            kind=2, flags=0, epoch=epoch, topic_id=0, queue_id=0, queue_offset=0, log_offset=len(data), synced_offset=0,
            store_ms=0, born_ms=0, tag_hash=0, head=bytes(812), system=b"",
        )  # fmt: skip
    disk = MemoryDisk()
    for start in range(0, len(data), SEGMENT):
        disk.open(f"commitlog/{start:020d}", create=True).pwrite([bytes(data[start : start + SEGMENT])], 0)
    walked = []
    plain = epoch_file.LogPieces.epochs
    monkeypatch.setattr(epoch_file.LogPieces, "epochs", lambda self, *span: walked.append(span) or plain(self, *span))
    assert derive(disk, SEGMENT, 0, len(data)) == tuple(wanted)
    assert len(walked) <= len({epoch for epoch, _ in wanted})
    begun = 2 * SEGMENT
    later = EpochStarts(tuple(wanted)).begun(begun).entries
    assert derive(disk, SEGMENT, begun, len(data)) == later
    assert derive(disk, SEGMENT, 0, 0) == ()
