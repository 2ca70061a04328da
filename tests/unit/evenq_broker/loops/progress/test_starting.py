"""Where a group begins, and whether anything waits for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from evenq_broker.core.groups.members import Member, Protocol
from evenq_broker.loops.progress.starting import begin, deliverable

from evenq.model import FilterExpression, StartFrom, Subscription
from evenq.store import Append

Run = Callable[[Callable[[Any], Awaitable[None]]], None]


async def scene(stage: Any, start: StartFrom, *, name: str = "t") -> tuple[Any, Any, Any]:
    """A broker with a group that begins there, and a topic of one queue with three messages."""
    broker = await stage.broker()
    group = await stage.during(broker.catalog.create_group("g", start_from=start))
    topic = await stage.during(broker.catalog.create_topic(name, queues=1, system=name.startswith("%")))
    await stage.during(broker.ledger.store.append([Append(topic.topic_id, 0, 0, 1, b"", b"") for _ in range(3)]))
    return broker, group, topic


async def began(stage: Any, broker: Any, group: Any, topic: Any, **how: Any) -> list[int]:
    record = begin(broker.catalog, broker.ledger, group, topic, membership=broker.membership, **how)
    if record is not None:
        await stage.during(record)
    queues = (broker.ledger.progress.queue(group.group_id, topic.topic_id, at) for at in range(topic.read_queues))
    return [queue.next for queue in queues]


@pytest.mark.parametrize(
    ("start", "name", "from_start", "offset"),
    [
        (StartFrom.FIRST, "t", False, 0),
        (StartFrom.LAST, "t", False, 3),
        (StartFrom.LAST, "t", True, 0),
        (StartFrom.LAST, "%DLQ%x", False, 0),
    ],
)
def test_a_group_begins_where_it_is_configured_to_but_never_behind_dead_letters(
    run: Run, start: StartFrom, name: str, from_start: bool, offset: int
) -> None:
    async def story(stage: Any) -> None:
        broker, group, topic = await scene(stage, start, name=name)
        assert await began(stage, broker, group, topic, from_start=from_start) == [offset]
        assert begin(broker.catalog, broker.ledger, group, topic, membership=broker.membership) is None

    run(story)


def test_a_queue_that_came_later_is_read_whole(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker, group, topic = await scene(stage, StartFrom.LAST)
        assert await began(stage, broker, group, topic) == [3]
        wider = await stage.during(broker.catalog.create_topic("t", queues=2))
        await stage.during(broker.ledger.store.append([Append(topic.topic_id, 1, 0, 1, b"", b"")]))
        assert await began(stage, broker, group, wider) == [3, 0]

    run(story)


def test_who_waited_before_the_topic_was_made_misses_nothing(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker()
        group = await stage.during(broker.catalog.create_group("g", start_from=StartFrom.LAST))
        wanted = (Subscription("t", FilterExpression("*")),)
        early = Member(
            client_id="c", protocol=Protocol.V2, subscriptions=wanted, joined_ms=broker.runtime.clock.now_ms()
        )
        broker.membership.members.join("g", early, now_ms=0, lease_ms=10**6)
        await stage.clock.advance(10)
        topic = await stage.during(broker.catalog.create_topic("t", queues=1))
        await stage.during(broker.ledger.store.append([Append(topic.topic_id, 0, 0, 1, b"", b"")]))
        assert deliverable(broker.catalog, broker.ledger, group, topic, membership=broker.membership)
        assert await began(stage, broker, group, topic) == [0]

    run(story)


def test_something_waits_while_it_is_unread_or_comes_again_and_not_while_it_is_out(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker, group, topic = await scene(stage, StartFrom.LAST)

        def waits() -> bool:
            return deliverable(broker.catalog, broker.ledger, group, topic, membership=broker.membership)

        assert not waits(), "it would begin at the end"
        await began(stage, broker, group, topic, from_start=True)
        assert waits()
        progress = broker.ledger.progress
        queue = progress.queue(group.group_id, topic.topic_id, 0)
        progress.deliver(queue, [0, 1, 2], 3, deadline_ms=10**15, client_id="c")
        assert not waits(), "all are out"
        progress.give_back(queue, 1, queue.pending[1].number)
        assert waits()

    run(story)
