"""Who waits is woken by growth, by a retry, by the end of its client or by its time; and no wake-up is lost."""

import asyncio
from typing import Any

from evenq_broker.core.polls.poll_table import ANY

from evenq.store import Append

HERE = ""
"""What a poll answers that a message of this broker woke."""


async def grown(broker: Any, topic_id: int = 1, queue_id: int = 0) -> None:
    await broker.ledger.store.append([Append(topic_id, queue_id, 0, 0, b"head", b"")])


async def parked(stage: Any, broker: Any, *, queue_id: int = ANY, wait_ms: int = 5_000, client: str = "") -> Any:
    """A poll of group 7 on topic 1."""
    count = len(broker.long_polls.table)
    poll = asyncio.ensure_future(
        broker.long_polls.for_messages(
            7, 1, queue_id=queue_id, deadline_ms=broker.runtime.now_ms() + wait_ms, client_id=client
        )
    )
    await stage.until(lambda: len(broker.long_polls.table) == count + 1)
    return poll


async def test_a_poll_ends_at_its_time_and_not_before(stage: Any) -> None:
    broker = await stage.broker()
    started = broker.runtime.now_ms()
    poll = await parked(stage, broker, wait_ms=400)
    assert await stage.during(poll) is None
    assert 400 <= broker.runtime.now_ms() - started <= 420


async def test_a_message_wakes_one_poll_of_a_group_and_the_other_waits_on(stage: Any) -> None:
    broker = await stage.broker()
    first, second = await parked(stage, broker), await parked(stage, broker)
    await grown(broker)
    assert await stage.during(first) == HERE
    assert not second.done()
    await grown(broker)
    assert await stage.during(second) == HERE


async def test_a_woken_poll_that_is_cancelled_passes_the_wake_up_on(stage: Any) -> None:
    broker = await stage.broker()
    first, second = await parked(stage, broker), await parked(stage, broker)
    broker.long_polls.ready(7, 1, 0)  # wakes the first, which has not run yet
    first.cancel()
    assert await stage.during(second) == HERE


async def test_the_end_of_a_client_or_of_the_topic_ends_its_polls_empty(stage: Any) -> None:
    broker = await stage.broker()
    mine, other = await parked(stage, broker, client="mine"), await parked(stage, broker, client="other")
    broker.long_polls.end_client("mine")
    assert await stage.during(mine) is None
    assert not other.done()
    broker.long_polls.wake_topic(1)
    await stage.during(other)
    assert len(broker.long_polls.table) == 0


async def test_growth_that_is_there_already_is_told_at_once_and_later_growth_when_it_comes(stage: Any) -> None:
    broker = await stage.broker()
    await grown(broker)
    assert await broker.long_polls.for_growth([(1, 0, 0)], 5_000) is True
    assert await broker.long_polls.for_growth([(1, 0, 1)], 0) is False
    watch = asyncio.ensure_future(broker.long_polls.for_growth([(1, 0, 1), (1, 1, 0)], 5_000))
    await stage.until(lambda: len(broker.long_polls.table) == 1)
    await grown(broker, queue_id=1)
    assert await stage.during(watch) is True


async def test_polls_over_the_limit_are_answered_empty_at_once(stage: Any) -> None:
    broker = await stage.broker(polls_max=1)
    first = await parked(stage, broker)
    now_ms = broker.runtime.now_ms()
    assert await broker.long_polls.for_messages(7, 1, queue_id=ANY, deadline_ms=now_ms + 5_000, client_id="") is None
    assert broker.runtime.now_ms() == now_ms
    broker.long_polls.close()
    assert await stage.during(first) is None
    assert await broker.long_polls.for_growth([(1, 0, 0)], 5_000) is False


async def test_all_polls_can_be_answered_empty_and_later_ones_wait_as_ever(stage: Any) -> None:
    """Grants have changed: what waits was allowed by the ones before."""
    broker = await stage.broker()
    first = await parked(stage, broker, client="c")
    broker.long_polls.answer_all()
    assert await stage.during(first) is None
    second = await parked(stage, broker, client="c")
    await grown(broker)
    assert await stage.during(second) == HERE
