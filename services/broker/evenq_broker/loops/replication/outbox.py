"""What waits to be sent to one peer: bounded by number and by bytes, and never waited for.

The message in hand is the one that leaves just now. It may be of any size that can be sent, and so may the only records
behind a small one: else large groups would never leave. All others together are `MESSAGES_MAX` messages and `BYTES_MAX`
bytes. What does not fit is dropped, because the protocol repeats what matters: records push nothing out, and of what a
follower says of itself the newest is worth the most. Belongs to one link, and to one loop.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from evenq_broker.core.replication.messages import Envelope, EpochsRequest, FollowerProgress, Records
from evenq_broker.loops.wire.replication import envelope_bytes

__all__ = ["BYTES_MAX", "MESSAGES_MAX", "Outbox"]

MESSAGES_MAX = 64
BYTES_MAX = 8 << 20


class _Waiting(NamedTuple):
    envelope: Envelope
    size: int


def _has_records(one: _Waiting) -> bool:
    return isinstance(one.envelope.body, Records)


class Outbox:
    """See the module."""

    def __init__(self, *, messages_max: int = MESSAGES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._messages_max, self._bytes_max = messages_max, bytes_max
        self._waiting: deque[_Waiting] = deque()
        self._hand: _Waiting | None = None
        self.bytes = 0
        """Of what waits, without the message in hand, or the only records behind it."""
        self.dropped = 0
        """Messages since the start that were not sent for want of room, or of a link."""

    def __len__(self) -> int:
        """Messages, the one in hand included."""
        return len(self._waiting) + (self._hand is not None)

    @property
    def in_hand(self) -> Envelope | None:
        """The message that leaves now, or leaves next; None: there is nothing to send."""
        return None if self._hand is None else self._hand.envelope

    def put(self, envelope: Envelope) -> bool:
        """Let a message wait its turn; False: it was dropped. Raises MalformedMessage for one that cannot be sent."""
        one = _Waiting(envelope, envelope_bytes(envelope))
        if self._hand is None:
            self._hand = one
            return True
        if _has_records(one) and not any(map(_has_records, (self._hand, *self._waiting))):
            one = _Waiting(envelope, 0)
        if not self._make_room(one):
            self.dropped += 1
            return False
        self._waiting.append(one)
        self.bytes += one.size
        return True

    def sent(self) -> None:
        """The message in hand left, or was broken off: the next one is in hand."""
        self._hand = self._waiting.popleft() if self._waiting else None
        if self._hand is not None:
            self.bytes -= self._hand.size

    def drop_records(self) -> None:
        """The link ended: the peer asks for these records again, and nothing large is kept for a peer that is away.
        What is small stays, the message in hand included: it may have been lost.
        """
        kept = [one for one in (self._hand, *self._waiting) if one is not None]
        small = [one for one in kept if not _has_records(one)]
        self.dropped += len(kept) - len(small)
        self._hand = small[0] if small else None
        self._waiting = deque(small[1:])
        self.bytes = sum(one.size for one in self._waiting)

    def _make_room(self, one: _Waiting) -> bool:
        """True if it fits now; what a follower said of itself before makes way for it, the oldest first."""
        count, size = len(self._waiting), self.bytes + one.size
        going = []
        for old in self._waiting if not _has_records(one) else ():
            if count < self._messages_max and size <= self._bytes_max:
                break
            if isinstance(old.envelope.body, FollowerProgress | EpochsRequest):
                going.append(old)
                count, size = count - 1, size - old.size
        if count >= self._messages_max or size > self._bytes_max:
            return False
        for old in going:
            self._waiting.remove(old)
        self.bytes -= sum(old.size for old in going)
        self.dropped += len(going)
        return True
