"""Questions of brokers about a batch's decision, as bytes (`loops.staging.deciding`).

Tokens are hexadecimal texts here and bytes on the wire. Reading an answer raises what its status says.
"""

from __future__ import annotations

from collections.abc import Iterable

from evenq.wire.status import check
from evenq.wire.stubs.evenq.v1 import staging_pb2
from evenq_broker.core.staging.decisions import BatchOutcome

__all__ = ["ask_outcome", "check_rolled_forward", "outcome_of", "roll_forward"]


def ask_outcome(query_id: str, batch_id: int, broker_name: str, tokens: Iterable[str], expired: Iterable[str]) -> bytes:
    """Asks a coordinator for the decision about a batch."""
    return staging_pb2.OutcomeRequest(
        query_id=query_id, batch_id=batch_id, broker_name=broker_name, tokens=map(bytes.fromhex, tokens),
        expired=map(bytes.fromhex, expired),
    ).SerializeToString()  # fmt: skip


def outcome_of(response: bytes) -> BatchOutcome:
    """The answer to `ask_outcome`."""
    message = staging_pb2.OutcomeResponse.FromString(response)
    check(message.status)
    return BatchOutcome(message.decided, [one.hex() for one in message.winners], [one.hex() for one in message.dropped])


def roll_forward(query_id: str, batch_id: int, coordinator: str, winners: Iterable[str]) -> bytes:
    """Tells a broker the decision."""
    return staging_pb2.RollForwardRequest(
        query_id=query_id, batch_id=batch_id, coordinator=coordinator, winners=map(bytes.fromhex, winners)
    ).SerializeToString()


def check_rolled_forward(response: bytes) -> None:
    """The answer to `roll_forward`."""
    check(staging_pb2.RollForwardResponse.FromString(response).status)
