"""Every case of a start: all acknowledged messages are served, or the store refuses and names file, place and the next
step.
"""

from __future__ import annotations

import errno
import random
import re

import pytest
from evenq_proofs.fault_disk import BLOCK_BYTES, FaultDisk, image_of

from evenq.errors import StoreCorrupted, StoreError, StoreLocked
from evenq.runtime.clock import FakeClock
from evenq.store.log import record
from evenq.store.opening import checkpoint

COUNT = 60
HOUR = 3_600_000
NEXT_STEP = r"restore|start a newer|move it elsewhere|use the same name|start with an empty folder|check its|stop that"


def head(number):
    return b"%d" % number + b"." * 150


async def filled(open_store, message, *, clean, clock=None, **options):
    """A disk with three queues, states, several log files and two snapshots, and each message's store time."""
    disk = FaultDisk()
    opened = await open_store(disk, clock=clock, **options)
    for number in range(COUNT):
        await opened.store.append([message(head(number), queue_id=number % 3)])
        await opened.store.append_state(b"s%d" % number)
        if number in (20, 40):
            await opened.store.save_snapshot(b"%d" % (number + 1))
        if number == 50:
            await opened.store.checkpoint()
    if clean:
        await opened.store.close()
    image = image_of(disk)
    if not clean:
        await opened.store.close()
    return image


async def served(open_store, disk, count=COUNT):
    """All messages, and all of the state."""
    opened = await open_store(disk)
    try:
        for queue_id in range(3):
            assert await opened.contents(1, queue_id) == [head(number) for number in range(queue_id, count, 3)]
        assert int(opened.snapshots[0] if opened.snapshots else b"0") + len(opened.states) == count
    finally:
        await opened.store.close()
    return opened


async def outcome(open_store, disk, count=COUNT):
    """ "served", or the text of the refusal. Anything else fails."""
    try:
        await served(open_store, disk, count)
    except StoreError as error:
        return str(error)
    return "served"


def files(disk):
    return sorted(path for path, file in disk.files.items() if file.data and path != "lock")


@pytest.mark.parametrize("clean", [True, False])
async def test_a_clean_stop_and_a_kill_lose_nothing(open_store, message, clean):
    disk = await filled(open_store, message, clean=clean)
    first = await served(open_store, image_of(disk))
    assert first.store.stats.recovered_records < 2 * 20 + 2
    assert (await served(open_store, disk)).store.stats.recovered_cut_bytes == 0


async def test_a_torn_last_record_is_cut_and_the_rest_served(open_store, message):
    disk = await filled(open_store, message, clean=False)
    last = files(disk)[[path.startswith("commitlog") for path in files(disk)].index(True) :]
    path = [path for path in last if path.startswith("commitlog")][-1]
    whole = bytes(disk.files[path].data)
    torn = record.pack(
        kind=record.MESSAGE, flags=0, epoch=1, topic_id=1, queue_id=0, queue_offset=20, synced_offset=0,
        log_offset=int(path[-20:]) + len(whole), store_ms=1, born_ms=1, tag_hash=0, head=b"torn" * 50, system=b"",
    )  # fmt: skip
    for cut in (1, 50, 88, len(torn) - 1):
        image = image_of(disk)
        image.files[path].data += torn[:cut]
        opened = await served(open_store, image)
        assert opened.store.stats.recovered_cut_bytes == cut
        assert bytes(image.files[path].data) == whole


async def test_a_lost_suffix_is_refused_as_far_as_anything_vouches_for_it(open_store, message):
    for clean in (True, False):
        disk = await filled(open_store, message, clean=clean)
        path = [path for path in files(disk) if path.startswith("commitlog")][-1]
        del disk.files[path].data[-400 if clean else 0 :]
        found = await outcome(open_store, disk)
        assert re.search(r"commitlog/\d+ at byte \d+ \(log offset \d+\) has no whole record", found), found
        assert "restore the folder from a copy" in found


