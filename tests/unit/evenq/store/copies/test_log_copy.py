"""A copied log is the leader's log: byte for byte, in whole groups, and a store can go on from it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import subprocess
import sys

import pytest
from evenq_proofs.fault_disk import FaultDisk, FaultFile, Keep

from evenq.errors import (
    BodyTooLarge,
    RecordsDamaged,
    StoreCorrupted,
    StoreError,
    StoreFull,
    StoreLocked,
    StorePoisoned,
)
from evenq.runtime.clock import FakeClock
from evenq.store import StoreOptions
from evenq.store.copies import epoch_file, log_copy
from evenq.store.copies.epoch_file import EpochStarts
from evenq.store.copies.log_copy import LogCopy
from evenq.store.io.disk import RealDisk
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log import snapshot
from evenq.store.log.frame_walk import AnnouncedEpochs
from evenq.store.log.log_pieces import LogPieces
from evenq.store.log.record import HEADER_BYTES, KINDS, PADDING, STATE, frame_at, pack, pack_padding
from evenq.store.opening import checkpoint

SEGMENT = 4096
COPY_IN_A_PROCESS = """
import asyncio, sys
from pathlib import Path
from evenq.store import StoreOptions
from evenq.store.copies.log_copy import LogCopy

async def main():
    copy = await LogCopy.open(Path(sys.argv[1]), StoreOptions(), broker_name="broker-a", segment_bytes=4096)
    print("open", flush=True)
    sys.stdin.read()

asyncio.run(main())
"""


@pytest.fixture(params=["memory", "folder"])
def folder(request, tmp_path):
    """Makes data folders, in memory or real ones; each can be opened again."""
    made = {}

    def make(name="follower"):
        if name not in made:
            made[name] = MemoryDisk() if request.param == "memory" else tmp_path / name
        return made[name]

    return make


def disk_of(where):
    return where if isinstance(where, MemoryDisk) else RealDisk(where)


async def follow(where, *, name="broker-a", segment_bytes=SEGMENT, clock=None):
    disk = where if isinstance(where, MemoryDisk) else None
    return await LogCopy.open(
        None if disk else where, StoreOptions(), clock=clock or FakeClock(), disk=disk, broker_name=name,
        segment_bytes=segment_bytes,
    )  # fmt: skip


async def fetch(copy, leader, end, rng, *, bytes_max=(1, 700, 9_000)):
    """Take a leader's log from where the copy ends, piece by piece."""
    pieces = LogPieces(disk_of(leader), SEGMENT)
    while copy.end < end:
        piece = pieces.read(copy.end, end, rng.choice(bytes_max))
        wanted = copy.end + len(piece)
        assert await copy.append(rng.choice([piece, memoryview(piece)]), start=copy.end) == wanted == copy.end
        if rng.random() < 0.3:
            assert await copy.sync() == copy.synced_end == copy.end
    pieces.close()


def log_of(where):
    """The bytes of the log's files, which follow each other."""
    disk, data = disk_of(where), b""
    for name in disk.list("commitlog"):
        file = disk.open(f"commitlog/{name}")
        assert int(name) == len(data)
        data += file.pread(1 << 20, 0)
        file.close()
    return data


@pytest.fixture
def written(open_store, write_mixed, raw_log):
    """Let a store write to a folder and close it; returns its log."""

    async def make(where, *, seed=1, rounds=30):
        opened = await open_store(where)
        await write_mixed(opened.store, seed=seed, rounds=rounds)
        end = opened.store.stats.log_end
        await opened.store.close()
        return raw_log(disk_of(where), end)

    return make


async def all_of(opened):
    """Everything that a store can tell."""
    store, messages = opened.store, []
    for queue_id in range(3):
        low, high = store.queue_range(1, queue_id)
        at = await store.read_at(1, queue_id, range(low, high))
        messages.append(
            [(m.queue_offset, m.log_offset, m.born_ms, m.store_ms, m.tag_hash, m.head, m.system) for m in at]
        )
        assert len(at) == high - low
    return messages, store.timers.stats.pending, store.last_store_ms, store.stats.log_end


def made(groups, *, start=0, synced=0):
    """Bytes of a log from `start` on; each group is an epoch and the sizes of its records' payloads."""
    data = bytearray()
    for epoch, sizes in groups:
        for number, size in enumerate(sizes):
            at = start + len(data)
            rest = SEGMENT - at % SEGMENT
            if HEADER_BYTES + size > rest:
                data += pack_padding(at, rest, epoch=epoch, synced_offset=0, store_ms=5).ljust(rest, b"\0")
                at += rest
            data += pack(
                kind=STATE, flags=number < len(sizes) - 1, epoch=epoch, topic_id=0, queue_id=0, queue_offset=0,
                log_offset=at, synced_offset=synced, store_ms=5, born_ms=5, tag_hash=0, head=bytes([epoch]) * size,
                system=b"",
            )  # fmt: skip
    return bytes(data)


