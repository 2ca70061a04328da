"""Send rate with 10,000 queues compared with 8, in turns in the same run.

python benchmarks/micro/many_queues.py [--messages 10000000] [--queues 10000] [--groups 1000] [--rounds 3]
    [--folder DIR] [--uvloop]

Each round fills a new data folder: `--messages` are split over the rounds and both sides. Messages go round over the
queues in calls of 32, 64 calls under way; every 10,000 messages each of `--groups` groups commits an offset (one state
record for 100 of them). Prints the rate of each side and their ratio (goal: 0.8), its spread, and for the many queues
open files, RSS, the longest checkpoint and the longest pause of the loop.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from evenq.runtime.clock import SystemClock
from evenq.store import Append, MessageStore, StoreOptions

CALL = 32
IN_FLIGHT = 64
HEAD = b"h" * 200
COMMIT_EVERY = 10_000
COMMITS_A_RECORD = 100


def rss_mb() -> float:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


class Round:
    def __init__(self, queues: int, messages: int, groups: int) -> None:
        self.queues = queues
        self.messages = messages
        self.groups = groups
        self.sent = 0
        self.checkpoint_ms = 0.0
        self.pause_ms = 0.0
        self.open_files = 0
        self.rate = 0.0

    async def run(self, folder: Path) -> None:
        store = await MessageStore.open(
            folder,
            StoreOptions(),
            clock=SystemClock(),
            broker_name="bench",
            on_state=lambda *_: None,
            on_snapshot=lambda _: None,
            snapshot_of=lambda: b"offset" * 4 * self.groups,
        )
        await self._first_of_each(store)
        watch = asyncio.ensure_future(self._watch())
        checkpoint = store._flusher.checkpoint  # noqa: SLF001  # no counter has this figure

        async def timed(*, clean: bool = False) -> None:
            before = time.perf_counter()
            await checkpoint(clean=clean)
            self.checkpoint_ms = max(self.checkpoint_ms, (time.perf_counter() - before) * 1e3)

        store._flusher.checkpoint = timed  # type: ignore[method-assign]  # noqa: SLF001
        start = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(self._send(store))
        self.rate = self.sent / (time.perf_counter() - start)
        watch.cancel()
        self.open_files = len(os.listdir("/proc/self/fd"))
        await store.close()

    async def _first_of_each(self, store: MessageStore) -> None:
        """Queues are made before the clock runs."""
        for first in range(0, self.queues, 1_000):
            last = min(self.queues, first + 1_000)
            await store.append([Append(1, queue_id, 7, 0, HEAD, b"") for queue_id in range(first, last)])
        await store.checkpoint()

    async def _send(self, store: MessageStore) -> None:
        while self.sent < self.messages:
            first = self.sent
            self.sent += CALL
            entries = [Append(1, (first + n) % self.queues, 7, 0, HEAD, b"") for n in range(CALL)]
            if first // COMMIT_EVERY != self.sent // COMMIT_EVERY:
                for _ in range(0, self.groups, COMMITS_A_RECORD):
                    store.append_state(b"group, topic, queue, offset." * COMMITS_A_RECORD)
            await store.append(entries)

    async def _watch(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            self.pause_ms = max(self.pause_ms, (time.perf_counter() - before) * 1e3 - 5)


def one(root: Path | None, queues: int, messages: int, groups: int) -> Round:
    found = Round(queues, messages, groups)
    folder = Path(tempfile.mkdtemp(dir=root))
    try:
        asyncio.run(found.run(folder))
    finally:
        shutil.rmtree(folder)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None, help="parent of the data folders")
    parser.add_argument("--uvloop", action="store_true", help="the loop that the broker runs on")
    options = parser.parse_args()
    if options.uvloop:
        import uvloop

        uvloop.install()
    share = options.messages // (2 * options.rounds)
    ratios = []
    one(options.folder, 8, share // 4, options.groups)  # warm up
    before = rss_mb()
    for _ in range(options.rounds):
        few = one(options.folder, 8, share, options.groups)
        many = one(options.folder, options.queues, share, options.groups)
        ratios.append(many.rate / few.rate)
        print(
            f"8 queues {few.rate:,.0f}/s (checkpoint {few.checkpoint_ms:.0f} ms); {options.queues} queues "
            f"{many.rate:,.0f}/s, ratio {ratios[-1]:.2f}, checkpoint at most {many.checkpoint_ms:.0f} ms, "
            f"pause at most {many.pause_ms:.0f} ms, {many.open_files} open files, "
            f"RSS {rss_mb():.0f} MB ({before:.0f} before)"
        )
    print(f"ratio: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}; goal 0.80")


if __name__ == "__main__":
    main()
