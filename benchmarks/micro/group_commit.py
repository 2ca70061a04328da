"""Number of messages that share one fsync, compared with the fsyncs of the disk alone.

python benchmarks/micro/group_commit.py [--seconds 1] [--rounds 5] [--folder DIR] [--json FILE] [--uvloop]

64 senders, each with one message of 1 KiB in flight, synchronous flush. The floor is the limit of the disk: fsyncs per
second of a file that grows by 32 such messages each time, measured in the same round, times 32. Goals: at least 32
messages per fsync, and 0.8 x the floor. All 64 wait for the same fsync, so loop and disk take turns: a round is one
fsync and 64 times the loop time of a message (shown). The ratio falls below 0.8 if an fsync is faster than two thirds
of that time. The last lines show the gain of writing zeros ahead of the log, so that an fsync changes no metadata.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from append import FRAME_BYTES, in_flight, opened
from rounds import Line, arguments, folder_in, measure, report, settle_collector

from evenq.store import FlushMode

SENDERS = 64
TOGETHER = 32
GOAL = 0.8


def fsyncs(folder: Path, seconds: float, *, ahead: str = "nothing") -> float:
    """Fdatasyncs/s behind writes of 32 messages: into a file that grows, has its space set aside, or holds zeros."""
    size = TOGETHER * FRAME_BYTES
    path = folder / "floor"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    if ahead == "zeros":
        os.pwrite(descriptor, bytes(64 << 20), 0)
        os.fsync(descriptor)
    elif ahead == "space":
        os.posix_fallocate(descriptor, 0, 64 << 20)
        os.fsync(descriptor)
    data = os.urandom(size)
    count = offset = 0
    start = time.perf_counter()
    while (took := time.perf_counter() - start) < seconds:
        os.pwrite(descriptor, data, offset)
        os.fdatasync(descriptor)
        count += 1
        offset = offset + size if ahead == "nothing" or offset + 2 * size <= 64 << 20 else 0
    os.close(descriptor)
    path.unlink()
    return count / took


async def sent(folder: Path, seconds: float) -> tuple[float, float, float]:
    """Messages/s, messages an fsync, and the loop's CPU microseconds a message."""
    store = await opened(folder, FlushMode.SYNC)
    before = store.stats.fsyncs
    start = time.perf_counter()
    count, cpu = await in_flight(store, SENDERS, 1, seconds)
    took = time.perf_counter() - start
    shared = count / (store.stats.fsyncs - before)
    await store.close()
    return count / took, shared, cpu / count * 1e6


def main() -> None:
    options = arguments(__doc__, seconds=1.0).parse_args()
    settle_collector()
    runner: Callable[[Coroutine[Any, Any, Any]], Any] = asyncio.run
    if options.uvloop:
        import uvloop

        runner = uvloop.run
    line = Line(f"sync, {SENDERS} in flight, 1 a call", "messages/s", GOAL)
    together: list[float] = []

    def work() -> float:
        with folder_in(options.folder) as folder:
            rate, shared, loop_us = runner(sent(folder, options.seconds))
        together.append(shared)
        line.notes.append(f"{shared:.1f} an fsync, loop {loop_us:.1f} us")
        return float(rate)

    def floor() -> float:
        with folder_in(options.folder) as folder:
            return TOGETHER * fsyncs(folder, options.seconds / 2)

    lines = [measure(line, options.rounds, work, floor)]
    for ahead in ("space", "zeros"):

        def warm(ahead: str = ahead) -> float:
            with folder_in(options.folder) as folder:
                return fsyncs(folder, options.seconds / 2, ahead=ahead)

        def cold() -> float:
            with folder_in(options.folder) as folder:
                return fsyncs(folder, options.seconds / 2)

        lines.append(measure(Line(f"the disk alone, {ahead} ahead", "fsyncs/s"), options.rounds, warm, cold))
    report("group commit, messages of 1 KiB", lines, options.json)
    shared = statistics.median(together)
    print(
        f"messages an fsync: {shared:.1f} ({min(together):.1f}..{max(together):.1f}), goal {TOGETHER}: "
        f"{'yes' if shared >= TOGETHER else 'no'}"
    )


if __name__ == "__main__":
    main()