# -- what was copied --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
async def test_a_store_opens_on_a_copy_as_on_the_leaders_log(open_store, written, folder, seed):
    log = await written(folder("leader"), seed=seed, rounds=40)
    kinds = {frame.kind for at, _ in log.frames if (frame := frame_at(log.data, at, at))}
    assert kinds == set(KINDS)
    copy = await follow(folder())
    assert (copy.start, copy.end, copy.synced_end, copy.epochs) == (0, 0, 0, ())
    await fetch(copy, folder("leader"), len(log.data), random.Random(seed))
    assert copy.epochs == ((1, 0),)
    assert await copy.read(0, 1 << 40, 1 << 20) == log.data
    await copy.close()
    assert log_of(folder()) == log.data
    leader, follower = await open_store(folder("leader")), await open_store(folder())
    wanted = await all_of(leader)
    assert await all_of(follower) == wanted
    assert follower.states == leader.states
    assert min(len(wanted[0][0]), len(leader.states), wanted[1]) > 3
    await leader.store.close()
    await follower.store.close()


async def test_what_does_not_begin_at_the_end_is_refused(written):
    log = await written(FaultDisk(), rounds=4)
    copy = await follow(MemoryDisk())
    for start in (1, len(log.data)):
        with pytest.raises(StoreError, match=rf"from log offset {start} on cannot follow a log that ends at 0"):
            await copy.append(log.data, start=start)
    assert await copy.append(b"", start=0) == 0
    assert await copy.append(log.data, start=0) == len(log.data)
    await copy.close()


async def test_damaged_and_cut_pieces_are_refused_whole_with_place_and_reason(written):
    log = await written(FaultDisk(), rounds=10)
    disk = MemoryDisk()
    copy = await follow(disk)
    half = log.boundaries[len(log.boundaries) // 2]
    await copy.append(log.data[:half], start=0)
    before = log_of(disk)
    rng = random.Random(4)
    for at, size in [frame for frame in log.frames if frame[0] >= half]:
        position = at + rng.randrange(size)
        data = bytearray(log.data[half:])
        data[position - half] ^= 1 << rng.randrange(8)
        with pytest.raises(RecordsDamaged, match=rf"at log offset {at}: .+") as raised:
            await copy.append(data, start=half)
        assert raised.value.log_offset == at
    inside = {at for at, _ in log.frames if at > half} - set(log.boundaries)
    assert inside, "whole records, but not their whole group"
    for end in inside:
        with pytest.raises(RecordsDamaged, match="its group continues after the received bytes"):
            await copy.append(log.data[half:end], start=half)
    for end in sorted(set(range(half + 1, len(log.data), 37)) - set(log.boundaries)):
        with pytest.raises(RecordsDamaged, match=r"middle of a record|continues after the received bytes"):
            await copy.append(log.data[half:end], start=half)
    with pytest.raises(RecordsDamaged, match="no record of this place"):
        await copy.append(log.data[: log.boundaries[1]], start=half)
    assert log_of(disk) == before
    assert (copy.end, copy.failure) == (half, None)
    await copy.append(log.data[half:], start=half)
    await copy.close()
    assert log_of(disk) == log.data


# -- epochs -----------------------------------------------------------------------------------------------------------


async def test_a_leaders_epoch_begins_with_a_state_record_and_is_filed_first(folder):
    copy = await follow(folder())
    places = []
    for epoch in range(1, 60):
        before = copy.end
        end = await copy.append_epoch_start(epoch, bytes(epoch % 7 * 100), 1_000 - epoch)
        places.append((epoch, before))
        assert end == copy.end
    data = log_of(folder())
    for epoch, at in copy.epochs:
        rest = SEGMENT - at % SEGMENT
        frame = frame_at(data, at, at)
        assert frame.epoch == epoch
        assert at in {
            places[epoch - 1][1],
            places[epoch - 1][1] + rest,
            -(-places[epoch - 1][1] // SEGMENT) * SEGMENT,
        }
        if frame.kind != STATE:
            frame = frame_at(data, at + rest, at + rest)
        assert (frame.kind, frame.head, frame.epoch) == (STATE, bytes(epoch % 7 * 100), epoch)
        assert frame.store_ms == 999, "store times never fall"
    assert [epoch for epoch, _ in copy.epochs] == list(range(1, 60))
    with pytest.raises(StoreError, match="epoch 59 cannot begin after epoch 59"):
        await copy.append_epoch_start(59, b"", 0)
    with pytest.raises(BodyTooLarge, match="exceeds the log's file size of 4096 bytes"):
        await copy.append_epoch_start(60, bytes(SEGMENT), 0)
    wanted = copy.epochs
    await copy.close()
    again = await follow(folder())
    assert again.epochs == wanted
    follower = await follow(folder("second"))
    await fetch(follower, folder(), again.end, random.Random(1), bytes_max=(1, 5_000))
    assert follower.epochs == wanted, "who copies derives the same table"
    await again.close()
    await follower.close()


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ([(2, [10])], "the record has epoch 2 behind epoch 3: epochs never fall"),
        ([(3, [1]), (4, [1]), (3, [1])], "the record has epoch 3 behind epoch 4: epochs never fall"),
        ([(0, [10])], "the record has epoch 0 behind epoch 3: epochs never fall"),
    ],
)
async def test_an_epoch_that_falls_is_refused(groups, reason):
    copy = await follow(MemoryDisk())
    await copy.append(made([(1, [5]), (3, [5])]), start=0)
    end = copy.end
    with pytest.raises(RecordsDamaged, match=reason):
        await copy.append(made(groups, start=end), start=end)
    assert (copy.end, [epoch for epoch, _ in copy.epochs]) == (end, [1, 3])
    await copy.close()


async def test_an_epoch_that_begins_inside_of_a_group_is_refused():
    copy = await follow(MemoryDisk())
    first = made([(1, [5, 5])])[: HEADER_BYTES + 5]
    data = first + made([(2, [5])], start=len(first))
    with pytest.raises(RecordsDamaged, match="epoch 2 begins in the middle of a group of epoch 1"):
        await copy.append(data, start=0)
    await copy.close()


