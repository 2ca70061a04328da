"""Cost of a million pending timers: memory each, inserts per second, lateness of firing, and a start with them.

python benchmarks/micro/timers.py [--count 1000000] [--seconds 5] [--folder DIR]

Prints inserts/s of the structure alone (with its disk jobs, against a floor that only keeps a heap of the same keys)
and with the log append (256-byte messages in groups of 100, against appending the same as plain messages), bytes of
memory a pending timer (resident set and traced), p50/p99/max ms between due time and the message being consumable at
1,000 due a second beside all others pending, and the seconds that closing with a snapshot and opening take.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import heapq
import os
import random
import shutil
import statistics
import tempfile
import time
import tracemalloc
from pathlib import Path

from evenq.runtime.clock import SystemClock
from evenq.store import Append, MessageStore, StoreOptions, TimerAppend
from evenq.store.io.disk import RealDisk
from evenq.store.timers.keys import key_of
from evenq.store.timers.pending import PendingTimers

HEAD = b"h" * 200
SYSTEM = b"s" * 56
GROUP = 100
DAYS_14_MS = 14 * 86_400_000
FRAME_BYTES = 88 + len(HEAD) + len(SYSTEM)


def resident() -> int:
    """Returns the resident memory of this process, bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def structure(folder: Path, count: int, *, traced: bool) -> tuple[float, float]:
    """Inserts/s and bytes of memory a timer, of the structure alone with its disk jobs on the same thread."""
    rng = random.Random(1)
    dues = [rng.randrange(DAYS_14_MS) for _ in range(count)]
    disk = RealDisk(folder)
    disk.make_folder("timers")
    pending = PendingTimers()
    gc.collect()
    if traced:
        tracemalloc.start()
    before = resident()
    start = time.perf_counter()
    for number, due in enumerate(dues):
        pending.put(due, number * FRAME_BYTES, 1)
        if pending.wants_writing:
            while (job := pending.write_job()) is not None:
                for _ in job.steps(disk):
                    pass
                pending.write_done(job)
    took = time.perf_counter() - start
    used = tracemalloc.get_traced_memory()[0] if traced else resident() - before
    tracemalloc.stop()
    assert len(pending) == count
    return count / took, used / count


def floor(count: int) -> float:
    """Inserts/s of a heap in memory with the same keys, and nothing else."""
    rng = random.Random(1)
    dues = [rng.randrange(DAYS_14_MS) for _ in range(count)]
    heap: list[bytes] = []
    start = time.perf_counter()
    for number, due in enumerate(dues):
        heapq.heappush(heap, key_of(due, number * FRAME_BYTES, 1))
    return count / (time.perf_counter() - start)


async def open_store(folder: Path) -> MessageStore:
    options = StoreOptions(disk_free_min_bytes=0, disk_used_max_ratio=1.0, disk_force_ratio=1.0)
    return await MessageStore.open(
        folder, options, clock=SystemClock(), broker_name="bench", on_state=lambda *_: None, on_snapshot=lambda _: None
    )


def timer(due_ms: int, queue_id: int = 0) -> TimerAppend:
    return TimerAppend(1, queue_id, 7, due_ms=due_ms, kind=1, born_ms=0, head=HEAD, system=SYSTEM)


async def fill(store: MessageStore, count: int) -> float:
    """Append timers, four groups under way; timers/s."""
    rng = random.Random(2)
    now_ms = time.time_ns() // 1_000_000 + 3_600_000
    left = iter(range(count // GROUP))

    async def send() -> None:
        for _ in left:
            await store.append([], timers=[timer(now_ms + rng.randrange(DAYS_14_MS)) for _ in range(GROUP)])

    start = time.perf_counter()
    await asyncio.gather(*(send() for _ in range(4)))
    return count / (time.perf_counter() - start)


async def plain(store: MessageStore, count: int) -> float:
    """Appends the same as ordinary messages."""
    left = iter(range(count // GROUP))

    async def send() -> None:
        for _ in left:
            await store.append([Append(1, 9, 7, 0, HEAD, SYSTEM) for _ in range(GROUP)])

    start = time.perf_counter()
    await asyncio.gather(*(send() for _ in range(4)))
    return count / (time.perf_counter() - start)


async def lateness(store: MessageStore, seconds: float, rate: int) -> list[float]:
    """Ms from due to consumable, at `rate` due a second."""
    count = int(seconds * rate)
    base_ms = time.time_ns() // 1_000_000 + 1_500
    timers = [timer(base_ms + number * 1_000 // rate, queue_id=1) for number in range(count)]
    for first in range(0, count, GROUP):
        await store.append([], timers=timers[first : first + GROUP])
    late: list[float] = []
    done = asyncio.get_running_loop().create_future()

    def dispatched(changes: list[tuple[int, int, int]]) -> None:
        now_ms = time.time_ns() / 1e6
        for _, _, end in changes:
            while len(late) < end:
                late.append(now_ms - timers[len(late)].due_ms)
        if len(late) >= count and not done.done():
            done.set_result(None)

    store.on_dispatched = dispatched
    store.fire_timers()
    await asyncio.wait_for(done, seconds + 30)
    return sorted(late)


async def with_log(folder: Path, count: int, seconds: float) -> None:
    store = await open_store(folder)
    floor_rate = await plain(store, min(count, 100_000))
    gc.collect()
    before = resident()
    rate = await fill(store, count)
    await store.flush()
    stats = store.timers.stats
    each = (resident() - before) / count
    print(f"insert with log append: {rate:,.0f}/s = {rate / floor_rate:.2f} of plain messages ({floor_rate:,.0f}/s)")
    print(
        f"  {stats.pending:,} pending, {stats.in_memory:,} entries in memory, {stats.runs} runs, {each:.0f} B RSS each"
    )
    late = await lateness(store, seconds, 1_000)
    p50, p99 = statistics.median(late), late[int(len(late) * 0.99)]
    print(f"lateness at 1,000/s beside them: p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {late[-1]:.1f} ms")
    start = time.perf_counter()
    await store.save_snapshot(b"")
    print(f"snapshot: {time.perf_counter() - start:.2f} s")
    await store.close()
    start = time.perf_counter()
    store = await open_store(folder)
    print(f"start behind a snapshot: {time.perf_counter() - start:.2f} s, {store.timers.stats.pending:,} pending")
    await store.close()
    shutil.rmtree(folder / "snapshot")
    start = time.perf_counter()
    store = await open_store(folder)
    print(f"start from the whole log: {time.perf_counter() - start:.2f} s, {store.timers.stats.pending:,} pending")
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="evenq-timers-", dir=options.folder))
    try:
        rates = [structure(folder / f"structure-{n}", options.count, traced=False) for n in range(2)]
        _, traced = structure(folder / "traced", min(options.count, 300_000), traced=True)
        base = floor(options.count)
        low, high = sorted(rate for rate, _ in rates)
        print(
            f"insert, structure alone: {low:,.0f} to {high:,.0f}/s = {high / base:.2f} of a bare heap ({base:,.0f}/s)"
        )
        print(f"  memory: {rates[0][1]:.0f} B RSS each; {traced:.0f} B traced each at {min(options.count, 300_000):,}")
        asyncio.run(with_log(folder / "store", options.count, options.seconds))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
