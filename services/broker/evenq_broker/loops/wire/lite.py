"""Subscriptions of lite topics between brokers, and where a client wants to begin, as messages (`loops.lite`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError

from evenq.errors import BadRequest
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import peers_pb2
from evenq_broker.core.lite.subscriptions import LiteSet, RequestedStart, Subscriber

__all__ = [
    "ASK_LITE_SETS", "COPIED_BYTES_MAX", "LiteNews", "accepted", "lite_set_messages", "lite_sets_for_copy",
    "lite_sets_in", "lite_sets_of", "lite_start_of",
]  # fmt: skip

COPIED_BYTES_MAX = 1 << 20
"""Of one message to another copy, which takes 2 MiB."""

ASK_LITE_SETS = peers_pb2.LiteSubscriptionsRequest().SerializeToString()
"""Asks another broker for what it knows."""


class LiteNews(NamedTuple):
    """What the leader of a group tells the other copies."""

    version: int
    """Of the sets; another one of each term of leadership."""
    sets: Sequence[LiteSet]


def lite_sets_for_copy(broker_name: str, sets: Iterable[LiteSet]) -> bytes:
    """What the leader of the group tells another copy: as many sets as fit; clients repeat the rest."""
    request, size = peers_pb2.LiteSubscriptionsRequest(broker_name=broker_name), 0
    for message in lite_set_messages(sets):
        size += message.ByteSize()
        if size > COPIED_BYTES_MAX:
            break
        request.sets.append(message)
    return request.SerializeToString()


def accepted(response: bytes) -> None:
    """Raises what the status of the answer says, and BadRequest for what is no such message."""
    try:
        check(peers_pb2.LiteSubscriptionsResponse.FromString(response).status)
    except DecodeError as error:
        raise BadRequest(f"{len(response)} bytes that are no answer to lite subscriptions: {error}") from error


def lite_start_of(option: definition_pb2.OffsetOption) -> RequestedStart:
    """The start that a client asks for."""
    kind = option.WhichOneof("offset_type")
    return RequestedStart("", option.policy) if kind is None else RequestedStart(kind, int(getattr(option, kind)))


def lite_set_messages(sets: Iterable[LiteSet]) -> list[peers_pb2.LiteSet]:
    """The wire form of what clients want."""
    return [
        peers_pb2.LiteSet(client_id=who.client_id, group=who.group, topic=who.parent, lite_topics=names, age_ms=age_ms)
        for who, names, age_ms in sets
    ]


def lite_sets_of(response: bytes) -> list[LiteSet]:
    """What another broker message. Raises what its status says."""
    message = peers_pb2.LiteSubscriptionsResponse.FromString(response)
    check(message.status)
    return lite_sets_in(message.sets)


def lite_sets_in(messages: Iterable[peers_pb2.LiteSet]) -> list[LiteSet]:
    """What `lite_set_messages` made."""
    return [
        LiteSet(Subscriber(entry.client_id, entry.group, entry.topic), entry.lite_topics, max(0, entry.age_ms))
        for entry in messages
    ]
