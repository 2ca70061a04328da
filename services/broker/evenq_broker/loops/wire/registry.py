"""Messages between a broker and its nameservers. Parsing an answer raises the error of its status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from evenq.wire import status
from evenq.wire.stubs.evenq.v1 import registry_pb2
from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.loops.wire.translation import broker_state, broker_view


class RouteNews(NamedTuple):
    """One event of the watch."""

    nameserver: str
    snapshot: bool
    """True: `brokers` are all that the nameserver knows."""
    settling: bool
    """The nameserver has just started, and may not know all brokers yet."""
    brokers: list[RegisteredBroker]
    removed: Sequence[str]
    left: Sequence[tuple[RegisteredBroker, int]] = ()
    """With a snapshot: brokers that left lately, and how long ago, ms."""


def register(own: RegisteredBroker) -> bytes:
    """Sends everything."""
    return registry_pb2.RegisterRequest(state=broker_state(own)).SerializeToString()


def heartbeat_interval_ms(response: bytes) -> int:
    """Returns the heartbeat interval that the nameserver requests in its answer to `register`; 0: none."""
    message = registry_pb2.RegisterResponse.FromString(response)
    status.check(message.status)
    return max(0, message.heartbeat_interval_ms)


def heartbeat(own: RegisteredBroker) -> bytes:
    """Reports that the broker is still there, unchanged."""
    return registry_pb2.RegistryHeartbeatRequest(
        broker_name=own.name, broker_id=own.broker_id, incarnation=own.incarnation, data_version=own.data_version
    ).SerializeToString()


def wants_everything(response: bytes) -> bool:
    """True if the nameserver does not know this broker, by its answer to `heartbeat`."""
    message = registry_pb2.RegistryHeartbeatResponse.FromString(response)
    status.check(message.status)
    return message.full_wanted


def unregister(own: RegisteredBroker) -> bytes:
    """Leaves the routes."""
    return registry_pb2.UnregisterRequest(
        broker_name=own.name, broker_id=own.broker_id, incarnation=own.incarnation
    ).SerializeToString()


def watch_routes(watcher: str) -> bytes:
    """Requests all routes and each change of them."""
    return registry_pb2.WatchRoutesRequest(watcher=watcher).SerializeToString()


def route_news(event: bytes) -> RouteNews:
    """Returns the event of a watch; brokers without an address are left out."""
    message = registry_pb2.RouteEvent.FromString(event)
    brokers = [view for state in message.brokers if (view := broker_view(state)) is not None]
    left = [(view, max(0, one.ago_ms)) for one in message.left if (view := broker_view(one.state)) is not None]
    return RouteNews(message.nameserver, message.snapshot, message.settling, brokers, message.removed, left)
