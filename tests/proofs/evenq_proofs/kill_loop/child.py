"""The store as a process of its own: sends, receives and commits as fast as it may, and tells its parent of each step.

Started by `store_rounds`, killed at any moment. What it was answered to be safe it writes to its standard output before it
does anything else, so the parent's record holds every acknowledgement that anybody could have seen. The words of a
line are in `Teller`. Its queues, bodies and choices come from the seed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from evenq.errors import Error
from evenq.runtime.clock import SystemClock
from evenq.runtime.tasks import spawn
from evenq.store import FlushMode, MessageStore, StoreOptions
from evenq.store.log.messages import Append, StoredMessage, TimerAppend

QUEUES: Final = ((1, 0), (1, 1), (1, 2), (2, 0), (2, 7))
"""(topic id, queue id)."""
SEGMENT_BYTES: Final = 16 << 10
BODY_BYTES_MAX: Final = 3_000
TAIL: Final = 100
"""Messages of each queue that a start reads again, from the disk."""
RETENTION_MS: Final = 150
CAUGHT_UP_MS: Final = 60
TIMER_MS_MAX: Final = 300
TIMER_LATE_MS: Final = 200
"""Timers are fired by now for certain, once their time is up."""
"""Old files go only when each group had read everything that long ago at most: then all in them is acknowledged."""
PAGE: Final = 16
SENDERS: Final = 3
PROGRESS: Final = struct.Struct(">BBQ")  # 'P', queue, offset; or 'G', 0, number of the last atomic pair


def name_of(queue: int) -> str:
    """The queue's name in the history: topic, broker, queue id."""
    topic_id, queue_id = QUEUES[queue]
    return f"t{topic_id}/store/{queue_id}"


