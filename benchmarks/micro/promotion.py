"""Time until a copy that never led has opened its log, with and without replays, and the cost of replays.

python benchmarks/micro/promotion.py [--messages 2000000] [--body 1024] [--since 300000] [--folder DIR]

A store writes messages in calls of 32 to eight queues, each call followed by the broker's records of one delivery and
one acknowledgement of all 32. Snapshots are taken as by a leader. A `LogCopy` copies the log, and replays it at the
leader's last snapshot, `--since` records before the end. Then the broker's ledger (store and state) opens both folders:
the replayed one, and the log alone. Prints seconds and processor time of each, the records that were read, and the
processor time per record of copying, replaying, and the leader's store alone. It also prints the wait of the first
reader of a follower (the view of records committed since the replay), the cost of the message index, and the time of
the first query by key after each start.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from evenq_broker.core.state.copied_names import CopiedNames, names_something
from evenq_broker.core.state.keys import keys_of
from evenq_broker.core.state.records import Acked, Delivered, encode
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.runtime import Runtime
from evenq_broker.settings import BrokerSettings, StoreSettings

from evenq.runtime.clock import SystemClock
from evenq.store import Append, StoreOptions
from evenq.store.copies.committed_view import CommittedView
from evenq.store.copies.copy_index import CopyIndex
from evenq.store.copies.log_copy import LogCopy
from evenq.store.io.disk import ReadOnlyDisk, read_whole
from evenq.store.log import snapshot
from evenq.store.log.log_pieces import LogPieces

SEGMENT_BYTES = 64 << 20
CALL = 32
QUEUES = 8
HEADER_BYTES = 88


def settings_of(folder: Path) -> BrokerSettings:
    return BrokerSettings(store=StoreSettings(path=folder, segment_bytes=SEGMENT_BYTES), broker_name="bench")


def ledger_of(folder: Path) -> Ledger:
    net: Any = None  # the ledger calls no server
    return Ledger(Runtime(settings_of(folder), clock=SystemClock(), rng=random.Random(1), net=net))


def system_of(number: int) -> bytes:
    """System properties of 100 bytes, with a message id."""
    message_id = b"id-%032d" % number
    rest = 100 - 2 - len(message_id) - 2
    return b"\x1a%c%s" % (len(message_id), message_id) + b"\x8a\x01%c" % (rest - 1) + bytes(rest - 1)


async def write(folder: Path, messages: int, body: int, since: int) -> tuple[int, float]:
    """The leader's log; its end, and the time of the processor that its store took."""
    ledger = ledger_of(folder)
    await ledger.open(lambda _: None)
    store, number, saved = ledger.store, 0, False
    head, offsets = bytes(body - HEADER_BYTES - 100), [0] * QUEUES
    records, ids = messages + 2 * messages // CALL, itertools.count()
    begun = time.process_time()
    while number < messages:
        calls = []
        for _ in range(50):
            queue_id = number // CALL % QUEUES
            calls.append(store.append([Append(1, queue_id, 7, 0, head, system_of(next(ids))) for _ in range(CALL)]))
            first = offsets[queue_id]
            given = tuple(range(first, first + CALL))
            offsets[queue_id] += CALL
            ones = (1,) * CALL
            delivered = Delivered(1, 1, queue_id, first + CALL, 1 << 44, "client@host", given, ones, ones)
            acked = [Acked(1, 1, queue_id, offset) for offset in given]
            calls += [store.append_state(encode([delivered])), store.append_state(encode(acked))]
            ledger.replay(encode([delivered]))
            ledger.replay(encode(acked))
            number += CALL
        await asyncio.gather(*calls)
        if not saved and number + 2 * number // CALL >= records - since:
            await store.save_snapshot(ledger._state())  # noqa: SLF001  # as the store does
            saved = True
    spent = time.process_time() - begun
    end = store.stats.log_end
    await store._flusher.checkpoint()  # noqa: SLF001  # everything is on disk; the folder is not closed in order
    return end, spent


