"""One group on one queue: what is unfinished, and how far everything before it is done.

`core.delivery.progress` moves it, `core.delivery.message_groups` keeps its lanes. Always true: an offset below `next`
is in `pending` or finished, and `committed` is the smallest unfinished offset. Pure.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from evenq_broker.core.state.records import Invisible

__all__ = [
    "BLOCKED",
    "LITE_QUEUES_FROM",
    "NO_END",
    "NUMBERS",
    "READY",
    "UNKNOWN",
    "Pending",
    "QueueProgress",
    "SettleStatus",
]

READY = 0
"""Deadline of a message that waits for its next delivery."""
BLOCKED = -1
"""Deadline of a message of an ordered group that waits for the one before it (`core.delivery.message_groups`)."""
UNKNOWN = -1
NO_END = 1 << 62

NUMBERS = 1_000
"""How far delivery numbers jump at a reset: more than a message has attempts."""
LITE_QUEUES_FROM = 1 << 20
"""Queues of lite topics have these numbers (`core.lite.lite_topics`): order within each, nothing between them."""


class SettleStatus(Enum):
    """What became of an ack or a change."""

    DONE = "done"
    ALREADY = "already"
    """The message was finished before: fine for an ack, nothing to record."""
    INVALID = "invalid"
    """The delivery is over, or never was."""


class Pending:
    """One unfinished message of a group."""

    __slots__ = ("attempt", "client_id", "deadline_ms", "lane", "number", "waits")

    def __init__(self, number: int, attempt: int, deadline_ms: int, client_id: str) -> None:
        self.number = number
        """Deliveries so far, given-back ones included: what a handle names."""
        self.attempt = attempt
        """Deliveries that count towards the maximum."""
        self.deadline_ms = deadline_ms
        """End of the delivery, ms since the epoch; READY: it is over."""
        self.client_id = client_id
        """Whose life holds the delivery (auto_renew); empty: only the deadline does."""
        self.lane: str | None = None
        """Message group, for ordered groups; None elsewhere."""
        self.waits = False
        """True: no client works on it; it was given back, put off or not finished in time, and waits until the deadline
        for its next delivery. Not journalled: after a restart what waits may look delivered until then.
        """


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
        "timer",
        "topic_id",
        "unkeyed",
        "walk",
    )

    def __init__(self, group_id: int, topic_id: int, queue_id: int, offset: int) -> None:
        self.group_id = group_id
        self.topic_id = topic_id
        self.queue_id = queue_id
        self.committed = offset
        """The smallest unfinished offset."""
        self.next = offset
        """The first offset never looked at for this group."""
        self.first = 1
        """Number of a message's first delivery; handles with smaller ones are from before a reset."""
        self.pending: dict[int, Pending] = {}
        self.ready: list[int] = []
        """Heap of offsets that wait for their next delivery; may hold finished ones, `Progress` skips them."""
        self.reading = False
        """True while a call fetches fresh messages from disk for this group: others pass by."""
        self.walk: list[int] = []
        """Unfinished offsets, descending, as they were when they were last sorted; see `advance`."""
        self.timer: tuple[int, list[int]] = (-1, [])
        """The last timer of `Progress`: its deadline and offsets; deliveries of the same ms share it."""
        self.lanes: dict[str, deque[int]] = {}
        """Ordered groups (`core.delivery.message_groups`): message group -> its unfinished offsets, ascending; only the
        first may be delivered.
        """
        self.handed = offset
        """End of what the present holder of the queue's lock was answered (`core.delivery.counts`); UNKNOWN: it got the
        lock before this broker started.
        """
        self.given_until = 0
        """What is below and unfinished was given to a holder that is gone: it may have been delivered."""
        self.counts: dict[int, int] = {}
        """Deliveries to members that pull, of unfinished offsets that had more than the first hand-out."""
        self.passed: tuple[int, int] = (0, 0)
        """The filter of the queue's holder leaves out all from the first to the second offset; the holder learns it,
        and commits it, when its long poll ends.
        """
        self.unkeyed = False
        """Ordered groups: `pending` came from the journal and its message groups are not known yet."""

    def unfinished(self, min_offset: int, max_offset: int) -> int:
        """Messages that are known and not finished, of the queue from `min_offset` (what is below, retention deleted)
        up to `max_offset`: what lies behind was taken before it is committed, so no client hears of it yet.
        """
        pending = self.pending
        if min_offset > self.committed:
            return sum(min_offset <= offset < max_offset for offset in pending)
        if self.next <= max_offset:
            return len(pending)
        # Whichever loop is shorter: what was taken ahead of the commit is a group of the store at most, `pending` up to
        # 20,000.
        if self.next - max_offset > len(pending):
            return sum(offset < max_offset for offset in pending)
        return len(pending) - sum(offset in pending for offset in range(max_offset, self.next))

    def inflight(self, min_offset: int, max_offset: int) -> int:
        """Those of them that were delivered at least once. In an ordered group the rest waits for an earlier one."""
        if not self.lanes:
            return self.unfinished(min_offset, max_offset)
        return sum(entry.attempt > 0 and min_offset <= offset < max_offset for offset, entry in self.pending.items())

    def lag(self, min_offset: int, max_offset: int) -> int:
        """Messages of the queue's range that the group has not finished."""
        return max(0, max_offset - max(self.passing(), min_offset)) + self.unfinished(min_offset, max_offset)

    def passing(self) -> int:
        """The first offset that a commit now could not pass: behind what the holder's filter leaves out."""
        start, end = self.passed
        return end if start <= self.next < end and not self.pending else self.next

    def waiting(self) -> int:
        """Messages that failed and wait for their next delivery. Looks at all that is unfinished."""
        return sum(entry.attempt > 0 and (entry.waits or entry.deadline_ms == READY) for entry in self.pending.values())

    def in_hand(self, now_ms: int) -> bool:
        """True if a client works on a message, or is about to get one."""
        return self.reading or any(entry.deadline_ms > now_ms and not entry.waits for entry in self.pending.values())

    def op(self, offset: int, entry: Pending) -> Invisible:
        """The journal's words for the state of one delivery."""
        position = (self.group_id, self.topic_id, self.queue_id, offset)
        return Invisible(*position, entry.number, entry.attempt, entry.deadline_ms)

    def reset(self, offset: int) -> bool:
        """Begin anew at `offset`, whatever was in flight; False if that is how it is. In place: a call that waits for
        the disk on behalf of this group sees that `next` has moved.
        """
        if (self.committed, self.next) == (offset, offset):
            return False
        self.committed = self.next = self.handed = offset
        self.given_until = 0
        self.passed = (0, 0)
        self.counts.clear()
        self.first += NUMBERS
        self.pending.clear()
        self.ready.clear()
        self.walk.clear()
        self.timer = (-1, [])
        self.lanes.clear()
        self.unkeyed = False
        return True

    def untaken(self, end: int) -> bool:
        """True if something before `end` may be taken: it is fresh, or waits for its next delivery."""
        return self.next < end or (bool(self.ready) and self.ready[0] < end)

    def advance(self) -> None:
        """Move `committed` to the smallest unfinished offset."""
        pending = self.pending
        if not pending:
            self.committed = self.next
        elif self.committed not in pending:
            # A step for each finished offset is cheaper than a sort, unless the gap is far longer than what is left.
            if self.next - self.committed > 4 * len(pending) + 64:
                self.committed = self._smallest()
                return
            at = self.committed + 1
            while at not in pending:
                at += 1
            self.committed = at

    def _smallest(self) -> int:
        # Where the unfinished are few and far between: sorted once, then walked; what came since is greater than all
        # of it. Without this each ack of the oldest would look at all of them.
        pending, walk = self.pending, self.walk
        while walk and walk[-1] not in pending:
            walk.pop()
        if not walk:
            walk.extend(sorted(pending, reverse=True))
        return walk[-1]
