"""The start of a queue without a committed offset: the stored offset, or the offset by the group's policy.

Called by `loops.ownership` once for each new queue (RB-30, RB-41 to RB-46). The policy applies once per group and
topic: a queue that is added later, or of a topic that was deleted and created again, is read from its first message. In
clustering the brokers decide and store the start (`Calls.begin`), because they have the group's progress; in
broadcasting the file decides. An older broker does not decide: then the policy is applied here, and the start is
committed before the user gets the queue. If the member dies before its first report, the next one must not start later.

With a table, FIRST is the table's first message. Brokers do not know tables, and `Calls.begin` would begin all queues
of the topic in the log, so each owner stores the start of its queue itself. A queue that is added later is read from
its first message, too, so it does not matter which owner comes first. TIMESTAMP stays with the brokers: they
distinguish a queue of the start, which is read from that time on, from one that is added later.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from evenq.client.core.calls import QueueRange
from evenq.client.core.reading.offsets import KeptOffset
from evenq.client.core.reading.start_offset import StoredOffset, policy_start, stored_start
from evenq.client.loops.clients.troubles import Troubles
from evenq.client.loops.reading.progress import GroupProgress
from evenq.client.loops.reading.read_plan import ReadPlan
from evenq.client.loops.routes.route_book import RouteBook
from evenq.errors import Error, IllegalOffset
from evenq.model import Generation, MessageQueue, QueueOffset, StartFrom, StartPolicy
from evenq.runtime.clock import Clock

if TYPE_CHECKING:
    from evenq.client.rpc.sessions import RpcConsumerCalls

log = logging.getLogger(__name__)

TOGETHER_MS = 2_000
"""Queues that a broadcasting member finds within this time start like its first queue of the topic."""
CLOCKS_MS = 60_000
"""Largest difference of clocks: a queue that is found later is read from the member's start, less this."""


