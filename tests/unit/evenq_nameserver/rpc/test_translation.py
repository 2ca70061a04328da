"""What brokers send is checked at the door; what goes out says the same."""

from collections.abc import Callable

import pytest
from evenq_nameserver.core.registry import RouteChange
from evenq_nameserver.rpc.translation import (
    FOLLOWERS_MAX,
    LISTENERS_MAX,
    QUEUES_MAX,
    change_event,
    entry_of,
    snapshot_event,
)

from evenq.errors import BadRequest, IllegalTopic, NotImplementedYet, TooManyRequests
from evenq.wire.stubs.evenq.v1 import registry_pb2


def state() -> registry_pb2.BrokerState:
    made = registry_pb2.BrokerState(data_version=3)
    made.broker.name, made.broker.incarnation, made.broker.cluster = "a", "i", "evenq"
    made.broker.epoch, made.broker.start_ms, made.broker.version = 2, 9, "1.0"
    made.broker.copies = 3
    made.broker.followers[:] = ["db2:8083", "evenqs://db3:8083"]
    made.broker.listeners.add(name="default", host="here", port=8081)
    made.topics.add(name="t", message_type=1, read_queues=4, write_queues=2, permission=4, uid="u")  # type: ignore[arg-type]  # numbers
    return made


def test_a_state_comes_out_of_snapshots_and_changes_as_it_came_in() -> None:
    entry = entry_of(state(), topics_max=1)
    snapshot = registry_pb2.RouteEvent.FromString(snapshot_event("n", 7, [entry]))
    assert (snapshot.snapshot, snapshot.version, snapshot.nameserver) == (True, 7, "n")
    assert list(snapshot.brokers) == [state()]
    change = registry_pb2.RouteEvent.FromString(change_event("n", RouteChange(version=8, broker=entry)))
    assert (change.snapshot, change.version, list(change.brokers), list(change.removed)) == (False, 8, [state()], [])
    gone = registry_pb2.RouteEvent.FromString(change_event("n", RouteChange(version=9, removed="a")))
    assert (list(gone.brokers), list(gone.removed)) == ([], ["a"])


def _listeners(response: registry_pb2.BrokerState) -> None:
    for _ in range(LISTENERS_MAX):
        response.broker.listeners.add(name="more", host="here", port=1)


BAD: dict[str, tuple[Callable[[registry_pb2.BrokerState], object], type[Exception], str]] = {
    "name": (lambda sent: setattr(sent.broker, "name", "a b"), BadRequest, "broker name 'a b'"),
    "uid": (lambda sent: setattr(sent.topics[0], "uid", "x" * 256), BadRequest, "at most 255"),
    "replica": (lambda sent: setattr(sent.broker, "id", 1), NotImplementedYet, "register with id 0"),
    "incarnation": (lambda sent: setattr(sent.broker, "incarnation", ""), BadRequest, "at most 255"),
    "cluster": (lambda sent: setattr(sent.broker, "cluster", "x" * 256), BadRequest, "at most 255"),
    "epoch": (lambda sent: setattr(sent.broker, "epoch", -1), BadRequest, "not be negative"),
    "no listener": (lambda sent: sent.broker.ClearField("listeners"), BadRequest, "has 0 listeners"),
    "listeners": (_listeners, BadRequest, f"has {LISTENERS_MAX + 1} listeners"),
    "followers": (lambda sent: sent.broker.followers.extend(["f:1"] * FOLLOWERS_MAX), BadRequest, "names 18 followers"),
    "follower": (lambda sent: sent.broker.followers.append("x" * 256), BadRequest, "1 to 255 characters"),
    "port": (lambda sent: setattr(sent.broker.listeners[0], "port", 0), BadRequest, "port of 1 to 65535"),
    "host": (lambda sent: setattr(sent.broker.listeners[0], "host", ""), BadRequest, "give a host"),
    "topic": (lambda sent: sent.topics.add(name="a/b"), IllegalTopic, "topic name 'a/b'"),
    "queues": (lambda sent: setattr(sent.topics[0], "read_queues", QUEUES_MAX + 1), BadRequest, f"0 to {QUEUES_MAX}"),
    "topics": (lambda sent: sent.topics.add(name="u", read_queues=1), TooManyRequests, "the nameserver takes 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_refused_with_the_value_and_its_bound(case: str) -> None:
    change, kind, result = BAD[case]
    bad = state()
    change(bad)
    with pytest.raises(kind, match=result):
        entry_of(bad, topics_max=2 if case == "topic" else 1)