@pytest.mark.parametrize("clean", [True, False])
async def test_a_hole_is_refused_with_its_place(open_store, message, clean):
    disk = await filled(open_store, message, clean=clean)
    path = [path for path in files(disk) if path.startswith("commitlog")][-2]
    disk.files[path].data[1_000:2_000] = bytes(1_000)
    for name in disk.list("snapshot"):
        disk.remove(f"snapshot/{name}")
    disk.remove("checkpoint")
    found = await outcome(open_store, disk)
    assert re.search(rf"{path} at byte \d+ \(log offset \d+\) is damaged", found), found


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["flip", "zero", "cut", "gone"])
async def test_damage_anywhere_is_found_or_harmless(open_store, message, clean, damage):
    """Of a killed store's last record it cannot be known whether it is a flip from a torn write, and nothing vouches for a suffix behind
    the checkpoint that is not there at all: both are left out here.
    """
    disk = await filled(open_store, message, clean=clean)
    rng = random.Random(f"{clean} {damage}")
    log = [path for path in files(disk) if path.startswith("commitlog")][-1]
    served_count = 0
    for path in files(disk):
        for _ in range(1 if damage == "gone" else 12):
            image = image_of(disk)
            data = image.files[path].data
            end = len(data)
            if path == log and not clean:
                end = checkpoint.load(image).log_offset - int(log[-20:]) if damage == "cut" else end - 400
            place = rng.randrange(end)
            if damage == "flip":
                data[place] ^= 1 << rng.randrange(8)
            elif damage == "zero":
                data[place : place + 300] = bytes(min(300, len(data) - place))
            elif damage == "cut":
                del data[place:]
            else:
                image.remove(path)
            found = await outcome(open_store, image)
            served_count += found == "served"
            if found != "served":
                assert "memory:" in found, (path, place, found)
                assert re.search(f"{NEXT_STEP}|delete its consumequeue", found), (path, place, found)
    assert served_count > 5


async def test_a_stale_checkpoint_costs_reading_only(open_store, message):
    disk = FaultDisk()
    opened = await open_store(disk)
    old = []
    for number in range(COUNT):
        await opened.store.append([message(head(number), queue_id=number % 3)])
        await opened.store.append_state(b"s%d" % number)
        if number % 15 == 7:
            await opened.store.checkpoint()
            old.append(bytes(disk.files["checkpoint"].data))
    await opened.store.close()
    again = await open_store(image := image_of(disk))
    await again.store.close()
    old.append(bytes(image.files["checkpoint"].data))
    wanted = {path: bytes(disk.files[path].data) for path in files(disk) if path.startswith("consumequeue")}
    for data in old:
        for junk in (b"", b"torn"):
            image = image_of(disk)
            image.files["checkpoint"].data[:] = data
            if junk and data is not old[-1]:
                image.files[[path for path in files(image) if path.startswith("commitlog")][-1]].data += junk
            await served(open_store, image)
            assert {path: bytes(image.files[path].data) for path in wanted} == wanted


@pytest.mark.parametrize("loss", [(), ("checkpoint",), ("checkpoint", "consumequeue"), ("snapshot",)])
async def test_when_the_clock_went_back_store_times_still_never_fall(open_store, message, loss):
    disk, clock = FaultDisk(), FakeClock()
    opened = await open_store(disk, clock=clock)
    await opened.store.append([first := message()])
    clock.jump_wall(-2 * HOUR)
    await opened.store.append([second := message()])
    assert second.store_ms == first.store_ms
    await opened.store.save_snapshot(b"")
    await opened.store.close()
    image = image_of(disk)
    for path in loss:
        image.remove(path)
    clock.jump_wall(-2 * HOUR)
    again = await open_store(image, clock=clock)
    await again.store.append([third := message()])
    assert third.store_ms == first.store_ms
    clock.jump_wall(5 * HOUR)
    await again.store.append([fourth := message()])
    assert fourth.store_ms > first.store_ms
    assert await again.store.offset_at(1, 0, first.store_ms) == 0
    assert await again.store.offset_at(1, 0, first.store_ms + 1) == 3
    assert await again.store.offset_at(1, 0, fourth.store_ms + 1) == 4
    await again.store.close()


