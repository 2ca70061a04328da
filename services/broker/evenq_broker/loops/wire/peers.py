"""Messages between two brokers: waiting polls and notices of messages (`loops.polls.cluster_polls`), liveness of v2
clients (`loops.groups.departures`), and checks of transactions (`loops.transactions`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from evenq.wire.status import check
from evenq.wire.stubs.evenq.v1 import data_pb2, peers_pb2
from evenq_broker.core.polls.interest import Want


class WaitingNews(NamedTuple):
    """One message of a peer on its line."""

    broker_name: str
    """Sent with the first one."""
    counts: list[tuple[Want, int]]


def interest_hello(broker_name: str) -> bytes:
    """Returns the first request of a line, which names the sender."""
    return peers_pb2.InterestRequest(broker_name=broker_name).SerializeToString()


def waiting_polls(counts: Mapping[Want, int]) -> bytes:
    """Returns a request with the numbers of parked polls."""
    request = peers_pb2.InterestRequest()
    for want, count in counts.items():
        request.waiting.add(group=want.group, topic=want.topic, push=want.push, count=count)
    return request.SerializeToString()


def interest_of(request: bytes) -> WaitingNews:
    """Returns the content of `interest_hello` or `waiting_polls`; nothing for no bytes."""
    message = peers_pb2.InterestRequest.FromString(request)
    counts = [(Want(one.group, one.topic, one.push), one.count) for one in message.waiting]
    return WaitingNews(message.broker_name, counts)


def notices(wants: Iterable[Want]) -> bytes:
    """Returns an event: a message is deliverable to one poll of each."""
    event = peers_pb2.InterestEvent()
    for want in wants:
        event.deliverable.add(group=want.group, topic=want.topic, push=want.push)
    return event.SerializeToString()


def notices_of(event: bytes) -> list[Want]:
    """Returns the content of `notices`."""
    message = peers_pb2.InterestEvent.FromString(event)
    return [Want(notice.group, notice.topic, notice.push) for notice in message.deliverable]


class ClientsKnown(NamedTuple):
    """A broker's knowledge of clients that another one doubts."""

    alive: Mapping[str, int]
    """Client id to ms since its last call there; 0: it has a stream or a waiting poll there."""
    gone: frozenset[str]
    """They ended there by their own message and made no call since."""


def clients_request(*, ended: Iterable[str] = (), asked: Iterable[str] = ()) -> bytes:
    """Reports ends, and queries which clients live."""
    return peers_pb2.ClientsRequest(ended=ended, asked=asked).SerializeToString()


def clients_known(response: bytes) -> ClientsKnown:
    """Returns the other broker's answer. Raises the error of its status."""
    message = peers_pb2.ClientsResponse.FromString(response)
    check(message.status)
    silent_ms = [*message.silent_ms, *[0] * len(message.alive)]  # an older version leaves it out
    return ClientsKnown(dict(zip(message.alive, silent_ms, strict=False)), frozenset(message.gone))


def relay_check(topic: str, client_id: str, command: bytes, *, sender_only: bool = False) -> bytes:
    """Requests that `command` is sent to that client, otherwise to a producer of the topic unless `sender_only`."""
    request = data_pb2.RelayCheckRequest(topic=topic, client_id=client_id, command=command, sender_only=sender_only)
    return request.SerializeToString()


def was_sent(response: bytes) -> bool:
    """True if the other broker found a producer, by its RelayCheckResponse."""
    return data_pb2.RelayCheckResponse.FromString(response).sent
