"""Progress of one group on one queue: its unfinished messages, and the end of what is finished.

`core.delivery.progress` changes it and lists its invariants; `core.delivery.message_groups` keeps its lanes. Pure.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from evenq_broker.core.state.records import Invisible

READY = 0
"""Deadline of a message that waits for its next delivery."""
BLOCKED = -1
"""Deadline of a message of an ordered group that waits for the one before it (`core.delivery.message_groups`)."""
UNKNOWN = -1
NO_END = 1 << 62

FINISHING = NO_END
"""Deadline of a message whose end is being stored (`core.delivery.fence`)."""

NUMBERS = 1_000
"""Step of delivery numbers at a reset: more than a message has attempts."""
LITE_QUEUES_FROM = 1 << 20
"""First queue id of lite topics (`core.lite.lite_topics`): each is ordered in itself, and not with the others."""


class SettleStatus(Enum):
    """Result of an ack or of a change of the invisible time."""

    DONE = "done"
    ALREADY = "already"  # the message was finished before: fine for an ack, nothing to record
    INVALID = "invalid"  # the delivery has ended, or never was


class Pending:
    """One unfinished message of a group."""

    __slots__ = ("attempt", "client_id", "deadline_ms", "lane", "number", "waits")

    def __init__(self, number: int, attempt: int, deadline_ms: int, client_id: str) -> None:
        self.number = number
        """Deliveries so far, including those that were given back: what a handle names."""
        self.attempt = attempt  # deliveries that count towards the maximum
        self.deadline_ms = deadline_ms
        """End of the delivery, ms since the epoch; READY or BLOCKED: no delivery runs."""
        self.client_id = client_id
        """Client whose life holds the delivery (auto_renew); empty: only the deadline does."""
        self.lane: str | None = None  # message group, for ordered groups; None elsewhere
        self.waits = False
        """True: no client works on it. It was given back, postponed or not finished in time, and waits for redelivery
        until the deadline. Not in the journal: after a restart it may look delivered until then.
        """

    @property
    def running(self) -> bool:
        """True if a client has the message now."""
        return self.attempt > 0 and self.deadline_ms > READY and not self.waits


class QueueProgress:
    """One group on one queue."""

    __slots__ = (
        "committed",
        "counts",
        "first",
        "given_until",
        "group_id",
        "handed",
        "lanes",
        "next",
        "passed",
        "pending",
        "queue_id",
        "reading",
        "ready",
        "running",
        "timer",
        "topic_id",
        "unkeyed",
        "walk",
    )

    def __init__(self, group_id: int, topic_id: int, queue_id: int, offset: int) -> None:
        self.group_id = group_id
        self.topic_id = topic_id
        self.queue_id = queue_id
        self.committed = offset  # the smallest unfinished offset
        self.next = offset  # the first offset never looked at for this group
        self.first = 1
        """Number of a message's first delivery; smaller ones in handles are from before a reset."""
        self.pending: dict[int, Pending] = {}
        """Offset -> entry of every unfinished message; all of them in [committed, next)."""
        self.ready: list[int] = []
        """Heap of offsets that wait for redelivery; may hold finished ones, which `Progress` skips."""
        self.running = 0
        """Number of `running` entries of `pending`; each step that changes one of them keeps it."""
        self.reading = False
        """True while a call reads fresh messages from disk for this group: other calls skip the queue."""
        self.walk: list[int] = []
        """Unfinished offsets, descending, as of the last sort; see `_smallest`."""
        self.timer: tuple[int, list[int]] = (-1, [])
        """The last timer of `Progress`: deadline and offsets; deliveries of the same ms share it."""
        self.lanes: dict[str, deque[int]] = {}
        """Ordered groups: message group -> its unfinished offsets, ascending; only the first may be delivered."""
        self.handed = offset
        """End of what the holder of the queue's lock was answered; UNKNOWN: it got the lock before this start."""
        self.given_until = 0
        """Unfinished messages below it were given to a holder that is gone: they may have been delivered."""
        self.counts: dict[int, int] = {}
        """Delivery counts of unfinished offsets, for members that pull (`core.delivery.counts`)."""
        self.passed: tuple[int, int] = (0, 0)
        """The filter of the queue's holder excludes all from the first to the second offset. The holder learns and
        commits that when its long poll ends.
        """
        self.unkeyed = False
        """Ordered groups: `pending` came from the journal, and its message groups are not known yet."""

    def unfinished(self, min_offset: int, max_offset: int) -> int:
        """Returns the number of known, unfinished messages from `min_offset` to `max_offset`. Retention deleted what is
        below; what is behind was taken before its commit, so no client knows of it yet.
        """
        pending = self.pending
        if min_offset > self.committed:
            return sum(min_offset <= offset < max_offset for offset in pending)
        if self.next <= max_offset:
            return len(pending)
        # The shorter loop: at most one group of the store is taken ahead of its commit, `pending` holds up to 20,000.
        if self.next - max_offset > len(pending):
            return sum(offset < max_offset for offset in pending)
        return len(pending) - sum(offset in pending for offset in range(max_offset, self.next))

    def delivered(self, min_offset: int, max_offset: int) -> int:
        """Returns how many of them were delivered at least once. In an ordered group the rest is blocked."""
        if not self.lanes:
            return self.unfinished(min_offset, max_offset)
        return sum(entry.attempt > 0 and min_offset <= offset < max_offset for offset, entry in self.pending.items())

    def inflight(self, min_offset: int, max_offset: int) -> int:
        """Returns how many of them a client has now; those that were given back wait for redelivery."""
        pending, behind = self.pending, self.next - max_offset
        if min_offset > self.committed or behind > len(pending):
            return sum(entry.running and min_offset <= offset < max_offset for offset, entry in pending.items())
        # Metrics read every queue: only messages that were taken ahead of their commit are looked at.
        return self.running - sum(
            offset in pending and pending[offset].running for offset in range(max_offset, self.next)
        )

    def lag(self, min_offset: int, max_offset: int) -> int:
        """Returns the number of messages in the range that the group has not finished."""
        return max(0, max_offset - max(self.passing(), min_offset)) + self.unfinished(min_offset, max_offset)

    def passing(self) -> int:
        """Returns the first offset that a commit now could not pass: behind what the holder's filter excludes."""
        start, end = self.passed
        return end if start <= self.next < end and not self.pending else self.next

    def waiting(self) -> int:
        """Returns the number of messages that failed and wait for redelivery. Looks at all unfinished ones."""
        return sum(entry.attempt > 0 and (entry.waits or entry.deadline_ms == READY) for entry in self.pending.values())

    def in_hand(self, now_ms: int) -> bool:
        """Returns True if a client works on a message, or is about to get one."""
        return self.reading or any(entry.deadline_ms > now_ms and not entry.waits for entry in self.pending.values())

    def op(self, offset: int, entry: Pending) -> Invisible:
        """Returns the journal's record of the state of one delivery."""
        position = (self.group_id, self.topic_id, self.queue_id, offset)
        return Invisible(*position, entry.number, entry.attempt, entry.deadline_ms)

    def reset(self, offset: int) -> bool:
        """Begins again at `offset` and forgets what was in flight; False if there is nothing to record. In place: a
        call that waits for the disk sees that `next` or `first` has moved.
        """
        self.handed = offset
        self.passed = (0, 0)
        self.first += NUMBERS
        # Members that pull finish messages above `committed`: only their counts show it.
        if (self.committed, self.next) == (offset, offset) and not self.counts and not self.given_until:
            return False
        self.committed = self.next = offset
        self.given_until = 0
        self.counts.clear()
        self.pending.clear()
        self.running = 0
        self.ready.clear()
        self.walk.clear()
        self.timer = (-1, [])
        self.lanes.clear()
        self.unkeyed = False
        return True

    def untaken(self, end: int) -> bool:
        """Returns True if a message before `end` may be taken: it is fresh, or waits for redelivery."""
        return self.next < end or (bool(self.ready) and self.ready[0] < end)

    def advance(self) -> None:
        """Moves `committed` to the smallest unfinished offset."""
        pending = self.pending
        if not pending:
            self.committed = self.next
        elif self.committed not in pending:
            # A step for each finished offset is cheaper than a sort, unless the gap is far longer than `pending`.
            if self.next - self.committed > 4 * len(pending) + 64:
                self.committed = self._smallest()
                return
            at = self.committed + 1
            while at not in pending:
                at += 1
            self.committed = at

    def _smallest(self) -> int:
        # Few unfinished offsets, far apart: sorted once, then walked, as later ones are greater. Otherwise each ack of
        # the oldest one would look at all of them.
        pending, walk = self.pending, self.walk
        while walk and walk[-1] not in pending:
            walk.pop()
        if not walk:
            walk.extend(sorted(pending, reverse=True))
        return walk[-1]