@pytest.mark.parametrize(("change", "text"), [("version", "has format version 2"), ("kind", "a record of kind 77")])
async def test_a_record_of_a_newer_program_is_refused_with_its_place(open_store, message, monkeypatch, change, text):
    disk = await filled(open_store, message, clean=False, segment_bytes=65_536)
    path = [path for path in files(disk) if path.startswith("commitlog")][-1]
    data = disk.files[path].data
    fields = {"kind": 77} if change == "kind" else {"kind": record.MESSAGE}
    monkeypatch.setattr(record, "VERSION", 2 if change == "version" else 1)
    data += record.pack(
        **fields, flags=0, epoch=1, topic_id=1, queue_id=0, queue_offset=20, synced_offset=0, store_ms=1, born_ms=1,
        log_offset=int(path[-20:]) + len(data), tag_hash=0, head=b"new", system=b"",
    )  # fmt: skip
    monkeypatch.undo()
    with pytest.raises(StoreError, match=rf"{path} at byte \d+ \(log offset \d+\).*{text}.*start a newer program"):
        await open_store(disk)
    assert bytes(disk.files[path].data) == bytes(data)


async def test_another_brokers_folder_and_a_second_owner_are_refused(open_store, message):
    disk = await filled(open_store, message, clean=True)
    with pytest.raises(StoreError, match="belongs to broker 'broker-a', this one is 'broker-b': use the same name"):
        await open_store(disk, name="broker-b")
    opened = await open_store(disk)
    with pytest.raises(StoreLocked, match=r"in use by process \d+: stop that broker"):
        await open_store(disk)
    await opened.store.close()
    await served(open_store, disk)


@pytest.mark.parametrize("kind", ["lock", "create", "write", "sync", "rename", "sync_folder"])
@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EIO, errno.ENOSPC])
async def test_a_folder_that_cannot_be_written_is_refused_and_left_as_it_was(open_store, message, kind, number):
    disk = await filled(open_store, message, clean=False)
    before = {path: bytes(disk.files[path].data) for path in files(disk) if path.startswith("commitlog")}
    disk.faults_of[kind] = number
    found = "served"
    try:
        opened = await open_store(disk)
    except StoreError as error:
        found = str(error)
    else:
        await opened.store.close()
    if number != errno.ENOSPC or kind == "lock":
        assert "memory:" in found
    disk.faults_of.clear()
    assert {path: bytes(disk.files[path].data) for path in before} == before
    await served(open_store, disk)


@pytest.mark.parametrize("clean", [True, False])
async def test_a_record_that_the_disk_cannot_read_is_refused_by_its_place_and_nothing_is_cut(
    open_store, message, clean
):
    """Decision 94: it may be there again with the next start, or come from another copy."""
    disk = await filled(open_store, message, clean=clean, segment_bytes=8 * BLOCK_BYTES)
    names = [path for path in files(disk) if path.startswith("commitlog")]
    refused = 0
    for name in names:
        for place in range(0, len(disk.files[name].data), BLOCK_BYTES):
            image = image_of(disk)
            for path in files(image):
                if path.startswith("checkpoint"):
                    image.remove(path)  # all of the log is read
            before = {path: bytes(image.files[path].data) for path in names}
            image.files[name].lose(place)
            with pytest.raises(StoreCorrupted, match=r"cannot be read: \[Errno 5\].*restore") as raised:
                await served(open_store, image)
            start = int(name.rpartition("/")[2])
            assert start <= raised.value.log_offset < start + place + BLOCK_BYTES
            assert {path: bytes(image.files[path].data) for path in before} == before
            image.files[name].lost.clear()
            await served(open_store, image)
            refused += 1
    assert refused >= 3
