"""Records of another copy are put in place by the one who owns the folder, and nowhere else than in the log."""

from __future__ import annotations

import errno

import pytest
from evenq_proofs.fault_disk import FaultDisk
from evenq_proofs.made_log import made_log

from evenq.errors import StoreError, StoreFull, StoreLocked, StorePoisoned
from evenq.runtime.clock import FakeClock
from evenq.store import StoreOptions
from evenq.store.copies.copy_repair import end_of_file, rewrite_unopened
from evenq.store.copies.log_copy import LogCopy
from evenq.store.log.frame_walk import FrameWalk
from evenq.store.log.segment import path_of

LOG = made_log(4_096)
SEGMENT = LOG.segment_bytes


async def copied(disk: FaultDisk) -> LogCopy:
    copy = await LogCopy.open(
        None, StoreOptions(), clock=FakeClock(), disk=disk, broker_name="a", segment_bytes=SEGMENT
    )
    await copy.append(LOG.data[: whole_end()], start=0, then_sync=True)
    return copy


def whole_end() -> int:
    """Where the last whole group of records ends."""
    walk = FrameWalk(0, segment_bytes=SEGMENT)
    walk.take(memoryview(LOG.data), 0)
    return walk.boundary


async def test_a_copy_puts_records_in_place_and_syncs_them_and_goes_on():
    disk = FaultDisk()
    copy = await copied(disk)
    start, end = LOG.starts[3], LOG.starts[6]
    for at in range(start, end):
        disk.files[path_of(0)].data[at] ^= 0xFF
    await copy.rewrite(start, LOG.data[start:end])
    assert bytes(disk.files[path_of(0)].data) == bytes(disk.files[path_of(0)].synced) == LOG.data[:SEGMENT]
    for first, data in ((copy.end - 1, b"xx"), (copy.end, b"x"), (-1, b"x")):
        with pytest.raises(StoreError, match="has no records"):
            await copy.rewrite(first, data)
    assert await copy.append_epoch_start(99, b"x", 1) > whole_end()
    await copy.close()


async def test_a_disk_that_is_full_changes_nothing_and_one_that_fails_stops_the_copy():
    disk = FaultDisk()
    copy = await copied(disk)
    start, end = LOG.starts[3], LOG.starts[6]
    disk.faults_of["write"] = errno.ENOSPC
    with pytest.raises(StoreFull, match="cannot be repaired now"):
        await copy.rewrite(start, LOG.data[start:end])
    assert copy.failure is None
    disk.faults_of = {"sync": errno.EIO}
    with pytest.raises(StorePoisoned):
        await copy.rewrite(start, LOG.data[start:end])
    assert copy.failure is not None
    disk.faults_of = {}
    await copy.close()


async def test_a_folder_that_nobody_could_open_is_locked_while_it_is_repaired():
    disk = FaultDisk()
    copy = await copied(disk)
    start, end = LOG.starts[3], LOG.starts[6]
    with pytest.raises(StoreLocked):
        rewrite_unopened(disk, SEGMENT, start, LOG.data[start:end])
    await copy.close()
    disk.files[path_of(0)].data[start] ^= 1
    rewrite_unopened(disk, SEGMENT, start, LOG.data[start:end])
    assert bytes(disk.files[path_of(0)].data) == LOG.data[:SEGMENT]
    assert end_of_file(disk, SEGMENT, SEGMENT + 3) == 2 * SEGMENT
    with pytest.raises(FileNotFoundError):
        end_of_file(disk, SEGMENT, 100 * SEGMENT)
    copy = await LogCopy.open(
        None, StoreOptions(), clock=FakeClock(), disk=disk, broker_name="a", segment_bytes=SEGMENT
    )
    assert copy.end == whole_end()
    await copy.close()
