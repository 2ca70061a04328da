"""A check that another broker sends, there and back."""

import pytest
from evenq_broker.loops.wire.transactions import relay_check, was_sent

from evenq.wire.stubs.evenq.v1 import data_pb2


def test_a_check_may_be_for_its_sender_only() -> None:
    request = data_pb2.RelayCheckRequest.FromString(relay_check("t", "c", b"command", sender_only=True))
    assert request.sender_only


def test_a_relayed_check_names_topic_client_and_command() -> None:
    request = data_pb2.RelayCheckRequest.FromString(relay_check("t", "c", b"command"))
    assert (request.topic, request.client_id, request.command) == ("t", "c", b"command")


@pytest.mark.parametrize("sent", [True, False])
def test_the_answer_says_whether_a_producer_was_found(sent: bool) -> None:
    assert was_sent(data_pb2.RelayCheckResponse(sent=sent).SerializeToString()) is sent
