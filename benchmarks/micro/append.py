"""Cost of one append, compared with a floor that only packs, checksums and writes the same bytes.

python benchmarks/micro/append.py [--seconds 1] [--rounds 5] [--folder DIR] [--json FILE] [--uvloop]

Messages of 1 KiB; `in flight` senders each wait for one append of `size` messages. The floor packs a header, takes
the CRC32C and calls `os.pwritev` in groups of the same size, on one thread, without places, futures or queues. The
goal is for calls of 32 and more with asynchronous flush. `loop us` is the CPU time of the loop's thread per message,
including that of the sender.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from crc32c import crc32c
from rounds import Line, arguments, folder_in, measure, report, settle_collector

from evenq.runtime.clock import SystemClock
from evenq.store import Append, FlushMode, MessageStore, StoreOptions
from evenq.store.log.record import MAGIC, PREFIX, REST

T = TypeVar("T")
HEAD = b"h" * 900
SYSTEM = b"s" * 124
FRAME_BYTES = 88 + len(HEAD) + len(SYSTEM)
CHUNK = 2_000
GROUP_MAX = 256
GOAL = 0.5
SHAPES = [
    (FlushMode.ASYNC, 64, 1),
    (FlushMode.ASYNC, 512, 1),
    (FlushMode.ASYNC, 16, 32),
    (FlushMode.ASYNC, 64, 32),
    (FlushMode.ASYNC, 16, 128),
    (FlushMode.SYNC, 64, 1),
    (FlushMode.SYNC, 64, 32),
]


def floor(folder: Path, group: int, seconds: float) -> float:
    """Messages/s of packing, checksumming and writing alone."""
    descriptor = os.open(folder / "floor", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    count = offset = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        parts: list[bytes] = []
        for _ in range(group):
            body = REST.pack(1, 1, 0, 1, 1, 0, count, offset, 0, 0, 0, 0, len(HEAD), len(SYSTEM)) + HEAD + SYSTEM
            parts += (PREFIX.pack(FRAME_BYTES, MAGIC, crc32c(body)), body)
            count += 1
        offset += os.pwritev(descriptor, parts, offset)
        if offset > 1 << 29:
            offset = 0
    took = time.perf_counter() - start
    os.close(descriptor)
    os.unlink(folder / "floor")
    return count / took


async def opened(folder: Path, flush: FlushMode) -> MessageStore:
    return await MessageStore.open(
        folder,
        StoreOptions(flush=flush),
        clock=SystemClock(),
        broker_name="bench",
        on_state=lambda *_: None,
        on_snapshot=lambda _: None,
    )


async def in_flight(store: MessageStore, senders: int, batch: int, seconds: float) -> tuple[int, float]:
    """`senders` tasks, each with one append of `batch` messages under way: messages and CPU seconds of the loop
    thread.
    """
    end = time.perf_counter() + seconds
    count = 0

    async def send(queue_id: int) -> None:
        nonlocal count
        while time.perf_counter() < end:
            await store.append([Append(1, queue_id, 7, 0, HEAD, SYSTEM) for _ in range(batch)])
            count += batch

    cpu = time.thread_time()
    async with asyncio.TaskGroup() as group:
        for number in range(senders):
            group.create_task(send(number % 8))
    return count, time.thread_time() - cpu


async def run_shape(folder: Path, flush: FlushMode, senders: int, batch: int, seconds: float) -> tuple[float, float]:
    """Messages/s and the loop's microseconds a message."""
    store = await opened(folder, flush)
    start = time.perf_counter()
    count, cpu = await in_flight(store, senders, batch, seconds)
    took = time.perf_counter() - start
    await store.close()
    return count / took, cpu / count * 1e6


async def hot_reads(folder: Path) -> float:
    """Microseconds for 32 consecutive messages of one queue out of eight, from memory."""
    store = await opened(folder, FlushMode.ASYNC)
    for _ in range(10):
        await store.append([Append(1, n % 8, 7, 0, HEAD, SYSTEM) for n in range(CHUNK)])
    times = []
    for start in range(0, 2_000, 32):
        before = time.perf_counter()
        messages = store.read_hot(1, 3, start, count_max=32, bytes_max=1 << 20)
        times.append(time.perf_counter() - before)
        assert messages is not None
        assert len(messages.messages) == min(32, 2_500 - start)
    await store.close()
    return sorted(times)[len(times) // 2] * 1e6


def main() -> None:
    options = arguments(__doc__, seconds=1.0).parse_args()
    settle_collector()
    runner: Callable[[Coroutine[Any, Any, Any]], Any] = asyncio.run
    if options.uvloop:
        import uvloop

        runner = uvloop.run
    lines = []
    for flush, senders, batch in SHAPES:
        goal = GOAL if flush is FlushMode.ASYNC and batch > 1 else None
        line = Line(f"{flush}, {senders} in flight, {batch} a call", "messages/s", goal)

        def work(line: Line = line, flush: FlushMode = flush, senders: int = senders, batch: int = batch) -> float:
            with folder_in(options.folder) as folder:
                rate, cpu = runner(run_shape(folder, flush, senders, batch, options.seconds))
            line.notes.append(f"{rate * FRAME_BYTES / 1e6:.0f} MB/s, loop {cpu:.2f} us")
            return float(rate)

        def base(group: int = min(GROUP_MAX, senders * batch)) -> float:
            with folder_in(options.folder) as folder:
                return floor(folder, group, options.seconds / 2)

        lines.append(measure(line, options.rounds, work, base))
    report("append, messages of 1 KiB", lines, options.json)
    with folder_in(options.folder) as folder:
        print(f"32 hot messages: {runner(hot_reads(folder)):.1f} us")


if __name__ == "__main__":
    main()