EPOCHS = [(1, [700] * 2), (1, [1_500]), (3, [10]), (4, [900, 3_000]), (4, [5]), (8, [40]), (8, [2_000, 2_000])]


@pytest.mark.parametrize("damage", ["missing", "flipped", "older", "newer", "of another log"])
@pytest.mark.parametrize("scan_bytes", [1, 1 << 20], ids=["little was scanned", "all was scanned"])
async def test_an_epoch_table_that_does_not_fit_is_made_to_fit(monkeypatch, damage, scan_bytes):
    monkeypatch.setattr(log_copy, "SCAN_BYTES", scan_bytes)
    disk, data = FaultDisk(), made(EPOCHS)
    copy = await follow(disk)
    for end in ends_of(EPOCHS):
        await copy.append(data[copy.end : end], start=copy.end)
        await copy.sync()
    wanted = copy.epochs
    assert [epoch for epoch, _ in wanted] == [1, 3, 4, 8]
    await copy.close()
    if damage == "missing":
        disk.remove("epochs")
    elif damage == "flipped":
        disk.files["epochs"].data[30] ^= 1
    else:
        entries = {"older": wanted[:2], "newer": (*wanted, (999, copy.end)), "of another log": ((7, 0),)}[damage]
        epoch_file.save(disk, EpochStarts(entries))
    again = await follow(disk)
    assert again.epochs == wanted
    assert epoch_file.load(disk).entries == wanted, "and the file is right again"
    await again.append_epoch_start(9, b"", 0)
    assert epoch_file.load(disk).entries == again.epochs == (*wanted, (9, len(data)))
    await again.close()


def ends_of(groups):
    """Where each of the groups ends."""
    return [len(made(groups[: number + 1])) for number in range(len(groups))]


async def test_a_log_from_before_there_were_epochs_has_one(open_store, message):
    disk = MemoryDisk()
    opened = await open_store(disk)
    await opened.store.close()
    copy = await follow(disk)
    assert copy.epochs == (), "no record, no epoch"
    await copy.close()
    disk.remove("epochs")
    opened = await open_store(disk)
    for _ in range(40):
        await opened.store.append([message(bytes(500))])
    await opened.store.close()
    copy = await follow(disk)
    assert copy.epochs == ((1, 0),)
    await copy.close()


async def test_the_table_keeps_the_last_epochs_up_to_its_limit(monkeypatch):
    assert epoch_file.ENTRIES_MAX == 1_000
    monkeypatch.setattr(epoch_file, "ENTRIES_MAX", 20)
    disk = MemoryDisk()
    copy = await follow(disk)
    await copy.append(made([(1 + number, [1]) for number in range(30)]), start=0)
    for epoch in range(31, 60):
        await copy.append_epoch_start(epoch, b"", 0)
    assert [epoch for epoch, _ in copy.epochs] == list(range(40, 60))
    wanted = copy.epochs
    await copy.close()
    for file in ("", "epochs"):
        disk.remove(file or "nothing")
        again = await follow(disk)
        assert again.epochs == wanted
        await again.close()


async def test_records_of_other_epochs_than_the_leader_announced_are_not_written():
    """Whole frames at their place, of a file that the leader should no longer read: only the epochs tell (I4)."""
    disk = MemoryDisk()
    copy = await follow(disk)
    await copy.append(made([(1, [10])]), start=0, announced=AnnouncedEpochs(0, ((1, 0),)))
    end = copy.end
    old = made([(2, [10, 10])], start=end)
    for announced, reason in [
        (AnnouncedEpochs(1, ()), f"at log offset {end}: epoch 2 begins, which the leader does not have there"),
        (AnnouncedEpochs(1, ((3, end),)), f"at log offset {end}: no record of epoch 3"),
        (AnnouncedEpochs(1, ((2, end - HEADER_BYTES),)), f"epoch 2 begins, which the leader has at {end - 88}"),
    ]:
        with pytest.raises(RecordsDamaged, match=reason) as raised:
            await copy.append(old, start=end, announced=announced)
        assert raised.value.log_offset == end
    assert (copy.end, copy.epochs, len(log_of(disk).rstrip(b"\0")) <= end) == (end, ((1, 0),), True)
    await copy.append(old, start=end, announced=AnnouncedEpochs(1, ((2, end),)))
    assert copy.epochs == ((1, 0), (2, end))
    await copy.close()


async def test_the_zeros_at_the_end_of_a_file_may_come_alone(folder):
    copy = await follow(folder())
    data = made([(1, [SEGMENT - HEADER_BYTES - 40])])
    await copy.append(data, start=0)
    await copy.close()
    copy = await follow(folder())
    assert copy.end == SEGMENT - 40, "as long as the leader's is not known to go on"
    await copy.append(bytes(40), start=SEGMENT - 40)
    assert copy.end == SEGMENT
    await copy.append_epoch_start(2, b"", 0)
    await copy.close()
    assert frame_at(log_of(folder())[SEGMENT:], 0, SEGMENT).store_ms == 5, "store times never fall"
    copy = await follow(folder())
    assert copy.epochs == ((1, 0), (2, SEGMENT))
    await copy.truncate(SEGMENT)
    await copy.close()
    copy = await follow(folder())
    assert copy.end == SEGMENT
    await copy.truncate(SEGMENT - 40)
    assert copy.end == len(log_of(folder())) == SEGMENT - 40
    await copy.close()


