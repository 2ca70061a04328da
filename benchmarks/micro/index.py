"""Cost and speed of the message index: building, its share of appends, lookups.

python benchmarks/micro/index.py [--gib 1] [--seconds 3] [--rounds 3] [--folder DIR]

Messages of 1 KiB, each with one key and its own id, keys as the broker encodes them. Prints messages/s of
building an index over a log of `--gib` against the floor (reading the same log and taking two checksums of 24 bytes a
message), bytes of index a message, append rates without and with an index in turns, and the time of one `find` by an
id, warm, over all files, against one plain `read` of one message from disk.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import statistics
import tempfile
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c
from evenq_broker.core.state.frames import text_field, varint_field
from evenq_broker.core.state.keys import keys_of

from evenq.runtime.clock import SystemClock
from evenq.store import Append, FlushMode, MessageStore, StoreOptions
from evenq.store.index.message_index import KeysOf

HEAD = b"h" * 864
TOPIC_ID = 7
CALL = 256


def system_of(number: int) -> bytes:
    return b"".join(
        (
            text_field(1, "tag"),
            text_field(2, f"order-{number % 100_000:06d}"),
            text_field(3, key_of(number).decode()),
            varint_field(6, 1),
            text_field(8, "producer-host-1"),
            text_field(10, "127.0.0.1:8081"),
        )
    )


def key_of(number: int) -> bytes:
    return f"01F4B3C4D5E6{number:012X}".encode()


async def opened(folder: Path, keys: KeysOf | None, flush: FlushMode = FlushMode.ASYNC) -> MessageStore:
    return await MessageStore.open(
        folder,
        StoreOptions(flush=flush),
        clock=SystemClock(),
        broker_name="bench",
        on_state=lambda *_: None,
        on_snapshot=lambda _: None,
        keys_of=keys,
    )


async def fill(folder: Path, log_bytes: int) -> int:
    store = await opened(folder, None)
    count = 0
    while store.stats.log_end < log_bytes:
        calls = []
        for _ in range(16):
            batch = range(count, count + CALL)
            calls.append(store.append([Append(TOPIC_ID, n % 8, 0, 0, HEAD, system_of(n)) for n in batch]))
            count += CALL
        await asyncio.gather(*calls)
    await store.close()
    return count


def floor(folder: Path, count: int) -> float:
    """Returns the seconds to read the log once and to checksum as many keys as it has."""
    start = time.perf_counter()
    for path in sorted((folder / "commitlog").iterdir()):
        descriptor = os.open(path, os.O_RDONLY)
        place = 0
        while data := os.pread(descriptor, 1 << 19, place):
            place += len(data)
        os.close(descriptor)
    key = key_of(1)
    for _ in range(2 * count):
        zlib.crc32(key, 7)
        crc32c(key, 7)
    return time.perf_counter() - start


async def build(folder: Path) -> tuple[float, float]:
    """Seconds to index the whole log, as `find` does it, and seconds to do the same in the background, idle."""
    took = []
    clock = SystemClock()
    for background in (False, True):
        shutil.rmtree(folder / "index", ignore_errors=True)
        store = await opened(folder, keys_of)
        start = time.perf_counter()
        if background:
            while store.stats.index_end < store.stats.log_end:
                await clock.sleep_ms(10)
        else:
            await store.find(TOPIC_ID, b"nothing")
        took.append(time.perf_counter() - start)
        await store.close()
    return took[0], took[1]


async def lookups(folder: Path, count: int) -> tuple[list[float], list[float], list[float]]:
    """Microseconds of finds that hit, finds that miss, and plain cold reads of one message."""
    store = await opened(folder, keys_of)
    await store.find(TOPIC_ID, b"nothing")
    rng = random.Random(1)
    hits, misses, reads = [], [], []
    for _ in range(1_000):
        number = rng.randrange(count)
        start = time.perf_counter()
        (found,) = await store.find(TOPIC_ID, key_of(number))
        hits.append((time.perf_counter() - start) * 1e6)
        start = time.perf_counter()
        await store.read(TOPIC_ID, found.queue_id, found.queue_offset, count_max=1, bytes_max=1 << 20)
        reads.append((time.perf_counter() - start) * 1e6)
        start = time.perf_counter()
        assert not await store.find(TOPIC_ID, b"x%d" % number)
        misses.append((time.perf_counter() - start) * 1e6)
    await store.close()
    return hits, misses, reads


@dataclass(frozen=True, slots=True)
class Run:
    rate: float
    """Messages/s."""
    cpu_us: float
    """CPU time of the process per message, which other work on the machine disturbs less."""
    behind: int
    """Log bytes that the index lags behind at the end."""


async def append_run(folder: Path, keys: KeysOf | None, senders: int, batch: int, seconds: float) -> Run:
    store = await opened(folder, keys)
    systems = [system_of(n) for n in range(4096)]
    end = time.perf_counter() + seconds
    count = 0

    async def send(queue_id: int) -> None:
        nonlocal count
        while time.perf_counter() < end:
            await store.append(
                [Append(TOPIC_ID, queue_id, 0, 0, HEAD, systems[(count + n) % 4096]) for n in range(batch)]
            )
            count += batch

    cpu = time.process_time()
    start = time.perf_counter()
    await asyncio.gather(*(send(number % 8) for number in range(senders)))
    rate = count / (time.perf_counter() - start)
    cpu_us = (time.process_time() - cpu) / count * 1e6
    behind = store.stats.log_end - store.stats.index_end if keys is not None else 0
    await store.close()
    return Run(rate, cpu_us, behind)


def point(values: list[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]


def compare_appends(folder: Path, senders: int, batch: int, seconds: float, rounds: int) -> None:
    runs: dict[bool, list[Run]] = {False: [], True: []}
    for number in range(2 * rounds):
        keys = keys_of if number % 2 else None
        runs[number % 2 == 1].append(asyncio.run(append_run(folder, keys, senders, batch, seconds)))
        shutil.rmtree(folder)
    plain, indexed = (statistics.median(run.rate for run in runs[key]) for key in (False, True))
    plain_us, indexed_us = (statistics.median(run.cpu_us for run in runs[key]) for key in (False, True))
    rates = [run.rate for run in runs[False]]
    print(
        f"append, {senders} in flight, {batch} a call: {plain:,.0f} messages/s without index, {indexed:,.0f} with: "
        f"ratio {indexed / plain:.3f}, spread without {(max(rates) - min(rates)) / plain:.1%}; CPU a message "
        f"{plain_us:.2f} and {indexed_us:.2f} us; index behind {runs[True][-1].behind >> 20} MiB at the end"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None, help="parent of the data folders")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        for senders, batch in ((64, 1), (16, 32)):
            compare_appends(root / "append", senders, batch, options.seconds, options.rounds)
        folder = root / "log"
        count = asyncio.run(fill(folder, int(options.gib * (1 << 30))))
        base = floor(folder, count)
        at_once, idle = asyncio.run(build(folder))
        sizes = [path.stat().st_size for path in (folder / "index").iterdir()]
        print(
            f"build {count:,} messages: {count / at_once:,.0f} messages/s in one pass "
            f"(ratio to floor {base / at_once:.2f}), {count / idle:,.0f} in the background while idle; "
            f"floor {count / base:,.0f}"
        )
        covered = count * min(1.0, len(sizes) * (64 << 20) / (options.gib * (1 << 30)))
        print(f"{len(sizes)} files, {sum(sizes) / covered:.1f} bytes a message of two keys")
        hits, misses, reads = asyncio.run(lookups(folder, count))
        for name, values in (("find, one hit", hits), ("find, none", misses), ("plain read", reads)):
            print(
                f"{name}: p50 {point(values, 0.5):.0f} us, p99 {point(values, 0.99):.0f} us, "
                f"{point(values, 0.5) / point(reads, 0.5):.1f} plain reads"
            )
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
