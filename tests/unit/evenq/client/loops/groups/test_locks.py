"""What a member asks about locks, and what it does when the answer does not come."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from evenq.client.core.calls import LockAnswer
from evenq.client.core.reading.process_queue import ProcessQueue
from evenq.client.loops.clients.troubles import Troubles
from evenq.client.loops.groups.locks import Locks
from evenq.client.loops.reading.read_plan import ReadPlan
from evenq.client.options import PushOptions
from evenq.errors import ConnectionFailed, PreconditionFailed
from evenq.model import NO_GENERATION, Generation, MessageQueue, QueueOffset, StartFrom
from evenq.runtime.clock import FakeClock

ONE, TWO = MessageQueue("t", "b", 0), MessageQueue("u", "b", 0)


class Wire:
    """Grants what no member holds; `broken` calls fail first."""

    def __init__(self) -> None:
        self.holders: dict[MessageQueue, str] = {}
        self.broken = 0
        self.waits: list[int] = []
        self.anew: list[bool] = []
        self.unlocked: list[MessageQueue] = []

    def trip(self) -> None:
        if self.broken:
            self.broken -= 1
            raise ConnectionFailed("gone")

    async def lock(
        self,
        _address: str,
        _group: str,
        queues: Sequence[MessageQueue],
        *,
        wait_ms: int,
        generation: Generation,
        anew: bool,
    ) -> list[LockAnswer]:
        assert generation == NO_GENERATION
        self.anew.append(anew)
        self.waits.append(wait_ms)
        self.trip()
        if wait_ms:
            self.holders.clear()
        holders = [self.holders.setdefault(queue, "me") for queue in queues]
        return [LockAnswer(queue, holder == "me", holder, 5) for queue, holder in zip(queues, holders, strict=True)]

    async def unlock(self, _address: str, _group: str, queues: Sequence[MessageQueue]) -> None:
        self.trip()
        self.unlocked += queues

    async def count_deliveries(self, *_: Any, **__: Any) -> None:
        self.trip()
        raise PreconditionFailed("another member has the lock")


class Sessions:
    def __init__(self) -> None:
        self.there = True

    def up(self, _broker: str) -> bool:
        return self.there


class Stage:
    def __init__(self) -> None:
        self.wire, self.sessions = Wire(), Sessions()
        self.answers: list[tuple[MessageQueue, int | None]] = []  # with the committed offset
        self.tasks: list[asyncio.Task[None]] = []
        self.fenced: list[str] = []
        reading = ReadPlan(
            group="g",
            options=PushOptions(lock_wait_ms=500),
            subscriptions={},
            clustering=True,
            start_policy=lambda: StartFrom.LAST,
            start_timestamp_ms=0,
            ordered=False,
            attempts_max=None,
            auto_commit=True,
        )
        self.locks = Locks(
            reading,
            calls=self.wire,  # type: ignore[arg-type]  # only what it asks
            sessions=self.sessions,  # type: ignore[arg-type]  # only what it asks
            address=self.address,
            generation=lambda _topic: NO_GENERATION,
            on_answer=lambda queue, locked: self.answers.append((queue, None if locked is None else locked.committed)),
            spawn=self.spawn,
            fenced=self.fenced.append,
            troubles=Troubles(FakeClock(), who="group g"),
        )

    async def address(self, _queue: MessageQueue) -> str:
        return "b:1"

    def spawn(self, work: Coroutine[Any, Any, None], _name: str) -> None:
        self.tasks.append(asyncio.ensure_future(work))


async def test_a_held_queue_is_waited_for_in_a_call_of_its_own() -> None:
    stage = Stage()
    stage.wire.holders[TWO] = "other"
    await stage.locks.take("b", [ONE, TWO])
    assert stage.answers == [(ONE, 5)]
    await asyncio.gather(*stage.tasks)
    assert stage.answers == [(ONE, 5), (TWO, 5)]
    assert stage.wire.waits == [0, 500]
    assert stage.wire.anew == [True, True], "what an earlier life had under this id is nothing we know of"


async def test_without_a_line_to_the_broker_nothing_is_asked() -> None:
    stage = Stage()
    stage.sessions.there = False
    await stage.locks.take("b", [ONE, TWO])
    assert (stage.answers, stage.wire.waits) == ([(ONE, None), (TWO, None)], [])


async def test_a_lock_whose_answer_is_lost_is_let_go_and_owed_until_that_is_sure() -> None:
    stage = Stage()
    stage.wire.broken = 2
    await stage.locks.take("b", [ONE])
    assert stage.locks.owed(lambda _queue: False) == [ONE]
    await asyncio.gather(*stage.tasks)
    assert stage.answers == [(ONE, 5)], "a second, waiting call got it"
    assert stage.locks.owed(lambda queue: queue == ONE) == [], "wanted again: nothing is owed"
    stage.wire.broken = 1
    await stage.locks.release(TWO)
    assert stage.locks.owed(lambda _queue: False) == [TWO]
    await stage.locks.release(TWO)
    assert (stage.locks.owed(lambda _queue: False), stage.wire.unlocked) == ([], [TWO])


async def test_renewing_tells_each_answer_and_whether_one_is_missing() -> None:
    stage, heard = Stage(), list[LockAnswer]()
    stage.wire.holders[TWO] = "other"
    assert not await stage.locks.renew([ONE, TWO], heard.append)
    assert [(one.queue, one.granted, one.holder) for one in heard] == [(ONE, True, "me"), (TWO, False, "other")]
    stage.wire.broken = 1
    assert await stage.locks.renew([ONE, TWO], heard.append), "no answer for the first topic"
    assert [one.queue for one in heard[2:]] == [TWO]


async def test_only_a_rejected_count_of_deliveries_makes_the_locks_suspect() -> None:
    stage, process = Stage(), ProcessQueue(ONE, QueueOffset(0), now_ms=0)
    stage.wire.broken = 1
    with pytest.raises(ConnectionFailed):
        await stage.locks.count_deliveries(process, {})
    assert stage.fenced == []
    with pytest.raises(PreconditionFailed):
        await stage.locks.count_deliveries(process, {})
    assert stage.fenced == ["b"]
