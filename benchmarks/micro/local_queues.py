"""Queues without a server compared with others: 10 producers and 10 consumers in one process, messages of 1 KiB.

python benchmarks/micro/local_queues.py [--seconds 2] [--rounds 3] [--stored 20000] [--folder DIR] [--json FILE]

Each one in turn, in rounds: producers send one message after the other as fast as they can, consumers take and finish
them; messages finished within the time are counted. Peers: `queue.Queue` (bounded), SQLite in WAL mode
with synchronous=NORMAL (its kill -9 promise is that of ASYNC) and FULL (that of SYNC), `persist-queue`'s file queue.
SQLite is used as such a queue is written: one insert and one commit a message, consumers read up to 32 rows behind
their position and read again after 1 ms if there are none; each producer has a queue, each consumer reads one.
Then a process stores N messages and is killed (-9). Measured are acknowledged messages that are lost, and the time
until the next process can send and read.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import queue
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import persistqueue

import evenq.local
from evenq.errors import TooManyRequests
from evenq.local import Flush, LocalOptions

PRODUCERS = CONSUMERS = 10
BODY = os.urandom(1024)
SYNCING = {"local sync", "embedded sync", "SQLite FULL"}


class Peer(Protocol):
    """A queue with a sender and a receiver for each thread."""

    def sender(self, _number: int, /) -> Callable[[bytes], Any]: ...

    def receiver(self, _number: int, /) -> Callable[[], int]:
        """Returns a call that takes and finishes messages, with a wait of some ms at most, and returns their number."""
        ...

    def close(self) -> None: ...


class Ours:
    """evenq.local."""

    def __init__(self, folder: Path, engine: str, flush: Flush) -> None:
        path = None if engine == "memory" else folder
        options = LocalOptions(flush=flush, bucket_bytes_max=8 << 20)  # memory: as deep as the `queue.Queue` beside it
        self.queues = evenq.local.open(path, engine=engine, options=options)

    def sender(self, _number: int) -> Callable[[bytes], Any]:
        producer = self.queues.producer("orders")

        def send(body: bytes) -> None:
            with contextlib.suppress(TooManyRequests):  # full, and the consumers have ended
                producer.send(body, timeout=0.5)

        return send

    def receiver(self, _number: int) -> Callable[[], int]:
        consumer = self.queues.consumer("orders", group="billing")

        def take() -> int:
            count = len(consumer.poll(timeout=0.05))
            consumer.commit()
            return count

        return take

    def close(self) -> None:
        self.queues.close()


class Plain:
    """`queue.Queue`: the floor, nothing kept."""

    def __init__(self) -> None:
        self.queue: queue.Queue[bytes] = queue.Queue(65_536)

    def sender(self, _number: int) -> Callable[[bytes], Any]:
        def send(body: bytes) -> None:
            with contextlib.suppress(queue.Full):
                self.queue.put(body, timeout=0.05)

        return send

    def receiver(self, _number: int) -> Callable[[], int]:
        def take() -> int:
            try:
                self.queue.get(timeout=0.05)
            except queue.Empty:
                return 0
            return 1

        return take

    def close(self) -> None: ...


class Sqlite:
    """A table as a queue."""

    def __init__(self, folder: Path, synchronous: str) -> None:
        self.path = folder / "queue.db"
        self.synchronous = synchronous
        connection = self.connect()
        connection.execute("create table if not exists m (id integer primary key, queue integer, body blob)")
        connection.execute("create index if not exists by_queue on m (queue, id)")
        connection.execute("create table if not exists progress (queue integer primary key, id integer)")
        connection.close()

    def connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        connection.execute("pragma journal_mode=wal")
        connection.execute(f"pragma synchronous={self.synchronous}")
        return connection

    def sender(self, number: int) -> Callable[[bytes], Any]:
        connection = None

        def send(body: bytes) -> None:
            nonlocal connection
            connection = connection or self.connect()
            connection.execute("insert into m (queue, body) values (?, ?)", (number, body))

        return send

    def receiver(self, number: int) -> Callable[[], int]:
        connection = None
        place = 0

        def take() -> int:
            nonlocal connection, place
            if connection is None:
                connection = self.connect()
                row = connection.execute("select id from progress where queue = ?", (number,)).fetchone()
                place = row[0] if row else 0
            rows = connection.execute(
                "select id, body from m where queue = ? and id > ? order by id limit 32", (number, place)
            ).fetchall()
            if rows:
                place = rows[-1][0]
                connection.execute("insert or replace into progress values (?, ?)", (number, place))
            else:
                time.sleep(0.001)
            return len(rows)

        return take

    def close(self) -> None: ...


class Persist:
    """`persist-queue`, its file queue: one for all, as it comes."""

    def __init__(self, folder: Path) -> None:
        self.queue = persistqueue.Queue(str(folder / "persist"), autosave=True)

    def sender(self, _number: int) -> Callable[[bytes], Any]:
        return self.queue.put

    def receiver(self, _number: int) -> Callable[[], int]:
        def take() -> int:
            try:
                self.queue.get(timeout=0.05)
            except persistqueue.Empty:
                return 0
            self.queue.task_done()
            return 1

        return take

    def close(self) -> None: ...


PEERS: dict[str, Callable[[Path], Peer]] = {
    "memory": lambda folder: Ours(folder, "memory", Flush.ASYNC),
    "embedded async": lambda folder: Ours(folder, "embedded", Flush.ASYNC),
    "local async": lambda folder: Ours(folder, "local", Flush.ASYNC),
    "embedded sync": lambda folder: Ours(folder, "embedded", Flush.SYNC),
    "local sync": lambda folder: Ours(folder, "local", Flush.SYNC),
    "queue.Queue": lambda _: Plain(),
    "SQLite NORMAL": lambda folder: Sqlite(folder, "normal"),
    "SQLite FULL": lambda folder: Sqlite(folder, "full"),
    "persist-queue": Persist,
}


@contextlib.contextmanager
def fresh(root: str | None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="evenq-local-", dir=root))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def messages_per_second(name: str, folder: Path, seconds: float) -> float:
    """Messages sent, taken and finished in a second."""
    peer = PEERS[name](folder)
    stop = threading.Event()
    taken = [0] * CONSUMERS

    def produce(send: Callable[[bytes], Any]) -> None:
        while not stop.is_set():
            send(BODY)

    def consume(index: int, take: Callable[[], int]) -> None:
        while not stop.is_set():
            taken[index] += take()

    threads = [threading.Thread(target=produce, args=(peer.sender(index),)) for index in range(PRODUCERS)]
    threads += [threading.Thread(target=consume, args=(index, peer.receiver(index))) for index in range(CONSUMERS)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    count, took = sum(taken), time.perf_counter() - start
    stop.set()
    for thread in threads:
        thread.join()
    with contextlib.suppress(Exception):
        peer.close()
    return count / took


def store_and_die(name: str, folder: str, count: int) -> None:
    """The process to kill: stores messages, prints their number, waits for the end."""
    send = PEERS[name](Path(folder)).sender(0)
    step = max(1, count // 100)
    for number in range(1, count + 1):
        send(BODY)
        if number % step == 0 or number == count:
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()
    sys.stdin.read()


def after_kill(name: str, folder: Path, count: int) -> dict[str, float]:
    """Lost messages and seconds until the next process can read and send."""
    command = [sys.executable, __file__, "--victim", name, str(folder), str(count)]
    victim = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stored = 0
    assert victim.stdout is not None
    for line in victim.stdout:
        stored = int(line)
        if stored >= count:
            break
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    start = time.perf_counter()
    peer = PEERS[name](folder)
    take = peer.receiver(0)
    found = take()
    peer.sender(0)(BODY)
    took = time.perf_counter() - start
    empty = 0
    while empty < 3:
        more = take()
        found += more
        empty = 0 if more else empty + 1
    with contextlib.suppress(Exception):
        peer.close()
    return {"seconds": took, "lost": max(0, stored + 1 - found), "stored": stored}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stored", type=int, default=20_000, help="messages stored before the kill")
    parser.add_argument("--only", default="", help="names, comma-separated")
    parser.add_argument("--folder", help="where the files go")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--victim", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.victim:
        name, folder, count = arguments.victim
        store_and_die(name, folder, int(count))
        return
    names = [name for name in PEERS if not arguments.only or name in arguments.only.split(",")]
    rates: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(arguments.rounds):
        for name in names:
            with fresh(arguments.folder) as folder:
                rates[name].append(messages_per_second(name, folder, arguments.seconds))
    print(f"{'':16} {'messages/s':>11} {'spread':>17} {'MB/s':>7} {'recovery s':>11} {'lost':>6} of stored")
    rows = []
    for name in names:
        kept: dict[str, float] = {}
        if name not in {"memory", "queue.Queue"}:
            stored = arguments.stored // (10 if name in SYNCING or name == "persist-queue" else 1)
            with fresh(arguments.folder) as folder:
                kept = after_kill(name, folder, stored)
        middle = statistics.median(rates[name])
        rows.append({"name": name, "messages_per_s": rates[name], "after_kill": kept})
        spread = f"{min(rates[name]):.0f}-{max(rates[name]):.0f}"
        tail = (
            f"{kept['seconds']:11.3f} {kept['lost']:6.0f} of {kept['stored']:.0f}" if kept else f"{'-':>11} {'all':>6}"
        )
        print(f"{name:16} {middle:11.0f} {spread:>17} {middle * len(BODY) / 1e6:7.1f} {tail}")
    if arguments.json:
        facts = {
            "date": time.strftime("%Y-%m-%d"),
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            "seconds": arguments.seconds,
        }
        arguments.json.write_text(json.dumps({"machine": facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
