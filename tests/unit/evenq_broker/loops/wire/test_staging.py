"""Questions about a batch's decision: tokens are texts here and bytes on the wire."""

from __future__ import annotations

import pytest
from evenq_broker.loops.wire.staging import ask_outcome, check_rolled_forward, outcome_of, roll_forward

from evenq.errors import Error
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import staging_pb2

OK = definition_pb2.Status(code=definition_pb2.OK)
REFUSED = definition_pb2.Status(code=definition_pb2.UNAUTHORIZED, message="no")


def test_tokens_travel_as_bytes_in_questions() -> None:
    asked = staging_pb2.OutcomeRequest.FromString(ask_outcome("q", 3, "a", ["0a", "ff"], ["ff"]))
    assert (asked.query_id, asked.batch_id, asked.broker_name) == ("q", 3, "a")
    assert (list(asked.tokens), list(asked.expired)) == ([b"\x0a", b"\xff"], [b"\xff"])
    ordered = staging_pb2.RollForwardRequest.FromString(roll_forward("q", 3, "a", ["0a"]))
    assert (ordered.coordinator, list(ordered.winners)) == ("a", [b"\x0a"])


def test_an_outcome_is_read_with_its_tokens() -> None:
    response = staging_pb2.OutcomeResponse(status=OK, decided=True, winners=[b"\x0a"], dropped=[b"\xff"])
    assert outcome_of(response.SerializeToString()) == (True, ["0a"], ["ff"])


def test_refusals_are_raised() -> None:
    with pytest.raises(Error, match="no"):
        outcome_of(staging_pb2.OutcomeResponse(status=REFUSED).SerializeToString())
    with pytest.raises(Error, match="no"):
        check_rolled_forward(staging_pb2.RollForwardResponse(status=REFUSED).SerializeToString())
