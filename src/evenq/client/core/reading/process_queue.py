"""The process queue of one message queue (PQ-5): pulled messages that are not finished, and the offset to commit.

Owned by the consumer's loop. Pulled messages wait in offset order; `take` passes a chunk to a listener, `finish` and
`fail` return it. Invariant: `committable` is the smallest unfinished offset, or the next one to pull if all is finished
(CC-8). So a commit never passes a message that the listener has not finished.

Ordered (OC-11 to OC-15): one chunk at a time, in offset order. A failed chunk returns to its place and the queue
pauses. Until the failed messages are done they run one by one, so that a poison message does not fail its neighbours.

Attempts: `delivery_attempt` is the number of the message's delivery. A message that was delivered before, here or to an
earlier owner (`PastDeliveries`), is `to_count` before it runs again. A message that may have ended the process in
which it ran is `careful`: the consumer runs one such message at a time, so that a crash is attributed to it.

Hand-over: `drop` keeps only the messages below the largest offset that a listener ever got. The rest is left to the
next owner. The kept ones must be finished first, because the next owner starts at `committable` and would repeat
whatever is done above it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from evenq.client.core.calls import FINISHED
from evenq.errors import InvalidTransition
from evenq.model import MessageQueue, QueueOffset, ReceivedMessage


@dataclass(frozen=True, slots=True)
class PastDeliveries:
    """Deliveries of a queue's messages to earlier owners, as its broker reported them with the lock.

    A message with a count of its own was delivered: an owner began that delivery, or it failed. A message below
    `given_until` was given to a member that vanished; most likely no listener got it. It counts as delivered once, but
    that count alone never uses up the last delivery.
    """

    given_until: int
    counts: Mapping[int, int]
    """Offset to deliveries so far, or to FINISHED."""
    attempts_max: int
    """Deliveries that a message may have."""

    @property
    def end(self) -> int:
        """First offset of which no delivery is known."""
        return max(self.given_until, max(self.counts, default=-1) + 1)

    def finished(self, offset: int) -> bool:
        """True if the message is done."""
        return self.counts.get(offset) == FINISHED

    def attempt(self, offset: int, own_number: int) -> tuple[int | None, bool]:
        """Returns the number of the next delivery (None: no earlier owner had it), and whether it must run apart.

        `own_number` is the number that the message states.
        """
        counted = self.counts.get(offset)
        if counted is not None:
            return max(own_number, counted + 1), True
        if offset >= self.given_until:
            return None, False
        number = max(own_number, min(own_number + 1, self.attempts_max))
        return number, number >= self.attempts_max


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Flow control limits of one queue (PQ-7, PQ-8): its pulls are delayed while it holds more."""

    messages: int = 1_000
    bytes: int = 100 << 20
    span: int = 2_000
    """Largest minus smallest offset held; strictly more delays pulls (PQ-7)."""

    def spread(self, *, messages_topic: int, bytes_topic: int, queues: int) -> Thresholds:
        """Divides the limits of a topic, unless they are -1, among `queues` queues: at least 1 for each (RB-39)."""
        if queues <= 0:
            return self
        return replace(
            self,
            messages=self.messages if messages_topic == -1 else max(1, messages_topic // queues),
            bytes=self.bytes if bytes_topic == -1 else max(1, bytes_topic // queues),
        )


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
        "_returns",
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
        """`past`: deliveries to earlier owners, if any. `uid`: of the topic whose messages the offsets count."""
        self.queue = queue
        self.uid = uid
        self.next = start
        """Offset of the next pull."""
        self.last_pull_ms = now_ms
        """When a pull was last answered (RB-20)."""
        self.dropped = False
        """True: never pulled again (PQ-6)."""
        self.fenced = False
        """True: dropped, because another member owns it."""
        self.paused = False
        """True: not pulled for now."""
        self.ordered = ordered
        """True: one chunk at a time, in offset order."""
        self._resume_ms = 0  # an ordered queue returns nothing before
        self._hand: dict[int, ReceivedMessage] = {}
        self._order: deque[int] = (
            deque()
        )  # offsets ever held, ascending; finished ones are removed when they reach the head
        self._waiting: deque[ReceivedMessage] = deque()
        self._running: dict[int, int] = {}  # offset to the time it was taken
        self._expired: set[int] = set()  # sent back while a listener still works on them (CC-12)
        self._retries: list[tuple[int, int]] = []  # heap of (due, offset)
        self._returns: dict[int, tuple[int, int]] = {}
        """By offset: the delay level of a return without an answer, and how often that was tried."""
        self._past = past
        self._again: set[int] = set()  # held, and delivered before from this queue
        self._presumed: set[int] = set()  # those of `_again` whose delivery is not certain: they run with others
        self._careful: set[int] = set()  # those of `_again` that may have ended their process
        self._apart: deque[ReceivedMessage] = deque()  # the careful ones of a concurrent queue
        self._bytes = 0
        self._highest_taken = -1

    def put(self, messages: Sequence[ReceivedMessage], next_offset: int, *, now_ms: int) -> None:
        """Takes the answer of a pull. Messages that were pulled already are ignored; a dropped queue takes none."""
        self.last_pull_ms = now_ms
        if self.dropped:
            return
        for message in messages:
            if message.queue_offset < self.next:
                continue
            waiting = self._waiting
            if self._past is not None:
                # An earlier owner reported it finished but died before its commit.
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
        """Continues at the legal offset that the server returned when it refused a pull (RB-48)."""
        self.last_pull_ms = now_ms
        self.next = offset

    def take(self, count: int, *, now_ms: int, careful: bool = True) -> list[ReceivedMessage]:
        """Takes up to `count` messages for a listener: failed ones that are due first, then new ones in offset order.

        A message that failed before comes alone, so that it does not fail others. `careful` False: no careful messages.
        """
        if self.ordered and (self._running or now_ms < self._resume_ms or not (careful or self._common_first())):
            return []
        chunk: list[ReceivedMessage] = []
        retries = self._retries
        if retries and retries[0][0] <= now_ms and self._may_run(retries[0][1], careful=careful):
            chunk.append(self._hand[heappop(retries)[1]])
        elif careful and self._apart:
            chunk.append(self._apart.popleft())
        else:
            waiting, presumed = self._waiting, self._presumed
            while waiting and len(chunk) < count:
                message = waiting[0]
                # A message that failed before gets a chunk of its own: its failure must not count for neighbours.
                again = message.delivery_attempt > 1 and message.queue_offset not in presumed
                if again or message.queue_offset in self._returns:
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
        """Removes a message that succeeded or went to the dead-letter topic (CC-7)."""
        if self._stop(offset):
            self._remove(offset)

    def fail(self, offset: QueueOffset, *, retry_ms: int) -> None:
        """Keeps a message that failed; it is due again at `retry_ms` (CC-6)."""
        if self._stop(offset):
            self._failed_once_more(offset)
            heappush(self._retries, (retry_ms, offset))

    def suspend(self, chunk: Sequence[ReceivedMessage], *, resume_ms: int) -> None:
        """Returns the failed chunk of an ordered queue to its place; the queue waits until `resume_ms` (OC-15)."""
        for message in reversed(chunk):
            if self._stop(message.queue_offset):
                again = self._failed_once_more(message.queue_offset)
                if not self.dropped:  # otherwise the next owner delivers it, with this count
                    self._waiting.appendleft(again)
        self._resume_ms = resume_ms

    def put_back(self, chunk: Sequence[ReceivedMessage], *, retry_ms: int) -> None:
        """Returns a chunk that no listener got; the same deliveries are due again at `retry_ms`."""
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
        """Pauses an ordered queue until then, because its lock is not certain (OC-8)."""
        self._resume_ms = max(self._resume_ms, resume_ms)

    def postpone(self, offset: QueueOffset, *, retry_ms: int) -> None:
        """Keeps a message that could not be sent back; it is due at `retry_ms`, without a counted attempt (CC-6)."""
        if self._stop(offset):
            heappush(self._retries, (retry_ms, offset))

    def overdue(self, *, now_ms: int, timeout_ms: int, count: int) -> list[ReceivedMessage]:
        """Returns messages that a listener has had for longer than `timeout_ms`, the smallest offsets first (CC-12)."""
        late = [offset for offset, taken_ms in self._running.items() if now_ms - taken_ms > timeout_ms]
        return [self._hand[offset] for offset in sorted(late)[:count]]

    def expire(self, offset: QueueOffset) -> None:
        """Removes an overdue message that was sent back, although its listener still runs (CC-12)."""
        if self._running.pop(offset, None) is not None:
            # Remembered until its listener ends: so `_stop` can distinguish that end from a programming error.
            self._expired.add(offset)
            self._remove(offset)

    def to_count(self, chunk: Sequence[ReceivedMessage], *, attempts_max: int) -> dict[int, int]:
        """Returns the deliveries of a taken chunk that must be counted before they begin, by offset.

        These are all but first deliveries, and last deliveries even if they are the first.
        """
        again = self._again
        if not again and chunk[0].delivery_attempt < attempts_max:  # nearly always; others come alone
            return {}
        return {
            message.queue_offset: message.delivery_attempt
            for message in chunk
            if message.delivery_attempt >= attempts_max or message.queue_offset in again
        }

    def used_up(self, message: ReceivedMessage, *, attempts_max: int) -> bool:
        """True if listeners got the message as often as is allowed."""
        return message.delivery_attempt > attempts_max and message.queue_offset in self._again

    def doubt(self, offset: int, level: int) -> int:
        """Notes that a return with this delay level got no answer; returns how often that happened.

        The broker may deliver the message already (CC-6), so the return is repeated in place of a delivery: the message
        comes alone when its pause has ended, and of all such messages of the queue one at a time.
        """
        times = self._returns.get(offset, (level, 0))[1] + 1
        if offset in self._hand:
            self._returns[offset] = level, times
        return times

    def in_doubt(self, offset: int) -> int | None:
        """Returns the delay level of the message's return if that got no answer, otherwise None."""
        known = self._returns.get(offset)
        return None if known is None else known[0]

    def believe(self, offset: int) -> None:
        """Notes that the broker does not have the message back: a listener may get it again."""
        self._returns.pop(offset, None)

    def begun(self, offsets: Iterable[int]) -> None:
        """Notes that deliveries of these offsets are counted at the broker."""
        self._again.update(offset for offset in offsets if offset in self._hand)

    @property
    def counted(self) -> AbstractSet[int]:
        """Held messages that are counted at the broker; the broker must also get a report when they are finished."""
        return self._again

    def careful(self, message: ReceivedMessage) -> bool:
        """True if the message may have ended its process: no other such message may run at the same time."""
        return message.queue_offset in self._careful

    def drop(self, *, fenced: bool = False) -> None:
        """Ends the ownership: no more pulls, and messages that no listener got are released.

        Messages below finished ones still run, so that nothing above them is repeated. With `fenced` they do not:
        another member owns the queue already.
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
        """Offset that a commit would store (CC-8)."""
        return QueueOffset(self._order[0]) if self._order else self.next

    @property
    def given_until(self) -> int:
        """End of the offsets that listeners got, while any below it is not finished; 0: all are finished."""
        return self._highest_taken + 1 if self.committable <= self._highest_taken else 0

    @property
    def position(self) -> QueueOffset:
        """Offset of the next message that was never taken."""
        return self._waiting[0].queue_offset if self._waiting else self.next

    @property
    def busy(self) -> bool:
        """True while a listener has a message or one is ready for it: a hand-over should wait."""
        return bool(self._running or self._waiting or self._apart)

    @property
    def count(self) -> int:
        return len(self._hand)

    @property
    def bytes(self) -> int:
        return self._bytes

    @property
    def span(self) -> int:
        """Largest minus smallest offset held (PQ-7)."""
        return self._order[-1] - self._order[0] if self._order else 0

    def full(self, limits: Thresholds) -> bool:
        """True if the next pull must be delayed (PQ-7, PQ-8, CS-9)."""
        return self.paused or self.count >= limits.messages or self._bytes >= limits.bytes or self.span > limits.span

    def due_ms(self) -> int | None:
        """Returns when `take` has messages: 0 = now, otherwise the time of the next retry; None: not by itself."""
        if self.ordered:
            return self._resume_ms if self._waiting and not self._running else None
        if self._waiting or self._apart:
            return 0
        return self._retries[0][0] if self._retries else None

    def stalled(self, *, now_ms: int, idle_ms: int) -> bool:
        """True if no pull was answered for strictly more than `idle_ms` (RB-20)."""
        return now_ms - self.last_pull_ms > idle_ms

    def check(self) -> None:
        """Recomputes every invariant; tests call it after each event."""
        waiting = {message.queue_offset for message in (*self._waiting, *self._apart)}
        retrying = {offset for _, offset in self._retries}
        running = set(self._running)
        assert not waiting & running, "a waiting message is not running"
        assert not retrying & running, "a failed message is not running"
        assert not self._expired & set(self._hand), "an expired message is not held"
        if not self.dropped:
            assert waiting | retrying | running == set(self._hand), "each held message is in one state"
        if self.ordered:
            assert not retrying, "an ordered queue keeps its order"
            assert not self._apart, "an ordered queue keeps its order"
            assert [m.queue_offset for m in self._waiting] == sorted(waiting)
        assert self._presumed | self._careful <= self._again <= set(self._hand)
        assert self._returns.keys() <= self._hand.keys()
        assert not self._presumed & self._careful
        assert self._bytes == sum(len(message.body) for message in self._hand.values())
        assert list(self._order) == sorted(self._order)
        if self._hand:
            assert self.committable == min(self._hand), "CC-8"

    def _may_run(self, offset: int, *, careful: bool) -> bool:
        """False while the message must wait for another one: of all that may end the process, and of all returns of
        this queue that got no answer, one is taken at a time.
        """
        if offset in self._returns and not self._returns.keys().isdisjoint(self._running):
            return False
        return careful or offset not in self._careful

    def _common_first(self) -> bool:
        return not self._waiting or self._waiting[0].queue_offset not in self._careful

    def _delivered_before(
        self, message: ReceivedMessage, past: PastDeliveries
    ) -> tuple[ReceivedMessage, deque[ReceivedMessage]]:
        """Returns a pulled message with its delivery number, and the line in which it waits."""
        offset, waiting = message.queue_offset, self._waiting
        # Pulls come in offset order: all that follows is new, and the table is not needed any more.
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
        """Counts a failure. The process survived it, so the message is not careful any more, but it comes alone."""
        message = self._hand[offset]
        message = self._hand[offset] = replace(message, delivery_attempt=message.delivery_attempt + 1)
        self._again.add(offset)
        self._presumed.discard(offset)
        self._careful.discard(offset)
        return message

    def _stop(self, offset: QueueOffset) -> bool:
        """Ends a listener's work. False: the message was sent back meanwhile, and the result does not count."""
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
        self._returns.pop(offset, None)
        if self._again:
            self._again.discard(offset)
            self._presumed.discard(offset)
            self._careful.discard(offset)
        hand, order = self._hand, self._order
        # Lazily: only the head decides what may be committed (CC-8).
        while order and order[0] not in hand:
            order.popleft()
