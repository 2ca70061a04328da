"""Lite subscriptions on the wire: where a client begins, and what brokers tell each other."""

from __future__ import annotations

from typing import Any

import pytest
from evenq_broker.core.lite.subscriptions import LiteSet, RequestedStart, Subscriber
from evenq_broker.loops.wire.lite import (
    COPIED_BYTES_MAX,
    accepted,
    lite_set_messages,
    lite_sets_for_copy,
    lite_sets_in,
    lite_sets_of,
    lite_start_of,
)

from evenq.errors import BadRequest, Error
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import peers_pb2


@pytest.mark.parametrize(
    ("option", "start", "moves"),
    [
        ({"offset": 7}, RequestedStart("offset", 7), True),
        ({"tail_n": 0}, RequestedStart("tail_n", 0), True),
        ({"timestamp": 9_000}, RequestedStart("timestamp", 9_000), True),
        ({"policy": 2}, RequestedStart("policy", 2), False),
        ({"policy": 0}, RequestedStart("policy", 0), False),
        ({}, RequestedStart("", 0), False),
    ],
)
def test_a_start_is_a_place_or_a_policy(option: dict[str, Any], start: RequestedStart, moves: bool) -> None:
    read = lite_start_of(definition_pb2.OffsetOption(**option))
    assert (read, read.moves) == (start, moves)


def test_sets_come_back_as_they_were_told_and_are_never_from_the_future() -> None:
    sets = [LiteSet(Subscriber("c", "g", "t"), ["x", "y"], 5), LiteSet(Subscriber("d", "g", "t"), [], -3)]
    response = peers_pb2.LiteSubscriptionsResponse(sets=lite_set_messages(sets))
    response.status.code = definition_pb2.OK
    read = lite_sets_of(response.SerializeToString())
    assert [(who, list(names), age_ms) for who, names, age_ms in read] == [
        (Subscriber("c", "g", "t"), ["x", "y"], 5),
        (Subscriber("d", "g", "t"), [], 0),
    ]


def test_a_refusal_is_raised() -> None:
    response = peers_pb2.LiteSubscriptionsResponse()
    response.status.code = definition_pb2.UNAUTHORIZED
    with pytest.raises(Error):
        lite_sets_of(response.SerializeToString())


def test_a_leader_tells_another_copy_as_many_sets_as_fit() -> None:
    sets = [LiteSet(Subscriber(f"c{number}", "g", "t"), ["x" * 64] * 100, 5) for number in range(400)]
    content = lite_sets_for_copy("broker-a", sets)
    assert COPIED_BYTES_MAX * 0.9 < len(content) < 2 * COPIED_BYTES_MAX
    request = peers_pb2.LiteSubscriptionsRequest.FromString(content)
    assert request.broker_name == "broker-a"
    read = lite_sets_in(request.sets)
    assert [(one.subscriber, list(one.names), one.age_ms) for one in read] == sets[: len(read)]


def test_an_answer_that_is_none_is_refused() -> None:
    with pytest.raises(BadRequest, match="3 bytes that are not an answer"):
        accepted(b"\xff\xff\xff")
