"""The line between two brokers for waiting polls and notices of messages (`loops.polls.cluster_polls`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from evenq.wire.stubs.evenq.v1 import peers_pb2
from evenq_broker.core.polls.interest import Want

__all__ = ["WaitingNews", "interest_hello", "interest_of", "notices", "notices_of", "waiting_polls"]


class WaitingNews(NamedTuple):
    """What a peer tells on its line."""

    broker_name: str
    """Told with the first one."""
    counts: list[tuple[Want, int]]
    """How many polls it has parked."""


def interest_hello(broker_name: str) -> bytes:
    """The first request of a line: whose it is."""
    return peers_pb2.InterestRequest(broker_name=broker_name).SerializeToString()


def waiting_polls(counts: Mapping[Want, int]) -> bytes:
    """How many polls are parked."""
    request = peers_pb2.InterestRequest()
    for want, count in counts.items():
        request.waiting.add(group=want.group, topic=want.topic, push=want.push, count=count)
    return request.SerializeToString()


def interest_of(request: bytes) -> WaitingNews:
    """What `interest_hello` or `waiting_polls` sent; nothing for no bytes."""
    message = peers_pb2.InterestRequest.FromString(request)
    counts = [(Want(one.group, one.topic, one.push), one.count) for one in message.waiting]
    return WaitingNews(message.broker_name, counts)


def notices(wants: Iterable[Want]) -> bytes:
    """There is something for one poll of each."""
    event = peers_pb2.InterestEvent()
    for want in wants:
        event.deliverable.add(group=want.group, topic=want.topic, push=want.push)
    return event.SerializeToString()


def notices_of(event: bytes) -> list[Want]:
    """What `notices` message."""
    message = peers_pb2.InterestEvent.FromString(event)
    return [Want(notice.group, notice.topic, notice.push) for notice in message.deliverable]
