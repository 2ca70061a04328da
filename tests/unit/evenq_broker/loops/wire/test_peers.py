"""The line for waiting polls: what goes in comes out."""

from __future__ import annotations

import pytest
from evenq_broker.core.polls.interest import Want
from evenq_broker.loops.wire.peers import (
    ClientsKnown,
    clients_known,
    clients_request,
    interest_hello,
    interest_of,
    notices,
    notices_of,
    relay_check,
    waiting_polls,
    was_sent,
)

from evenq.errors import Forbidden
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import data_pb2, peers_pb2

PULL, PUSH = Want("g", "t"), Want("g", "t", push=True)


def test_the_first_request_names_the_broker_and_an_ended_line_nobody() -> None:
    assert interest_of(interest_hello("a")) == ("a", [])
    assert interest_of(b"") == ("", [])


def test_polls_come_back_with_their_counts_also_those_that_ended() -> None:
    assert interest_of(waiting_polls({PULL: 3, PUSH: 0})).counts == [(PULL, 3), (PUSH, 0)]


def test_notices_come_back_in_order_and_as_often_as_they_were_given() -> None:
    assert notices_of(notices([PUSH, PULL, PULL])) == [PUSH, PULL, PULL]


def test_a_request_carries_ends_and_doubts() -> None:
    request = peers_pb2.ClientsRequest.FromString(clients_request(ended=["a"], asked=["b", "c"]))
    assert (list(request.ended), list(request.asked)) == (["a"], ["b", "c"])


def test_an_answer_says_who_lives_and_who_is_gone_unless_it_is_a_refusal() -> None:
    answer = peers_pb2.ClientsResponse(status=definition_pb2.Status(code=definition_pb2.OK), alive=["a"], gone=["b"])
    assert clients_known(answer.SerializeToString()) == ClientsKnown({"a": 0}, frozenset({"b"})), "an older version"
    answer.silent_ms.extend([7, 8])
    assert clients_known(answer.SerializeToString()).alive == {"a": 7}
    answer.status.code = definition_pb2.FORBIDDEN
    with pytest.raises(Forbidden):
        clients_known(answer.SerializeToString())


def test_a_check_may_be_for_its_sender_only() -> None:
    request = data_pb2.RelayCheckRequest.FromString(relay_check("t", "c", b"command", sender_only=True))
    assert request.sender_only


def test_a_relayed_check_names_topic_client_and_command() -> None:
    request = data_pb2.RelayCheckRequest.FromString(relay_check("t", "c", b"command"))
    assert (request.topic, request.client_id, request.command) == ("t", "c", b"command")


@pytest.mark.parametrize("sent", [True, False])
def test_the_answer_says_whether_a_producer_was_found(sent: bool) -> None:
    assert was_sent(data_pb2.RelayCheckResponse(sent=sent).SerializeToString()) is sent
