"""Settling by itself; how it works inside a consumer is tried in `tests/spec/test_concurrent.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from evenq_proofs.received import received_message

from evenq.client.core.calls import FINISHED
from evenq.client.core.reading.process_queue import ProcessQueue
from evenq.client.loops.reading.settler import Settler
from evenq.client.options import PushOptions
from evenq.errors import RequestTimeout
from evenq.model import MessageQueue, QueueOffset, ReceivedMessage
from evenq.runtime.clock import FakeClock

P, Q = (MessageQueue("t", broker, 0) for broker in "pq")
Chunks = list[list[ReceivedMessage]]


class Counts:
    """Brokers p and q of a group with one delivery for each message, so that each delivery is counted."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.away: set[MessageQueue] = set()
        self.held: dict[MessageQueue, asyncio.Event] = {}
        """Reports of finished messages that wait."""
        self.counted: list[tuple[str, dict[int, int]]] = []
        self.settler = Settler(
            clock=self.clock,
            options=PushOptions(),
            max_attempts=lambda: 1,
            send_back=self._send_back,
            count=self._count,
            again=lambda *_: None,
        )

    async def _send_back(self, queue: ProcessQueue, message: ReceivedMessage, attempts: int, level: int) -> None: ...

    async def _count(self, queue: ProcessQueue, deliveries: Mapping[int, int]) -> None:
        if queue.queue in self.held and FINISHED in deliveries.values():
            await self.held[queue.queue].wait()
        if queue.queue in self.away:
            raise RequestTimeout("no answer")
        self.counted.append((queue.queue.broker_name, dict(deliveries)))

    async def finished(self, *names: MessageQueue, messages: int) -> list[tuple[ProcessQueue, Chunks]]:
        """Queues whose messages 0 are finished, which their brokers do not know, and the chunks of the others."""
        queues: list[tuple[ProcessQueue, Chunks]] = []
        for name in names:
            queue = ProcessQueue(name, QueueOffset(0), now_ms=0)
            given = [received_message(offset, message_id=str(offset), queue=name) for offset in range(messages)]
            queue.put(given, messages, now_ms=0)
            queues.append((queue, [queue.take(1, now_ms=0) for _ in range(messages)]))
            assert await self.settler.begin(queue, queues[-1][1][0])
        self.away.update(names)
        for queue, chunks in queues:
            await self.settler.settle(queue, chunks.pop(0), None)
        self.away.clear()
        self.counted.clear()
        return queues


async def test_a_delivery_waits_for_no_other_queue_but_until_its_own_finished_ones_are_reported() -> None:
    brokers = Counts()
    (p, (of_p,)), (q, (of_q,)) = await brokers.finished(P, Q, messages=2)
    brokers.held[P] = asyncio.Event()
    slow = asyncio.create_task(brokers.settler.begin(p, of_p))
    await brokers.clock.advance(0)
    assert await asyncio.wait_for(brokers.settler.begin(q, of_q), 10)
    assert brokers.counted == [("q", {0: FINISHED}), ("q", {1: 1})]
    brokers.held[P].set()
    assert await slow
    assert brokers.counted[2:] == [("p", {0: FINISHED}), ("p", {1: 1})]


async def test_deliveries_of_one_queue_begin_after_one_report_of_its_finished_ones() -> None:
    brokers = Counts()
    ((p, chunks),) = await brokers.finished(P, messages=4)
    brokers.held[P] = asyncio.Event()
    begins = [asyncio.create_task(brokers.settler.begin(p, chunk)) for chunk in chunks]
    await brokers.clock.advance(0)
    brokers.held.pop(P).set()
    assert await asyncio.gather(*begins) == [True] * 3
    assert brokers.counted[0] == ("p", {0: FINISHED})
    assert sorted(offset for _, counts in brokers.counted[1:] for offset in counts) == [1, 2, 3]


async def test_a_delivery_begins_in_the_moment_in_which_the_report_ends() -> None:
    brokers = Counts()
    ((p, chunks),) = await brokers.finished(P, messages=3)
    brokers.held[P] = asyncio.Event()
    first = asyncio.create_task(brokers.settler.begin(p, chunks[0]))
    await brokers.clock.advance(0)
    brokers.held[P].set()
    assert await brokers.settler.begin(p, chunks[1])
    assert await first


async def test_a_report_that_fails_is_the_outcome_of_all_that_wait_for_it_and_is_repeated_by_the_next() -> None:
    brokers = Counts()
    ((p, chunks),) = await brokers.finished(P, messages=3)
    brokers.away.add(P)
    brokers.held[P] = held = asyncio.Event()
    begins = [asyncio.create_task(brokers.settler.begin(p, chunk)) for chunk in chunks]
    await brokers.clock.advance(0)
    held.set()
    assert await asyncio.gather(*begins) == [False] * 2
    brokers.away.clear()
    again = p.take(1, now_ms=brokers.clock.monotonic_ms() + 60_000)
    assert await brokers.settler.begin(p, again)
    assert brokers.counted == [("p", {0: FINISHED}), ("p", {again[0].queue_offset: 1})]


async def test_a_cancelled_begin_leaves_the_report_to_the_next() -> None:
    brokers = Counts()
    ((p, chunks),) = await brokers.finished(P, messages=4)
    brokers.held[P] = asyncio.Event()
    first, second = (asyncio.create_task(brokers.settler.begin(p, chunk)) for chunk in chunks[:2])
    await brokers.clock.advance(0)
    first.cancel()
    await asyncio.wait({first})
    assert not await asyncio.wait_for(second, 10), "its report did not end"
    del brokers.held[P]
    assert await brokers.settler.begin(p, chunks[2])
    assert brokers.counted == [("p", {0: FINISHED}), ("p", {3: 1})]
