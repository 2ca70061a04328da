"""Asking the other brokers."""

from typing import Any

import pytest
from evenq_broker.core.cluster.routes import RegisteredBroker

from evenq.errors import ConnectionFailed, Error
from evenq.model import BrokerAddress


async def test_a_peer_that_does_not_answer_is_named_and_not_waited_for(stage: Any) -> None:
    broker = await stage.broker()
    gone = RegisteredBroker(name="b", addresses=(BrokerAddress("default", "nowhere", 1),))
    broker.catalog.routes.snapshot("n", "x", [gone], 0)
    ((name, answer),) = await stage.during(broker.cluster.peers.ask_peers("/evenq.v1.Admin/ListTopics", b""))
    assert name == "b"
    assert isinstance(answer, Error)
    with pytest.raises(ConnectionFailed, match="'c' is not alive"):
        await broker.cluster.peers.ask("c", "/x", b"")


async def test_a_peer_that_just_came_back_is_asked_once_more(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await stage.broker()
    back = RegisteredBroker(name="b", addresses=(BrokerAddress("default", "b", 1),))
    broker.catalog.routes.snapshot("n", "x", [back], 0)
    calls = 0

    async def refused(*_: Any, **__: Any) -> bytes:
        nonlocal calls
        calls += 1
        if calls < refusals:
            raise ConnectionFailed("refused")
        return b"answer"

    monkeypatch.setattr(broker.runtime.net, "unary", refused)
    refusals = 2
    answers = await stage.during(broker.cluster.peers.ask_peers("/evenq.v1.Admin/ListTopics", b""))
    assert (answers, calls) == ([("b", b"answer")], 2)
    calls, refusals = 0, 3
    ((_, answer),) = await stage.during(broker.cluster.peers.ask_peers("/evenq.v1.Admin/ListTopics", b""))
    assert isinstance(answer, ConnectionFailed)
    assert calls == 2, "and not again and again"
    calls = 0
    with pytest.raises(ConnectionFailed, match="refused"):
        await stage.during(broker.cluster.peers.ask("b", "/x", b""))
    assert calls == 1
