"""Asking the other brokers."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from evenq_broker.core.routes import BrokerView

from evenq.errors import ConnectionFailed, Error
from evenq.model import BrokerAddress

Run = Callable[[Callable[[Any], Awaitable[None]]], None]


def test_a_peer_that_does_not_answer_is_named_and_not_waited_for(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker()
        gone = BrokerView(name="b", addresses=(BrokerAddress("default", "nowhere", 1),))
        broker.routes.snapshot("n", "x", [gone], 0)
        ((name, answer),) = await stage.during(broker.cluster.ask_peers("/evenq.v1.Admin/ListTopics", b""))
        assert name == "b"
        assert isinstance(answer, Error)
        with pytest.raises(ConnectionFailed, match="'c' is not alive"):
            await broker.cluster.ask("c", "/x", b"")

    run(story)


def test_a_topic_has_the_counts_it_has_elsewhere_when_none_are_asked_for(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker(default_queues=8)
        await stage.during(broker.create_topic("t", queues=3))
        (placement,) = await stage.during(broker.cluster.create_topic_everywhere("t"))
        assert placement.entry.write_queues == 3
        (placement,) = await stage.during(broker.cluster.create_topic_everywhere("new"))
        assert placement.entry.write_queues == 8

    run(story)
