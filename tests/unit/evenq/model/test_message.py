"""What a producer writes and a consumer gets cannot be changed behind its back."""

import dataclasses
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from evenq.errors import (
    BadRequest,
    IllegalDeliveryTime,
    IllegalMessageGroup,
    IllegalMessageKey,
    IllegalMessageTag,
    IllegalPropertyKey,
)
from evenq.model import Message

SENT_MS = 1_800_000_000_000


def test_a_message_cannot_be_changed_and_a_changed_copy_is_another():
    message = Message(topic="t", body=b"x", keys=("k",))
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.body = b"y"  # type: ignore[misc]  # that is the point
    copy = dataclasses.replace(message, body=b"y")
    assert (message.body, copy.body, copy.keys) == (b"x", b"y", ("k",))


def test_two_messages_do_not_share_their_properties():
    one, other = Message(topic="t", body=b"x"), Message(topic="t", body=b"x")
    one.properties["a"] = "1"  # a plain dict at heart
    assert other.properties == {}


def test_a_message_with_more_properties_is_otherwise_the_same() -> None:
    given = Message(topic="t", body=b"b", keys=["k"], properties={"a": "1", "b": "2"}, delay_level=3, message_id="id")
    more = given.with_properties({"b": "3", "c": "4"})
    assert more == replace(given, properties={"a": "1", "b": "3", "c": "4"})
    assert given.properties == {"a": "1", "b": "2"}

    class Order(Message):
        """A subclass of a user."""

    assert isinstance(Order(topic="t", body=b"b").with_properties({"c": "4"}), Order)


def test_what_is_right_passes() -> None:
    Message(topic="t", body=b"x", keys=("a", "b"), tag="c", properties={"d": "e"}, delivery_ms=10**12, priority=2)
    assert Message(topic="t", body=b"x", keys=["a"]).keys == ("a",)
    assert Message(topic="t", body=b"x", keys=[]) == Message(topic="t", body=b"x")


@pytest.mark.parametrize(
    ("arguments", "due_ms"),
    [
        ({}, None),
        ({"delivery_ms": 10**12}, 10**12),
        ({"delivery_ms": datetime(2030, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))}, 1_893_456_000_000),
        ({"delay": timedelta(minutes=1, microseconds=1_999)}, SENT_MS + 60_001),
        ({"delay": 1_500}, SENT_MS + 1_500),
        ({"delay": 0}, SENT_MS),
        ({"delay": 7, "delay_level": 5}, SENT_MS + 7),
        ({"delay_level": 5}, SENT_MS + 60_000),
    ],
)
def test_a_delivery_time_is_a_time_or_a_span_from_the_sending_on(arguments: dict[str, Any], due_ms: int | None) -> None:
    assert Message(topic="t", body=b"x", **arguments).due_ms(SENT_MS) == due_ms


@pytest.mark.parametrize(
    ("arguments", "error", "fix"),
    [
        ({"keys": "order-1"}, IllegalMessageKey, r"keys=\('order-1',\)"),
        ({"keys": (1,)}, IllegalMessageKey, "order-1"),
        ({"tag": 5}, IllegalMessageTag, "tag='paid'"),
        ({"tag": ("a",)}, IllegalMessageTag, "tag='paid'"),
        ({"body": "text"}, BadRequest, r"text\.encode\(\)"),
        ({"body": bytearray(b"x")}, BadRequest, r"bytes\(body\)"),
        ({"body": {"a": 1}}, BadRequest, "json"),
        ({"body": None}, BadRequest, "bytes"),
        ({"properties": {"a": 1}}, IllegalPropertyKey, "{'a': '1'}"),
        ({"properties": {1: "a"}}, IllegalPropertyKey, "{'1': 'a'}"),
        ({"properties": "a=b"}, IllegalPropertyKey, "dict"),
        ({"delivery_ms": 1.5}, IllegalDeliveryTime, "int"),
        ({"delivery_ms": 1_800_000_000}, IllegalDeliveryTime, "may be in seconds"),
        ({"delivery_ms": 10**12 - 1}, IllegalDeliveryTime, r"delay=timedelta\(minutes=1\)"),
        ({"delivery_ms": 0}, IllegalDeliveryTime, "ms since the epoch"),
        ({"delivery_ms": datetime(2001, 1, 1, tzinfo=UTC)}, IllegalDeliveryTime, "before September 2001"),
        ({"delivery_ms": datetime(2030, 1, 1)}, IllegalDeliveryTime, "no time zone"),  # noqa: DTZ001 - the point
        ({"delay": 1.5}, IllegalDeliveryTime, "timedelta"),
        ({"delay": "10m"}, IllegalDeliveryTime, "timedelta"),
        ({"delay": -1}, IllegalDeliveryTime, "0 ms or more"),
        ({"delay": timedelta(seconds=-1)}, IllegalDeliveryTime, "0 ms or more"),
        ({"delay": 5, "delivery_ms": 2 * 10**12}, IllegalDeliveryTime, "one of them"),
        ({"delay_level": "3"}, IllegalDeliveryTime, "whole"),
        ({"priority": "3"}, BadRequest, "whole"),
        ({"message_group": 7}, IllegalMessageGroup, "text"),
    ],
)
def test_what_is_wrong_is_refused_with_the_fix(arguments: dict[str, object], error: type[Exception], fix: str) -> None:
    with pytest.raises(error, match=fix):
        Message(**{"topic": "t", "body": b"x", **arguments})  # type: ignore[arg-type]  # that is the point
