"""Replay of dead letters, one per group at a time. Its progress is that of an internal group on the dead-letter topic.

A copy and its mark are one append: an interrupted or repeated replay sends none twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from evenq.errors import BadRequest, Error, Forbidden, TopicNotFound
from evenq.model import MessageType, StartFrom, TopicConfig
from evenq.model.names import DLQ_PREFIX
from evenq.store import StoredMessage
from evenq_broker.core.dead_letters.letter import replay_group
from evenq_broker.core.delivery.filters import MessageFilter
from evenq_broker.core.delivery.progress import QueueProgress
from evenq_broker.core.state.records import Acked, encode
from evenq_broker.loops.cluster.cluster_catalog import ClusterCatalog
from evenq_broker.loops.lite.lite_topics import Lites
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.copies import lite_topic_of, origin_topic, replayed

_CHUNK = 64
_NOTED_CHUNK = 10_000
_REPORT_MS = 250


@dataclass(slots=True)
class Count:
    """Progress of a replay."""

    total: int = 0
    replayed: int = 0
    left_out: int = 0
    failed: int = 0
    error: str = ""


def waiting_letters(kernel: Kernel, group: str) -> tuple[int, int]:
    """Returns the number of the group's dead letters at this broker, and of those that were never replayed."""
    topic = kernel.catalog.topics.get(DLQ_PREFIX + group)
    if topic is None:
        return 0, 0
    low, high = kernel.ledger.store.queue_range(topic.topic_id, 0)
    progress = replay_progress(kernel, group)
    if progress is None:
        return high - low, high - low
    return high - low, max(0, high - max(progress.next, low)) + sum(offset >= low for offset in progress.pending)


def replay_progress(kernel: Kernel, group: str) -> QueueProgress | None:
    """Returns the progress of replays, the finished offsets of queue 0; None: no replay ever ran."""
    topic, keeper = kernel.catalog.topics.get(DLQ_PREFIX + group), kernel.catalog.groups.get(replay_group(group))
    if topic is None or keeper is None:
        return None
    return kernel.ledger.progress.queue(keeper.group_id, topic.topic_id, 0)


