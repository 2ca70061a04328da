"""Offsets of a queue and the identity of a message, for readers without a group. Plain values."""

from __future__ import annotations

from dataclasses import dataclass

from evenq.model import MessageQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueExtent:
    """A queue as its leader reports it: offsets of committed messages."""

    queue: MessageQueue
    address: str
    low: int
    high: int
    """Exclusive."""
    uid: str
    """Identity of the content: another one after the topic was created again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMark:
    """Identity of one stored message."""

    text: str
    """Store time in hexadecimal ms, a dot, and a checksum; empty: the message does not exist."""

    @property
    def store_ms(self) -> int:
        """Returns the store time, ms since the epoch; -1 without a message."""
        return int(self.text.partition(".")[0], 16) if self.text else -1
