"""What one append costs, against a floor that only checksums the same bytes and writes them.

python benchmarks/micro/append.py [--seconds 2] [--folder DIR] [--uvloop]

Prints messages/s and MB/s for each shape, its ratio to the floor, and the CPU time of the loop thread for each
message. The floor packs a header, takes the CRC32C and calls `os.pwritev` in groups of the same size, on one thread,
without places, futures or queues.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from crc32c import crc32c

from evenq.runtime.clock import SystemClock
from evenq.store import Append, FlushMode, MessageStore, StoreOptions
from evenq.store.record import MAGIC, PREFIX, REST

T = TypeVar("T")
HEAD = b"h" * 900
SYSTEM = b"s" * 124
FRAME_BYTES = 88 + len(HEAD) + len(SYSTEM)
CHUNK = 2_000


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
    store = await MessageStore.open(
        folder, StoreOptions(flush=flush), clock=SystemClock(), broker_name="bench", on_state=lambda *_: None,
        on_snapshot=lambda _: None,
    )  # fmt: skip
    start = time.perf_counter()
    count, cpu = await in_flight(store, senders, batch, seconds)
    took = time.perf_counter() - start
    await store.close()
    return count / took, cpu / count * 1e6


async def hot_reads(folder: Path) -> float:
    """Microseconds for 32 consecutive messages of one queue out of eight, from memory."""
    store = await MessageStore.open(
        folder,
        StoreOptions(),
        clock=SystemClock(),
        broker_name="bench",
        on_state=lambda *_: None,
        on_snapshot=lambda _: None,
    )
    for _ in range(10):
        await store.append([Append(1, n % 8, 7, 0, HEAD, SYSTEM) for n in range(CHUNK)])
    times = []
    for start in range(0, 2_000, 32):
        before = time.perf_counter()
        found = store.read_hot(1, 3, start, count_max=32, bytes_max=1 << 20)
        times.append(time.perf_counter() - before)
        assert found is not None
        assert len(found.messages) == min(32, 2_500 - start)
    await store.close()
    return sorted(times)[len(times) // 2] * 1e6


def in_folder(root: Path | None, work: Callable[[Path], T]) -> T:
    folder = Path(tempfile.mkdtemp(dir=root))
    try:
        return work(folder)
    finally:
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--folder", type=Path, default=None, help="parent of the data folders")
    parser.add_argument("--uvloop", action="store_true")
    options = parser.parse_args()
    runner = asyncio.run
    if options.uvloop:
        import uvloop

        runner = uvloop.run
    print(f"{'shape':<34}{'messages/s':>12}{'MB/s':>8}{'ratio':>8}{'loop us/message':>17}")
    for flush, senders, batch in [
        (FlushMode.ASYNC, 64, 1),
        (FlushMode.ASYNC, 512, 1),
        (FlushMode.ASYNC, 64, 32),
        (FlushMode.SYNC, 64, 1),
        (FlushMode.SYNC, 64, 32),
    ]:
        base = in_folder(options.folder, lambda folder: floor(folder, min(256, senders * batch), options.seconds / 2))  # noqa: B023
        rate, cpu = in_folder(
            options.folder,
            lambda folder: runner(run_shape(folder, flush, senders, batch, options.seconds)),  # noqa: B023
        )
        name = f"{flush}, {senders} in flight, {batch} a call"
        print(
            f"{name:<34}{rate:>12,.0f}{rate * FRAME_BYTES / 1e6:>8.0f}{rate / base:>8.2f}{cpu:>17.2f}"
            f"   floor {base:,.0f}"
        )
    hot_us = in_folder(options.folder, lambda folder: runner(hot_reads(folder)))
    print(f"32 hot messages: {hot_us:.1f} us")


if __name__ == "__main__":
    main()
