"""Processor time of a follower that copies its leader's log, and of the leader that reads it.

python benchmarks/micro/copying.py [--mib 256] [--record 1024] [--piece 1048576] [--rounds 5] [--folder DIR]

A store writes a log of records of one size. Then, in turns: `LogPieces.read` of all of it from the page cache, piece by
piece; `LogCopy.append` of the same pieces to a new folder (checksums, places, epochs, one write each), without a sync;
and, for comparison, a bare copy of the pieces to a file. Prints MB/s of processor time (user and system) of each, and
the microseconds a record costs; the median of the rounds and their spread.
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
from evenq.store.copies.log_copy import LogCopy
from evenq.store.io.disk import ReadOnlyDisk
from evenq.store.log.log_pieces import LogPieces

SEGMENT_BYTES = 64 << 20
HEADER_BYTES = 88


async def write(folder: Path, size: int, record: int) -> int:
    store = await MessageStore.open(
        folder,
        StoreOptions(segment_bytes=SEGMENT_BYTES, retention_ms=0),
        clock=SystemClock(),
        broker_name="bench",
        on_state=lambda *_: None,
        on_snapshot=lambda _: None,
    )
    head = bytes(record - HEADER_BYTES - 100)
    while store.stats.log_end < size:
        await asyncio.gather(
            *[store.append([Append(1, n % 8, 7, 0, head, bytes(100)) for n in range(10)]) for _ in range(50)]
        )
    end = store.stats.log_end
    await store.close()
    return end


def read(folder: Path, end: int, piece: int) -> tuple[list[bytes], float]:
    pieces, position, found = LogPieces(ReadOnlyDisk(folder), SEGMENT_BYTES), 0, []
    begun = time.process_time()
    while position < end:
        found.append(pieces.read(position, end, piece))
        position += len(found[-1])
    spent = time.process_time() - begun
    pieces.close()
    return found, spent


async def append(folder: Path, pieces: list[bytes]) -> float:
    copy = await LogCopy.open(folder, StoreOptions(), broker_name="bench", segment_bytes=SEGMENT_BYTES)
    begun = time.process_time()
    for piece in pieces:
        await copy.append(piece, start=copy.end)
    spent = time.process_time() - begun
    await copy.close()
    return spent


def bare(path: Path, pieces: list[bytes]) -> float:
    begun = time.process_time()
    with path.open("wb", buffering=0) as file:
        for piece in pieces:
            file.write(piece)
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--record", type=int, default=1024, help="bytes of a record, header included")
    parser.add_argument("--piece", type=int, default=1 << 20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="evenq-copying-", dir=options.folder))
    try:
        end = asyncio.run(write(folder / "leader", options.mib << 20, options.record))
        spent: dict[str, list[float]] = {"read pieces": [], "append and verify": [], "bare write": []}
        for number in range(options.rounds):
            pieces, seconds = read(folder / "leader", end, options.piece)
            spent["read pieces"].append(seconds)
            spent["append and verify"].append(asyncio.run(append(folder / f"copy-{number}", pieces)))
            spent["bare write"].append(bare(folder / "bare", pieces))
            shutil.rmtree(folder / f"copy-{number}")
            (folder / "bare").unlink()
        records = end // options.record
        print(f"{end >> 20} MiB, {records} records, pieces of {options.piece} bytes; load {os.getloadavg()[0]:.1f}")
        for what, seconds in spent.items():
            rates = sorted(end / 1e6 / one for one in seconds)
            each = statistics.median(seconds) / records * 1e6
            print(
                f"{what:18} {statistics.median(rates):6.0f} MB/s of processor time "
                f"({rates[0]:.0f} to {rates[-1]:.0f}), {each:.2f} us a record"
            )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