class StartOffsets:
    def __init__(
        self,
        read_plan: ReadPlan,
        *,
        calls: RpcConsumerCalls,
        progress: GroupProgress,
        address: Callable[[MessageQueue], Awaitable[str]],
        routes: RouteBook,
        troubles: Troubles,
        generation: Callable[[str], Generation],
        clock: Clock,
    ) -> None:
        self._read_plan = read_plan
        self._calls = calls
        self._progress = progress
        self._address = address
        self._routes = routes
        self._troubles = troubles
        self._generation = generation
        self._clock = clock
        self._begun_ms: dict[str, int] = {}
        """Broadcasting, by topic: when the policy was applied, ms since the epoch."""
        self._known_ms: dict[str, dict[str, int]] = {}
        """Clustering, by topic and broker: when this member saw the group start there, monotonic ms; -1: it did not."""

    def has_begun(self, queue: MessageQueue) -> None:
        """Notes that the group has an offset of the queue."""
        self._known_ms.setdefault(queue.topic, {}).setdefault(queue.broker_name, -1)

    async def find(self, queue: MessageQueue) -> tuple[QueueOffset | None, bool]:
        """Returns the offset, None if it was not found or not kept, and whether it must still be stored."""
        try:
            return await (self._at_broker(queue) if self._progress.store.at_brokers else self._by_file(queue))
        except Error as error:  # RB-30, RB-42: not added in this round
            self._troubles.failed_at(queue.topic, queue.broker_name, error)
            return None, True

    async def _at_broker(self, queue: MessageQueue) -> tuple[QueueOffset | None, bool]:
        asked_ms, known_ms = self._clock.monotonic_ms(), self._known_ms.setdefault(queue.topic, {})
        offsets = await self._ask(queue)
        if stored_start(offsets.committed) is StoredOffset.NEVER:
            if queue.broker_name in known_ms:  # the group or the topic was deleted since: it starts anew
                known_ms.clear()
            table, start_from = self._read_plan.table_of(queue.topic), self._policy(queue.topic).start_from
            if table is not None and start_from is StartFrom.FIRST:
                start = await table.first(queue, offsets.uid, offsets.minimum)
                await self._commit(queue, start, offsets.uid)
                offsets = replace(offsets, committed=start)
            else:
                offsets = await self._begun(queue, offsets.uid)
                if table is not None and start_from is StartFrom.TIMESTAMP:
                    self._warn_of_time(queue, offsets)
            known_ms[queue.broker_name] = asked_ms
        else:
            self.has_begun(queue)
        match stored_start(offsets.committed):
            case StoredOffset.KNOWN:
                return QueueOffset(offsets.committed), False
            case StoredOffset.UNUSABLE:
                log.warning(
                    "group %s: queue %s is not read, its stored offset %d is not valid; reset it with `evenq "
                    "offset reset %s --topic %s --to earliest`",
                    self._read_plan.group,
                    queue,
                    offsets.committed,
                    self._read_plan.group,
                    queue.topic,
                )
                return None, True
            case StoredOffset.NEVER:  # an older broker does not decide
                offset = self._by_policy(queue, offsets)
                if self._read_plan.clustering:
                    await self._commit(queue, offset, offsets.uid)
                return offset, not self._read_plan.clustering

    def _warn_of_time(self, queue: MessageQueue, offsets: QueueRange) -> None:
        if 0 < offsets.minimum == offsets.committed and offsets.at_timestamp <= offsets.minimum:
            log.warning(
                "group %s: queue %s begins at offset %d, the start of the log: earlier messages of the start time are "
                "in the table at most; move the group there with a pull consumer (offset_at, commit)",
                self._read_plan.group,
                queue,
                offsets.committed,
            )

    async def _commit(self, queue: MessageQueue, offset: QueueOffset, uid: str) -> None:
        await self._calls.commit(
            await self._address(queue),
            self._read_plan.group,
            {queue: offset},
            generation=self._generation(queue.topic),
            uids={queue: uid},
        )

    async def _begun(self, queue: MessageQueue, uid: str) -> QueueRange:
        with suppress(IllegalOffset):
            await self._calls.begin(
                await self._address(queue),
                self._read_plan.group,
                queue,
                self._policy(queue.topic),
                generation=self._generation(queue.topic),
                uid=uid,
            )
        return await self._ask(queue, self._timestamp_ms(queue.topic))

    async def _by_file(self, queue: MessageQueue) -> tuple[QueueOffset | None, bool]:
        topic, now_ms = queue.topic, self._clock.now_ms()
        offsets = await self._ask(queue, self._timestamp_ms(topic))
        kept = await self._progress.store.kept(queue)
        if kept is not None and _is_of(kept, offsets):
            return kept.offset, False
        if kept is not None and kept.uid and offsets.uid:  # another topic of this name was read before, and deleted
            return QueueOffset(0), True
        if topic not in self._begun_ms:
            if await self._progress.store.has_begun(topic):  # in an earlier run
                return QueueOffset(0), True
            now_ms = self._begun_ms.setdefault(topic, now_ms)
        begun_ms = self._begun_ms[topic]
        offset = self._by_policy(queue, offsets)
        table, policy = self._read_plan.table_of(topic), self._policy(topic)
        if table is not None and policy.start_from is StartFrom.TIMESTAMP and offset <= offsets.minimum:
            offset = await table.offset_at(queue, offsets.uid, policy.timestamp_ms, offsets.minimum)
        if now_ms - begun_ms > TOGETHER_MS:
            since = (await self._ask(queue, max(1, begun_ms - CLOCKS_MS))).at_timestamp
            offset = min(offset, QueueOffset(since))
        return offset, True

    async def _ask(self, queue: MessageQueue, timestamp_ms: int = 0) -> QueueRange:
        offsets = await self._calls.query_offsets(
            await self._address(queue), self._read_plan.group, queue, timestamp_ms=timestamp_ms
        )
        self._progress.table.identify(queue, offsets.uid)
        return offsets

    def _policy(self, topic: str) -> StartPolicy:
        if self._routes.was_missing(topic):
            return StartPolicy(StartFrom.FIRST)  # created after this member: so are all its messages
        plan, known_ms, ago_ms = self._read_plan, self._known_ms.get(topic), 0
        if known_ms:
            begun_ms = min(known_ms.values())
            ago_ms = begun_ms if begun_ms < 0 else max(1, self._clock.monotonic_ms() - begun_ms)
        return StartPolicy(plan.start_policy(), plan.start_timestamp_ms, plan.options.young_from_first, ago_ms)

    def _timestamp_ms(self, topic: str) -> int:
        policy = self._policy(topic)
        return policy.timestamp_ms if policy.start_from is StartFrom.TIMESTAMP else 0

    def _by_policy(self, queue: MessageQueue, offsets: QueueRange) -> QueueOffset:
        policy = self._policy(queue.topic)
        young = policy.young_from_first and offsets.young
        start_from = policy.start_from or StartFrom.LAST
        return policy_start(
            queue.topic, start_from, maximum=offsets.maximum, at_timestamp=offsets.at_timestamp, young=young
        )


def _is_of(kept: KeptOffset, offsets: QueueRange) -> bool:
    """False: the file's row is of a deleted topic. Without uids, only an offset beyond the end reveals that."""
    if kept.uid and offsets.uid:
        return kept.uid == offsets.uid
    return 0 <= kept.offset <= offsets.maximum
