"""A delivery that no member finished is a dead letter after the last attempt, at once, or counts as failed (RD-3, D3)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from evenq_broker.core.dead_letters.letter import Reason
from evenq_broker.core.delivery.queue_progress import SettleStatus
from evenq_broker.core.polls.poll_table import ANY
from evenq_broker.loops.dead_letters.mover import HOLD_MS

from evenq.errors import TooManyRequests
from evenq.model import StartFrom
from evenq.store import Append
from tests.unit.evenq_broker.takers import taker_of

Run = Callable[[Callable[[Any], Awaitable[None]]], None]


class Stand:
    """A group on a topic with one queue."""

    def __init__(self, stage: Any, broker: Any, group: Any, topic: Any) -> None:
        self.stage, self.broker, self.group, self.topic = stage, broker, group, topic
        self.popping = taker_of(broker)

    async def pop(self, *, invisible_ms: int = 1_000, client: str = "") -> list[int]:
        batch = await self.stage.during(
            self.popping.pop(
                self.group, self.topic, queue_id=ANY, count=32, invisible_ms=invisible_ms, client_id=client
            )
        )
        return [] if batch is None else [offset for _, offset, _ in batch.held]

    @property
    def queue(self) -> Any:
        return self.broker.ledger.progress.queue(self.group.group_id, self.topic.topic_id, 0)

    @property
    def letters(self) -> int:
        dead = self.broker.catalog.topics.get("%DLQ%g")
        return 0 if dead is None else self.broker.ledger.store.queue_range(dead.topic_id, 0)[1]


async def stand(stage: Any, messages: int = 1, *, max_attempts: int = 1, topic: str = "t", **settings: Any) -> Stand:
    broker = await stage.broker(**settings)
    made = await stage.during(broker.catalog.create_topic(topic, queues=1))
    group = await stage.during(broker.catalog.create_group("g", start_from=StartFrom.FIRST, max_attempts=max_attempts))
    await stage.during(broker.ledger.store.append([Append(made.topic_id, 0, 0, 0, b"", b"") for _ in range(messages)]))
    return Stand(stage, broker, group, made)


async def test_the_last_attempt_that_runs_out_is_a_dead_letter_without_any_consumer(stage: Any) -> None:
    one = await stand(stage, 100)
    assert len(await one.pop()) == 32
    for _ in range(3):
        await one.pop()
    await stage.clock.advance(1_001)
    await stage.until(lambda: one.letters == 100, limit_ms=500)
    assert not one.queue.pending
    assert one.queue.committed == 100
    one.broker.ledger.progress.check()


async def test_an_attempt_before_the_last_is_tried_again(stage: Any) -> None:
    one = await stand(stage, max_attempts=2)
    for _ in range(2):
        assert await one.pop() == [0]
        assert one.letters == 0
        await stage.clock.advance(1_001)
    await stage.until(lambda: one.letters == 1, limit_ms=500)
    assert await one.pop() == []


def test_a_dead_letter_that_cannot_be_stored_is_tried_again_and_moved_once(run: Run) -> None:
    async def story(stage: Any) -> None:
        one = await stand(stage)
        append, tries = one.broker.ledger.store.append, 0

        async def full(entries: Any, **options: Any) -> Any:
            nonlocal tries
            tries += 1
            raise TooManyRequests("the disk is full")

        await one.pop()
        one.broker.ledger.store.append = full  # the disk's answer, where the store would tell it
        await stage.clock.advance(1_001)
        await stage.until(lambda: tries == 1, limit_ms=500)
        assert await one.pop() == [], "it is not delivered once more"
        await stage.clock.advance(HOLD_MS)
        await stage.until(lambda: tries == 2, limit_ms=500)
        one.broker.ledger.store.append = append
        await stage.clock.advance(HOLD_MS)
        await stage.until(lambda: one.letters == 1, limit_ms=500)
        await stage.clock.advance(3 * HOLD_MS)
        assert one.letters == 1

    run(story)


async def test_a_late_ack_of_a_message_on_its_way_to_the_dead_letters_is_refused(stage: Any) -> None:
    one = await stand(stage)
    append, disk = one.broker.ledger.store.append, asyncio.Event()

    async def slowly(entries: Any, **options: Any) -> None:
        await disk.wait()
        await append(entries, **options)

    expires_ms = one.broker.runtime.now_ms() + 1_000
    await one.pop()
    number = one.queue.pending[0].number
    one.broker.ledger.store.append = slowly
    await stage.clock.advance(1_100)
    now_ms = one.broker.runtime.now_ms()
    verdict = one.broker.ledger.progress.ack(one.queue, 0, number, expires_ms=expires_ms, now_ms=now_ms)
    assert verdict is SettleStatus.INVALID
    disk.set()
    await stage.until(lambda: one.letters == 1)
    one.broker.ledger.store.append = append


def test_a_message_that_could_not_be_moved_is_not_held_for_the_time_of_its_delivery(run: Run) -> None:
    """A message that its client cannot receive may be hidden for hours."""

    async def story(stage: Any) -> None:
        one = await stand(stage, max_attempts=3)
        append, tries = one.broker.ledger.store.append, 0

        async def full(entries: Any, **options: Any) -> Any:
            nonlocal tries
            tries += 1
            raise TooManyRequests("the disk is full")

        await one.pop(invisible_ms=3_600_000)
        one.broker.ledger.store.append = full
        one.broker.dead_letter_mover.add(one.queue, 0, one.queue.pending[0], Reason.TOO_LARGE)
        await stage.until(lambda: tries == 1, limit_ms=500)
        one.broker.ledger.store.append = append
        await stage.clock.advance(HOLD_MS + 100)
        assert await one.pop() == [0]

    run(story)


async def test_a_push_delivery_that_lasts_too_long_counts_as_failed_with_the_groups_pause(stage: Any) -> None:
    one = await stand(stage, max_attempts=3, renew_max_ms=60_000, client_silence_ms=3_600_000, client_lost_ms=3_600_000)
    assert await one.pop(client="slow") == [0]
    await stage.clock.advance(60_000)
    assert await one.pop(client="other") == []
    pause_ms = one.group.retry.delay_ms(1, levels=one.broker.runtime.delay_levels)
    assert pause_ms >= 10_000
    await stage.clock.advance(pause_ms - 100)
    assert await one.pop(client="other") == []
    await stage.clock.advance(100)
    assert await one.pop(client="other") == [0]
    assert one.queue.pending[0].attempt == 2
    one.broker.ledger.progress.check()


@pytest.mark.parametrize("topic", ["%DLQ%g", "%DLQ%other"])
async def test_a_group_that_fails_on_dead_letters_makes_no_circle(stage: Any, topic: str) -> None:
    broker = await stage.broker()
    made = await stage.during(broker.catalog.create_topic(topic, queues=1, system=True))
    group = await stage.during(broker.catalog.create_group("g", start_from=StartFrom.FIRST, max_attempts=2))
    await stage.during(broker.ledger.store.append([Append(made.topic_id, 0, 0, 0, b"", b"")]))
    one = Stand(stage, broker, group, made)
    taken = 0
    for _ in range(10):
        taken += len(await one.pop())
        await stage.clock.advance(1_001)
    assert (taken, one.letters) == (2, 1)
    assert one.queue.committed == 1