async def test_the_table_is_on_disk_before_the_first_record_of_an_epoch():
    disk = FaultDisk()
    copy = await follow(disk)
    await copy.append(made([(1, [5])]), start=0)
    await copy.sync()
    begun = disk.operations
    await copy.append(made([(2, [5])], start=copy.end), start=copy.end)
    kinds = disk.kinds[begun:]
    assert kinds[-2:] == ["sync_folder", "write"]
    assert kinds.index("sync") < kinds.index("rename") < len(kinds) - 1
    begun = disk.operations
    await copy.append(made([(2, [5])], start=copy.end), start=copy.end)
    assert disk.kinds[begun:] == ["write"], "an epoch that is known costs nothing"
    await copy.close()


# -- a start ----------------------------------------------------------------------------------------------------------


def _image(disk, size):
    """The folder as a kill leaves it whose last writes got to `size` bytes of log."""
    image = disk.crash(Keep.ALL, random.Random(0))
    disk.dead = False
    for name in image.list("commitlog"):
        if int(name) > size or (int(name) == size and size % 2):  # an empty file may be there or not
            image.remove(f"commitlog/{name}")
        else:
            del image.files[f"commitlog/{name}"].data[max(0, size - int(name)) :]
    return image


def _needed(log):
    """Each place between groups, and how many bytes must be there for it: of a padding, its header."""
    needed = {0: 0}
    paddings = {
        at + size: at for at, size in log.frames if (frame := frame_at(log.data, at, at)) and frame.kind == PADDING
    }
    for boundary in log.boundaries[1:]:
        needed[boundary] = paddings[boundary] + HEADER_BYTES if boundary in paddings else boundary
    return needed


