"""Entries of SendMessage's answer for what is no message of a queue yet: a delayed message and a half message.

The same bytes for the first try (`rpc.sending.send`) and for a retry that another process of the broker, or another
copy of its group, answers (`loops.sending.dedup`): the handles are made from what the log has of the timer.
"""

from __future__ import annotations

from evenq_broker.core.state.frames import OK_STATUS, field

__all__ = ["delayed_entry", "half_entry"]


def delayed_entry(message_id: bytes, recall_handle: str) -> bytes:
    """A delayed message is stored."""
    return field(2, OK_STATUS + field(2, message_id) + field(5, recall_handle.encode()))


def half_entry(message_id: bytes, transaction_id: str) -> bytes:
    """A half message is stored."""
    return field(2, OK_STATUS + field(2, message_id) + field(3, transaction_id.encode()))
