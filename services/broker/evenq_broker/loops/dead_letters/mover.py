"""Fate of a delivery that was not finished: a dead letter after the last attempt, otherwise another attempt.

`core.delivery.progress` calls `over` at each end of a delivery, so no consumer needs to be alive. A delivery that
reached the longest time of its client's life counts as failed, with the group's pause. Each message waits
here once at most, and a few are moved at a time (D3, RD-3).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from evenq.errors import Error
from evenq.model import GroupConfig, TopicConfig
from evenq.model.names import DLQ_PREFIX
from evenq.runtime.tasks import outlasting, spawn
from evenq_broker.core.dead_letters.letter import Death, Reason
from evenq_broker.core.delivery.fence import always, is_fenced
from evenq_broker.core.delivery.progress import BLOCKED, Pending, QueueProgress
from evenq_broker.core.state.records import Acked
from evenq_broker.loops.polls.waiting import LongPolls
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.loops.wire.copies import letter

log = logging.getLogger(__name__)
HOLD_MS = 10_000
"""How long a message is held on its way to the dead letters; a failed move is repeated then."""
_AT_ONCE = 32


class DeadLetterMover:
    """Messages of this broker that had their last attempt."""

    def __init__(self, kernel: Kernel, *, long_polls: LongPolls) -> None:
        self._kernel = kernel
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._long_polls = long_polls
        self._waiting: dict[tuple[int, int, int, int], tuple[QueueProgress, Reason]] = {}
        self._running = False
        self._burials: dict[tuple[int, int, int, int], asyncio.Task[None]] = {}
        """By group, topic, queue and offset: messages that are being moved on request."""

    def over(self, queue: QueueProgress, offset: int, entry: Pending) -> int:
        """Returns until when an unfinished message is held back, ms since the epoch; 0 = it is ready now."""
        group = self._catalog.groups.by_id(queue.group_id)
        if group is None:
            return 0
        if not entry.waits:
            self._runtime.stats.group_topic(queue.group_id, queue.topic_id).timed_out += 1
        if entry.attempt >= group.max_attempts:
            self.add(queue, offset, entry)
            return self._runtime.now_ms() + HOLD_MS
        if entry.client_id and not entry.waits:
            pause_ms = group.retry.delay_ms(entry.attempt, levels=self._runtime.delay_levels)
            return self._runtime.now_ms() + pause_ms
        return 0

    def add(self, queue: QueueProgress, offset: int, entry: Pending, reason: Reason = Reason.ATTEMPTS) -> None:
        """Moves the message to the dead letters soon; handles of its last delivery are invalid from now on."""
        position = (queue.group_id, queue.topic_id, queue.queue_id, offset)
        if position in self._waiting:
            return
        # Otherwise a late ack would be answered OK for a message that still becomes a dead letter.
        entry.number += 1
        self._waiting[position] = queue, reason
        if not self._running:
            self._running = True
            self._runtime.spawn(self._work(), name="dead letters")

    async def bury(self, group: GroupConfig, topic: TopicConfig, queue: QueueProgress, offset: int) -> None:
        """Moves one message on request of its consumer, durably. Raises errors of a send.

        Nothing is moved if another call ends the delivery, such as a transaction (`core.delivery.fence`).
        """
        if await self.buried(queue, offset):
            return
        position = (queue.group_id, queue.topic_id, queue.queue_id, offset)
        # Of its own: a letter that is being stored when the caller is gone must finish the message.
        running = self._burials[position] = spawn(self._bury(group, topic, queue, offset), name="bury a message")
        running.add_done_callback(lambda _: self._burials.pop(position))
        await outlasting(running)

    async def buried(self, queue: QueueProgress, offset: int) -> bool:
        """Waits for the move that a call of the same consumer began; False: there is none."""
        running = self._burials.get((queue.group_id, queue.topic_id, queue.queue_id, offset))
        if running is None:
            return False
        await outlasting(running)
        return True

    async def _bury(self, group: GroupConfig, topic: TopicConfig, queue: QueueProgress, offset: int) -> None:
        entry = queue.pending.get(offset)
        waits = (queue.group_id, queue.topic_id, queue.queue_id, offset) in self._waiting
        if entry is None or waits or is_fenced(entry):
            return
        async with replaced(self._ledger, queue, offset, entry, long_polls=self._long_polls):
            await bury(
                self._kernel, group, topic, queue.queue_id, offset, attempts=entry.attempt, reason=Reason.FORWARDED
            )

    async def _work(self) -> None:
        try:
            while self._waiting:
                places = [position for position, _ in zip(self._waiting, range(_AT_ONCE), strict=False)]
                await asyncio.gather(*(self._move(position) for position in places))
        finally:
            self._running = False

    async def _move(self, position: tuple[int, int, int, int]) -> None:
        queue, reason = self._waiting[position]
        group, topic, offset = (
            self._catalog.groups.by_id(position[0]),
            self._catalog.topics.by_id(position[1]),
            position[3],
        )
        try:
            known = self._ledger.progress.queue(*position[:3]) is queue and offset in queue.pending
            if group is not None and topic is not None and known:
                await to_dead_letters(self._kernel, group, topic, queue, offset, reason, long_polls=self._long_polls)
        except Error as error:
            self._try_again(queue, offset)
            log.warning(
                "a dead letter of group %s, topic %s was not stored, it is moved again later: %s",
                *position[:2],
                error.message,
                extra={"group": position[0], "topic": position[1]},
            )
        finally:
            del self._waiting[position]

    def _try_again(self, queue: QueueProgress, offset: int) -> None:
        now_ms = self._runtime.now_ms()
        entry = queue.pending.get(offset)
        if entry is not None:
            self._ledger.progress.hold_on(queue, offset, entry.number, now_ms=now_ms, deadline_ms=now_ms + HOLD_MS)
            self._long_polls.sooner(now_ms + HOLD_MS)


@asynccontextmanager
async def replaced(
    ledger: Ledger, queue: QueueProgress, offset: int, entry: Pending, *, long_polls: LongPolls
) -> AsyncIterator[None]:
    """Fences a message while the body copies it, then finishes it durably: the copy takes its place. After an error it
    is as before. A reset meanwhile wins.
    """
    fence = ledger.progress.fence
    fenced = entry.deadline_ms != BLOCKED  # otherwise no client has it, and none can get it soon
    if fenced:
        fence.begin(queue, offset, always)
    try:
        yield
    finally:
        deadline_ms = fence.end(queue, offset, entry, stored=False) if fenced else 0
        if deadline_ms:
            long_polls.sooner(deadline_ms)
    if queue.pending.get(offset) is entry:
        await settle(ledger, queue, offset, long_polls=long_polls)


async def to_dead_letters(
    kernel: Kernel,
    group: GroupConfig,
    topic: TopicConfig,
    queue: QueueProgress,
    offset: int,
    reason: Reason = Reason.ATTEMPTS,
    *,
    long_polls: LongPolls,
) -> None:
    """Copies the message at `offset` (unless retention removed it) to `%DLQ%group`, on this broker, one queue; then
    finishes it. Raises errors of a send.

    The original is finished after the copy is as durable as any send (D3). A crash in between leaves two, never none.
    """
    entry = queue.pending.get(offset)
    attempts = entry.attempt if entry is not None else 0
    await bury(kernel, group, topic, queue.queue_id, offset, attempts=attempts, reason=reason)
    await settle(kernel.ledger, queue, offset, long_polls=long_polls)


async def bury(
    kernel: Kernel,
    group: GroupConfig,
    topic: TopicConfig,
    queue_id: int,
    offset: int,
    *,
    attempts: int = 0,
    reason: Reason = Reason.SENT_BACK,
) -> bool:
    """Copies the message at `offset` of the topic into the group's dead-letter topic; its progress stays as it is.
    `attempts`: number of its deliveries, 0 = not known.

    A message of the group's own dead-letter topic stays there. False if the message does not exist (any more). Raises
    errors of a send.
    """
    messages = await kernel.ledger.store.read_at(topic.topic_id, queue_id, [offset])
    if not messages:
        return False
    if topic.name == DLQ_PREFIX + group.name:
        return True  # a group that reads its own dead letters: each copy would be retried for ever
    target = await kernel.catalog.create_topic(f"{DLQ_PREFIX}{group.name}", queues=1, system=True)
    death = Death(topic, kernel.runtime.settings.broker_name, queue_id, offset, attempts, reason)
    await kernel.ledger.store.append((letter(messages[0], death, target),))
    kernel.runtime.stats.group_topic(group.group_id, topic.topic_id).dead_letters += 1
    return True


async def settle(ledger: Ledger, queue: QueueProgress, offset: int, *, long_polls: LongPolls) -> None:
    """Finishes one message durably, whatever its state, and wakes the polls that waited for it."""
    if ledger.progress.finish(queue, offset):
        await ledger.journal.record(Acked(queue.group_id, queue.topic_id, queue.queue_id, offset))
    if queue.ready:
        long_polls.ready(queue.group_id, queue.topic_id, queue.queue_id)
