"""What a start makes of missing, shortened, foreign and damaged files, and of a process that was killed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import selectors
import signal
import subprocess
import sys
import time

import pytest
from crc32c import crc32c
from evenq_proofs.fault_disk import FaultDisk, Keep

from evenq.errors import StoreCorrupted, StoreError
from evenq.store import FlushMode
from evenq.store.log.record import HEADER_BYTES

SEGMENT = "commitlog/00000000000000000000"


async def _filled(open_store, message, count=60):
    """A cleanly closed disk with three queues, two snapshots and states."""
    disk = FaultDisk()
    opened = await open_store(disk)
    for number in range(count):
        await opened.store.append([message(b"%d" % number + b"." * 150, queue_id=number % 3)])
        await opened.store.append_state(b"s%d" % number)
        if number in (20, 40):
            await opened.store.save_snapshot(b"until %d" % number)
    await opened.store.close()
    return disk


def _copy(disk):
    image = disk.crash(Keep.ALL, random.Random(0))
    disk.dead = False
    return image


async def _check(open_store, disk, count=60):
    opened = await open_store(disk)
    for queue_id in range(3):
        want = [b"%d" % number + b"." * 150 for number in range(queue_id, count, 3)]
        assert await opened.contents(1, queue_id) == want
    await opened.store.close()
    return opened


def _consume_queues(disk):
    return {path: bytes(file.data) for path, file in disk.files.items() if path.startswith("consumequeue/")}


@pytest.mark.parametrize(
    "damage", ["queue gone", "queue shortened", "all gone", "checkpoint gone", "checkpoint flipped", "more"]
)
async def test_consume_queues_are_rebuilt_byte_for_byte(open_store, message, damage):
    disk = await _filled(open_store, message)
    wanted = _consume_queues(disk)
    assert len(wanted) == 3
    path = sorted(wanted)[1]
    match damage:
        case "queue gone":
            disk.remove(path)
        case "queue shortened":
            del disk.files[path].data[-7:]
        case "all gone":
            disk.remove("consumequeue")
        case "checkpoint gone":
            disk.remove("checkpoint")
        case "checkpoint flipped":
            disk.files["checkpoint"].data[20] ^= 4
        case "more":
            disk.files[path].data += b"x" * 33
            disk.open("consumequeue/1/0/00000000000006000000", create=True)
            disk.open("consumequeue/77/0/00000000000000000000", create=True)
    opened = await _check(open_store, _copy(disk))
    assert opened.snapshots == [b"until 40"]
    image = _copy(disk)
    await _check(open_store, image)
    assert _consume_queues(image) == wanted


async def test_a_damaged_snapshot_costs_a_longer_replay_only(open_store, message):
    disk = await _filled(open_store, message)
    names = disk.list("snapshot")
    assert len(names) == 2
    for count, (snapshots, first) in enumerate([([b"until 40"], 41), ([b"until 20"], 21), ([], 0)]):
        image = _copy(disk)
        for name in names[len(names) - count :]:
            image.files[f"snapshot/{name}"].data[-1] ^= 1
        opened = await _check(open_store, image)
        assert opened.snapshots == snapshots
        assert opened.states == [b"s%d" % number for number in range(first, 60)]


async def test_a_flipped_byte_in_the_middle_is_refused_with_its_place(open_store, message):
    disk = await _filled(open_store, message)
    for name in disk.list("snapshot"):
        disk.remove(f"snapshot/{name}")  # so that the whole log is read
    disk.files[SEGMENT].data[1_000] ^= 1
    with pytest.raises(StoreCorrupted, match=rf"memory:{SEGMENT} at byte \d+ \(log offset \d+\)"):
        await open_store(disk)


async def test_a_missing_log_file_is_refused_with_its_name(open_store, message):
    disk = await _filled(open_store, message)
    names = disk.list("commitlog")
    assert len(names) > 4
    for victim, text in [(names[2], f"commitlog/{names[2]} is missing"), (names[-1], "on disk up to")]:
        image = _copy(disk)
        image.remove(f"commitlog/{victim}")
        with pytest.raises(StoreCorrupted, match=text):
            await open_store(image)
    disk.open("commitlog/notes.txt", create=True)
    with pytest.raises(StoreCorrupted, match=r"notes\.txt is not a commit-log file"):
        await open_store(disk)


async def test_a_cold_read_of_a_damaged_message_fails_loudly(open_store, message):
    disk = await _filled(open_store, message)
    opened = await open_store(disk)
    disk.files[SEGMENT].data[100] ^= 1
    with pytest.raises(StoreCorrupted, match="holds no message 0 of queue 0 at log offset 0"):
        await opened.store.read(1, 0, 0, count_max=1, bytes_max=1)
    disk.files["consumequeue/1/1/00000000000000000000"].data[5] ^= 1
    with pytest.raises(StoreCorrupted):
        await opened.store.read(1, 1, 0, count_max=1, bytes_max=1)
    assert len((await opened.store.read(1, 2, 0, count_max=9, bytes_max=9999)).messages) == 9
    await opened.store.close()


async def test_unknown_versions_are_refused(open_store, message):
    disk = await _filled(open_store, message)
    image = _copy(disk)
    text = json.loads(bytes(image.files["identity"].data))
    image.files["identity"].data[:] = json.dumps({**text, "format": 2}).encode()
    with pytest.raises(StoreError, match="has format 2; this program reads format 1"):
        await open_store(image)
    for path, place in [("checkpoint", 9), (f"snapshot/{disk.list('snapshot')[-1]}", 11)]:
        image = _copy(disk)
        data = image.files[path].data
        data[place] = 7
        data[4:8] = crc32c(bytes(data[8:])).to_bytes(4, "big")
        with pytest.raises(StoreError, match="has format version 7; this program reads version"):
            await open_store(image)


async def test_a_log_without_identity_and_a_damaged_identity_are_refused(open_store, message):
    disk = await _filled(open_store, message)
    image = _copy(disk)
    image.remove("identity")
    with pytest.raises(StoreCorrupted, match="identity is missing beside a commit log"):
        await open_store(image)
    disk.files["identity"].data[:] = b"{"
    with pytest.raises(StoreCorrupted, match="does not parse"):
        await open_store(disk)


async def test_a_frame_larger_than_a_piece_of_reading_is_recovered(open_store, message, monkeypatch):
    monkeypatch.setattr("evenq.store.opening.recovery.PIECE_BYTES", 500)
    monkeypatch.setattr("evenq.store.opening.recovery.FILING_ENTRIES", 10)
    disk = FaultDisk()
    opened = await open_store(disk)
    heads = [b"%d" % number + b"." * (number * 37 % 1900) for number in range(50)]
    for head in heads:
        await opened.store.append([message(head)])
    image = _copy(disk)
    await opened.store.close()
    image.remove("checkpoint")
    again = await open_store(image)
    assert await again.contents() == heads
    assert again.store.stats.recovered_records == 50
    await again.store.close()


CHILD = """
import asyncio, sys
from pathlib import Path
from evenq.runtime.clock import SystemClock
from evenq.store import Append, FlushMode, MessageStore, StoreOptions

