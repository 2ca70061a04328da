"""Which clients live, between brokers."""

import pytest
from evenq_broker.loops.wire.departures import ClientsKnown, clients_known, clients_request

from evenq.errors import Forbidden
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import peers_pb2


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
