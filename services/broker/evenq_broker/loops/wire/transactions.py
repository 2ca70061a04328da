"""The call by which one broker lets another send a transaction's check (`loops.transactions`), as bytes."""

from __future__ import annotations

from evenq.wire.stubs.evenq.v1 import data_pb2

__all__ = ["relay_check", "was_sent"]


def relay_check(topic: str, client_id: str, command: bytes, *, sender_only: bool = False) -> bytes:
    """A RelayCheckRequest: send `command` to that client, else to a producer of the topic unless `sender_only`."""
    request = data_pb2.RelayCheckRequest(topic=topic, client_id=client_id, command=command, sender_only=sender_only)
    return request.SerializeToString()


def was_sent(response: bytes) -> bool:
    """Did the other broker find a producer? From its RelayCheckResponse."""
    return data_pb2.RelayCheckResponse.FromString(response).sent
