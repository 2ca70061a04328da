"""What vouches for a copied log when its folder is opened, and what a start makes sure."""

from __future__ import annotations

import random

import pytest
from evenq_proofs.fault_disk import BLOCK_BYTES, FaultDisk, Keep

from evenq.errors import StoreCorrupted, StoreError
from evenq.runtime.clock import FakeClock
from evenq.store import StoreOptions
from evenq.store.copies import copy_opening
from evenq.store.copies.log_copy import LogCopy
from evenq.store.opening import copied_mark
from evenq.store.opening.copied_mark import Mark, MarkFile

SEGMENT = 4096
FIRST = f"commitlog/{0:020d}"


async def follow(disk):
    return await LogCopy.open(
        None, StoreOptions(), clock=FakeClock(), disk=disk, broker_name="broker-a", segment_bytes=SEGMENT
    )


def killed(disk):
    """The same folder without its owner; what was not synced still is not."""
    disk.unlock()
    return disk


async def test_what_was_only_written_is_on_disk_when_a_start_is_over():
    disk = FaultDisk()
    copy = await follow(disk)
    for epoch in range(1, 12):
        await copy.append_epoch_start(epoch, bytes(800), 0)
    assert copy.synced_end == 0
    end, begun = copy.end, disk.operations
    again = await follow(killed(disk))
    assert (again.end, again.synced_end) == (end, end)
    assert "write" in disk.kinds[begun:], "a sync alone may bring nothing to disk"
    left = await follow(disk.crash(Keep.NONE, random.Random(1)))
    assert left.end == end
    await left.close()


async def test_a_checkpoint_of_a_store_that_led_since_vouches_too(open_store, message):
    disk = FaultDisk()
    copy = await follow(disk)
    await copy.close()
    opened = await open_store(disk)
    for _ in range(3):
        await opened.store.append([message(bytes(100))])
    end = opened.store.stats.log_end
    await opened.store.checkpoint()
    await opened.store.append([message(bytes(100))])
    again = await follow(disk.crash(Keep.ALL, random.Random(0)))
    assert again.end > end
    await again.close()
    image = disk.crash(Keep.ALL, random.Random(0))
    disk.dead = False
    del image.files[FIRST].data[end - 1 :]
    with pytest.raises(StoreCorrupted, match=rf"{FIRST} at byte {end - 1} .* the file ends here, and the log was on"):
        await follow(image)
    await opened.store.close()


@pytest.mark.parametrize("victim", [0, 1, 2])
async def test_a_missing_or_short_file_is_damage_wherever_it_is(victim):
    disk = FaultDisk()
    copy = await follow(disk)
    for epoch in range(1, 10):
        await copy.append_epoch_start(epoch, bytes(800), 0)
    await copy.close()
    names = disk.list("commitlog")
    assert len(names) == 3
    path = f"commitlog/{names[victim]}"
    image = disk.crash(Keep.ALL, random.Random(0))
    del image.files[path].data[-1:]
    with pytest.raises(StoreCorrupted, match=f"{path} at byte .* the file ends here"):
        await follow(image)
    image.remove(path)
    with pytest.raises(StoreCorrupted, match=f"{path}.* missing"):
        await follow(image)


async def test_a_folder_that_is_being_emptied_is_no_stores(open_store):
    disk = FaultDisk()
    copy = await follow(disk)
    await copy.append_epoch_start(1, b"", 0)
    await copy.close()
    MarkFile(disk).write(Mark(resetting=True, log_start=SEGMENT), durable=True)
    with pytest.raises(StoreError, match="was about to begin again at 4096"):
        await open_store(disk)
    again = await follow(disk)
    assert (again.start, again.end, again.epochs) == (SEGMENT, SEGMENT, ())
    assert disk.list("commitlog") == []
    assert copied_mark.load(disk).resetting is False
    await again.close()


async def test_a_record_of_a_newer_program_is_no_damage(monkeypatch):
    disk = FaultDisk()
    copy = await follow(disk)
    await copy.append_epoch_start(1, b"", 0)
    await copy.close()
    monkeypatch.setattr("evenq.store.log.frame_walk.KINDS", {1: "message"})
    with pytest.raises(
        StoreError, match="kind 2, which this program does not support; start a newer program"
    ) as raised:
        await follow(disk)
    assert not isinstance(raised.value, StoreCorrupted)


async def test_a_scan_in_small_pieces_sees_the_same(monkeypatch):
    disk = FaultDisk()
    copy = await follow(disk)
    for epoch in range(1, 30):
        await copy.append_epoch_start(epoch, bytes(epoch * 90), 0)
    wanted = (copy.end, copy.epochs)
    await copy.close()
    for piece_bytes in (88, 500, 4_096):
        monkeypatch.setattr(copy_opening, "PIECE_BYTES", piece_bytes)
        again = await follow(disk)
        assert (again.end, again.epochs) == wanted
        await again.close()


async def test_damage_in_a_group_that_only_a_record_behind_it_vouches_for_is_said_to_be_where_it_is(
    open_store, message, raw_log
):
    """Who repairs it from another copy looks for the damaged record, and the group begins before it."""
    disk = FaultDisk()
    opened = await open_store(disk)
    await opened.store.append([message(bytes(100)) for _ in range(4)])
    for _ in range(3):
        await opened.store.append([message(bytes(100))])
    log = raw_log(disk, opened.store.stats.log_end)
    image = disk.crash(Keep.ALL, random.Random(0))
    disk.dead = False
    begin, damaged = log.frames[0][0], log.frames[2][0]
    image.files[FIRST].data[damaged + 100] ^= 1
    with pytest.raises(StoreCorrupted, match=f"byte {damaged} .*the record at .* says that the log was") as caught:
        await follow(image)
    assert caught.value.log_offset == damaged > begin
    await opened.store.close()


@pytest.mark.parametrize("vouched", [True, False])
async def test_a_record_that_the_disk_cannot_read_is_damage_of_its_place_and_is_never_cut(vouched, monkeypatch):
    """Decision 94: another copy may repair it, and that it cannot be read says not that it was torn."""
    segment_bytes = 8 * BLOCK_BYTES
    monkeypatch.setattr(copy_opening, "PIECE_BYTES", 5 * BLOCK_BYTES)

    async def opened(disk):
        return await LogCopy.open(
            None, StoreOptions(), clock=FakeClock(), disk=disk, broker_name="broker-a", segment_bytes=segment_bytes
        )

    disk = FaultDisk()
    copy = await opened(disk)
    ends = [await copy.append_epoch_start(epoch, bytes(1_000 + epoch), 0) for epoch in range(1, 60)]
    starts = [0, *ends[:-1]]
    end = copy.end
    await copy.close()
    if not vouched:
        MarkFile(disk).write(Mark(), durable=True)
    named = set()
    for block in range(1, end // BLOCK_BYTES):
        image = disk.crash(Keep.ALL, random.Random(0))
        place = block * BLOCK_BYTES
        image.files[f"commitlog/{place // segment_bytes * segment_bytes:020d}"].lose(place % segment_bytes)
        before = {path: bytes(file.data) for path, file in image.files.items() if path.startswith("commitlog")}
        with pytest.raises(StoreCorrupted, match=r"cannot be read: \[Errno 5\]") as raised:
            await opened(image)
        assert place - 1_200 < raised.value.log_offset < place + BLOCK_BYTES
        named.add(raised.value.log_offset)
        assert {path: bytes(image.files[path].data) for path in before} == before
    assert len(named) >= end // BLOCK_BYTES - 3
    assert named <= {*starts, *(start + -start % segment_bytes for start in starts)}
