"""Raw bytes of a log come in whole groups, never more than asked for, and never from behind the end."""

from __future__ import annotations

import asyncio
import errno
import random
import threading

import pytest
from evenq_proofs.fault_disk import FaultDisk

from evenq.errors import StoreCorrupted, StoreError, WithinRecord
from evenq.store import Append, FlushMode
from evenq.store.io.disk import ReadOnlyDisk
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log import log_pieces
from evenq.store.log.log_pieces import LogPieces
from evenq.store.log.record import HEADER_BYTES, PADDING, frame_at

SEGMENT = 4096


@pytest.fixture
def written(open_store, write_mixed, raw_log):
    """A log of many small files: its disk, and what is in it."""

    def make(seed=1, disk=None, rounds=30):
        async def story():
            target = disk or MemoryDisk()
            opened = await open_store(target)
            await write_mixed(opened.store, seed=seed, rounds=rounds)
            end = opened.store.stats.log_end
            await opened.store.close()
            return target, raw_log(target, end)

        return asyncio.run(story())

    return make


@pytest.mark.parametrize("window", [HEADER_BYTES, 200, 1 << 18])
@pytest.mark.parametrize("seed", range(4))
def test_pieces_of_any_size_make_up_the_log(written, monkeypatch, seed, window):
    monkeypatch.setattr(log_pieces, "WINDOW_BYTES", window)
    disk, log = written(seed)
    rng = random.Random(seed)
    pieces, position, sizes, end = LogPieces(disk, SEGMENT), 0, set(), log.boundaries[-1]
    while position < end:
        bytes_max = rng.choice([1, 100, 1_000, 5_000, 20_000])
        data = pieces.read(position, end, bytes_max)
        following = [boundary for boundary in log.boundaries if boundary > position]
        wanted = max([boundary for boundary in following if boundary - position <= bytes_max], default=following[0])
        assert position + len(data) == wanted, "the most whole groups that fit, or one"
        assert data == log.data[position:wanted]
        position = wanted
        sizes.add(len(data) <= bytes_max)
    assert sizes == {True, False}, "some groups were larger than what was asked for"
    assert pieces.read(end, end, 100) == b""
    pieces.close()


def test_every_place_between_groups_is_a_begin_and_an_end(written):
    disk, log = written(rounds=8)
    pieces = LogPieces(disk, SEGMENT)
    paddings = [at for at, _ in log.frames if (frame := frame_at(log.data, at, at)) and frame.kind == PADDING]
    assert paddings
    for number, start in enumerate(log.boundaries):
        for end in log.boundaries[number + 1 :]:
            assert pieces.read(start, end, 1 << 20) == log.data[start:end]


