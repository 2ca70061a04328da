"""Where the reading of a queue begins that has no committed offset: the stored one, or what the group's policy says.

Asked by `loops.ownership` once for each queue that it was given (RB-30, RB-41 to RB-46). A member's start is committed
before anybody hears that the queue is its own: should it die before its first report, the next one must not start
later.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from evenq.client.core.calls import ConsumerCalls
from evenq.client.core.start_offset import StoredOffset, policy_start, stored_start
from evenq.client.loops.progress import GroupProgress
from evenq.client.loops.read_plan import ReadPlan
from evenq.client.loops.routes import RouteBook
from evenq.client.loops.troubles import Troubles
from evenq.errors import Error
from evenq.model import Generation, MessageQueue, QueueOffset, StartFrom

__all__ = ["Starting"]

log = logging.getLogger(__name__)


class Starting:
    """The start offsets of one consumer."""

    def __init__(
        self,
        read_plan: ReadPlan,
        *,
        calls: ConsumerCalls,
        progress: GroupProgress,
        address: Callable[[MessageQueue], Awaitable[str]],
        routes: RouteBook,
        troubles: Troubles,
        generation: Callable[[str], Generation],
    ) -> None:
        self._read_plan = read_plan
        self._calls = calls
        self._progress = progress
        self._address = address
        self._routes = routes
        self._troubles = troubles
        self._generation = generation

    async def find(self, queue: MessageQueue) -> tuple[QueueOffset | None, bool]:
        """The offset, None if it could not be found or kept, and whether it must still be stored."""
        offset: QueueOffset | None = None
        first = True
        try:
            stored = -1 if self._read_plan.clustering else await self._progress.load(queue)
            match stored_start(stored):
                case StoredOffset.KNOWN:
                    offset, first = QueueOffset(stored), False
                case StoredOffset.NEVER:
                    offset = await self._by_policy(queue)
                    if self._read_plan.clustering:
                        await self._keep(queue, offset)
                        first = False
                case StoredOffset.UNUSABLE:
                    log.warning(
                        "group %s: queue %s is not read, its stored offset %d is not valid; reset it with `evenq "
                        "offset reset %s --topic %s --to earliest`",
                        self._read_plan.group, queue, stored, self._read_plan.group, queue.topic,
                    )  # fmt: skip
        except Error as error:  # RB-30, RB-42: not added in this round
            self._troubles.failed_at(queue.topic, queue.broker_name, error)
            return None, first
        return offset, first

    async def _keep(self, queue: MessageQueue, offset: QueueOffset) -> None:
        generation = self._generation(queue.topic)
        await self._calls.commit(
            await self._address(queue), self._read_plan.group, {queue: offset}, generation=generation
        )

    async def _by_policy(self, queue: MessageQueue) -> QueueOffset:
        policy = self._read_plan.start_policy()
        if policy is StartFrom.FIRST or self._routes.was_missing(queue.topic):
            return QueueOffset(0)  # a topic that came after us: all that is in it did, too
        timestamp_ms = self._read_plan.start_timestamp_ms if policy is StartFrom.TIMESTAMP else 0
        offsets = await self._calls.query_offsets(
            await self._address(queue), self._read_plan.group, queue, timestamp_ms=timestamp_ms
        )
        young = self._read_plan.options.young_from_first and offsets.young
        return policy_start(
            queue.topic, policy, maximum=offsets.maximum, at_timestamp=offsets.at_timestamp, young=young
        )
