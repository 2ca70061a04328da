"""Messages about a batch's decision. Tokens are hexadecimal texts here. Parsing raises the error of the status."""

from __future__ import annotations

from collections.abc import Iterable

from evenq.wire.status import check
from evenq.wire.stubs.evenq.v1 import staging_pb2
from evenq_broker.core.staging.decisions import BatchOutcome


def ask_outcome(query_id: str, batch_id: int, broker_name: str, tokens: Iterable[str], expired: Iterable[str]) -> bytes:
    """Queries the decision about a batch from its coordinator."""
    return staging_pb2.OutcomeRequest(
        query_id=query_id,
        batch_id=batch_id,
        broker_name=broker_name,
        tokens=map(bytes.fromhex, tokens),
        expired=map(bytes.fromhex, expired),
    ).SerializeToString()


def outcome_of(response: bytes) -> BatchOutcome:
    """Returns the answer to `ask_outcome`."""
    message = staging_pb2.OutcomeResponse.FromString(response)
    check(message.status)
    return BatchOutcome(message.decided, [one.hex() for one in message.winners], [one.hex() for one in message.dropped])


def roll_forward(query_id: str, batch_id: int, coordinator: str, winners: Iterable[str]) -> bytes:
    """Sends a broker the decision."""
    return staging_pb2.RollForwardRequest(
        query_id=query_id, batch_id=batch_id, coordinator=coordinator, winners=map(bytes.fromhex, winners)
    ).SerializeToString()


def check_rolled_forward(response: bytes) -> None:
    """Checks the answer to `roll_forward`."""
    check(staging_pb2.RollForwardResponse.FromString(response).status)
