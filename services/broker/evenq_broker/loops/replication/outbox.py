"""Messages that wait to be sent to one peer, bounded by number and by bytes. The sender never waits.

The current message is being sent. It may have any size that can be sent, and so may the only records behind a small
one: otherwise large groups would never leave. All others together are `MESSAGES_MAX` messages and `BYTES_MAX` bytes.
The rest is dropped, because the protocol repeats what matters. Records displace nothing; of a follower's reports the
newest is the most valuable. Belongs to one link, and to one loop.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from evenq_broker.core.replication.messages import Envelope, EpochsRequest, FollowerProgress, Records
from evenq_broker.loops.wire.replication import envelope_bytes

MESSAGES_MAX = 64
BYTES_MAX = 8 << 20


class _Waiting(NamedTuple):
    envelope: Envelope
    size: int


def _has_records(one: _Waiting) -> bool:
    return isinstance(one.envelope.body, Records)


class Outbox:
    """Outbox of one link."""

    def __init__(self, *, messages_max: int = MESSAGES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._messages_max, self._bytes_max = messages_max, bytes_max
        self._waiting: deque[_Waiting] = deque()
        self._hand: _Waiting | None = None
        self.bytes = 0
        """Of waiting messages, without the current one, or the only records behind it."""
        self.dropped = 0
        """Messages since the start that were not sent: the outbox was full, or there was no link."""

    def __len__(self) -> int:
        """Number of messages, the current one included."""
        return len(self._waiting) + (self._hand is not None)

    @property
    def in_hand(self) -> Envelope | None:
        """The current message, which is sent now or next; None: there is nothing to send."""
        return None if self._hand is None else self._hand.envelope

    def put(self, envelope: Envelope) -> bool:
        """Queues a message; False: it was dropped. Raises MalformedMessage for one that cannot be sent."""
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
        """Ends the current message, sent or broken off: the next one becomes current."""
        self._hand = self._waiting.popleft() if self._waiting else None
        if self._hand is not None:
            self.bytes -= self._hand.size

    def drop_records(self) -> None:
        """Drops records at the end of the link; the peer requests them again. Small messages stay: they may be lost."""
        kept = [one for one in (self._hand, *self._waiting) if one is not None]
        small = [one for one in kept if not _has_records(one)]
        self.dropped += len(kept) - len(small)
        self._hand = small[0] if small else None
        self._waiting = deque(small[1:])
        self.bytes = sum(one.size for one in self._waiting)

    def _make_room(self, one: _Waiting) -> bool:
        """True if it fits now; earlier reports of a follower are dropped for it, the oldest first."""
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
