"""The mark of a copied log says what was written, or nothing."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from evenq_proofs.fault_disk import FaultDisk, Keep

from evenq.errors import StoreError
from evenq.store.opening import copied_mark
from evenq.store.opening.copied_mark import Mark, MarkFile

MARK = Mark(log_start=4096, scan_from=5_000, synced_end=9_000, clean=True, checkpoint_crc=77)


def test_a_mark_is_read_back_and_a_damaged_one_counts_as_none():
    disk = FaultDisk()
    assert copied_mark.load(disk) is None
    marks = MarkFile(disk)
    marks.write(Mark(resetting=True, log_start=8), durable=True)
    assert copied_mark.load(disk) == Mark(resetting=True, log_start=8)
    marks.write(MARK, durable=False)
    marks.close()
    assert copied_mark.load(disk) == MARK
    data = disk.files["copied"].data
    assert len(data) == 40
    for place in range(40):
        data[place] ^= 16
        assert copied_mark.load(disk) is None
        data[place] ^= 16
    del data[39:]
    assert copied_mark.load(disk) is None


def test_a_mark_of_a_newer_program_is_refused():
    disk = FaultDisk()
    MarkFile(disk).write(MARK, durable=True)
    data = disk.files["copied"].data
    data[9] = 2
    data[4:8] = crc32c(bytes(data[8:])).to_bytes(4, "big")
    with pytest.raises(StoreError, match="copied has format version 2; this program reads version 1"):
        copied_mark.load(disk)


def test_a_durable_mark_is_there_after_a_power_loss_and_another_leaves_that_one():
    disk = FaultDisk()
    marks = MarkFile(disk)
    marks.write(MARK, durable=True)
    before = disk.operations
    marks.write(Mark(synced_end=10_000), durable=False)
    assert disk.kinds[before:] == ["write"]
    assert copied_mark.load(disk.crash(Keep.NONE, None)) == MARK
