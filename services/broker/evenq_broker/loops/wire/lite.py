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
    "ASK_LITE_SETS", "LiteNews", "ask_leader_for_lite_sets", "lite_news", "lite_news_of", "lite_set_messages",
    "lite_sets_of", "lite_start_of",
]  # fmt: skip

OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")

ASK_LITE_SETS = peers_pb2.LiteSubscriptionsRequest().SerializeToString()
"""Asks another broker for what it knows."""


class LiteNews(NamedTuple):
    """What the leader of a group says to another copy."""

    version: int
    """Of the sets."""
    sets: Sequence[LiteSet]
    """None if the other copy has this version."""


def ask_leader_for_lite_sets(broker_name: str, known: int) -> bytes:
    """`known`: the version that this copy has; 0: none."""
    return peers_pb2.LiteSubscriptionsRequest(broker_name=broker_name, known=known).SerializeToString()


def lite_news(news: LiteNews) -> bytes:
    """The answer to `ask_leader_for_lite_sets`."""
    return peers_pb2.LiteSubscriptionsResponse(
        status=OK, sets=lite_set_messages(news.sets), version=news.version
    ).SerializeToString()


def lite_news_of(response: bytes) -> LiteNews:
    """What `lite_news` made. Raises what its status says, and BadRequest for what is no such message."""
    try:
        version = peers_pb2.LiteSubscriptionsResponse.FromString(response).version
        return LiteNews(version, lite_sets_of(response))
    except DecodeError as error:
        raise BadRequest(f"{len(response)} bytes that are no lite subscriptions: {error}") from error


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
    return [
        LiteSet(Subscriber(entry.client_id, entry.group, entry.topic), entry.lite_topics, max(0, entry.age_ms))
        for entry in message.sets
    ]
