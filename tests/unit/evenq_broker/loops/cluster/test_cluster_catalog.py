"""Topics of the whole cluster: made once by many first uses, with the counts that they have elsewhere."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from evenq.errors import GroupNotFound, IllegalGroup, IllegalTopic, TopicNotFound

Run = Callable[[Callable[[Any], Awaitable[None]]], None]


def test_many_first_uses_of_a_topic_make_it_once(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker()
        found = await stage.during(asyncio.gather(*(broker.cluster_catalog.ensure_topic("t") for _ in range(20))))
        assert {topic.topic_id for topic in found} == {1}
        assert broker.catalog.topics.next_id() == 2

    run(story)


def test_nothing_is_made_by_use_where_that_is_not_allowed(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker(auto_create_topics=False, auto_create_groups=False)
        with pytest.raises(TopicNotFound, match="evenq topic create t"):
            await broker.cluster_catalog.ensure_topic("t")
        with pytest.raises(IllegalTopic):
            await broker.cluster_catalog.ensure_topic("a b")
        with pytest.raises(GroupNotFound, match="evenq group create g"):
            await broker.catalog.ensure_group("g")
        with pytest.raises(IllegalGroup):
            await broker.catalog.ensure_group("a b")

    run(story)


def test_a_topic_has_the_counts_it_has_elsewhere_when_none_are_asked_for(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker(default_queues=8)
        await stage.during(broker.catalog.create_topic("t", queues=3))
        (placement,) = await stage.during(broker.cluster_catalog.create_topic("t"))
        assert placement.counts.write_queues == 3
        (placement,) = await stage.during(broker.cluster_catalog.create_topic("new"))
        assert placement.counts.write_queues == 8

    run(story)
