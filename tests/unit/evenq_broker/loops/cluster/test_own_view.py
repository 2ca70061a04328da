"""What a broker says of itself: made anew when something changed, and only then."""

from typing import Any

from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.loops.cluster.own_view import OwnView
from evenq_broker.loops.resizing.resizing import drain

from evenq.model import BrokerAddress, QueueCounts


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
