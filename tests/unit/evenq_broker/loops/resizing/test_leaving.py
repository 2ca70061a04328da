"""A topic leaves a broker: closed at once, gone when it is read, kept by what must not be lost unasked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from evenq_broker.loops.resizing.leaving import Remains, leave, look

from evenq.errors import IllegalTopic, TopicNotFound
from evenq.model import MessageType, Permission, StartFrom
from evenq.store import Append, TimerAppend

Run = Callable[[Callable[[Any], Awaitable[None]]], None]


async def stored(stage: Any, **options: Any) -> Any:
    """A broker with three messages in topic t."""
    broker = await stage.broker()
    topic = await stage.during(broker.catalog.create_topic("t", queues=2, **options))
    await stage.during(broker.ledger.store.append([Append(topic.topic_id, 1, 0, 0, b"", b"") for _ in range(3)]))
    return broker


async def step(stage: Any, broker: Any, *, close_unread: bool = False, force: bool = False) -> Remains:
    _, remains = await stage.during(
        leave(
            broker.runtime,
            broker.catalog,
            broker.ledger,
            "t",
            close_unread=close_unread,
            force=force,
            membership=broker.membership,
        )
    )
    return remains  # type: ignore[no-any-return]  # the stage knows no types


async def test_what_no_group_reads_keeps_it_unless_told_otherwise(stage: Any) -> None:
    broker = await stored(stage)
    remains = await step(stage, broker)
    assert (remains.unread, remains.stored, remains.gone) == (3, 3, False)
    assert broker.catalog.topics.get("t").permission is Permission.READ, "closed for writing at once"
    assert (await step(stage, broker, close_unread=True)).gone
    assert broker.catalog.topics.get("t") is None


async def test_a_look_changes_nothing(stage: Any) -> None:
    broker = await stored(stage)
    before = broker.catalog.topics.get("t")
    topic, remains = look(broker.runtime, broker.catalog, broker.ledger, "t", membership=broker.membership)
    assert (topic, broker.catalog.topics.get("t")) == (before, before)
    assert (remains.unread, remains.stored, remains.gone) == (3, 3, False)
    with pytest.raises(TopicNotFound):
        look(broker.runtime, broker.catalog, broker.ledger, "u", membership=broker.membership)


async def test_a_group_has_to_read_it_first(stage: Any) -> None:
    broker = await stored(stage)
    group = await stage.during(broker.catalog.create_group("g", start_from=StartFrom.FIRST))
    topic = broker.catalog.topics.get("t")
    place = (group.group_id, topic.topic_id, 1)
    broker.ledger.progress.commit(*place, 0)
    remains = await step(stage, broker, close_unread=True)
    assert [(one.group, one.lag) for one in remains.unfinished] == [("g", 3)]
    assert not remains.gone
    broker.ledger.progress.commit(*place, 3)
    assert (await step(stage, broker)).gone


async def test_force_ends_it_in_any_case(stage: Any) -> None:
    broker = await stored(stage)
    group = await stage.during(broker.catalog.create_group("g", start_from=StartFrom.FIRST))
    broker.ledger.progress.commit(group.group_id, broker.catalog.topics.get("t").topic_id, 1, 0)
    remains = await step(stage, broker, force=True)
    assert (remains.gone, remains.stored) == (True, 3)


@pytest.mark.parametrize(
    ("kind", "keeps"), [(MessageType.MIXED, True), (MessageType.DELAY, True), (MessageType.FIFO, False)]
)
async def test_timers_of_the_broker_keep_a_topic_that_may_have_some(stage: Any, kind: MessageType, keeps: bool) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", message_type=kind))
    other = await stage.during(broker.catalog.create_topic("u", message_type=MessageType.DELAY))
    due_ms = broker.runtime.now_ms() + 3_600_000
    timer = TimerAppend(other.topic_id, 0, 0, due_ms=due_ms, kind=1, born_ms=0, head=b"", system=b"")
    await stage.during(broker.ledger.store.append([], timers=[timer]))
    remains = await step(stage, broker)
    assert (remains.gone, remains.delayed) == (not keeps, int(keeps))


async def test_only_a_topic_that_is_here_and_of_users_leaves(stage: Any) -> None:
    broker = await stage.broker()
    with pytest.raises(TopicNotFound):
        await step(stage, broker)
    with pytest.raises(IllegalTopic):
        await stage.during(
            leave(
                broker.runtime,
                broker.catalog,
                broker.ledger,
                "%RETRY%g",
                close_unread=False,
                force=False,
                membership=broker.membership,
            )
        )
