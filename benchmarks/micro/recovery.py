"""Time of a start after kill -9, and its dependence on the length of the log.

python benchmarks/micro/recovery.py [--gib 10] [--queues 100] [--rounds 3] [--folder DIR]

A child process writes messages of 1 KiB to `--queues` queues, with a state record for every 100, and is killed with
SIGKILL in the middle of its appends. Then, in a fresh process each: time of `open`, of the first append after it, and
until one message from the start and one from the end of every queue was read; records scanned; RSS over that of a
start of a short log. Between the rounds the child continues and is killed again. Prints the same for 1/10 of the log.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from evenq.runtime.clock import SystemClock
from evenq.store import Append, MessageStore, StoreOptions

HEAD = b"h" * 900
SYSTEM = b"s" * 124
CALL = 100
MORE_BYTES = 300 << 20  # what the child writes at least after each start: more than one snapshot covers


async def opened(folder: Path) -> MessageStore:
    return await MessageStore.open(
        folder,
        StoreOptions(retention_ms=0),
        clock=SystemClock(),
        broker_name="bench",
        on_state=lambda *_: None,
        on_snapshot=lambda _: None,
        snapshot_of=lambda: b"state" * 10_000,
    )


async def write(folder: Path, queues: int, end_bytes: int) -> None:
    """Appends until the log has this length, prints a line, and continues until it is killed."""
    store = await opened(folder)
    reported = False
    number = 0
    while True:
        calls = []
        for _ in range(8):
            entries = [Append(1, (number + n) % queues, 7, 0, HEAD, SYSTEM) for n in range(CALL)]
            number += CALL
            calls += [store.append(entries), store.append_state(b"progress" * 20)]
        await asyncio.gather(*calls)
        if not reported and store.stats.log_end >= end_bytes:
            reported = True
            print("written", flush=True)


async def start(folder: Path, queues: int) -> dict[str, float]:
    """One start of the killed store."""
    before = time.perf_counter()
    store = await opened(folder)
    ready = time.perf_counter()
    await store.append([Append(1, 0, 7, 0, HEAD, SYSTEM)])
    accepted = time.perf_counter()
    for queue_id in range(queues):
        low, high = store.queue_range(1, queue_id)
        for offset in (low, high - 1):
            found = await store.read(1, queue_id, offset, count_max=1, bytes_max=1)
            assert found.messages[0].queue_offset == offset
    readable = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    stats = store.stats
    result = {
        "gib": stats.log_bytes / (1 << 30),
        "open": ready - before,
        "append": accepted - before,
        "readable": readable - before,
        "records": stats.recovered_records,
        "peak_mb": peak,
    }
    await store.close()
    return result


def child(*arguments: object) -> list[str]:
    return [sys.executable, __file__, "--child", *map(str, arguments)]


def fill_and_kill(folder: Path, queues: int, end_bytes: int) -> None:
    writer = subprocess.Popen(child("write", folder, queues, end_bytes), stdout=subprocess.PIPE)
    assert writer.stdout is not None
    line = writer.stdout.readline()
    time.sleep(0.5)  # in the middle of its appends
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    assert line == b"written\n", "the writer failed"


def measure(folder: Path, queues: int) -> dict[str, float]:
    """A start of a copy of nothing: the folder itself, whose owner is dead."""
    found = subprocess.run(child("start", folder, queues, 0), stdout=subprocess.PIPE, check=True)
    return dict(json.loads(found.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=10)
    parser.add_argument("--queues", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None, help="parent of the data folder")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    peaks = []
    try:
        for share in (0.1, 1.0):
            end_bytes = int(options.gib * share * (1 << 30))
            found = []
            for round_ in range(options.rounds):
                fill_and_kill(folder, options.queues, end_bytes + round_ * MORE_BYTES)
                found.append(measure(folder, options.queues))
            peaks.append(max(result["peak_mb"] for result in found))
            print(f"{found[0]['gib']:.1f} GiB, {options.queues} queues, {options.rounds} starts after kill -9:")
            for name, goal in (("open", 2.0), ("append", 2.0), ("readable", 5.0)):
                times = [result[name] for result in found]
                print(
                    f"  {name:<9} {statistics.median(times):.2f} s, {min(times):.2f} to {max(times):.2f}; goal {goal} s"
                )
            records = [int(result["records"]) for result in found]
            print(f"  records scanned {min(records):,} to {max(records):,}; peak RSS {peaks[-1]:.0f} MB")
        print(f"RSS of the long log over the short one: {peaks[1] - peaks[0]:+.0f} MB; goal at most 100")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        job, where, queue_count, size = sys.argv[2:]
        if job == "write":
            asyncio.run(write(Path(where), int(queue_count), int(size)))
        print(json.dumps(asyncio.run(start(Path(where), int(queue_count)))))
    else:
        main()
