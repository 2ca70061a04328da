"""Consuming messages (LQ-1, LQ-13, LQ-52 to LQ-57).

A consumer holds queues of its names for its group, reads them round robin and returns batches. Progress moves only when
the program finishes messages, so a crash repeats messages and loses none. The open consumers of a group hold about the
same number of queues each. Threads may share a consumer.
"""

from __future__ import annotations

import threading
from typing import Final

from evenq.errors import BadRequest, PreconditionFailed, StoreError, TooManyRequests
from evenq.local.engine import CLOSED, Engine
from evenq.local.messages import Message, Queue
from evenq.local.progress import Claim, LocalGroupProgress
from evenq.local.statuses import GetStatus
from evenq.local.tail import QueueTail
from evenq.runtime.closing import Closing

RECHECK_MS: Final = 250
"""Period in which a waiting consumer looks for windows that ended and for queues that others released."""
TRIES: Final = 4
_EMPTY: Final = frozenset({GetStatus.NO_MESSAGE_IN_QUEUE, GetStatus.OFFSET_OVERFLOW_ONE})


class Consumer(Closing):
    """Consumer of a group, created by `LocalQueues.consumer`. Close it, or use it in a `with` block."""

    def __init__(self, engine: Engine, group: LocalGroupProgress, name: str, names: tuple[str, ...]) -> None:
        self.name = name
        self.names = names
        self._engine = engine
        self._clock = engine.clock
        self._group = group
        self._topics = [engine.topic(each) for each in names]
        self._claims: list[Claim] = []
        self._index = 0
        self._unfinished = 0
        self._fair_at = -1
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._closed = False
        group.join(name, names, self._clock.monotonic_ms())

    def poll(self, *, timeout: float = 0.0, count: int = 32) -> list[Message]:
        """Returns the next messages of one queue, in order, at most `count`. Waits up to `timeout` seconds for the
        first one, then returns an empty list.

        Raises TooManyRequests while `unfinished_max` messages are unfinished: `ack` or `commit` first.
        """
        messages = self._take(count)
        if messages or timeout <= 0:
            return messages
        end = self._clock.monotonic_ms() + int(timeout * 1000)
        me = id(self)
        for topic in self._topics:
            topic.bells[me] = self
        try:
            while True:
                self._event.clear()
                messages = self._take(count)
                left = end - self._clock.monotonic_ms()
                if messages or left <= 0:
                    return messages
                self._event.wait(min(left, RECHECK_MS) / 1000)
        finally:
            for topic in self._topics:
                topic.bells.pop(me, None)

    def ring(self, key: Queue) -> None:
        """Wakes the consumer; called by another thread when a queue has new messages or is free."""
        held = self._group.claims.get(key)
        if (held is None or held.owner == self.name) and not self._event.is_set():
            self._event.set()

    def _take(self, count: int) -> list[Message]:
        if count < 1:
            raise BadRequest(f"count is {count}; it must be at least 1")
        with self._lock:
            self._check_open()
            group = self._group
            now = self._clock.monotonic_ms()
            with group.lock:  # from here on no other consumer can take a queue before the window has ended
                group.seen[self.name] = now
                self._drop_lost()
            room = self._engine.options.unfinished_max - self._unfinished
            if room < 1:
                raise TooManyRequests(
                    f"consumer {self.name!r} holds {self._unfinished} unfinished messages, the limit is "
                    f"{self._engine.options.unfinished_max} (unfinished_max): ack or commit them first"
                )
            count = min(count, room)
            if self._fair_at != group.version:
                self._give_back(now)
            held = len(self._claims)
            for _ in range(held):
                self._index = (self._index + 1) % held
                claim = self._claims[self._index]
                assert claim.queue is not None
                if claim.next < claim.queue.end:
                    messages = self._read(claim, claim.queue, count)
                    if messages:
                        return messages
            return self._claim_more(now, count)

    def _drop_lost(self) -> None:
        for claim in self._claims:
            if claim.lost:
                self._unfinished -= len(claim.pending)
                self._claims = [kept for kept in self._claims if kept is not claim]

    def _read(self, claim: Claim, queue: QueueTail, count: int) -> list[Message]:
        for _ in range(TRIES):
            result = self._engine.read(queue, claim.next, count)
            claim.next = result.next_offset
            if result.status is GetStatus.FOUND:
                messages = result.messages
                for message in messages:
                    claim.pending[message.offset] = None
                self._unfinished += len(messages)
                return messages
            if result.status in _EMPTY:
                break
        return []

    def _claim_more(self, now: int, count: int) -> list[Message]:
        """Claims a free queue that has messages, when all own queues are empty (LQ-54, LQ-57 Better)."""
        group = self._group
        for topic in self._topics:
            queues = list(topic.queues.values())
            mine = sum(claim.key[0] == topic.name for claim in self._claims)
            if mine >= group.share(topic.name, len(queues), now):
                continue
            for queue in queues:
                held = group.claims.get(queue.key)
                if held is not None and held in self._claims:
                    continue
                if queue.end <= group.offsets.get(queue.key, -1) + 1:
                    continue
                claim = group.claim(self.name, queue.key, now)
                if claim is None:
                    continue
                if claim not in self._claims:  # new, or left reserved by a consumer of this name
                    claim.queue = queue
                    claim.pending.clear()
                    claim.next = group.offsets.get(queue.key, -1) + 1
                    self._claims.append(claim)
                messages = self._read(claim, queue, count)
                if messages:
                    return messages
        return []

    def _give_back(self, now: int) -> None:
        """Releases finished queues above the own share after another consumer joined, so that it gets some."""
        group = self._group
        version = group.version
        settled = True
        for topic in self._topics:
            mine = [claim for claim in self._claims if claim.key[0] == topic.name]
            over = len(mine) - group.share(topic.name, len(topic.queues), now)
            for claim in [claim for claim in mine if not claim.pending][: max(0, over)]:
                self._claims.remove(claim)
                group.release(claim)
                topic.ring(claim.key)
                over -= 1
            settled = settled and over <= 0
        if settled:
            self._fair_at = version

    def ack(self, *messages: Message) -> None:
        """Finishes these messages, in any order. Progress moves up to the first unfinished message (LQ-56 Better).

        Raises PreconditionFailed if this consumer no longer holds the queue: another consumer gets the message.
        """
        with self._lock:
            self._check_open()
            by_queue: dict[Queue, list[int]] = {}
            for message in messages:
                by_queue.setdefault((message.name, message.queue_id), []).append(message.offset)
            for key, offsets in by_queue.items():
                claim = next((claim for claim in self._claims if claim.key == key), None)
                if claim is None:
                    raise PreconditionFailed(
                        f"consumer {self.name!r} does not hold queue {key}, so it cannot finish offset {offsets[0]}: "
                        "only the consumer that received a message can finish it, within the window"
                    )
                self._finish(claim, offsets)

    def commit(self) -> None:
        """Finishes all messages returned so far. Raises PreconditionFailed at the end if a queue was lost."""
        with self._lock:
            self._check_open()
            failed: PreconditionFailed | None = None
            for claim in self._claims:
                if claim.pending:
                    try:
                        self._finish(claim, list(claim.pending))
                    except PreconditionFailed as error:
                        failed = error
            if failed is not None:
                raise failed

    def _finish(self, claim: Claim, offsets: list[int]) -> None:
        self._unfinished -= self._group.finish(claim, offsets, self._clock.monotonic_ms())
        self._engine.progressed(claim.key)

    def rewind(self) -> None:
        """Returns to the first unfinished message of each queue: the next polls return unfinished messages again."""
        with self._lock:
            self._check_open()
            for claim in self._claims:
                if claim.pending:
                    claim.next = next(iter(claim.pending))
                    self._unfinished -= len(claim.pending)
                    claim.pending.clear()

    @property
    def holding(self) -> list[Queue]:
        """The queues that this consumer holds now."""
        return sorted(claim.key for claim in self._claims if not claim.lost)

    def close(self) -> None:
        """Releases finished queues; the others stay reserved for this name during the window (LQ-6)."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            freed = self._group.leave(self.name, self._clock.monotonic_ms())
        for key in freed:
            self._engine.topic(key[0]).ring(key)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"consumer {self.name!r} is closed: open another one")
        if self._engine.failure is CLOSED:
            raise StoreError(CLOSED)