def test_an_end_inside_of_a_group_gives_what_lies_before_the_group(written):
    disk, log = written(rounds=8)
    pieces = LogPieces(disk, SEGMENT)
    for before, behind in zip(log.boundaries[:-1], log.boundaries[1:], strict=True):
        for end in {before + 1, (before + behind) // 2, behind - 1} - {before}:
            if before:
                assert pieces.read(0, end, 1 << 20) == log.data[:before]
            with pytest.raises(StoreError, match=rf"log offset {before}\): no group of records .* ends by {end}"):
                pieces.read(before, end, 1 << 20)


async def test_a_group_of_many_files_comes_as_one_piece(open_store, raw_log):
    disk = MemoryDisk()
    opened = await open_store(disk)
    await opened.store.append([Append(1, 0, 0, 0, bytes(900), b"") for _ in range(40)])
    end = opened.store.stats.log_end
    assert end > 9 * SEGMENT
    assert LogPieces(disk, SEGMENT).read(0, end, 1) == raw_log(disk, end).data
    await opened.store.close()


def test_a_place_without_a_record_is_named(written):
    disk, log = written()
    frame = log.frames[20][0]
    start, byte = frame // SEGMENT * SEGMENT, frame % SEGMENT
    pieces = LogPieces(disk, SEGMENT)
    disk.files[f"commitlog/{start:020d}"].data[byte + 4] ^= 1  # the magic
    with pytest.raises(StoreCorrupted, match=rf"commitlog/{start:020d} at byte {byte} .log offset {frame}. is damaged"):
        pieces.read(0, log.boundaries[-1], 1 << 20)
    disk.files[f"commitlog/{start:020d}"].data[byte + 4] ^= 1
    last = log.frames[-1][0]
    del disk.files[f"commitlog/{last // SEGMENT * SEGMENT:020d}"].data[last % SEGMENT + HEADER_BYTES :]
    with pytest.raises(StoreCorrupted, match="the file ends here, and the log does not"):
        pieces.read(0, log.boundaries[-1], 1 << 20)


def test_a_place_within_a_group_is_told_from_damage(written):
    disk, log = written(rounds=8)
    pieces, end = LogPieces(disk, SEGMENT), log.boundaries[-1]
    first, last = log.boundaries[4], log.boundaries[6]
    frames = {at for at, _ in log.frames}
    for place in range(first + 1, last, 7):
        if place not in frames and -place % SEGMENT >= HEADER_BYTES:  # where no header fits in, a file just ends
            with pytest.raises(WithinRecord, match=rf"log offset {place}. lies within a group of records"):
                pieces.read(place, end, 1 << 20)
    start, byte = first // SEGMENT * SEGMENT, first % SEGMENT
    disk.files[f"commitlog/{start:020d}"].data[byte + 4] ^= 1  # the magic: a place between groups, and damage
    with pytest.raises(StoreCorrupted, match=rf"log offset {first}. is damaged"):
        pieces.read(first, end, 1 << 20)


def test_a_file_that_is_gone_is_named_and_is_no_damage(written):
    disk, log = written()
    disk.remove(f"commitlog/{0:020d}")
    with pytest.raises(StoreError, match=rf"commitlog/{0:020d} does not exist: the log begins later") as raised:
        LogPieces(disk, SEGMENT).read(0, log.boundaries[-1], 100)
    assert not isinstance(raised.value, StoreCorrupted)


def test_what_the_disk_cannot_read_is_damage_and_a_lack_of_descriptors_is_none(written, monkeypatch):
    disk, log = written(disk=FaultDisk())
    pieces = LogPieces(disk, SEGMENT)
    monkeypatch.setattr("evenq_proofs.fault_disk.FaultFile.pread", lambda *_: disk.fail(5))
    with pytest.raises(StoreCorrupted, match=r"log offset 0\) cannot be read: \[Errno 5\].*restore") as raised:
        pieces.read(0, log.boundaries[-1], 100)
    assert raised.value.log_offset == 0
    monkeypatch.setattr("evenq_proofs.fault_disk.FaultFile.pread", lambda *_: disk.fail(errno.EMFILE))
    with pytest.raises(StoreError, match=r"log offset 0\) cannot be read: \[Errno 24\]") as raised:
        pieces.read(0, log.boundaries[-1], 100)
    assert not isinstance(raised.value, StoreCorrupted)


def test_the_epoch_of_each_record_is_told(written):
    disk, log = written()
    end = log.boundaries[-1]
    pieces = LogPieces(disk, SEGMENT)
    epochs = list(pieces.epochs(0, end))
    assert [at for _, at in epochs] == [at for at, _ in log.frames]
    assert {epoch for epoch, _ in epochs} <= {0, 1}
    assert pieces.epoch_at(0, end) == 1
    assert pieces.epoch_at(end, end) == 0


async def test_a_thread_reads_while_the_leader_appends(tmp_path, open_store, write_mixed):
    opened = await open_store(tmp_path, flush=FlushMode.ASYNC)
    copied, failures, over = bytearray(), [], threading.Event()
    ends = [0]

    def follow():
        pieces = LogPieces(ReadOnlyDisk(tmp_path), SEGMENT)
        try:
            while not over.is_set() or len(copied) < ends[0]:
                copied.extend(pieces.read(len(copied), ends[0], 3_000))
        except StoreError as error:
            failures.append(error)
        finally:
            pieces.close()

    thread = threading.Thread(target=follow)
    thread.start()
    for seed in range(30):
        await write_mixed(opened.store, seed=seed, rounds=8)
        ends[0] = opened.store.stats.log_end
    over.set()
    await asyncio.to_thread(thread.join, 30)
    await opened.store.close()
    assert not failures
    files = sorted((tmp_path / "commitlog").iterdir())
    assert bytes(copied) == b"".join(file.read_bytes() for file in files)
    assert len(files) > 20


def test_a_file_that_was_removed_and_made_again_is_read_after_a_renewal(written):
    (disk, log), (_, other) = written(1), written(2)
    pieces = LogPieces(disk, SEGMENT)
    before = pieces.read(0, log.boundaries[-1], 1)
    name = f"commitlog/{0:020d}"
    disk.remove(name)
    file = disk.open(name, create=True)
    file.pwrite([other.data[:SEGMENT]], 0)
    file.close()
    assert pieces.read(0, log.boundaries[-1], 1) == before, "the file that is open is not the log any more"
    pieces.renew()
    data = pieces.read(0, other.boundaries[-1], 1)
    assert data == other.data[: len(data)] != before
    pieces.close()
