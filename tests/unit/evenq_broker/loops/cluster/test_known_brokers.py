"""The memory of the other brokers: fed by routes, kept in the journal, and a goodbye when no group will miss this one."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.core.cluster.known_brokers import Away
from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.core.cluster.unfinished import Left, Unfinished
from evenq_broker.core.state.records import BrokerForgotten, BrokerKnown, BrokerTopics
from evenq_broker.loops.cluster.known_brokers import FORGET, OwnView
from evenq_broker.loops.resizing.resizing import drain
from evenq_broker.settings import StoreSettings

from evenq.errors import ConnectionFailed
from evenq.model import BrokerAddress, MessageQueue, MessageType, Permission, QueueCounts
from evenq.wire.stubs.evenq.v1 import admin_pb2


def seen(name: str, incarnation: str = "1", **read_queues: int) -> RegisteredBroker:
    """A broker as a nameserver tells it, with this number of queues by topic."""
    topics = {
        topic: QueueCounts(
            broker_name=name,
            read_queues=count,
            write_queues=count,
            permission=Permission.READ_WRITE,
            message_type=MessageType.NORMAL,
        )
        for topic, count in read_queues.items()
    }
    return RegisteredBroker(
        name=name, incarnation=incarnation, addresses=(BrokerAddress("default", name, 1),), topics=topics
    )


def routes(broker: Any, *views: RegisteredBroker, settling: bool = False) -> None:
    """A nameserver tells its whole table."""
    now_ms = broker.runtime.clock.monotonic_ms()
    broker.catalog.routes.snapshot("ns:1", "n", [broker.cluster.own.now(), *views], now_ms, settling=settling)
    broker.cluster.routes_changed()


def missing(broker: Any) -> list[str]:
    return [known.name for known in broker.cluster.known.missing()]


async def test_a_broker_that_leaves_the_routes_is_missing_is_logged_once_and_comes_back(
    stage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await stage.broker()
    known = broker.cluster.known
    routes(broker, seen("b", t=4))
    assert missing(broker) == []
    with caplog.at_level(logging.WARNING):
        routes(broker)
        routes(broker)
    assert caplog.text.count("broker b is missing") == 1
    assert missing(broker) == known.out_of_reach() == ["b"]
    assert known.away("t") == [Away("b", 4, broker.runtime.clock.now_ms())]
    assert known.away("other") == []
    routes(broker, seen("b", "2", t=4))
    assert missing(broker) == []
    assert known.away("t") == []


async def test_where_followers_of_a_missing_broker_answered_is_remembered_until_it_is_forgotten(stage: Any) -> None:
    """HA-9: readers that take any copy go on there while the broker group has no leader."""
    broker = await stage.broker()
    known = broker.cluster.known
    routes(broker, replace(seen("b", t=4), copies=3, followers=("f:1", "f:2")))
    routes(broker)
    assert [away.followers for away in known.away("t")] == [("f:1", "f:2")]
    routes(broker, seen("b", "2", t=4))
    routes(broker)
    assert [away.followers for away in known.away("t")] == [()], "as it was there last"
    assert await known.forget("b")
    assert known._last == {}


async def test_a_nameserver_that_has_not_heard_from_everybody_makes_nobody_missing(stage: Any, tmp_path: Path) -> None:
    store = StoreSettings(path=tmp_path)
    broker = await stage.broker(store=store)
    routes(broker, seen("b", t=4))
    await stage.end(broker)
    again = await stage.broker(store=store)
    routes(again, settling=True)
    assert missing(again) == []
    assert again.cluster.known.homes("t", 60_000) == ["b"], "it is a home before it is seen again"
    await stage.clock.advance(60_000)
    assert again.cluster.known.homes("t", 60_000) == [], "and not for ever, if no nameserver is sure"
    routes(again)
    assert missing(again) == ["b"]


async def test_what_is_known_is_recorded_when_it_changes_and_known_after_a_restart(stage: Any, tmp_path: Path) -> None:
    store = StoreSettings(path=tmp_path)
    broker = await stage.broker(store=store)
    recorded: list[Any] = []
    record = broker.ledger.journal.record

    def watched(*ops: Any) -> Any:
        recorded.extend(ops)
        return record(*ops)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker.ledger.journal, "record", watched)
        view = seen("b", t=4)
        routes(broker, view)
        assert recorded == [BrokerKnown("b"), BrokerTopics("b", {"t": 4})]
        routes(broker, view)
        assert len(recorded) == 2, "nothing new"
        assert "a" not in broker.cluster.known.brokers, "never itself"
        routes(broker)
    await stage.end(broker)
    again = await stage.broker(store=store)
    assert missing(again) == ["b"]
    assert [(away.name, away.read_queues) for away in again.cluster.known.away("t")] == [("b", 4)]


async def test_a_forgotten_broker_is_missed_no_more_and_others_are_told_its_name(stage: Any) -> None:
    broker = await stage.broker()
    known, forgotten = broker.cluster.known, []
    known.on_forgotten = [forgotten.append]
    routes(broker, seen("b"))
    routes(broker)
    assert await stage.during(known.forget("b")) is True
    assert await stage.during(known.forget("b")) is False
    assert (missing(broker), forgotten) == ([], ["b", "b"]), "also for one that this broker never saw"


async def test_a_topic_that_was_deleted_everywhere_is_not_expected_of_missing_brokers(stage: Any) -> None:
    broker = await stage.broker()
    routes(broker, seen("b", t=4, u=1))
    routes(broker)
    broker.cluster.known.topic_deleted("t")
    await stage.during(broker.catalog.settled())
    assert broker.cluster.known.away("t") == []
    assert [away.name for away in broker.cluster.known.away("u")] == ["b"]


async def test_a_drained_broker_that_ends_is_forgotten_by_the_others_and_not_missed(stage: Any) -> None:
    broker, other = await stage.broker("a"), await stage.broker("b")
    views = [broker.cluster.own.now(), other.cluster.own.now()]
    forgotten: list[str] = []
    other.cluster.known.on_forgotten = [forgotten.append]
    for one in (broker, other):
        one.catalog.routes.snapshot("ns:1", "n", views, one.runtime.clock.monotonic_ms())
        one.cluster.routes_changed()
    await stage.during(broker.cluster.known.goodbye(Left((), 0, 0, 0)))
    routes(other)
    assert missing(other) == []
    assert forgotten == ["a"]


@pytest.mark.parametrize(
    "left",
    [
        Left((Unfinished(MessageQueue("t", "a", 0), "g", 3, 0),), 0, 0, 0),
        Left((), 1, 0, 0),
        Left((), 0, 0, 0, ("t s",)),
    ],
)
async def test_a_broker_that_somebody_waits_for_says_no_goodbye(
    stage: Any, monkeypatch: pytest.MonkeyPatch, left: Left
) -> None:
    broker = await stage.broker()
    asked: list[str] = []

    async def ask_peers(method: str, request: bytes) -> list[Any]:
        asked.append(method)
        message = admin_pb2.ForgetBrokerRequest.FromString(request)
        assert message.broker_name == "a"
        return []

    monkeypatch.setattr(broker.cluster.peers, "ask_peers", ask_peers)
    await stage.during(broker.cluster.known.goodbye(left))
    assert asked == []
    await stage.during(broker.cluster.known.goodbye(Left((), 0, 7, 0)))
    assert asked == [FORGET], "what was never read cannot be waited for"


async def test_a_goodbye_that_nobody_hears_is_logged_and_does_not_stop_the_shutdown(
    stage: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await stage.broker()

    async def ask_peers(_method: str, _request: bytes) -> list[Any]:
        raise ConnectionFailed("refused")

    monkeypatch.setattr(broker.cluster.peers, "ask_peers", ask_peers)
    with caplog.at_level(logging.INFO):
        await stage.during(broker.cluster.known.goodbye(Left((), 0, 0, 0)))
    assert "not all brokers were notified that this drained broker stops: refused" in caplog.text


async def test_a_forgotten_broker_is_forgotten_after_a_restart(stage: Any, tmp_path: Path) -> None:
    store = StoreSettings(path=tmp_path)
    broker = await stage.broker(store=store)
    routes(broker, seen("b"))
    routes(broker)
    await stage.during(broker.cluster.known.forget("b"))
    assert BrokerForgotten("b") not in list(broker.cluster.known.brokers.dump())
    await stage.end(broker)
    assert missing(await stage.broker(store=store)) == []


def view_of(broker: Any) -> RegisteredBroker:
    view: RegisteredBroker = broker.cluster.own.now()
    return view


async def test_it_names_the_broker_its_cluster_its_addresses_and_its_topics(stage: Any) -> None:
    broker = await stage.broker("b", cluster="c")
    await stage.during(broker.catalog.create_topic("t", queues=3))
    view = view_of(broker)
    assert (view.name, view.cluster, view.epoch, view.copies) == ("b", "c", 1, 1)
    assert view.addresses == (BrokerAddress("default", "b", 8081),)
    assert view.start_ms == broker.runtime.started_ms
    assert {topic: (counts.read_queues, counts.write_queues) for topic, counts in view.topics.items()} == {"t": (3, 3)}


async def test_it_is_one_object_until_topics_or_addresses_change(stage: Any) -> None:
    broker = await stage.broker()
    first = view_of(broker)
    assert view_of(broker) is first
    await stage.during(broker.catalog.create_topic("t", queues=1))
    second = view_of(broker)
    assert second.data_version > first.data_version
    assert "t" in second.topics
    assert view_of(broker) is second
    broker.runtime.addresses = (BrokerAddress("default", "elsewhere", 1),)
    assert view_of(broker).addresses == (BrokerAddress("default", "elsewhere", 1),)


async def test_a_draining_broker_says_that_its_queues_take_no_messages(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=1))

    def counts() -> QueueCounts:
        return view_of(broker).topics["t"]

    assert counts().permission.writable
    await stage.during(drain(broker.kernel, on=True))
    assert not counts().permission.writable
    assert counts().permission.readable


async def test_each_start_has_an_incarnation_of_its_own_and_keeps_it(stage: Any) -> None:
    broker = await stage.broker()
    again = OwnView(broker.kernel)
    assert again.incarnation != broker.cluster.own.incarnation
    assert len(again.incarnation) == 16
    assert view_of(broker).incarnation == broker.cluster.own.incarnation
