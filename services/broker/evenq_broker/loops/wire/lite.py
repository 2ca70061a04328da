"""Subscriptions of lite topics between brokers, and clients' start offsets, as messages (`loops.lite`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError

from evenq.errors import BadRequest
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import peers_pb2
from evenq_broker.core.lite.subscriptions import LiteSet, RequestedStart, Subscriber

COPIED_BYTES_MAX = 1 << 20
"""Of one message to another copy, which takes 2 MiB."""

ASK_LITE_SETS = peers_pb2.LiteSubscriptionsRequest().SerializeToString()
"""Queries the sets that another broker knows."""


class LiteNews(NamedTuple):
    """Sets that the leader of a group sends to the other copies."""

    version: int
    """Of the sets; unique to each term of leadership."""
    sets: Sequence[LiteSet]


def lite_sets_for_copy(broker_name: str, sets: Iterable[LiteSet]) -> bytes:
    """Returns the leader's message to another copy, with as many sets as fit; clients repeat the rest."""
    request, size = peers_pb2.LiteSubscriptionsRequest(broker_name=broker_name), 0
    for message in lite_set_messages(sets):
        size += message.ByteSize()
        if size > COPIED_BYTES_MAX:
            break
        request.sets.append(message)
    return request.SerializeToString()


def accepted(response: bytes) -> None:
    """Raises the error of the answer's status, and BadRequest for an invalid message."""
    try:
        check(peers_pb2.LiteSubscriptionsResponse.FromString(response).status)
    except DecodeError as error:
        raise BadRequest(f"{len(response)} bytes that are not an answer to lite subscriptions: {error}") from error


def lite_start_of(option: definition_pb2.OffsetOption) -> RequestedStart:
    """Returns the start that a client requests."""
    kind = option.WhichOneof("offset_type")
    return RequestedStart("", option.policy) if kind is None else RequestedStart(kind, int(getattr(option, kind)))


def lite_set_messages(sets: Iterable[LiteSet]) -> list[peers_pb2.LiteSet]:
    """Returns the wire form of clients' subscriptions."""
    return [
        peers_pb2.LiteSet(client_id=who.client_id, group=who.group, topic=who.parent, lite_topics=names, age_ms=age_ms)
        for who, names, age_ms in sets
    ]


def lite_sets_of(response: bytes) -> list[LiteSet]:
    """Returns the sets that another broker sent. Raises the error of its status."""
    message = peers_pb2.LiteSubscriptionsResponse.FromString(response)
    check(message.status)
    return lite_sets_in(message.sets)


def lite_sets_in(messages: Iterable[peers_pb2.LiteSet]) -> list[LiteSet]:
    """Returns the content of `lite_set_messages`."""
    return [
        LiteSet(Subscriber(entry.client_id, entry.group, entry.topic), entry.lite_topics, max(0, entry.age_ms))
        for entry in messages
    ]
