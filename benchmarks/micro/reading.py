"""Cost of reading one queue out of a hundred, from the page cache.

python benchmarks/micro/reading.py [--rounds 5] [--folder DIR] [--json FILE] [--megabytes 256]

A log in which a hundred queues take turns is read by one queue after the other, 32 or 256 messages a call, past the
memory of the store: consume queue entries, preads, checksums, objects. The floor is `cat` of as many bytes of the same
log. The goal is 500 MB/s of payload or half of `cat`, whichever is lower. For comparison, the limit of Python: the same
frames by a bare loop of pread, unpack, CRC and one object each; no reader that makes one object per message is faster.
Then all queues, one call of each in turn, as consumers read them that catch up; then single messages by offset, at
random. Each queue is read once before the clock starts, so that its files are open.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import time
from pathlib import Path
from statistics import median
from struct import Struct

from crc32c import crc32c
from rounds import Line, arguments, folder_in, measure, report, settle_collector

from evenq.runtime.clock import SystemClock
from evenq.store import Append, MessageStore, StoredMessage, StoreOptions
from evenq.store.log.record import HEADER_BYTES

QUEUES = 100
TOGETHER = (32, 256)
RANDOM_READS = 2_000
GOAL_SPEED = 500  # MB/s
GOAL = 0.5


async def opened(folder: Path) -> MessageStore:
    """A store that keeps nothing in memory."""
    return await MessageStore.open(
        folder,
        StoreOptions(cache_bytes=0),
        clock=SystemClock(),
        broker_name="bench",
        on_state=lambda *_: None,
        on_snapshot=lambda _: None,
    )


async def ready(folder: Path) -> MessageStore:
    """Opens its files before: opening one takes a thread, once per 300,000 messages of a queue."""
    store = await opened(folder)
    for queue in range(QUEUES):
        await store.read(1, queue, 0, count_max=1, bytes_max=1)
    return store


async def fill(folder: Path, size: int, total: int) -> int:
    """Messages of each queue: one after the other, so that a queue's neighbours are a hundred frames apart."""
    store = await opened(folder)
    turns = total // (size * QUEUES)
    for number in range(turns):
        await store.append([Append(1, queue, 7, number, bytes(size), b"") for queue in range(QUEUES)])
    await store.checkpoint()
    await store.close()
    return turns


async def sequential(folder: Path, together: int, seconds: float) -> float:
    """Payload bytes/s of reading queue after queue."""
    store = await ready(folder)
    done = queue = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        low, high = store.queue_range(1, queue % QUEUES)
        while low < high:
            found = await store.read(1, queue % QUEUES, low, count_max=together, bytes_max=4 << 20)
            done += sum([len(message.head) for message in found.messages])
            low = found.next_offset
        queue += 1
    took = time.perf_counter() - start
    await store.close()
    return done / took


async def at_random(folder: Path) -> list[float]:
    """Microseconds of single reads, sorted."""
    store = await ready(folder)
    rng = random.Random(1)
    times = []
    for _ in range(RANDOM_READS):
        queue = rng.randrange(QUEUES)
        offset = rng.randrange(store.queue_range(1, queue)[1])
        before = time.perf_counter()
        (message,) = await store.read_at(1, queue, [offset])
        times.append((time.perf_counter() - before) * 1e6)
        assert message.queue_offset == offset
    await store.close()
    return sorted(times)


async def in_turn(folder: Path, together: int, seconds: float) -> float:
    """Payload bytes/s of all queues read forward side by side."""
    store = await ready(folder)
    done = low = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for queue in range(QUEUES):
            found = await store.read(1, queue, low, count_max=together, bytes_max=4 << 20)
            done += sum([len(message.head) for message in found.messages])
        low = found.next_offset if found.next_offset < found.max_offset else 0
    took = time.perf_counter() - start
    await store.close()
    return done / took


def bare(folder: Path, size: int, seconds: float) -> float:
    """Payload bytes/s of the same frames, one queue after the other, by the least Python there can be."""
    whole = HEADER_BYTES + size
    count = min(file.stat().st_size for file in (folder / "commitlog").iterdir()) // whole // QUEUES
    room = bytearray(whole)
    unpack, covered, rooms = Struct(f">II{HEADER_BYTES - 8}x{size}s").unpack, memoryview(room)[12:], (room,)
    descriptor = os.open(min((folder / "commitlog").iterdir()), os.O_RDONLY)
    done = queue = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        found: list[StoredMessage] = []
        for place in range(queue % QUEUES * whole, count * QUEUES * whole, QUEUES * whole):
            os.preadv(descriptor, rooms, place)
            length, _, head = unpack(room)
            crc32c(covered)
            found.append(StoredMessage(1, queue, 0, place, length, 0, 7, head, b""))
            if len(found) == TOGETHER[-1]:
                found = []
        done += count * size
        queue += 1
    took = time.perf_counter() - start
    os.close(descriptor)
    return done / took


def cat(folder: Path) -> float:
    """Bytes/s of `cat` of the whole log."""
    files = sorted((folder / "commitlog").iterdir())
    size = sum(file.stat().st_size for file in files)
    start = time.perf_counter()
    with subprocess.Popen(["cat", *map(str, files)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while process.stdout.read(1 << 20):
            pass
    return size / (time.perf_counter() - start)


def main() -> None:
    parser = arguments(__doc__, seconds=1.0)
    parser.add_argument("--megabytes", type=int, default=256, help="of each log")
    options = parser.parse_args()
    settle_collector()
    lines, singles = [], []
    for kib in (1, 16):
        with folder_in(options.folder) as folder:
            asyncio.run(fill(folder, kib << 10, options.megabytes << 20))
            floor_of_language = measure(
                Line(f"a bare loop, 1 of {QUEUES}, {kib} KiB", "MB/s"),
                options.rounds,
                lambda folder=folder, size=kib << 10: bare(folder, size, options.seconds) / 1e6,
                lambda folder=folder: cat(folder) / 1e6,
            )
            for together in TOGETHER:
                line = Line(f"1 of {QUEUES} queues, {kib} KiB, {together} a call", "MB/s", GOAL)

                def work(folder: Path = folder, together: int = together) -> float:
                    return asyncio.run(sequential(folder, together, options.seconds)) / 1e6

                def floor(folder: Path = folder) -> float:
                    return cat(folder) / 1e6

                measure(line, options.rounds, work, floor)
                speed = median(line.speeds)
                share = speed / median(floor_of_language.speeds)
                enough = "yes" if speed >= GOAL_SPEED else "no"
                line.notes = [f"{GOAL_SPEED} MB/s would do: {enough}; {share:.2f} of the bare loop"]
                lines.append(line)
            lines.append(floor_of_language)
            lines.append(
                measure(
                    Line(f"all {QUEUES} in turn, {kib} KiB, 32 a call", "MB/s"),
                    options.rounds,
                    lambda folder=folder: asyncio.run(in_turn(folder, 32, options.seconds)) / 1e6,
                    lambda folder=folder: cat(folder) / 1e6,
                )
            )
            times = asyncio.run(at_random(folder))
            singles.append(
                f"{kib} KiB at random: p50 {times[len(times) // 2]:.0f} us, p99 {times[-len(times) // 100]:.0f} us"
            )
    report("reading past the memory", lines, options.json)
    print("\n".join(singles))


if __name__ == "__main__":
    main()
