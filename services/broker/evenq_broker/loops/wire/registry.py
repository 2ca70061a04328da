"""What a broker and its nameservers say to each other, as bytes: registration and the watch of routes.

Called by `loops.cluster.registration` and `loops.cluster.routes`. Reading an answer raises what its status says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from evenq.wire import status
from evenq.wire.stubs.evenq.v1 import registry_pb2
from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.loops.wire.translation import broker_state, broker_view

__all__ = [
    "RouteNews", "heartbeat", "heartbeat_interval_ms", "register", "route_news", "unregister", "wants_everything",
    "watch_routes",
]  # fmt: skip


class RouteNews(NamedTuple):
    """One event of the watch."""

    nameserver: str
    snapshot: bool
    """True: `brokers` are all that the nameserver knows."""
    settling: bool
    """The nameserver has just started, and may not have heard from everybody."""
    brokers: list[RegisteredBroker]
    removed: Sequence[str]
    """Names."""


def register(own: RegisteredBroker) -> bytes:
    """Tells everything."""
    return registry_pb2.RegisterRequest(state=broker_state(own)).SerializeToString()


def heartbeat_interval_ms(response: bytes) -> int:
    """How often the nameserver wants to hear from us, from its answer to `register`; 0: it does not say."""
    message = registry_pb2.RegisterResponse.FromString(response)
    status.check(message.status)
    return max(0, message.heartbeat_interval_ms)


def heartbeat(own: RegisteredBroker) -> bytes:
    """Says that the broker is still there, as it was message."""
    return registry_pb2.RegistryHeartbeatRequest(
        broker_name=own.name, broker_id=own.broker_id, incarnation=own.incarnation, data_version=own.data_version
    ).SerializeToString()


def wants_everything(response: bytes) -> bool:
    """Does the nameserver not know us, from its answer to `heartbeat`?"""
    message = registry_pb2.RegistryHeartbeatResponse.FromString(response)
    status.check(message.status)
    return message.full_wanted


def unregister(own: RegisteredBroker) -> bytes:
    """Leaves the routes."""
    return registry_pb2.UnregisterRequest(
        broker_name=own.name, broker_id=own.broker_id, incarnation=own.incarnation
    ).SerializeToString()


def watch_routes(watcher: str) -> bytes:
    """Asks for all routes and each change of them."""
    return registry_pb2.WatchRoutesRequest(watcher=watcher).SerializeToString()


def route_news(event: bytes) -> RouteNews:
    """What the watch tells; brokers without an address are left out."""
    message = registry_pb2.RouteEvent.FromString(event)
    brokers = [view for state in message.brokers if (view := broker_view(state)) is not None]
    return RouteNews(message.nameserver, message.snapshot, message.settling, brokers, message.removed)