async def main():
    store = await MessageStore.open(
        Path(sys.argv[1]), StoreOptions(segment_bytes=65536, flush=FlushMode(sys.argv[2]), checkpoint_entries=40), clock=SystemClock(),
        broker_name="broker-a", on_state=lambda *_: None, on_snapshot=lambda _: None,
    )
    async def send(queue_id):
        while True:
            entries = [Append(1, queue_id, 0, 0, b"h" * 500, b"") for _ in range(3)]
            await store.append(entries)
            sys.stdout.write("".join(f"{queue_id} {entry.queue_offset}\\n" for entry in entries))
            sys.stdout.flush()
    await asyncio.gather(*[send(queue_id) for queue_id in range(4)])

asyncio.run(main())
"""


@pytest.mark.parametrize("flush", list(FlushMode))
def test_what_a_killed_process_acknowledged_is_there(open_store, tmp_path, flush):
    """Three times: start, append, kill -9 in the middle; then everything acknowledged in any life is there."""
    acked = {}
    for life in range(3):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path), flush], stdout=subprocess.PIPE, bufsize=0)
        assert child.stdout is not None
        received = _read_some(child.stdout, 20_000)
        os.kill(child.pid, signal.SIGKILL)
        received += child.stdout.read()
        child.stdout.close()
        assert child.wait() == -signal.SIGKILL
        for line in received.decode().split("\n")[:-1]:
            queue_id, offset = map(int, line.split())
            assert acked.setdefault((queue_id, offset), life) == life, "an offset was given twice"
    assert len(acked) > 3_000

    async def scenario():
        opened = await open_store(tmp_path)
        for queue_id in range(4):
            found = await opened.contents(1, queue_id)
            offsets = [offset for queue, offset in acked if queue == queue_id]
            assert len(found) > max(offsets)
            assert len(found) % 3 == 0  # calls are whole
            assert set(found) == {b"h" * 500}
        await opened.store.close()

    asyncio.run(scenario())


def _read_some(pipe, size):
    """At least `size` bytes of a pipe, with a deadline."""
    received = b""
    deadline = time.monotonic() + 60
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while len(received) < size:
            assert selector.select(deadline - time.monotonic()), "the child is silent"
            received += os.read(pipe.fileno(), 65_536)
    return received


@pytest.mark.parametrize("clean", [True, False])
async def test_a_log_that_ends_with_its_last_file_is_whole(open_store, message, clean):
    disk = FaultDisk()
    opened = await open_store(disk)
    await opened.store.append([message(bytes(4096 - HEADER_BYTES), system=b"")])
    assert opened.store.stats.log_end == 4096
    await opened.store.checkpoint()
    if not clean:
        disk = disk.crash(Keep.ALL, random.Random(1))
    await opened.store.close()
    again = await open_store(disk)
    await again.store.append([message(b"next")])
    assert await again.contents() == [bytes(4096 - HEADER_BYTES), b"next"]
    await again.store.close()


async def test_damage_in_a_group_is_said_to_be_where_it_is_and_not_where_its_group_begins(open_store, message, raw_log):
    """Who repairs it looks there, and a group may lie in two files."""
    disk = FaultDisk()
    opened = await open_store(disk)
    await opened.store.append([message(bytes(1_200)) for _ in range(4)])
    for _ in range(3):
        await opened.store.append([message(bytes(100))])
    log = raw_log(disk, opened.store.stats.log_end)
    image = _copy(disk)
    place = log.frames[4][0]
    assert place == 4096, "in the second file, and its group in the first"
    assert log.boundaries[0] < 4096 < log.boundaries[1]
    image.files["commitlog/00000000000000004096"].data[500] ^= 1
    with pytest.raises(StoreCorrupted, match=r"byte 0 .* is damaged: the record at") as caught:
        await open_store(image)
    assert caught.value.log_offset == place
    await opened.store.close()
