"""The client's snapshot of one message queue (PQ-5): what was pulled and is not finished, and the offset to commit.

Owned by the consumer's loop. Pulled messages wait in offset order; `take` hands a chunk to a listener, `finish` and
`fail` bring it back. Always true: `committable` is the smallest unfinished offset, or the next one to pull if all
is finished (CC-8), so a commit never passes a message that the listener has not finished.

Hand-over: `drop` keeps only what lies below the largest offset ever given to a listener. The rest was seen by
nobody and is left to the next owner; what is kept must be finished first, because the next owner starts at
`committable` and would repeat whatever is done above it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

from evenq.client.core.thresholds import Thresholds
from evenq.errors import InvalidTransition
from evenq.model import MessageQueue, QueueOffset, ReceivedMessage

__all__ = ["ProcessQueue"]


class ProcessQueue:
    """One assigned queue. Times are monotonic ms."""

    __slots__ = (
        "_attempts",
        "_bytes",
        "_hand",
        "_highest_taken",
        "_order",
        "_retries",
        "_running",
        "_waiting",
        "dropped",
        "last_pull_ms",
        "next",
        "queue",
    )

    def __init__(self, queue: MessageQueue, start: QueueOffset, *, now_ms: int) -> None:
        self.queue = queue
        self.next = start
        """Offset of the next pull."""
        self.last_pull_ms = now_ms
        """When a pull was last answered (RB-20)."""
        self.dropped = False
        """True: never pulled again (PQ-6)."""
        self._hand: dict[int, ReceivedMessage] = {}
        self._order: deque[int] = (
            deque()
        )  # offsets ever put in hand, ascending; finished ones leave when they reach the head
        self._waiting: deque[ReceivedMessage] = deque()
        self._running: set[int] = set()
        self._retries: list[tuple[int, int]] = []  # heap of (due, offset)
        self._attempts: dict[int, int] = {}
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
            self._hand[message.queue_offset] = message
            self._order.append(message.queue_offset)
            self._waiting.append(message)
            self._bytes += len(message.body)
            self.next = QueueOffset(message.queue_offset + 1)
        self.next = QueueOffset(max(self.next, next_offset))

    def move(self, offset: QueueOffset, *, now_ms: int) -> None:
        """The server refused the pull offset and told a legal one: go on there (RB-48)."""
        self.last_pull_ms = now_ms
        self.next = offset

    def take(self, count: int, *, now_ms: int) -> list[ReceivedMessage]:
        """Up to `count` messages for a listener: failed ones that are due first, then new ones in offset order."""
        chunk: list[ReceivedMessage] = []
        while self._retries and len(chunk) < count and self._retries[0][0] <= now_ms:
            chunk.append(self._hand[heappop(self._retries)[1]])
        while self._waiting and len(chunk) < count:
            chunk.append(self._waiting.popleft())
        for message in chunk:
            self._running.add(message.queue_offset)
        if chunk:
            self._highest_taken = max(self._highest_taken, chunk[-1].queue_offset)
        return chunk

    def finish(self, offset: QueueOffset) -> None:
        """The listener succeeded, or the message went to the dead-letter topic: it leaves the snapshot (CC-7)."""
        self._stop(offset)
        self._bytes -= len(self._hand.pop(offset).body)
        self._attempts.pop(offset, None)
        while self._order and self._order[0] not in self._hand:
            self._order.popleft()

    def fail(self, offset: QueueOffset, *, retry_ms: int) -> None:
        """The listener failed: the message stays in hand and is due again at `retry_ms` (CC-6)."""
        self._stop(offset)
        self._attempts[offset] = self._attempts.get(offset, 0) + 1
        heappush(self._retries, (retry_ms, offset))

    def postpone(self, offset: QueueOffset, *, retry_ms: int) -> None:
        """Sending the message back failed: try again at `retry_ms`, without counting an attempt (CC-6)."""
        self._stop(offset)
        heappush(self._retries, (retry_ms, offset))

    def attempts(self, message: ReceivedMessage) -> int:
        """Deliveries so far, the running one included; 1 = the first."""
        return message.delivery_attempt + self._attempts.get(message.queue_offset, 0)

    def drop(self) -> None:
        """The queue is no longer ours: no pulls any more; what no listener has seen is let go."""
        self.dropped = True
        self._retries.clear()
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
    def busy(self) -> bool:
        """True while a listener works on a message, or one is ready for it: a hand-over should wait."""
        return bool(self._running or self._waiting)

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
        """True if the next pull must be put off (PQ-7, PQ-8)."""
        return self.count >= limits.messages or self._bytes >= limits.bytes or self.span > limits.span

    def due_ms(self) -> int | None:
        """When `take` has something to give: 0 = now, else the time of the next retry; None: not by itself."""
        if self._waiting:
            return 0
        return self._retries[0][0] if self._retries else None

    def stalled(self, *, now_ms: int, idle_ms: int) -> bool:
        """True if no pull was answered for more than `idle_ms` (RB-20, strictly more)."""
        return now_ms - self.last_pull_ms > idle_ms

    def check(self) -> None:
        """Recompute every invariant; tests call it after each event."""
        waiting = {message.queue_offset for message in self._waiting}
        retrying = {offset for _, offset in self._retries}
        assert not waiting & self._running, "a waiting message is not running"
        assert not retrying & self._running, "a failed message is not running"
        if not self.dropped:
            assert waiting | retrying | self._running == set(self._hand), "each message in hand is in one state"
        assert self._bytes == sum(len(message.body) for message in self._hand.values())
        assert list(self._order) == sorted(self._order)
        if self._hand:
            assert self.committable == min(self._hand), "CC-8"

    def _stop(self, offset: QueueOffset) -> None:
        if offset not in self._running:
            raise InvalidTransition(
                f"message {offset} of {self.queue} ends, but no listener has it: {sorted(self._running)[:20]}"
            )
        self._running.remove(offset)
