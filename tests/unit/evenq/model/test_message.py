"""What a producer writes and a consumer gets cannot be changed behind its back."""

import dataclasses

import pytest

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
