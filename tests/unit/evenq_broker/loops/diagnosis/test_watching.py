"""The rounds over all groups: what does not move, how old the oldest unread message is, and the pauses between."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from evenq_broker.core.diagnosis.backlog import Backlog, Waits
from evenq_broker.core.diagnosis.stuck_queues import StuckQueues
from evenq_broker.loops.diagnosis.watching import READ_ROWS, ROUND_MS, SLICE, look_once, watch_heads

from evenq.errors import StoreFull
from evenq.model import StartFrom
from evenq.store import Append


class Scene:
    """A broker whose groups have progress on one queue of topic `t`, and what the rounds find out."""

    def __init__(self, stage: Any, broker: Any, topic: Any) -> None:
        self.stage, self.broker, self.topic = stage, broker, topic
        self.stuck_queues, self.backlog = StuckQueues(), Backlog()
        self.keys: list[tuple[int, int, int]] = []

    async def group(self, name: str) -> Any:
        """A group at the beginning of the queue; gives its progress there."""
        group = await self.stage.during(self.broker.catalog.create_group(name, start_from=StartFrom.FIRST))
        self.keys.append((group.group_id, self.topic.topic_id, 0))
        self.broker.ledger.progress.start(*self.keys[-1], 0)
        return self.broker.ledger.progress.queue(*self.keys[-1])

    async def send(self, count: int = 1) -> None:
        messages = [Append(self.topic.topic_id, 0, 0, 0, b"", b"") for _ in range(count)]
        await self.stage.during(self.broker.ledger.store.append(messages))

    async def look(self) -> int:
        rows: int = await self.stage.during(look_once(self.broker.kernel, **self.parts))
        return rows

    @property
    def parts(self) -> dict[str, Any]:
        return {"lite": self.broker.lite, "stuck_queues": self.stuck_queues, "backlog": self.backlog}


async def scene_of(stage: Any, messages: int = 0) -> Scene:
    broker = await stage.broker()
    topic = await stage.during(broker.catalog.create_topic("t", queues=1))
    scene = Scene(stage, broker, topic)
    if messages:
        await scene.send(messages)
    return scene


async def test_a_queue_with_unread_messages_has_an_age_and_one_without_has_none(stage: Any) -> None:
    scene = await scene_of(stage)
    stored_ms = stage.clock.now_ms()
    await scene.send(2)
    queue = await scene.group("g")
    await stage.clock.advance(60_000)
    await scene.look()
    ((key, waits),) = scene.backlog.items()
    assert key == scene.keys[0]
    assert (waits.offset, waits.retries) == (0, 0)
    assert abs(waits.stored_ms - stored_ms) <= 1_000
    scene.broker.ledger.progress.commit(*scene.keys[0], 2)
    assert queue.committed == 2
    await scene.look()
    assert list(scene.backlog.items()) == []


async def test_a_group_that_does_not_move_is_stuck_since_its_first_round(stage: Any) -> None:
    scene = await scene_of(stage, messages=2)
    await scene.group("g")
    first_ms = stage.clock.monotonic_ms()
    await scene.look()
    await stage.clock.advance(60_000)
    await scene.look()
    now_ms = stage.clock.monotonic_ms()
    assert scene.stuck_queues.stuck(60_000, now_ms=now_ms) == [(scene.keys[0], 0)]
    assert scene.stuck_queues.unmoved_ms(scene.keys[0], 0, now_ms=now_ms) >= now_ms - first_ms - 100
    scene.broker.ledger.progress.commit(*scene.keys[0], 1)
    await scene.look()
    assert scene.stuck_queues.stuck(60_000, now_ms=now_ms) == []


async def test_a_group_that_has_read_everything_is_not_stuck(stage: Any) -> None:
    scene = await scene_of(stage)
    await scene.group("g")
    await scene.look()
    await stage.clock.advance(60_000)
    await scene.look()
    assert scene.stuck_queues.stuck(60_000, now_ms=stage.clock.monotonic_ms()) == []


async def test_messages_that_wait_for_a_retry_are_counted(stage: Any) -> None:
    scene = await scene_of(stage, messages=3)
    queue, progress = await scene.group("g"), scene.broker.ledger.progress
    now_ms = scene.broker.runtime.now_ms()
    progress.deliver(queue, [0, 1], 2, deadline_ms=now_ms + 10_000, client_id="c")
    number = queue.pending[1].number
    progress.change_invisible(queue, 1, number, now_ms=now_ms, deadline_ms=now_ms + 20_000, given_back=True)
    await scene.look()
    ((_, waits),) = scene.backlog.items()
    assert (waits.offset, waits.retries) == (0, 1)


async def test_the_oldest_message_is_read_once_as_long_as_it_stays_the_oldest(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = await scene_of(stage, messages=2)
    await scene.group("g")
    reads: list[list[int]] = []
    read_at = scene.broker.ledger.store.read_at

    async def counted(topic_id: int, queue_id: int, offsets: list[int]) -> Any:
        reads.append(list(offsets))
        return await read_at(topic_id, queue_id, offsets)

    monkeypatch.setattr(scene.broker.ledger.store, "read_at", counted)
    assert await scene.look() == 1 + READ_ROWS
    assert await scene.look() == 1
    assert reads == [[0]]
    scene.broker.ledger.progress.commit(*scene.keys[0], 1)
    await scene.look()
    assert reads == [[0], [1]]


async def test_a_message_that_cannot_be_read_has_no_age_and_the_round_goes_on(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = await scene_of(stage, messages=1)
    for name in ("g", "h"):
        await scene.group(name)

    async def refused(*_: Any) -> Any:
        raise StoreFull("not now")

    monkeypatch.setattr(scene.broker.ledger.store, "read_at", refused)
    await scene.look()
    assert dict(scene.backlog.items()) == {key: Waits(0, 0, 0) for key in scene.keys}


async def test_a_long_round_pauses_between_slices(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = await scene_of(stage, messages=1)
    groups = 2 * SLICE // (1 + READ_ROWS) + 2
    for number in range(groups):
        await scene.group(f"g{number}")
    pauses: list[float] = []
    sleep_ms = stage.clock.sleep_ms

    async def counted(duration_ms: float) -> None:
        pauses.append(duration_ms)
        await sleep_ms(duration_ms)

    monkeypatch.setattr(stage.clock, "sleep_ms", counted)
    looking = asyncio.ensure_future(look_once(scene.broker.kernel, **scene.parts))
    await stage.until(looking.done)
    assert await looking == groups * (1 + READ_ROWS)
    assert pauses.count(1) >= 2


async def test_rounds_come_every_few_seconds(stage: Any) -> None:
    scene = await scene_of(stage, messages=1)
    await scene.group("g")
    loop = asyncio.ensure_future(watch_heads(scene.broker.kernel, **scene.parts))
    await stage.clock.advance(10)
    assert [waits.offset for _, waits in scene.backlog.items()] == [0]
    scene.broker.ledger.progress.commit(*scene.keys[0], 1)
    await stage.clock.advance(ROUND_MS - 100)
    assert [waits.offset for _, waits in scene.backlog.items()] == [0], "between two rounds nothing is looked at"
    await stage.clock.advance(200)
    assert list(scene.backlog.items()) == []
    loop.cancel()
