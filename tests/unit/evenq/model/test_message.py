"""What a producer writes and a consumer gets cannot be changed behind its back."""

import dataclasses

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


def test_what_is_right_passes() -> None:
    Message(topic="t", body=b"x", keys=("a", "b"), tag="c", properties={"d": "e"}, delivery_ms=1, priority=2)
    assert Message(topic="t", body=b"x", keys=["a"]).keys == ("a",)
    assert Message(topic="t", body=b"x", keys=[]) == Message(topic="t", body=b"x")


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
        ({"delay_level": "3"}, IllegalDeliveryTime, "whole"),
        ({"priority": "3"}, BadRequest, "whole"),
        ({"message_group": 7}, IllegalMessageGroup, "text"),
    ],
)
def test_what_is_wrong_is_refused_with_the_fix(arguments: dict[str, object], error: type[Exception], fix: str) -> None:
    with pytest.raises(error, match=fix):
        Message(**{"topic": "t", "body": b"x", **arguments})  # type: ignore[arg-type]  # that is the point
