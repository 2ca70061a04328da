"""Topics and groups: widened, never narrowed, gone with all that belongs to them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from evenq.errors import (
    IllegalGroup,
    IllegalTopic,
    TooManyRequests,
)
from evenq.model import MessageQueue, MessageType, StartFrom


async def test_a_topic_is_widened_but_never_narrowed_and_keeps_its_type(stage: Any) -> None:
    broker = await stage.broker(default_queues=4)
    made = await stage.during(broker.catalog.create_topic("t", message_type=MessageType.FIFO))
    assert (made.read_queues, made.write_queues) == (4, 4)
    for queues, expected in ((8, 8), (2, 8), (0, 8)):
        wider = await stage.during(broker.catalog.create_topic("t", queues=queues))
        assert (wider.write_queues, wider.topic_id, wider.message_type) == (expected, 1, MessageType.FIFO)


@pytest.mark.parametrize(
    ("name", "queues", "given"),
    [
        ("a b", 1, "holds a character"),
        ("", 1, "is empty"),
        ("t", 4097, "the range is 1 to 4096"),
        ("TBW102", 1, "reserved"),
    ],
)
async def test_a_topic_that_cannot_be_is_refused(stage: Any, name: str, queues: int, given: str) -> None:
    broker = await stage.broker()
    with pytest.raises(IllegalTopic, match=given):
        await stage.during(broker.catalog.create_topic(name, queues=queues))
    assert len(broker.catalog.topics) == 0


async def test_the_limits_of_topics_and_groups_are_reached_and_told(stage: Any) -> None:
    broker = await stage.broker(topics_max=1, groups_max=1)
    await stage.during(broker.catalog.create_topic("t"))
    await stage.during(broker.catalog.create_group("g"))
    with pytest.raises(TooManyRequests, match="topics_max"):
        await stage.during(broker.catalog.create_topic("u"))
    with pytest.raises(TooManyRequests, match="groups_max"):
        await stage.during(broker.catalog.create_group("h"))
    await stage.during(broker.catalog.create_topic("t", queues=9))
    await stage.during(broker.catalog.create_group("g", ordered=True))
    await stage.during(broker.catalog.delete_topic("t"))
    assert (await stage.during(broker.catalog.create_topic("u"))).topic_id == 2


async def test_a_group_takes_the_settings_defaults_and_may_be_changed(stage: Any) -> None:
    broker = await stage.broker(default_group_max_attempts=5, default_start_from="FIRST")
    made = await stage.during(broker.catalog.ensure_group("g"))
    assert (made.max_attempts, made.start_from, made.ordered) == (5, StartFrom.FIRST, False)
    changed = await stage.during(broker.catalog.create_group("g", ordered=True, max_attempts=9))
    assert (changed.group_id, changed.ordered, changed.max_attempts) == (made.group_id, True, 9)
    with pytest.raises(IllegalGroup, match="the range is 1 to 1000"):
        await stage.during(broker.catalog.create_group("g", max_attempts=1_001))


async def test_a_deleted_group_takes_progress_counters_and_locks_along(stage: Any) -> None:
    broker = await stage.broker()
    group = await stage.during(broker.catalog.create_group("g"))
    broker.ledger.progress.start(group.group_id, 1, 0, 0)
    broker.runtime.stats.group_topic(group.group_id, 1).acks += 1
    queue = MessageQueue("t", "a", 0)
    broker.membership.locks.acquire("g", "c", queue)
    assert broker.membership.locks.counts() == {"g": 1}
    for _ in range(2):
        await stage.during(broker.catalog.delete_group("g"))
    assert broker.ledger.progress.topics_of(group.group_id) == []
    assert broker.runtime.stats.group_topics == {}
    assert broker.membership.locks.counts() == {}
    again = await stage.during(broker.catalog.create_group("g"))
    assert again.group_id != group.group_id


@pytest.mark.parametrize("left", [True, False])
async def test_a_group_takes_its_retry_topic_with_it_and_never_gets_one_that_was_left(stage: Any, left: bool) -> None:
    broker = await stage.broker()
    names = [f"{prefix}g" for prefix in ("%RETRY%", "%DLQ%")]
    if not left:
        await stage.during(broker.catalog.create_group("g"))
    made = [await stage.during(broker.catalog.create_topic(name, queues=1, system=True)) for name in names]
    if not left:
        await stage.during(broker.catalog.delete_group("g"))
    await stage.during(broker.catalog.create_group("g"))
    assert [broker.catalog.topics.get(name) is not None for name in names] == [False, True]
    assert [broker.catalog.uids.ended(topic.uid) for topic in made] == [True, False], "routes name it for a moment"


@pytest.mark.parametrize("change", ["make a topic", "delete a topic", "make a group", "delete a group"])
async def test_a_change_that_is_made_already_is_answered_when_its_record_is_safe(
    stage: Any, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """The first call may still wait for the disk: a crash would break what the second one was answered (decision 62)."""
    broker = await stage.broker()
    catalog = broker.catalog
    if change == "delete a topic":
        await stage.during(catalog.create_topic("t"))
    if change == "delete a group":
        await stage.during(catalog.create_group("g"))

    def again() -> asyncio.Future[Any]:
        calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "make a topic": lambda: catalog.create_topic("t"),
            "delete a topic": lambda: catalog.delete_topic("t"),
            "make a group": lambda: catalog.create_group("g"),
            "delete a group": lambda: catalog.delete_group("g"),
        }
        return asyncio.ensure_future(calls[change]())

    append_state, disk = broker.ledger.store.append_state, asyncio.Event()

    async def slowly(data: bytes) -> None:
        await disk.wait()
        await append_state(data)

    monkeypatch.setattr(broker.ledger.store, "append_state", lambda data: asyncio.ensure_future(slowly(data)))
    first = again()
    await stage.clock.advance(50)
    second = again()
    await stage.clock.advance(50)
    assert not first.done()
    assert not second.done()
    disk.set()
    await stage.during(asyncio.gather(first, second))
    monkeypatch.undo()