def head_of(body: str, size: int) -> bytes:
    """A message that shows any byte that is not its own."""
    start = f"{body}|{size}|".encode()
    return start + (start * (size // len(start) + 1))[:size]


def body_of(message: StoredMessage) -> str:
    """The body's identity. Raises ValueError if any byte is not what was sent."""
    body, size, _ = message.head.split(b"|", 2)
    if message.head != head_of(body.decode(), int(size)) or message.system != body:
        raise ValueError(f"{message!r} holds other bytes than were sent")
    return body.decode()


class Teller:
    """Lines to the parent, each written at once.

    `s QUEUE BODY ..` a send begins; `k QUEUE OFFSET BODY ..` it is safe; `t BODY` it is safe and comes
    later; `i BODY..` its outcome is not known. `r QUEUE` a receive
    begins; `d QUEUE OFFSET BODY ..` its end. `c QUEUE OFFSET` a commit begins; `C QUEUE OFFSET` it is safe; `o QUEUE
    OFFSET` what was restored. `p NUMBER` a pair is safe; `P STATE MESSAGE` what was restored of both halves. `a QUEUE`
    a scan begins; `A QUEUE MIN FIRST NEXT BODY..` its end. `ready RECORDS CUT`, `drained`, `closed`, `error TEXT`.
    """

    def say(self, word: str, *rest: object) -> None:
        os.write(1, (" ".join([word, *map(str, rest)]) + "\n").encode())


class Child:
    """One life of the store."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.rng = random.Random(arguments.seed)
        self.clock = SystemClock()
        self.tell = Teller().say
        self.progress = [0] * len(QUEUES)
        self.pairs = 0
        self.count = 0
        self.caught_up_ms = [0] * len(QUEUES)
        self.store: MessageStore

    # -- the owner's state --------------------------------------------------------------------------------------------

    def state(self) -> bytes:
        pair = PROGRESS.pack(ord("G"), 0, self.pairs)
        return pair + b"".join(PROGRESS.pack(ord("P"), queue, at) for queue, at in enumerate(self.progress))

    def apply(self, payload: bytes) -> None:
        for kind, queue, value in PROGRESS.iter_unpack(payload):
            if kind == ord("P"):
                self.progress[queue] = max(self.progress[queue], value)
            else:
                self.pairs = max(self.pairs, value)

    # -- life ---------------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        arguments = self.arguments
        options = StoreOptions(
            segment_bytes=SEGMENT_BYTES, flush=FlushMode(arguments.flush), flush_interval_ms=10, flush_bytes=8 << 10,
            checkpoint_interval_ms=25, checkpoint_entries=200, cache_bytes=32 << 10, disk_free_min_bytes=0,
            disk_used_max_ratio=1, open_files_max=8, snapshot_log_bytes=96 << 10, retention_ms=RETENTION_MS,
            retention_hour=-1,
        )  # fmt: skip
        self.store = await MessageStore.open(
            Path(arguments.folder), options, clock=self.clock, broker_name="store",
            on_state=lambda _, payload: self.apply(payload), on_snapshot=self.apply, snapshot_of=self.state,
            keys_of=lambda _, system: (system,),
        )  # fmt: skip
        stats = self.store.stats
        await self._restored()
        self.tell("ready", stats.recovered_records, stats.recovered_cut_bytes)
        if arguments.drain:
            self.store.fire_timers()
            await self.clock.sleep_ms(TIMER_MS_MAX + TIMER_LATE_MS)
            await self._drain()
        else:
            self.store.fire_timers()
            await self._work()
        await self.store.close()
        self.tell("closed")

    async def _restored(self) -> None:
        for queue, committed in enumerate(self.progress):
            self.tell("o", queue, committed)
        for queue in range(len(QUEUES)):
            await self._scan(queue, TAIL)
        newest = await self._newest_pair()
        self.tell("P", self.pairs, newest)

    async def _newest_pair(self) -> int:
        """Number of the last pair whose message is stored; pairs go to the first queue."""
        low, high = self.store.queue_range(*QUEUES[0])
        while high > low:
            first = max(low, high - TAIL)
            for message in reversed(await self._page(0, first, high - first)):
                if message.born_ms:
                    return message.born_ms
            high = first
        return -1  # none is left to be seen

    async def _work(self) -> None:
        asyncio.get_running_loop().add_reader(0, self._told)
        self.stop = asyncio.Event()
        tasks = [spawn(self._send(number), name=f"sender {number}") for number in range(SENDERS)]
        tasks += [spawn(self._send_pairs(), name="pairs"), spawn(self._keep(), name="keeper")]
        tasks.append(spawn(self._send_timers(), name="timers"))
        tasks += [spawn(self._receive(queue), name=f"receiver {queue}") for queue in range(len(QUEUES))]
        tasks.append(spawn(self.stop.wait(), name="stop"))
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _told(self) -> None:
        os.read(0, 100)
        asyncio.get_running_loop().remove_reader(0)
        self.stop.set()

    async def _pause(self) -> None:
        await self.clock.sleep_ms(self.rng.choice((0, 0, 1, 3)))

    # -- sending ------------------------------------------------------------------------------------------------------

    def _message(self, sender: str, queue: int, born_ms: int = 0) -> tuple[str, Append]:
        self.count += 1
        body = f"{self.arguments.name}-{sender}-{self.count}"
        size = self.rng.choice((0, 20, 20, 100, 100, 700, BODY_BYTES_MAX))
        topic_id, queue_id = QUEUES[queue]
        return body, Append(topic_id, queue_id, 0, born_ms, head_of(body, size), body.encode())

    async def _send(self, number: int) -> None:
        while True:
            queues = [self.rng.randrange(len(QUEUES)) for _ in range(self.rng.choice((1, 1, 2, 5)))]
            await self._store(queues, [self._message(f"s{number}", queue) for queue in queues])
            await self._pause()

    async def _send_pairs(self) -> None:
        """A message and a state record in one call: both or none."""
        while True:
            self.pairs = number = self.pairs + 1
            message = self._message("pair", 0, born_ms=number)
            await self._store([0], [message], state=PROGRESS.pack(ord("G"), 0, number))
            self.tell("p", number)
            await self._pause()

    async def _send_timers(self) -> None:
        """Messages for later: each comes once, whatever happens meanwhile."""
        while True:
            queue = self.rng.randrange(len(QUEUES))
            body, made = self._message("timer", queue)
            due_ms = self.clock.now_ms() + self.rng.randint(0, TIMER_MS_MAX)
            timer = TimerAppend(
                made.topic_id, made.queue_id, 0, due_ms=due_ms, kind=1, born_ms=0, head=made.head, system=made.system
            )
            self.tell("s", queue, body)
            await self.store.append((), timers=[timer])
            self.tell("t", body)
            await self.clock.sleep_ms(self.rng.randint(0, 5))

    async def _store(self, queues: list[int], made: list[tuple[str, Append]], state: bytes = b"") -> None:
        self.tell("s", *_flat((queue, body) for queue, (body, _) in zip(queues, made, strict=True)))
        try:
            entries = [entry for _, entry in made]
            await (self.store.append(entries, state=state) if state else self.store.append(entries))
        except Error as error:
            self.tell("i", *(body for body, _ in made))
            self.tell("error", f"append: {error}")
            raise
        places = [(queue, entry.queue_offset, body) for queue, (body, entry) in zip(queues, made, strict=True)]
        self.tell("k", *_flat(places))

    # -- receiving ----------------------------------------------------------------------------------------------------

    async def _page(self, queue: int, start: int, count: int) -> list[StoredMessage]:
        return (await self.store.read(*QUEUES[queue], start, count_max=count, bytes_max=1 << 20)).messages

    async def _receive(self, queue: int) -> None:
        while True:
            if not await self._receive_once(queue):
                await self.clock.sleep_ms(2)

    async def _receive_once(self, queue: int) -> bool:
        start = self.progress[queue]
        if start >= self.store.queue_range(*QUEUES[queue])[1]:
            self.caught_up_ms[queue] = self.clock.monotonic_ms()
            return False
        self.tell("r", queue)
        messages = await self._page(queue, start, PAGE)
        self.tell("d", queue, *_flat((message.queue_offset, body_of(message)) for message in messages))
        if not messages:
            return False
        following = messages[-1].queue_offset + 1
        self.tell("c", queue, following)
        self.progress[queue] = following  # before its record: a snapshot between the two must not miss it
        await self.store.append_state(PROGRESS.pack(ord("P"), queue, following))
        self.tell("C", queue, following)
        return True

    async def _scan(self, queue: int, count: int | None = None) -> None:
        low, high = self.store.queue_range(*QUEUES[queue])
        at = first = low if count is None else max(low, high - count)
        self.tell("a", queue)
        bodies: list[str] = []
        messages: list[StoredMessage] = []
        while at < high:
            messages = await self._page(queue, at, PAGE)
            if [message.queue_offset for message in messages] != list(range(at, at + len(messages))) or not messages:
                self.tell("error", f"{name_of(queue)} is not dense at {at} of {low}..{high}: {messages}")
                raise SystemExit(3)
            bodies += map(body_of, messages)
            at += len(messages)
        await self._find(queue, messages[-3:])
        self.tell("A", queue, low, first, at, *bodies)

    async def _find(self, queue: int, messages: list[StoredMessage]) -> None:
        """The index must know them, too."""
        for message in messages:
            found = await self.store.find(message.topic_id, message.system)
            if [one.log_offset for one in found] != [message.log_offset]:
                self.tell("error", f"{name_of(queue)} holds {message!r}, the index finds {found} by its key")
                raise SystemExit(3)

    async def _drain(self) -> None:
        for queue in range(len(QUEUES)):
            while await self._receive_once(queue):
                pass
        for queue in range(len(QUEUES)):
            await self._scan(queue)
        self.tell("drained")

    # -- housekeeping -------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            await self.clock.sleep_ms(self.rng.uniform(5, 30))
            match self.rng.randrange(6):
                case 0:
                    await self.store.checkpoint()
                case 1 | 2:
                    await self.store.save_snapshot(self.state())
                case 3 | 4:
                    if min(self.caught_up_ms) >= self.clock.monotonic_ms() - CAUGHT_UP_MS:
                        await self.store.clean()
                case _:
                    await self.store.flush()


def _flat(rows: Iterable[Iterable[object]]) -> list[object]:
    return [value for row in rows for value in row]


def main() -> int:
    """The process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--flush", default="async")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="x", help="first part of every body: unique in its folder")
    parser.add_argument("--drain", action="store_true", help="receive and scan everything, then end")
    try:
        asyncio.run(Child(parser.parse_args()).live())
    except Error as error:
        Teller().say("error", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