class Replay:
    """One replay on this broker."""

    def __init__(
        self,
        kernel: Kernel,
        group: str,
        *,
        message_filter: MessageFilter,
        to_topic: str,
        per_second: float,
        max_count: int,
        cluster_catalog: ClusterCatalog,
        lite: Lites,
    ) -> None:
        """`per_second`, `max_count`: 0 = no limit. `to_topic`: empty = the original topic of each."""
        self._kernel = kernel
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._cluster_catalog, self._lite = cluster_catalog, lite
        self._group = group
        self._message_filter = message_filter
        self._to_topic = to_topic
        self._per_second = per_second
        self._max = max_count
        self._turn = 0
        self.count = Count()

    async def run(self) -> AsyncGenerator[Count, None]:
        """Sends waiting dead letters; yields the counts a few times a second and at the end."""
        topic = self._catalog.topics.get(DLQ_PREFIX + self._group)
        if topic is None:
            return
        queue = await self._noted(topic)
        offsets = sorted(queue.pending)
        self.count.total = len(offsets)
        clock = self._runtime.clock
        reported_ms = clock.monotonic_ms()
        next_ms = float(reported_ms)
        step = _CHUNK if not self._per_second else max(1, min(_CHUNK, int(self._per_second / 10)))
        for at in range(0, len(offsets), step):
            left = self._max - self.count.replayed if self._max else step
            if left <= 0:
                break
            sent = await self._some(topic, queue, offsets[at : at + step], left)
            if self._per_second:
                next_ms += sent * 1_000 / self._per_second
                await clock.sleep_ms(max(0.0, next_ms - clock.monotonic_ms()))
            if clock.monotonic_ms() - reported_ms >= _REPORT_MS:
                reported_ms = clock.monotonic_ms()
                yield self.count
        yield self.count

    async def plan(self) -> dict[str, int]:
        """Returns topic -> dead letters that `run` would send there now ("": no original topic). Only fills `count`."""
        topic = self._catalog.topics.get(DLQ_PREFIX + self._group)
        would: dict[str, int] = {}
        if topic is None:
            return would
        low, high = self._ledger.store.queue_range(topic.topic_id, 0)
        queue = replay_progress(self._kernel, self._group)
        fresh = range(low if queue is None else max(low, queue.next), high)
        offsets = [*(sorted(queue.pending) if queue is not None else ()), *fresh]
        self.count.total = len(offsets)
        for at in range(0, len(offsets), _CHUNK):
            for message in await self._ledger.store.read_at(topic.topic_id, 0, offsets[at : at + _CHUNK]):
                if self._message_filter.matches is not None and not self._message_filter.matches(message):
                    self.count.left_out += 1
                elif not self._max or sum(would.values()) < self._max:
                    name = self._to_topic or origin_topic(message)
                    would[name] = would.get(name, 0) + 1
            await self._runtime.clock.sleep_ms(0)
        return would

    async def _noted(self, topic: TopicConfig) -> QueueProgress:
        keeper = await self._catalog.create_group(replay_group(self._group), start_from=StartFrom.FIRST)
        if gone := self._catalog.gone(keeper, topic):
            raise TopicNotFound(gone)
        low, high = self._ledger.store.queue_range(topic.topic_id, 0)
        op = self._ledger.progress.start(keeper.group_id, topic.topic_id, 0, low)
        if op is not None:
            self._ledger.journal.record(op)
        queue = self._ledger.progress.queue(keeper.group_id, topic.topic_id, 0)
        assert queue is not None
        while queue.next < high:
            before = queue.next
            offsets = list(range(before, min(high, before + _NOTED_CHUNK)))
            self._ledger.progress.set_aside(queue, offsets)
            await self._ledger.journal.record(
                self._ledger.progress.delivered_op(queue, offsets, deadline_ms=0, client_id="", next_offset=queue.next)
            )
        return queue

    async def _some(self, topic: TopicConfig, queue: QueueProgress, offsets: Sequence[int], most: int) -> int:
        letters = await self._ledger.store.read_at(topic.topic_id, 0, list(offsets))
        present = {message.queue_offset for message in letters}
        gone = [offset for offset in offsets if offset not in present]
        if gone:  # fallen out of retention
            for offset in gone:
                self._ledger.progress.finish(queue, offset)
            self._ledger.journal.record(*(self._mark(queue, offset) for offset in gone))
        sent = 0
        for message in letters:
            if self._message_filter.matches is not None and not self._message_filter.matches(message):
                self.count.left_out += 1
            elif sent < most:
                sent += await self._one(queue, message)
        return sent

    async def _one(self, queue: QueueProgress, message: StoredMessage) -> bool:
        offset = message.queue_offset
        if offset not in queue.pending:
            return False
        try:
            await self._send(queue, message)
        except Error as error:
            self.count.failed += 1
            self.count.error = self.count.error or error.message
            return False
        self.count.replayed += 1
        return True

    async def _send(self, queue: QueueProgress, message: StoredMessage) -> None:
        offset = message.queue_offset
        name = self._to_topic or origin_topic(message)
        if not name:
            raise TopicNotFound("the dead letter has no original topic; name a topic with --to")
        target = await self._cluster_catalog.ensure_topic(name)
        if not target.permission.writable or name.startswith(DLQ_PREFIX):
            raise Forbidden(f"topic {name} takes no messages; name another one with --to")
        self._turn += 1
        copy = replayed(message, target, self._turn)
        if target.message_type is MessageType.LITE:
            copy.queue_id = self._lite.place(target, _lite_topic(message, target))
        self._ledger.journal.flush()  # earlier records of the dead letter must precede its mark
        stored = self._ledger.store.append((copy,), state=encode([self._mark(queue, offset)]))
        # In the step of the append: a snapshot between the two would report the dead letter as waiting.
        self._ledger.progress.finish(queue, offset)
        try:
            await asyncio.shield(stored)
        except Error:
            self._ledger.progress.set_aside(queue, [offset])
            self._ledger.journal.record(
                self._ledger.progress.delivered_op(
                    queue, [offset], deadline_ms=0, client_id="", next_offset=queue.committed
                )
            )
            raise

    def _mark(self, queue: QueueProgress, offset: int) -> Acked:
        return Acked(queue.group_id, queue.topic_id, queue.queue_id, offset)


def _lite_topic(letter: StoredMessage, target: TopicConfig) -> str:
    name = lite_topic_of(letter)
    if not name:
        raise BadRequest(
            f"the dead letter has no lite topic, and topic {target.name} takes LITE messages; name another topic"
        )
    return name


def group_known(catalog: Catalog, group: str) -> bool:
    """True if the group exists here, or has dead letters here from when it did."""
    return catalog.groups.get(group) is not None or catalog.topics.get(DLQ_PREFIX + group) is not None


def groups_with_letters(catalog: Catalog) -> list[str]:
    """Returns the names of the groups that have a dead-letter topic here."""
    return [topic.name.removeprefix(DLQ_PREFIX) for topic in catalog.topics.all() if topic.name.startswith(DLQ_PREFIX)]
