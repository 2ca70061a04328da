"""What becomes of a delivery that was not finished: at once a dead letter after the last attempt, else tried again.

`core.delivery.progress` asks at each end of a delivery (`over`), so a message needs no consumer to die, and a delivery
that its client's life held to the longest time counts as failed, with the group's pause. Always true: a message waits
here once at most, and a few are moved at a time (D3, RD-3).
"""

from __future__ import annotations

import asyncio
import logging

from evenq.errors import Error
from evenq.model import GroupConfig, TopicConfig
from evenq_broker.core.dead_letters.letter import Reason
from evenq_broker.core.delivery.progress import Pending, QueueProgress
from evenq_broker.loops.dead_letters.letters import to_dead_letters
from evenq_broker.loops.polls.waiting import LongPolls
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.runtime import Runtime

__all__ = ["HOLD_MS", "DeadLetterMover"]

log = logging.getLogger(__name__)

HOLD_MS = 10_000
"""How long a message on its way to the dead letters is held; one that could not be stored is tried again then."""
_AT_ONCE = 32


class DeadLetterMover:
    """The messages of this broker that had their last attempt."""

    def __init__(self, runtime: Runtime, catalog: Catalog, ledger: Ledger, *, long_polls: LongPolls) -> None:
        self._runtime, self._catalog, self._ledger = runtime, catalog, ledger
        self._long_polls = long_polls
        self._waiting: dict[tuple[int, int, int, int], tuple[QueueProgress, Reason]] = {}
        self._running = False

    def over(self, queue: QueueProgress, offset: int, entry: Pending) -> int:
        """A delivery has ended unfinished: until when its message is not delivered again, ms since the epoch; 0 = it is
        ready now.
        """
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
        """Move the message to the dead letters soon; handles of its last delivery change nothing any more."""
        position = (queue.group_id, queue.topic_id, queue.queue_id, offset)
        if position in self._waiting:
            return
        # A late ack would else be answered OK for a message that becomes a dead letter all the same.
        entry.number += 1
        self._waiting[position] = queue, reason
        if not self._running:
            self._running = True
            self._runtime.spawn(self._work(), name="dead letters")

    async def bury(self, group: GroupConfig, topic: TopicConfig, queue: QueueProgress, offset: int) -> None:
        """Move one message because its consumer says so, durably. Raises what a send raises."""
        await to_dead_letters(
            self._runtime,
            self._catalog,
            self._ledger,
            group,
            topic,
            queue,
            offset,
            Reason.FORWARDED,
            long_polls=self._long_polls,
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
                await to_dead_letters(
                    self._runtime, self._catalog, self._ledger, group, topic, queue, offset, reason,
                    long_polls=self._long_polls,
                )  # fmt: skip
        except Error as error:
            self._try_again(queue, offset)
            log.warning(
                "a dead letter of group %s, topic %s was not stored, trying again: %s", *position[:2], error.message,
                extra={"group": position[0], "topic": position[1]},
            )  # fmt: skip
        finally:
            del self._waiting[position]

    def _try_again(self, queue: QueueProgress, offset: int) -> None:
        now_ms = self._runtime.now_ms()
        entry = queue.pending.get(offset)
        if entry is not None:
            self._ledger.progress.hold_on(queue, offset, entry.number, now_ms=now_ms, deadline_ms=now_ms + HOLD_MS)
            self._long_polls.sooner(now_ms + HOLD_MS)
