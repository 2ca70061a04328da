"""A reply is made of what its request says."""

import pytest
from evenq_proofs.received import received_message

from evenq.client.core.sending.requests import CORRELATION, reply_to, stamped
from evenq.errors import BadRequest
from evenq.model import Message, MessageQueue, ReceivedMessage


def received(message: Message) -> ReceivedMessage:
    return received_message(
        topic=message.topic,
        body=message.body,
        message_id="m",
        properties=message.properties,
        queue=MessageQueue("t", "a", 0),
    )


def test_a_reply_goes_where_the_request_says_with_its_id() -> None:
    request = stamped(Message(topic="t", body=b"?", properties={"k": "v"}), topic="r", tag="me", correlation="me-1")
    assert request.properties["k"] == "v"
    reply = reply_to(received(request), b"!", properties={"took": "1"})
    assert (reply.topic, reply.tag, reply.body) == ("r", "me", b"!")
    assert reply.properties == {"took": "1", CORRELATION: "me-1"}


def test_a_message_that_asks_for_no_reply_gets_none() -> None:
    with pytest.raises(BadRequest, match="does not expect a reply"):
        reply_to(received(Message(topic="t", body=b"x")), b"!")