@pytest.mark.parametrize("seed", range(2))
async def test_a_kill_at_any_byte_leaves_whole_groups(written, seed):
    leader, disk = FaultDisk(), FaultDisk()
    log = await written(leader, seed=seed, rounds=9)
    end, sure = len(log.data), log.boundaries[len(log.boundaries) // 2]
    copy = await follow(disk)
    await copy.append(log.data[:sure], start=0)
    await copy.sync()
    await copy.append(log.data[sure:], start=sure)
    needed, refused, kept = _needed(log), 0, set()
    edges = {at + part for at, size in log.frames for part in (1, HEADER_BYTES - 1, HEADER_BYTES, size - 1, size)}
    for size in sorted({sure - 1, sure, *range(0, sure, 301), *range(sure, end, 83), *edges, end}):
        if size > end:
            continue
        image = _image(disk, size)
        if size < sure:
            with pytest.raises(StoreCorrupted, match=r"commitlog/\d+ at byte \d+ .* is damaged: .*was on disk up to"):
                await follow(image)
            refused += 1
            continue
        again = await follow(image)
        wanted = max(boundary for boundary, bytes_needed in needed.items() if bytes_needed <= size)
        assert (again.end, again.synced_end) == (wanted, wanted)
        assert again.stopped_clean is False
        if wanted not in kept:
            kept.add(wanted)
            assert await again.read(0, wanted, 1 << 20) == log.data[:wanted]
            await fetch(again, leader, end, random.Random(size))
            await again.close()
            assert log_of(image) == log.data
        else:
            await again.close()
    assert refused > 10
    assert kept == {boundary for boundary in log.boundaries if boundary >= sure}


async def test_a_flipped_byte_is_damage_below_the_mark_and_a_torn_tail_above(written):
    disk = FaultDisk()
    log = await written(FaultDisk(), rounds=16)
    sure = log.boundaries[len(log.boundaries) // 2]
    copy = await follow(disk)
    await copy.append(log.data[:sure], start=0)
    await copy.sync()
    await copy.append(log.data[sure:], start=sure)
    rng = random.Random(2)
    for at, size in log.frames:
        frame = frame_at(log.data, at, at)
        covered = HEADER_BYTES if frame is not None and frame.kind == PADDING else size
        position = at + rng.randrange(covered)
        image = _image(disk, len(log.data))
        path = f"commitlog/{position // SEGMENT * SEGMENT:020d}"
        image.files[path].data[position % SEGMENT] ^= 1 << rng.randrange(8)
        if at < sure:
            with pytest.raises(StoreCorrupted, match=rf"{path} at byte {at % SEGMENT} .log offset {at}. is damaged"):
                await follow(image)
        else:
            again = await follow(image)
            assert again.end == max(boundary for boundary in log.boundaries if boundary <= at)
            assert again.cut_bytes == len(log.data) - again.end
            await again.close()


async def test_a_start_reads_only_the_end_of_a_long_log(monkeypatch):
    monkeypatch.setattr(log_copy, "SCAN_BYTES", 10_000)
    disk = FaultDisk()
    copy = await follow(disk)
    for _ in range(100):
        await copy.append(made([(1, [900])] * 4, start=copy.end), start=copy.end)
        await copy.sync()
    end = copy.end
    await copy.close()
    reads = []
    plain = FaultFile.pread
    monkeypatch.setattr(FaultFile, "pread", lambda self, size, at: reads.append(size) or plain(self, size, at))
    again = await follow(disk)
    assert again.end == end
    assert 10_000 <= sum(reads) < 30_000
    await again.close()


async def test_the_leaders_words_about_its_disk_are_not_taken_for_words_about_this_one():
    disk = FaultDisk()
    copy = await follow(disk)
    data = made([(1, [50]), (1, [50]), (1, [50])], synced=1 << 30)
    await copy.append(data, start=0)
    image = _image(disk, len(data))
    image.files[f"commitlog/{0:020d}"].data[HEADER_BYTES + 60] ^= 1  # a power loss, while the leader had synced all
    again = await follow(image)
    assert again.end == HEADER_BYTES + 50
    await again.close()
    await copy.close()


async def test_the_words_of_the_epoch_that_was_led_here_do_count(open_store, message):
    """A leader confirms by its own sync, which no mark tells of."""
    disk = FaultDisk()
    copy = await follow(disk)
    await copy.append_epoch_start(5, b"", 0)
    await copy.close()
    opened = await open_store(disk, epoch=5)
    place = opened.store.stats.log_end
    for _ in range(3):
        await opened.store.append([message(bytes(50))])
    image = _image(disk, opened.store.stats.log_end)
    image.files[f"commitlog/{0:020d}"].data[place + HEADER_BYTES] ^= 1
    with pytest.raises(StoreCorrupted, match=rf"log offset {place}. is damaged: the record at \d+ says"):
        await follow(image)
    other = _image(disk, opened.store.stats.log_end)
    whole = await follow(other)
    assert whole.end == opened.store.stats.log_end
    await whole.append(made([(6, [9])], start=whole.end), start=whole.end)
    await whole.close()
    await opened.store.close()


# -- cutting ----------------------------------------------------------------------------------------------------------


async def test_a_log_is_cut_between_groups_only(written, folder):
    log = await written(folder("leader"), rounds=7)
    end = len(log.data)
    copy = await follow(folder())
    for number, boundary in enumerate(reversed(log.boundaries)):
        await fetch(copy, folder("leader"), end, random.Random(number))
        for place in {boundary - 1, boundary + 1, boundary + 50} - set(log.boundaries):
            with pytest.raises(StoreError, match=rf"cannot be cut at {place}"):
                await copy.truncate(place)
        await copy.truncate(boundary)
        assert (copy.end, copy.synced_end) == (boundary, boundary)
        assert log_of(folder()) == log.data[:boundary]
        other = made([(2, [300]), (2, [2_000, 100])], start=boundary)
        await copy.append(other, start=boundary)
        epochs = copy.epochs
        assert epochs == (*([(1, 0)] if boundary else []), (2, log_start_of(other, boundary)))
        await copy.close()
        copy = await follow(folder())
        assert (copy.end, copy.epochs) == (boundary + len(other), epochs)
        assert log_of(folder()) == log.data[:boundary] + other
        await copy.truncate(boundary)
        assert copy.epochs == (((1, 0),) if boundary else ())
    await copy.close()


def log_start_of(data, start):
    """Where the first frame of these bytes begins: behind the zeros of a file's end that no header fits in."""
    rest = SEGMENT - start % SEGMENT
    return start + rest if rest < HEADER_BYTES else start


async def test_what_was_derived_beyond_a_cut_goes(open_store, written, caplog):
    disk = FaultDisk()
    opened = await open_store(disk)
    await opened.store.append_state(b"first")
    await opened.store.save_snapshot(b"early")
    early = opened.store.stats.log_end
    for _ in range(30):
        await opened.store.append_state(bytes(500))
    await opened.store.save_snapshot(b"late")
    await opened.store.close()
    assert checkpoint.load(disk).clean
    copy = await follow(disk)
    await copy.truncate(early)
    assert checkpoint.load(disk) is None
    assert disk.list("snapshot") == [f"{early:020d}"]
    assert "beyond the new end of the log" in caplog.text
    await copy.append(made([(2, [30])], start=early), start=early)
    await copy.close()
    again = await open_store(disk.crash(Keep.NONE, random.Random(0)))
    assert (again.snapshots, again.states) == ([b"early"], [bytes([2]) * 30])
    await again.store.close()


async def test_a_clean_checkpoint_is_not_clean_any_more_before_a_byte_is_appended(open_store, message):
    disk = FaultDisk()
    opened = await open_store(disk)
    await opened.store.append([message()])
    await opened.store.close()
    copy = await follow(disk)
    assert copy.stopped_clean
    assert checkpoint.load(disk).clean, "a look changes nothing"
    disk.faults_of["sync"] = errno.EIO  # the first sync is the checkpoint's
    size = copy.end
    with pytest.raises(StorePoisoned):
        await copy.append(made([(1, [30])], start=copy.end), start=copy.end)
    assert len(log_of(disk)) == size
    disk.faults_of.clear()
    await copy.close()
    copy = await follow(disk)
    await copy.append(made([(1, [30])], start=copy.end), start=copy.end)
    assert not checkpoint.load(disk).clean
    image = disk.crash(Keep.NONE, random.Random(1))
    again = await follow(image)
    assert not again.stopped_clean
    await again.close()


async def test_whether_the_last_owner_stopped_in_order_is_told(open_store, message):
    disk = FaultDisk()
    copy = await follow(disk)
    assert not copy.stopped_clean, "a new folder"
    await copy.append_epoch_start(2, b"", 0)
    await copy.close()
    copy = await follow(disk)
    assert copy.stopped_clean
    image = _image(disk, copy.end)
    await copy.close()
    again = await follow(image)
    assert again.stopped_clean, "it was killed before it changed anything"
    await again.close()
    opened = await open_store(disk, epoch=2)
    image = _image(disk, opened.store.stats.log_end)
    assert not (await follow(image)).stopped_clean, "a leader was killed, though it had written nothing"
    await opened.store.append([message()])
    await opened.store.close()
    copy = await follow(disk)
    assert copy.stopped_clean
    await copy.close()


# -- beginning anew, and letting go -----------------------------------------------------------------------------------


async def test_a_reset_leaves_nothing_and_the_log_begins_where_it_was_told(open_store, written, folder):
    opened = await open_store(folder(), snapshot_of=lambda: b"old")
    for _ in range(20):
        await opened.store.append_state(bytes(700))
    await opened.store.save_snapshot(b"old")
    await opened.store.close()
    copy = await follow(folder())
    for start in (-SEGMENT, 1, SEGMENT + 8):
        with pytest.raises(StoreError, match=f"cannot begin at {start}"):
            await copy.reset(start)
    await copy.reset(3 * SEGMENT)
    assert (copy.start, copy.end, copy.synced_end, copy.epochs) == (3 * SEGMENT, 3 * SEGMENT, 3 * SEGMENT, ())
    disk = disk_of(folder())
    assert [disk.list(name) for name in ("commitlog", "snapshot", "consumequeue", "index", "timers")] == [[]] * 5
    assert "checkpoint" not in disk.list("")
    data = made([(4, [3_000]), (5, [3_000])], start=3 * SEGMENT)
    await copy.append(data, start=3 * SEGMENT)
    epochs = copy.epochs
    assert epochs[0] == (4, 3 * SEGMENT)
    await copy.close()
    copy = await follow(folder())
    assert (copy.start, copy.end, copy.epochs) == (3 * SEGMENT, 3 * SEGMENT + len(data), epochs)
    with pytest.raises(StoreError, match="does not exist: the log begins later"):
        await copy.read(0, copy.end, 100)
    await copy.reset(0)
    log = await written(folder("leader"))
    await fetch(copy, folder("leader"), len(log.data), random.Random(5))
    await copy.close()
    one, two = await open_store(folder()), await open_store(folder("leader"))
    assert await all_of(one) == await all_of(two)
    assert one.snapshots == []
    await one.store.close()
    await two.store.close()


async def test_a_kill_in_a_reset_leaves_the_old_log_or_none(open_store):
    disk = FaultDisk()
    opened = await open_store(disk)
    for _ in range(30):
        await opened.store.append_state(bytes(700))
    await opened.store.save_snapshot(b"old")
    end = opened.store.stats.log_end
    await opened.store.close()
    begin, outcomes = 3 * SEGMENT, set()
    assert end > 5 * SEGMENT
    for number in range(1 << 20):
        image = _image(disk, 1 << 40)
        copy = await follow(image)
        image.cut = (image.operations + number, 20)
        with contextlib.suppress(StorePoisoned):
            await copy.reset(begin)
        if not image.dead:
            break
        for keep in Keep:
            left = image.crash(keep, random.Random(number))
            again = await follow(left)
            outcomes.add((again.start, again.end, len(left.list("snapshot")), "checkpoint" in left.list("")))
            await again.close()
    assert outcomes == {(0, end, 1, True), (begin, begin, 0, False)}
    assert number > 8


async def _trimmable(open_store, write_mixed, where):
    """A folder with two snapshots and a checkpoint; returns where the older snapshot is, and the log's end."""
    opened = await open_store(where)
    await write_mixed(opened.store, rounds=30)
    await opened.store.save_snapshot(b"one")
    await write_mixed(opened.store, seed=2, rounds=10)
    await opened.store.save_snapshot(b"two")
    reach = opened.store.stats.log_end
    await write_mixed(opened.store, seed=3, rounds=10)
    wanted = await all_of(opened)
    await opened.store.close()
    return reach, wanted


async def test_old_files_go_if_a_store_can_go_on_without_them(open_store, write_mixed, folder):
    reach, wanted = await _trimmable(open_store, write_mixed, folder())
    copy = await follow(folder())
    names = disk_of(folder()).list("commitlog")
    over = (reach // SEGMENT + 1) * SEGMENT
    assert not await copy.trim(over), "no snapshot reaches that far"
    assert not await copy.trim(copy.end + -copy.end % SEGMENT + SEGMENT)
    assert disk_of(folder()).list("commitlog") == names
    with pytest.raises(StoreError, match="cannot begin at 100"):
        await copy.trim(100)
    begin = reach // SEGMENT * SEGMENT
    assert await copy.trim(begin)
    assert await copy.trim(SEGMENT), "it does already"
    assert copy.start == begin
    assert copy.epochs == ((1, begin),)
    checkpointed, saved = checkpoint.load(disk_of(folder())), snapshot.load(disk_of(folder()), log_start=begin)
    assert checkpointed.log_start == saved.log_start == begin
    minima = {key: low for key, (low, _) in checkpointed.queues.items()}
    assert minima == {key: low for key, (low, _) in saved.queues.items()}
    assert min(minima.values()) > 0
    assert disk_of(folder()).list("commitlog") == [name for name in names if int(name) >= begin]
    data = made([(2, [50])], start=copy.end)
    await copy.append(data, start=copy.end)
    await copy.close()
    copy = await follow(folder())
    assert (copy.start, copy.epochs[0]) == (begin, (1, begin))
    await copy.truncate(copy.epochs[1][1])
    await copy.close()
    opened = await open_store(folder())
    messages = [[one for one in queue if one[1] >= begin] for queue in wanted[0]]
    assert await all_of(opened) == (messages, *wanted[1:])
    assert opened.snapshots == [b"two"]
    assert sum(map(len, messages)) < sum(map(len, wanted[0]))
    await opened.store.close()


async def test_a_kill_while_old_files_go_is_finished_by_the_next_start(open_store, write_mixed):
    disk = FaultDisk()
    reach, wanted = await _trimmable(open_store, write_mixed, disk)
    begin, outcomes = reach // SEGMENT * SEGMENT, set()
    for number in range(1 << 20):
        image = _image(disk, 1 << 40)
        copy = await follow(image)
        image.cut = (image.operations + number, 20)
        try:
            done = await copy.trim(begin)
        except StorePoisoned:
            done = False
        for keep in Keep:
            left = image.crash(keep, random.Random(number))
            again = await follow(left)
            assert again.start in {0, begin}
            assert again.end == wanted[-1]
            outcomes.add(again.start)
            await again.close()
            opened = await open_store(left)
            messages = [[one for one in queue if one[1] >= again.start] for queue in wanted[0]]
            assert await all_of(opened) == (messages, *wanted[1:])
            await opened.store.close()
        if done:
            break
    assert outcomes == {0, begin}
    assert number > 8


# -- crashes ----------------------------------------------------------------------------------------------------------


class Told:
    """What a copy was asked to hold, and what of it is sure."""

    def __init__(self):
        self.data = b""
        self.sure = 0
        self.steps = 0


async def _history(disk, result):
    """All that changes a copy, until the disk fails."""
    rng = random.Random(7)
    first = made([(1, [100]), (1, [1_000, 900]), (2, [3_000]), (2, [50, 50, 50]), (2, [2_000]), (3, [1_200])] * 1)
    copy = await follow(disk)

    async def append(groups):
        data = made(groups, start=len(result.data))
        result.data += data
        await copy.append(data, start=copy.end)
        result.steps += 1

    async def sync():
        await copy.sync()
        result.sure = len(result.data)
        result.steps += 1

    for groups in ([(1, [100]), (1, [1_000, 900])], [(2, [3_000])], [(2, [50, 50, 50]), (2, [2_000])], [(3, [1_200])]):
        await append(groups)
        if rng.random() < 0.6:
            await sync()
    assert result.data == first[: len(result.data)]
    for cut in (copy.epochs[2][1], copy.epochs[1][1]):
        result.sure = min(result.sure, cut)
        await copy.truncate(cut)
        result.data, result.sure = result.data[:cut], cut
        result.steps += 1
        await append([(4 + result.steps, [400]), (4 + result.steps, [3_900])])
    await sync()
    await append([(90, [10])])
    result.sure = 0
    await copy.reset(0)
    result.data = b""
    await append([(91, [2_000]), (91, [2_500])])
    await sync()
    await append([(91, [30])])
    await copy.close()
    if copy.failure is None:
        result.sure = len(result.data)


async def test_a_crash_at_any_operation_leaves_what_was_confirmed_and_whole_groups(raw_log):
    plain, result = FaultDisk(), Told()
    await _history(plain, result)
    assert result.steps > 10
    cases = 0
    for number in range(plain.operations):
        for cut in (0, 1, 20, 300, 2_500):
            disk, result = FaultDisk(), Told()
            disk.cut = (number, cut)
            with contextlib.suppress(StoreError):
                await _history(disk, result)
            assert disk.dead
            for keep in Keep:
                image = disk.crash(keep, random.Random(cases))
                again = await follow(image)
                assert result.sure <= again.end <= len(result.data)
                data = log_of(image)[: again.end]
                assert data == result.data[: again.end]
                log = raw_log(image, again.end)
                assert log.boundaries[-1] == again.end, "half a group"
                assert again.epochs == _epochs_of(data)
                end = again.end
                await again.append(made([(200, [9, 4_000])], start=end), start=end)
                await again.close()
                cases += 1
            if plain.kinds[number] != "write":
                break
    assert cases > 300


def _epochs_of(data):
    """By every frame."""
    found, position = [], 0
    while position < len(data):
        rest = SEGMENT - position % SEGMENT
        frame = frame_at(data, position, position) if rest >= HEADER_BYTES else None
        if frame is not None and frame.epoch > (found[-1][0] if found else 0):
            found.append((frame.epoch, position))
        position += rest if frame is None or frame.kind == PADDING else frame.size
    return tuple(found)


async def test_a_full_disk_changes_nothing_and_goes_on_when_there_is_space():
    disk = FaultDisk()
    copy = await follow(disk)
    await copy.append(made([(1, [500])]), start=0)
    await copy.sync()
    end = copy.end
    before = log_of(disk)
    for epoch, wide in [(1, 600), (1, 6_000), (1, 20_000), (2, 600)]:
        disk.bytes_max = disk.bytes_used + wide
        data = made([(epoch, [900])] * 40, start=end)
        with pytest.raises(StoreFull, match=r"no record can be copied: no space left|cannot change: no space left"):
            await copy.append(data, start=end)
        assert (copy.end, copy.epochs, log_of(disk), copy.failure) == (end, ((1, 0),), before, None)
    disk.bytes_max = 1 << 30
    disk.faults_of["rename"] = errno.ENOSPC  # only of the table of epochs
    data = made([(3, [10])], start=end)
    with pytest.raises(StoreFull, match="cannot change: no space left"):
        await copy.append(data, start=end)
    assert log_of(disk) == before
    disk.faults_of.clear()
    assert await copy.append(data, start=end) == end + len(data)
    assert copy.epochs == ((1, 0), (3, end))
    await copy.close()
    again = await follow(disk)
    assert (again.end, again.epochs) == (end + len(data), ((1, 0), (3, end)))
    await again.close()


@pytest.mark.parametrize("kind", ["write", "sync"])
async def test_any_other_error_of_the_disk_is_final(kind):
    disk = FaultDisk()
    copy = await follow(disk)
    await copy.append(made([(1, [500])]), start=0)
    sure = await copy.sync()
    await copy.append(made([(1, [500])], start=sure), start=sure)
    disk.faults_of[kind] = errno.EIO
    with pytest.raises(StorePoisoned, match=r"the disk of memory: failed: .*restart the broker to recover it"):
        await (copy.sync() if kind == "sync" else copy.append(made([(1, [9])], start=copy.end), start=copy.end))
    disk.faults_of.clear()
    for call in (copy.sync(), copy.append(b"", start=copy.end), copy.truncate(sure), copy.read(0, sure, 9)):
        with pytest.raises(StorePoisoned):
            await call
    assert copy.failure is not None
    begun = disk.operations
    await copy.close()
    assert disk.operations == begun, "a poisoned copy writes nothing more"
    again = await follow(disk)
    assert again.end >= sure
    assert not again.stopped_clean
    await again.close()


# -- owners -----------------------------------------------------------------------------------------------------------


async def test_a_folder_has_one_owner(tmp_path, open_store):
    process = subprocess.Popen(  # noqa: ASYNC220  # it is there for the whole test
        [sys.executable, "-c", COPY_IN_A_PROCESS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout.readline() == b"open\n"
        for opening in (follow(tmp_path), open_store(tmp_path)):
            with pytest.raises(StoreLocked, match=f"in use by process {process.pid}"):
                await opening
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
    opened = await open_store(tmp_path)
    with pytest.raises(StoreLocked):
        await follow(tmp_path)
    await opened.store.close()
    copy = await follow(tmp_path)
    with pytest.raises(StoreLocked):
        await open_store(tmp_path)
    await asyncio.gather(copy.close(), copy.close())
    await copy.close()
    with pytest.raises(StorePoisoned, match="the copy of the log is closed"):
        await copy.sync()
    with pytest.raises(StoreError, match="belongs to broker 'broker-a', this one is 'b'"):
        await follow(tmp_path, name="b")
    with pytest.raises(StoreError, match=r"4096 bytes, the group's have 8192: set store.segment_bytes=4096"):
        await follow(tmp_path, segment_bytes=8192)


async def test_a_folder_that_was_moved_takes_nothing(tmp_path):
    copy = await follow(tmp_path / "data")
    await copy.append(made([(1, [5])]), start=0)
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    with pytest.raises(StorePoisoned, match="was moved or removed"):
        await copy.append(made([(1, [5])], start=copy.end), start=copy.end)
    await copy.close()


async def test_brokers_lead_and_follow_in_turns_on_the_same_folders(open_store, write_mixed, folder, raw_log):
    places, common = [folder("a"), folder("b")], 0
    opened = await open_store(places[0], epoch=1)
    epoch = 1
    for turn in range(4):
        leader, follower = places[turn % 2], places[1 - turn % 2]
        await write_mixed(opened.store, seed=10 * turn, rounds=12)
        middle = opened.store.stats.log_end
        await write_mixed(opened.store, seed=10 * turn + 1, rounds=4)
        end = opened.store.stats.log_end
        copy = await follow(follower)
        if copy.end > common:
            await copy.truncate(common)  # what it had written as a leader and no other copy has
        await fetch(copy, leader, middle, random.Random(turn))
        await copy.sync()
        await opened.store.close()
        epoch += 1
        await copy.append_epoch_start(epoch, b"epoch %d" % epoch, 0)
        wanted = copy.epochs
        assert [number for number, _ in wanted] == list(range(1, epoch + 1))
        await copy.close()
        assert log_of(follower)[:middle] == log_of(leader)[:middle]
        common = middle
        assert end > middle
        opened = await open_store(follower, epoch=epoch)
        assert opened.states[-1] == b"epoch %d" % epoch
    end = opened.store.stats.log_end
    await opened.store.close()
    leader, follower = places[0], places[1]
    copy = await follow(follower)
    await copy.truncate(common)
    await fetch(copy, leader, end, random.Random(9))
    assert copy.epochs == wanted
    await copy.close()
    assert log_of(leader)[:end] == log_of(follower)[:end]
    one, two = await open_store(leader), await open_store(follower)
    assert await all_of(one) == await all_of(two)
    await one.store.close()
    await two.store.close()


async def test_a_store_refuses_a_copy_that_lost_what_was_on_disk(open_store):
    """The mark counts for it, too: no record may say that the leader's disk had more."""
    disk = FaultDisk()
    copy = await follow(disk)
    await copy.append(made([(1, [50])] * 3), start=0)
    await copy.close()
    image = _image(disk, copy.end)
    image.files[f"commitlog/{0:020d}"].data[2 * (HEADER_BYTES + 50) + 30] ^= 1
    with pytest.raises(StoreCorrupted, match=f"was on disk up to {copy.end}"):
        await open_store(image)
