"""What becomes of a delivery that nobody finished: at once a dead letter after the last attempt, else tried again.

`core.delivery` asks at each end of a delivery (`over`), so a message needs no consumer to die, and a delivery that its
client's life held to the longest time counts as failed, with the group's pause. Always true: a message waits here once
at most, and a few are moved at a time (D3, RD-3).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from evenq.errors import Error
from evenq.model import GroupConfig, TopicConfig
from evenq_broker.core.delivery import Pending, QueueProgress
from evenq_broker.core.letters import Reason
from evenq_broker.loops.dead_letters import to_dead_letters

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["HOLD_MS", "Burials"]

log = logging.getLogger(__name__)

HOLD_MS = 10_000
"""A message on its way to the dead letters is held so long; one that could not be stored is tried again then."""
_AT_ONCE = 32


class Burials:
    """The messages of this broker that had their last attempt."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: dict[tuple[int, int, int, int], QueueProgress] = {}
        self._running = False

    def over(self, queue: QueueProgress, offset: int, entry: Pending) -> int:
        """A delivery has ended unfinished: until when its message is not delivered again, ms since the epoch; 0 = it is
        ready now.
        """
        group = self._broker.groups.by_id(queue.group_id)
        if group is None:
            return 0
        if not entry.waits:
            self._broker.stats.group_topic(queue.group_id, queue.topic_id).timed_out += 1
        if entry.attempt >= group.max_attempts:
            self.add(queue, offset, entry)
            return self._broker.now_ms() + HOLD_MS
        if entry.client_id:
            pause_ms = group.retry.delay_ms(entry.attempt, levels=self._broker.delay_levels)
            return self._broker.now_ms() + pause_ms
        return 0

    def add(self, queue: QueueProgress, offset: int, entry: Pending) -> None:
        """Move the message to the dead letters soon; handles of its last delivery change nothing any more."""
        place = (queue.group_id, queue.topic_id, queue.queue_id, offset)
        if place in self._waiting:
            return
        entry.number += 1
        self._waiting[place] = queue
        if not self._running:
            self._running = True
            self._broker.spawn(self._work(), name="dead letters")

    async def bury(self, group: GroupConfig, topic: TopicConfig, queue: QueueProgress, offset: int) -> None:
        """Move one message because its consumer says so, durably. Raises what a send raises."""
        await to_dead_letters(self._broker, group, topic, queue, offset, Reason.FORWARDED)

    async def _work(self) -> None:
        try:
            while self._waiting:
                places = [place for place, _ in zip(self._waiting, range(_AT_ONCE), strict=False)]
                await asyncio.gather(*(self._move(place) for place in places))
        finally:
            self._running = False

    async def _move(self, place: tuple[int, int, int, int]) -> None:
        broker, queue = self._broker, self._waiting[place]
        group, topic, offset = broker.groups.by_id(place[0]), broker.topics.by_id(place[1]), place[3]
        try:
            known = broker.progress.queue(*place[:3]) is queue and offset in queue.pending
            if group is not None and topic is not None and known:
                await to_dead_letters(broker, group, topic, queue, offset)
        except Error as error:
            self._try_again(queue, offset)
            log.warning("dead letter not stored", extra={"group": place[0], "topic": place[1], "error": str(error)})
        finally:
            del self._waiting[place]

    def _try_again(self, queue: QueueProgress, offset: int) -> None:
        broker = self._broker
        now_ms = broker.now_ms()
        entry = queue.pending.get(offset)
        if entry is not None:
            broker.progress.hold_on(queue, offset, entry.number, now_ms=now_ms, deadline_ms=now_ms + HOLD_MS)
            broker.waiting.sooner(now_ms + HOLD_MS)
