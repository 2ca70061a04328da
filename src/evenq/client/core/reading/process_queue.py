"""The client's snapshot of one message queue (PQ-5): what was pulled and is not finished, and the offset to commit.

Owned by the consumer's loop. Pulled messages wait in offset order; `take` hands a chunk to a listener, `finish` and
`fail` bring it back. Always true: `committable` is the smallest unfinished offset, or the next one to pull if all
is finished (CC-8), so a commit never passes a message that the listener has not finished.

Ordered (OC-11 to OC-15): one chunk at a time, in offset order; a failed chunk goes back to its place, the queue pauses,
and until the failed messages are done they run one by one, so that a poison message takes no neighbour with it.

Attempts: a message says in `delivery_attempt` which delivery of it this is. One that was delivered before, here or to
an earlier owner (`core.past_deliveries`), is `to_count` before it runs again. One that may have ended the process it
ran in is `careful`: the consumer runs one such message at a time, so that it takes nothing else with it.

Hand-over: `drop` keeps only what lies below the largest offset ever given to a listener. The rest was seen by
no owner and is left to the next owner; what is kept must be finished first, because the next owner starts at
`committable` and would repeat whatever is done above it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from heapq import heappop, heappush

from evenq.client.core.reading.past_deliveries import PastDeliveries
from evenq.client.core.reading.thresholds import Thresholds
from evenq.errors import InvalidTransition
from evenq.model import MessageQueue, QueueOffset, ReceivedMessage

__all__ = ["ProcessQueue"]


class ProcessQueue:
    """One assigned queue. Times are monotonic ms."""

    __slots__ = (
        "_again",
        "_apart",
        "_bytes",
        "_careful",
        "_expired",
        "_hand",
        "_highest_taken",
        "_order",
        "_past",
        "_presumed",
        "_resume_ms",
        "_retries",
        "_running",
        "_waiting",
        "dropped",
        "fenced",
        "last_pull_ms",
        "next",
        "ordered",
        "paused",
        "queue",
        "uid",
    )

    def __init__(
        self,
        queue: MessageQueue,
        start: QueueOffset,
        *,
        now_ms: int,
        ordered: bool = False,
        past: PastDeliveries | None = None,
        uid: str = "",
    ) -> None:
        """`past`: what earlier owners had of the queue; None: nothing, or no broker counts. `uid`: what its offsets
        count, as its broker says.
        """
        self.queue = queue
        self.uid = uid
        self.next = start
        """Offset of the next pull."""
        self.last_pull_ms = now_ms
        """When a pull was last answered (RB-20)."""
        self.dropped = False
        """True: never pulled again (PQ-6)."""
        self.fenced = False
        """True: dropped, and another owner has it."""
        self.paused = False
        """True: not pulled for now."""
        self.ordered = ordered
        """True: one chunk at a time, in offset order."""
        self._resume_ms = 0  # an ordered queue gives nothing before
        self._hand: dict[int, ReceivedMessage] = {}
        self._order: deque[int] = (
            deque()
        )  # offsets ever put in hand, ascending; finished ones leave when they reach the head
        self._waiting: deque[ReceivedMessage] = deque()
        self._running: dict[int, int] = {}  # offset to the time it was taken
        self._expired: set[int] = set()  # sent back while a listener still works on them (CC-12)
        self._retries: list[tuple[int, int]] = []  # heap of (due, offset)
        self._past = past
        self._again: set[int] = set()  # in hand, and delivered before from this queue
        self._presumed: set[int] = set()  # those of them of which that is not certain: they run with others
        self._careful: set[int] = set()  # those of them that may have ended their process
        self._apart: deque[ReceivedMessage] = deque()  # the careful ones of a concurrent queue
        self._bytes = 0
        self._highest_taken = -1

    def put(self, messages: Sequence[ReceivedMessage], next_offset: int, *, now_ms: int) -> None:
        """A pull was answered. Messages below what was pulled already are ignored; a dropped queue takes none."""
        self.last_pull_ms = now_ms
        if self.dropped:
            return
        for message in messages:
            if message.queue_offset < self.next:
                continue
            waiting = self._waiting
            if self._past is not None:
                # A member before us said so but died before its commit: it is skipped, as its commit would have done.
                if self._past.finished(message.queue_offset):
                    continue
                message, waiting = self._delivered_before(message, self._past)
            self._hand[message.queue_offset] = message
            self._order.append(message.queue_offset)
            waiting.append(message)
            self._bytes += len(message.body)
            self.next = QueueOffset(message.queue_offset + 1)
        self.next = QueueOffset(max(self.next, next_offset))

    def move(self, offset: QueueOffset, *, now_ms: int) -> None:
        """The server refused the pull offset and named a legal one: go on there (RB-48)."""
        self.last_pull_ms = now_ms
        self.next = offset

    def take(self, count: int, *, now_ms: int, careful: bool = True) -> list[ReceivedMessage]:
        """Up to `count` messages for a listener: failed ones that are due first, then new ones in offset order. One
        that failed before comes alone, so that others do not share its fate. `careful` False: none of those of which
        the consumer runs one at a time.
        """
        if self.ordered and (self._running or now_ms < self._resume_ms or not (careful or self._common_first())):
            return []
        chunk: list[ReceivedMessage] = []
        retries = self._retries
        if retries and retries[0][0] <= now_ms and (careful or retries[0][1] not in self._careful):
            chunk.append(self._hand[heappop(retries)[1]])
        elif careful and self._apart:
            chunk.append(self._apart.popleft())
        else:
            waiting, presumed = self._waiting, self._presumed
            while waiting and len(chunk) < count:
                message = waiting[0]
                # What failed before ends the chunk and has the next one for itself: its failure must not count for
                # neighbours.
                if message.delivery_attempt > 1 and message.queue_offset not in presumed:
                    if not chunk:
                        chunk.append(waiting.popleft())
                    break
                chunk.append(waiting.popleft())
        for message in chunk:
            self._running[message.queue_offset] = now_ms
        if chunk:
            self._highest_taken = max(self._highest_taken, chunk[-1].queue_offset)
        return chunk

    def finish(self, offset: QueueOffset) -> None:
        """The listener succeeded, or the message went to the dead-letter topic: it leaves the snapshot (CC-7)."""
        if self._stop(offset):
            self._remove(offset)

    def fail(self, offset: QueueOffset, *, retry_ms: int) -> None:
        """The listener failed: the message stays in hand and is due again at `retry_ms` (CC-6)."""
        if self._stop(offset):
            self._failed_once_more(offset)
            heappush(self._retries, (retry_ms, offset))

    def suspend(self, chunk: Sequence[ReceivedMessage], *, resume_ms: int) -> None:
        """An ordered listener failed: the chunk goes back to its place, the queue waits until `resume_ms` (OC-15)."""
        for message in reversed(chunk):
            if self._stop(message.queue_offset):
                again = self._failed_once_more(message.queue_offset)
                if not self.dropped:  # otherwise it is left to the next owner, which counts on from here
                    self._waiting.appendleft(again)
        self._resume_ms = resume_ms

    def put_back(self, chunk: Sequence[ReceivedMessage], *, retry_ms: int) -> None:
        """No listener had the chunk after all: the same deliveries come again at `retry_ms`."""
        for message in reversed(chunk):
            if not self._stop(message.queue_offset) or self.dropped:  # a dropped one is left to the next owner
                continue
            if self.ordered:
                self._waiting.appendleft(message)
            else:
                heappush(self._retries, (retry_ms, message.queue_offset))
        if self.ordered:
            self.hold(retry_ms)

    def hold(self, resume_ms: int) -> None:
        """An ordered queue gives nothing until then: its lock is not certain (OC-8)."""
        self._resume_ms = max(self._resume_ms, resume_ms)

    def postpone(self, offset: QueueOffset, *, retry_ms: int) -> None:
        """Sending the message back failed: try again at `retry_ms`, without counting an attempt (CC-6)."""
        if self._stop(offset):
            heappush(self._retries, (retry_ms, offset))

    def overdue(self, *, now_ms: int, timeout_ms: int, count: int) -> list[ReceivedMessage]:
        """Messages that a listener has had for longer than `timeout_ms`, the smallest offsets first (CC-12)."""
        late = [offset for offset, taken_ms in self._running.items() if now_ms - taken_ms > timeout_ms]
        return [self._hand[offset] for offset in sorted(late)[:count]]

    def expire(self, offset: QueueOffset) -> None:
        """An overdue message was sent back: it leaves the snapshot, whatever its listener still does (CC-12)."""
        if self._running.pop(offset, None) is not None:
            # Remembered until its listener ends: `_stop` tells that end from a mistake of ours.
            self._expired.add(offset)
            self._remove(offset)

    def to_count(self, chunk: Sequence[ReceivedMessage], *, attempts_max: int) -> dict[int, int]:
        """Deliveries of a taken chunk that must be counted before they begin, by offset: all but the first ones, and
        also those where they are the last.
        """
        again = self._again
        if not again and chunk[0].delivery_attempt < attempts_max:  # nearly always; what had more comes alone
            return {}
        return {
            message.queue_offset: message.delivery_attempt
            for message in chunk
            if message.delivery_attempt >= attempts_max or message.queue_offset in again
        }

    def used_up(self, message: ReceivedMessage, *, attempts_max: int) -> bool:
        """True if all deliveries that a message may have were given to listeners."""
        return message.delivery_attempt > attempts_max and message.queue_offset in self._again

    def begun(self, offsets: Iterable[int]) -> None:
        """Their deliveries are counted."""
        self._again.update(offset for offset in offsets if offset in self._hand)

    @property
    def counted(self) -> AbstractSet[int]:
        """Messages in hand that are counted at the broker: that they are finished must be said there, too."""
        return self._again

    def careful(self, message: ReceivedMessage) -> bool:
        """True if the message may have ended the process that it ran in: nothing like it may run beside it."""
        return message.queue_offset in self._careful

    def drop(self, *, fenced: bool = False) -> None:
        """The queue is no longer ours: no pulls any more; what no listener has seen is let go. What lies below finished
        messages still runs, so that nothing above it is repeated; but not if `fenced`: another member has it already.
        """
        self.dropped, self.fenced = True, fenced
        self._retries.clear()
        self._apart.clear()
        if self.ordered or fenced:  # ordered: nothing above the first unfinished message is done
            self._waiting.clear()
        kept: deque[ReceivedMessage] = deque()
        while self._waiting:
            message = self._waiting.popleft()
            if message.queue_offset < self._highest_taken:
                kept.append(message)
        self._waiting = kept

    @property
    def committable(self) -> QueueOffset:
        """What a commit would store: CC-8."""
        return QueueOffset(self._order[0]) if self._order else self.next

    @property
    def given_until(self) -> int:
        """End of what listeners had while something before it is not finished; 0: all that they had is finished."""
        return self._highest_taken + 1 if self.committable <= self._highest_taken else 0

    @property
    def position(self) -> QueueOffset:
        """Offset of the next message that was never taken."""
        return self._waiting[0].queue_offset if self._waiting else self.next

    @property
    def busy(self) -> bool:
        """True while a listener works on a message, or one is ready for it: a hand-over should wait."""
        return bool(self._running or self._waiting or self._apart)

    @property
    def count(self) -> int:
        """Messages in hand."""
        return len(self._hand)

    @property
    def bytes(self) -> int:
        """Bytes of bodies in hand."""
        return self._bytes

    @property
    def span(self) -> int:
        """Largest minus smallest offset in hand (PQ-7)."""
        return self._order[-1] - self._order[0] if self._order else 0

    def full(self, limits: Thresholds) -> bool:
        """True if the next pull must be put off (PQ-7, PQ-8, CS-9)."""
        return self.paused or self.count >= limits.messages or self._bytes >= limits.bytes or self.span > limits.span

    def due_ms(self) -> int | None:
        """When `take` has something to give: 0 = now, else the time of the next retry; None: not by itself."""
        if self.ordered:
            return self._resume_ms if self._waiting and not self._running else None
        if self._waiting or self._apart:
            return 0
        return self._retries[0][0] if self._retries else None

    def stalled(self, *, now_ms: int, idle_ms: int) -> bool:
        """True if no pull was answered for more than `idle_ms` (RB-20, strictly more)."""
        return now_ms - self.last_pull_ms > idle_ms

    def check(self) -> None:
        """Recompute every invariant; tests call it after each event."""
        waiting = {message.queue_offset for message in (*self._waiting, *self._apart)}
        retrying = {offset for _, offset in self._retries}
        running = set(self._running)
        assert not waiting & running, "a waiting message is not running"
        assert not retrying & running, "a failed message is not running"
        assert not self._expired & set(self._hand), "an expired message is not in hand"
        if not self.dropped:
            assert waiting | retrying | running == set(self._hand), "each message in hand is in one state"
        if self.ordered:
            assert not retrying, "an ordered queue keeps its order"
            assert not self._apart, "an ordered queue keeps its order"
            assert [m.queue_offset for m in self._waiting] == sorted(waiting)
        assert self._presumed | self._careful <= self._again <= set(self._hand)
        assert not self._presumed & self._careful
        assert self._bytes == sum(len(message.body) for message in self._hand.values())
        assert list(self._order) == sorted(self._order)
        if self._hand:
            assert self.committable == min(self._hand), "CC-8"

    def _common_first(self) -> bool:
        return not self._waiting or self._waiting[0].queue_offset not in self._careful

    def _delivered_before(
        self, message: ReceivedMessage, past: PastDeliveries
    ) -> tuple[ReceivedMessage, deque[ReceivedMessage]]:
        """A pulled message as it must be shown, and where it waits."""
        offset, waiting = message.queue_offset, self._waiting
        # Pulls come in offset order, so all that follows is new as well: the table is let go.
        if offset >= past.end:
            self._past = None
            return message, waiting
        number, careful = past.attempt(offset, message.delivery_attempt)
        if number is None:
            return message, waiting
        self._again.add(offset)
        if not careful:
            self._presumed.add(offset)
        else:
            self._careful.add(offset)
            if not self.ordered:
                waiting = self._apart
        return replace(message, delivery_attempt=number), waiting

    def _failed_once_more(self, offset: int) -> ReceivedMessage:
        """What failed without ending its process need not run apart again, but comes alone."""
        message = self._hand[offset]
        message = self._hand[offset] = replace(message, delivery_attempt=message.delivery_attempt + 1)
        self._again.add(offset)
        self._presumed.discard(offset)
        self._careful.discard(offset)
        return message

    def _stop(self, offset: QueueOffset) -> bool:
        """False: it was sent back meanwhile, and how its listener ended does not count."""
        if self._running.pop(offset, None) is not None:
            return True
        if offset in self._expired:
            self._expired.remove(offset)
            return False
        raise InvalidTransition(
            f"message {offset} of {self.queue} ends, but no listener has it: {sorted(self._running)[:20]}"
        )

    def _remove(self, offset: QueueOffset) -> None:
        self._bytes -= len(self._hand.pop(offset).body)
        if self._again:
            self._again.discard(offset)
            self._presumed.discard(offset)
            self._careful.discard(offset)
        hand, order = self._hand, self._order
        # Lazily: only the head decides what may be committed (CC-8), and each offset leaves once.
        while order and order[0] not in hand:
            order.popleft()
