"""Follows the store and the history of deliveries, and makes the spans of messages with a sampled trace context.

Problem: sends and receives must not pay for spans, and most messages have no context at all. So nothing of a call is
intercepted. The history (`core.diagnosis.trace`) has all deliveries and settlements of the last seconds anyway, and the
store reports the new ends of queues after each group of appends. A round of ROUND_MS reads what is new in both, in
slices between other work: messages from the cache of the store, where they still are, and records as they are.

Order. Records are copied before the ends of the queues, and handled after them: so the store span of a dead letter
comes before the end of its original. With copies, messages may be delivered before their commit; the round stops at
such a record and continues there next time, for AHEAD_MS at most.

Bounds. The history drops its oldest records; what it dropped before a round took it is counted in `missed`, as are
messages of a queue that is more than BEHIND_MAX ahead of the reader. Nothing waits for this loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from evenq.errors import Error
from evenq.store.log.messages import Dispatched
from evenq_broker.core.diagnosis.message_spans import DeliveryKey, MessageSpan, MessageSpans, TracedMessage
from evenq_broker.core.diagnosis.trace import TakenMessages, taken_messages
from evenq_broker.core.state.records import Acked, Delivered, Invisible, decode
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.traced_messages import traced_message

log = logging.getLogger(__name__)

ROUND_MS = 200
TICK_MS = 1_000
AHEAD_MS = 5_000
BEHIND_MAX = 100_000
"""Messages of one queue between its end and the reader; at a higher rate the oldest get no spans."""
SLICE = 256
"""Messages or records looked at in one turn of the loop, about a millisecond."""
READ_BYTES = 1 << 20
_ENDS_MAX = 64
"""Ends of one queue that are kept apart in a round; above, messages count as safe a little later than they were."""


class SpanFollower:
    """The loop. `sink` receives the spans."""

    def __init__(self, kernel: Kernel, sink: Callable[[Sequence[MessageSpan]], None]) -> None:
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._sink = sink
        self._spans = MessageSpans(kernel.runtime.settings.broker_name)
        self._read_to: dict[tuple[int, int], int] = {}
        """Topic and queue id -> first offset that was not looked at."""
        self._ends: dict[tuple[int, int], list[tuple[int, int]]] = {}
        """Topic and queue id -> (end, time at which it was safe) since the last round."""
        self._position = 0
        """Of the first record of the history that was not handled."""
        self._early: list[TakenMessages] = []
        """Notes of receivers that precede the record of the delivery: it is written at the end of the same turn."""
        self._ticked_ms = 0
        self._turn = asyncio.Lock()
        self._closed = False
        self.missed = 0
        """Records of the history and messages that were not looked at in time."""

    def start(self) -> None:
        """Begins with what happens from now on; the store is open and the long polls follow it."""
        store, trace = self._ledger.store, self._ledger.trace
        assert trace is not None, "the settings require the history"
        self._position = trace.added
        self._read_to = {key: store.queue_range(*key)[1] for key in store.queues()}
        first = store.on_dispatched
        assert first is not None, "long polls are connected first, because their clients wait"

        def dispatched(grown: list[Dispatched]) -> None:
            first(grown)
            self._grown(grown)

        store.on_dispatched = dispatched
        self._runtime.spawn(self._run(), name="message spans")

    async def close(self) -> None:
        """Reports what happened until now, and deliveries that are not settled."""
        self._closed = True
        async with self._turn:
            await self._round(last=True)
        self._sink(list(self._spans.close(self._runtime.now_ms())))

    async def _run(self) -> None:
        while not self._closed:
            await self._runtime.clock.sleep_ms(ROUND_MS)
            async with self._turn:
                try:
                    await self._round()
                except Exception:  # a fault of this loop must cost spans only, and not end the broker
                    log.exception("messages since the last round have no spans; tracing continues with the next ones")
                    self._skip()

    def _skip(self) -> None:
        trace = self._ledger.trace
        assert trace is not None
        self.missed += trace.added - self._position
        self._position = trace.added

    async def _round(self, *, last: bool = False) -> None:
        """Handles what is new. `last`: also records of messages that are not committed."""
        records, (ends, self._ends) = self._new_records(), (self._ends, {})
        for (topic_id, queue_id), moments in ends.items():
            await self._follow_queue(topic_id, queue_id, moments)
        now_ms = self._runtime.now_ms()
        for handled, (at_ms, record) in enumerate(records, 1):
            if not last and at_ms > now_ms - AHEAD_MS and self._is_ahead(record):
                break
            await self._handle(at_ms, record)
            self._position += 1
            if handled % SLICE == 0:
                await self._runtime.clock.sleep_ms(0)
        if now_ms - self._ticked_ms >= TICK_MS:
            self._ticked_ms = now_ms
            self._sink(list(self._spans.tick(now_ms)))

    def _grown(self, grown: Iterable[Dispatched]) -> None:
        now_ms = self._runtime.now_ms()
        for topic_id, queue_id, end in grown:
            moments = self._ends.setdefault((topic_id, queue_id), [])
            if len(moments) >= _ENDS_MAX:
                moments.pop()
            moments.append((end, now_ms))

    def _new_records(self) -> list[tuple[int, bytes]]:
        trace = self._ledger.trace
        assert trace is not None
        records = trace.since(self._position)
        self.missed += trace.added - self._position - len(records)
        self._position = trace.added - len(records)
        return records

    # ------------------------------------------------------------------------------------------------ messages

    async def _follow_queue(self, topic_id: int, queue_id: int, moments: Sequence[tuple[int, int]]) -> None:
        topic = self._catalog.topics.by_id(topic_id)
        end = moments[-1][0]
        start = self._read_to.get((topic_id, queue_id), 0)
        self._read_to[topic_id, queue_id] = end
        if topic is None:
            return
        if end - start > BEHIND_MAX:
            self.missed += end - start - BEHIND_MAX
            start = end - BEHIND_MAX
        at = iter(moments)
        safe_to, safe_ms = next(at)
        while start < end:
            try:
                read = await self._ledger.store.read(
                    topic_id, queue_id, start, count_max=min(SLICE, end - start), bytes_max=READ_BYTES
                )
            except Error as error:  # readers of the queue get the same one, and a log line
                log.debug("no spans of messages of topic %s: %s", topic.name, error.message)
                self.missed += end - start
                return
            spans = []
            for stored in read.messages:
                if stored.queue_offset >= end:  # retention removed those before; the next round begins at `end`
                    break
                while stored.queue_offset >= safe_to:
                    safe_to, safe_ms = next(at, (end, moments[-1][1]))
                message = traced_message(stored, topic.name)
                if message is not None:
                    spans.append(self._spans.stored(message, safe_ms=safe_ms))
            self._sink(spans)
            if read.next_offset <= start:
                return  # retention or a full disk removed them
            start = read.next_offset
            await self._runtime.clock.sleep_ms(0)

    async def _messages(self, topic_id: int, queue_id: int, offsets: Sequence[int]) -> dict[int, TracedMessage]:
        """Returns the traced ones among these messages, by offset."""
        topic = self._catalog.topics.by_id(topic_id)
        if topic is None or not offsets:
            return {}
        try:
            read = await self._ledger.store.read_at(topic_id, queue_id, offsets)
        except Error as error:
            log.debug("no spans of deliveries of topic %s: %s", topic.name, error.message)
            self.missed += 1
            return {}
        found = ((stored.queue_offset, traced_message(stored, topic.name)) for stored in read)
        return {offset: message for offset, message in found if message is not None}

    # ------------------------------------------------------------------------------------------------ records

    def _is_ahead(self, record: bytes) -> bool:
        """Returns True if the record delivers messages that are not committed."""
        if self._runtime.leadership.attach is None or taken_messages(record) is not None:
            return False
        return any(
            isinstance(op, Delivered)
            and bool(op.offsets)
            and max(op.offsets) >= self._ledger.store.queue_range(op.topic_id, op.queue_id)[1]
            for op in decode(record)
        )

    async def _handle(self, at_ms: int, record: bytes) -> None:
        taken = taken_messages(record)
        if taken is not None:
            self._received(taken)
            self._early.append(taken)
            return
        for op in decode(record):
            if isinstance(op, Acked):
                self._sink(self._spans.acked(DeliveryKey(*op), at_ms=at_ms))
            elif isinstance(op, Delivered):
                await self._deliver(op, at_ms)
            elif isinstance(op, Invisible):
                key = DeliveryKey(op.group_id, op.topic_id, op.queue_id, op.offset)
                self._sink(self._spans.changed(key, attempt=op.attempt, at_ms=at_ms, until_ms=op.deadline_ms))
        for taken in self._early:
            self._received(taken)
        self._early.clear()

    def _received(self, taken: TakenMessages) -> None:
        for queue_id, offset, number in taken.held:
            key = DeliveryKey(taken.group_id, taken.topic_id, queue_id, offset)
            self._spans.received_by(key, number, taken.client_id)

    async def _deliver(self, op: Delivered, at_ms: int) -> None:
        group = self._catalog.groups.by_id(op.group_id)
        # An attempt of 0: the message was looked at, and waits behind an earlier one of its message group.
        given = {
            offset: (number, attempt)
            for offset, number, attempt in zip(op.offsets, op.numbers, op.attempts, strict=True)
            if attempt
        }
        if group is None:
            return
        for offset, message in (await self._messages(op.topic_id, op.queue_id, list(given))).items():
            number, attempt = given[offset]
            spans = self._spans.delivered(
                DeliveryKey(op.group_id, op.topic_id, op.queue_id, offset),
                message,
                group=group.name,
                client_id=op.client_id,
                number=number,
                attempt=attempt,
                at_ms=at_ms,
                until_ms=op.deadline_ms,
            )
            self._sink(spans)
