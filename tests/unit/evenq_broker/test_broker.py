"""What ends the process; topics and groups: made once, widened, never narrowed, gone with all that belongs to them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from evenq.errors import (
    GroupNotFound,
    IllegalGroup,
    IllegalTopic,
    StorePoisoned,
    TooManyRequests,
    TopicNotFound,
)
from evenq.model import MessageQueue, MessageType, StartFrom

Run = Callable[[Callable[[Any], Awaitable[None]]], None]


def test_a_topic_is_widened_but_never_narrowed_and_keeps_its_type(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker(default_queues=4)
        made = await stage.during(broker.create_topic("t", message_type=MessageType.FIFO))
        assert (made.read_queues, made.write_queues) == (4, 4)
        for queues, expected in ((8, 8), (2, 8), (0, 8)):
            wider = await stage.during(broker.create_topic("t", queues=queues))
            assert (wider.write_queues, wider.topic_id, wider.message_type) == (expected, 1, MessageType.FIFO)

    run(story)


def test_many_first_uses_of_a_topic_make_it_once(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker()
        found = await stage.during(asyncio.gather(*(broker.ensure_topic("t") for _ in range(20))))
        assert {topic.topic_id for topic in found} == {1}
        assert broker.topics.next_id() == 2

    run(story)


@pytest.mark.parametrize(
    ("name", "queues", "told"),
    [
        ("a b", 1, "holds a character"),
        ("", 1, "is empty"),
        ("t", 4097, "the range is 1 to 4096"),
        ("TBW102", 1, "reserved"),
    ],
)
def test_a_topic_that_cannot_be_is_refused(run: Run, name: str, queues: int, told: str) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker()
        with pytest.raises(IllegalTopic, match=told):
            await stage.during(broker.create_topic(name, queues=queues))
        assert len(broker.topics) == 0

    run(story)


def test_the_limits_of_topics_and_groups_are_reached_and_told(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker(topics_max=1, groups_max=1)
        await stage.during(broker.create_topic("t"))
        await stage.during(broker.create_group("g"))
        with pytest.raises(TooManyRequests, match="topics_max"):
            await stage.during(broker.create_topic("u"))
        with pytest.raises(TooManyRequests, match="groups_max"):
            await stage.during(broker.create_group("h"))
        await stage.during(broker.create_topic("t", queues=9))
        await stage.during(broker.create_group("g", ordered=True))
        await stage.during(broker.delete_topic("t"))
        assert (await stage.during(broker.create_topic("u"))).topic_id == 2

    run(story)


def test_nothing_is_made_by_use_where_that_is_not_allowed(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker(auto_create_topics=False, auto_create_groups=False)
        with pytest.raises(TopicNotFound, match="evenq topic create t"):
            await broker.ensure_topic("t")
        with pytest.raises(IllegalTopic):
            await broker.ensure_topic("a b")
        with pytest.raises(GroupNotFound, match="evenq group create g"):
            await broker.ensure_group("g")
        with pytest.raises(IllegalGroup):
            await broker.ensure_group("a b")

    run(story)


def test_a_group_takes_the_settings_defaults_and_may_be_changed(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker(default_group_max_attempts=5, default_start_from="FIRST")
        made = await stage.during(broker.ensure_group("g"))
        assert (made.max_attempts, made.start_from, made.ordered) == (5, StartFrom.FIRST, False)
        changed = await stage.during(broker.create_group("g", ordered=True, max_attempts=9))
        assert (changed.group_id, changed.ordered, changed.max_attempts) == (made.group_id, True, 9)
        with pytest.raises(IllegalGroup, match="the range is 1 to 1000"):
            await stage.during(broker.create_group("g", max_attempts=1_001))

    run(story)


def test_a_deleted_group_takes_progress_counters_and_locks_along(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker()
        group = await stage.during(broker.create_group("g"))
        broker.progress.start(group.group_id, 1, 0, 0)
        broker.stats.group_topic(group.group_id, 1).acks += 1
        queue = MessageQueue("t", "a", 0)
        broker.locks.acquire("g", "c", queue)
        assert broker.locks.counts() == {"g": 1}
        for _ in range(2):
            await stage.during(broker.delete_group("g"))
        assert broker.progress.topics_of(group.group_id) == []
        assert broker.stats.group_topics == {}
        assert broker.locks.counts() == {}
        again = await stage.during(broker.create_group("g"))
        assert again.group_id != group.group_id

    run(story)


def test_the_end_of_a_loop_that_should_never_end_is_told(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker()

        async def broken() -> None:
            raise RuntimeError("a mistake of ours")

        broker.spawn(broken(), name="broken")
        error = await stage.during(broker.failed)
        assert str(error) == "a mistake of ours"

    run(story)


def test_times_that_are_journalled_do_not_jump_with_the_wall_clock(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker()
        before = broker.now_ms()
        stage.clock.jump_wall(-3_600_000)
        await stage.clock.advance(50)
        assert broker.now_ms() == before + 50

    run(story)


def test_a_poisoned_store_ends_the_broker(run: Run) -> None:
    """What is on disk is unknown, so the process must stop and recover, never go on refusing."""

    async def story(stage: Any) -> None:
        broker = await stage.broker()
        assert not broker.failed.done()
        broker.store._appender.poison("writing the commit log at offset 0 failed: EIO")
        assert isinstance(broker.failed.result(), StorePoisoned)

    run(story)
