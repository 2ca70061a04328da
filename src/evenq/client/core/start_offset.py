"""Where a newly assigned queue is read from: `computePullFromWhere` (RB-41 to RB-48).

Two steps, because the second may need an answer of the broker: `stored_start` looks at the stored offset,
`policy_start` applies the group's start policy to what the broker told.
"""

from __future__ import annotations

from enum import StrEnum

from evenq.model import QueueOffset, StartFrom
from evenq.model.names import RETRY_PREFIX

__all__ = ["Stored", "policy_start", "stored_start"]


class Stored(StrEnum):
    """What a stored offset says."""

    KNOWN = "known"
    """0 or more: start there, whatever the policy."""
    NEVER = "never"
    """-1: the group never consumed here; the policy decides."""
    UNUSABLE = "unusable"
    """Anything else: do not add the queue in this round."""


def stored_start(stored: int) -> Stored:
    """RB-41."""
    if stored >= 0:
        return Stored.KNOWN
    return Stored.NEVER if stored == -1 else Stored.UNUSABLE


def policy_start(topic: str, policy: StartFrom, *, maximum: int, found: int) -> QueueOffset:
    """RB-42, for a queue that was never consumed: `maximum` is the queue's end, `found` the offset at the consume
    timestamp.

    RB-48's better way for FIRST: it answers 0, and the pull goes on at the smallest offset still stored.
    """
    retry = topic.startswith(RETRY_PREFIX)
    match policy:
        case StartFrom.LAST:
            return QueueOffset(0 if retry else maximum)
        case StartFrom.FIRST:
            return QueueOffset(0)
        case StartFrom.TIMESTAMP:
            return QueueOffset(maximum if retry else found)