async def copy(leader: Path, folder: Path, end: int) -> tuple[float, ...]:
    """Processor time of copying, then of replaying, and the seconds that the latter took; both of a reader's view, and
    of the message index.
    """
    disk = ReadOnlyDisk(leader)
    pieces = LogPieces(disk, SEGMENT_BYTES)
    log = await LogCopy.open(folder, StoreOptions(), broker_name="bench", segment_bytes=SEGMENT_BYTES)
    copying = 0.0
    while log.end < end:
        data = pieces.read(log.end, end, 1 << 20)
        begun = time.process_time()
        await log.append(data, start=log.end)
        copying += time.process_time() - begun
    await log.sync()
    data = read_whole(disk, snapshot.newest_path(disk)) or b""
    begun, begun_wall = time.process_time(), time.perf_counter()
    assert await log.replay(data, committed=end, origin="the leader")
    spent = time.process_time() - begun, time.perf_counter() - begun_wall
    names = CopiedNames()
    begun, begun_wall = time.process_time(), time.perf_counter()
    view = await CommittedView.open(
        log.replays,
        until=end,
        log_bytes_max=1 << 62,
        on_snapshot=names.apply,
        on_state=names.apply,
        wanted=names_something,
    )
    viewing = time.process_time() - begun, time.perf_counter() - begun_wall
    view.close()
    index, begun, begun_wall = CopyIndex(keys_of), time.process_time(), time.perf_counter()
    while not await index.follow(log):
        pass
    indexing = time.process_time() - begun, time.perf_counter() - begun_wall
    await log.close()
    pieces.close()
    return copying, *spent, *viewing, *indexing


async def lead(folder: Path) -> tuple[float, float, int, float]:
    """Seconds and processor time until the log is open, records that were read, and seconds of a query by key then."""
    ledger = ledger_of(folder)
    begun, begun_wall = time.process_time(), time.perf_counter()
    await ledger.open(lambda _: None)
    spent = time.perf_counter() - begun_wall, time.process_time() - begun
    read, begun_wall = ledger.store.stats.recovered_records, time.perf_counter()
    assert await ledger.store.find(1, b"id-%032d" % 7)
    return *spent, read, time.perf_counter() - begun_wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--body", type=int, default=1024, help="bytes of a message's record, header included")
    parser.add_argument("--since", type=int, default=300_000, help="records behind the last snapshot")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="evenq-promotion-", dir=options.folder))
    try:
        end, appending = asyncio.run(write(folder / "leader", options.messages, options.body, options.since))
        copying, replaying, seconds, viewing, waiting, indexing, filing = asyncio.run(
            copy(folder / "leader", folder / "warm", end)
        )
        cold = folder / "cold"
        cold.mkdir()
        (folder / "warm" / "commitlog").rename(cold / "commitlog")  # one log for both, one after the other
        shutil.copy(folder / "warm" / "identity", cold / "identity")
        records = options.messages + 2 * options.messages // CALL
        print(f"log of {end / (1 << 30):.2f} GiB, {records} records")
        print(f"leader's store {appending / records * 1e6:.2f} us a record, of the processor")
        print(f"copying        {copying / records * 1e6:.2f} us")
        print(f"replaying      {replaying / (records - options.since) * 1e6:.2f} us, in {seconds:.1f} s")
        print(f"view of {options.since} records: {viewing / options.since * 1e6:.2f} us a record, in {waiting:.2f} s")
        print(f"message index  {indexing / (records - options.since) * 1e6:.2f} us, in {filing:.1f} s")
        for name, place in (("cold", cold), ("warm", folder / "warm")):
            if name == "warm":
                (cold / "commitlog").rename(folder / "warm" / "commitlog")
            wall, spent, read, found = asyncio.run(lead(place))
            print(
                f"{name}: open after {wall:.2f} s, {spent:.2f} s of the processor, {read} records read; a query by key "
                f"{found:.2f} s"
            )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
