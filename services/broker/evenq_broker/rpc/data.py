"""`evenq.v1.Data`: blocks in (`rpc.publishing`), blocks out, and offsets, for members that keep their own progress.

The hot path: what is stored goes out as it is (`core.frames`), behind a few fields written by hand; nothing is parsed
or encoded again. Reads are answered from memory without leaving the call; only what is not there waits for the disk. A
pull that finds nothing is parked and woken by the dispatch of new messages (LP-1, LP-3). Commits and acks share one
progress (OF-1, OF-2).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import TYPE_CHECKING

from evenq.errors import (
    BadRequest,
    GroupNotFound,
    IllegalOffset,
    MessageNotFound,
    PreconditionFailed,
    TopicNotFound,
)
from evenq.model import FilterType, GroupConfig, MessageQueue, TopicConfig
from evenq.serving.rpc import Kind, Rpc, RpcContext
from evenq.store import Kept, ReadResult, StoredMessage
from evenq.wire.status import status_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2
from evenq_broker.core.delivery_counts import COUNTS_MAX, FINISHED
from evenq_broker.core.filters import EVERYTHING, TURNS_MIN, MessageFilter, message_filter
from evenq_broker.core.frames import delivered, extra_fields, field, varint, varint_field
from evenq_broker.core.journal import Committed
from evenq_broker.core.letters import Reason
from evenq_broker.core.marks import mark_of, marks_asked
from evenq_broker.loops.dead_letters import bury
from evenq_broker.loops.deliveries import counted
from evenq_broker.loops.retries import attempts_before, retry_later
from evenq_broker.loops.translation import filter_of, generation_of, queue_message
from evenq_broker.rpc.access import rpc
from evenq_broker.rpc.answers import parsed
from evenq_broker.rpc.publishing import Publishing, must_be_here
from evenq_broker.stats import GroupTopicStats

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["rpcs"]

OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")
PULL_OK = data_pb2.PullResponse(status=OK).SerializeToString()
SCAN_OK = data_pb2.ScanBlock(status=OK).SerializeToString()
PULL_DEFAULT = 32  # RocketMQ 4.9 consumer, pull batch
PULL_MAX = 10_000
PULL_BYTES_DEFAULT = 4 << 20
SCAN_BYTES_DEFAULT = 1 << 20
SCAN_BYTES_MIN = 16 << 10
SCAN_COUNT_MAX = 65_536
SCAN_LOOK_FIRST = 1_024
FRAME_VERSION = 1  # of the records that a scan gives as they are stored
QUEUES_MAX = 4_096


def rpcs(broker: Broker) -> list[Rpc]:
    """The calls of this module."""
    data = _Data(broker)
    service = "/evenq.v1.Data/"
    return [
        rpc(service + "Publish", Publishing(broker).publish, data_pb2.PublishResponse),
        rpc(service + "Pull", data.pull, data_pb2.PullResponse),
        rpc(service + "Scan", data.scan, data_pb2.ScanBlock, Kind.SERVER_STREAM),
        rpc(service + "QueryOffsets", data.query_offsets, data_pb2.QueryOffsetsResponse),
        rpc(service + "CommitOffsets", data.commit_offsets, data_pb2.CommitOffsetsResponse),
        rpc(service + "CountDeliveries", data.count_deliveries, data_pb2.CountDeliveriesResponse),
        rpc(service + "SendBack", data.send_back, data_pb2.SendBackResponse),
    ]


class _Data:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    # ------------------------------------------------------------------------------------------------ pull and scan

    async def pull(self, request: bytes, context: RpcContext) -> bytes:
        asked = parsed(data_pb2.PullRequest, request)
        topic, queue = self._readable(asked.queue)
        must_be_readable(topic, queue.queue_id)
        group = await self._broker.ensure_group(asked.group) if asked.group else None
        if group is not None:
            sessions = self._broker.cluster.sessions
            generation = generation_of(asked.generation)
            self._must_hold(group.name, asked, queue)
            if sessions.fences:
                sessions.fences.read(group.name, queue, asked.client_id, asked.offset)
            known = 0 <= asked.committed <= self._broker.store.queue_range(topic.topic_id, queue.queue_id)[1]
            if known and sessions.locking.may_commit(group.name, asked.client_id, queue, generation):
                self._commit(group, topic, queue, asked.client_id, asked.committed)
        wanted = _wanted(asked.filter)
        until_ms = self._until_ms(asked.wait_ms, context)
        seen = self._broker.locks.changes
        found = await self._found(topic, queue, asked, wanted, until_ms)
        if group is not None and self._broker.locks.changes != seen:  # maybe it changed hands meanwhile
            self._must_hold(group.name, asked, queue)
        if isinstance(found, IllegalOffset):
            return data_pb2.PullResponse(
                status=status_of(found, context.language),
                next_offset=min(max(asked.offset, found.min_offset), found.max_offset),
                min_offset=found.min_offset,
                max_offset=found.max_offset,
            ).SerializeToString()
        messages = found.messages
        if group is not None and asked.owner:
            self._handed(group, topic, queue, asked.client_id, found.next_offset)
        if not messages:
            empty = MessageNotFound(f"nothing new in queue {queue} at {found.next_offset}")
            return data_pb2.PullResponse(
                status=status_of(empty),
                next_offset=found.next_offset,
                min_offset=found.min_offset,
                max_offset=found.max_offset,
            ).SerializeToString()
        parts = [
            PULL_OK,
            varint_field(2, found.next_offset),
            varint_field(3, found.min_offset),
            varint_field(4, found.max_offset),
            *_frames(5, messages),
        ]
        answer = b"".join(parts)
        if group is not None:
            stats = self._broker.stats.group_topic(group.group_id, topic.topic_id)
            stats.messages_out += len(messages)
            stats.bytes_out += len(answer)
            stats.went([message.store_ms for message in messages], self._broker.clock.now_ms())
        return answer

    def _handed(self, group: GroupConfig, topic: TopicConfig, queue: MessageQueue, client_id: str, until: int) -> None:
        """The holder of the queue gets what is below `until`."""
        progress = self._broker.progress.queue(group.group_id, topic.topic_id, queue.queue_id)
        if progress is not None and progress.handed < until:
            fences = self._broker.sessions.fences
            if not (fences and fences.ignores(group.name, queue, client_id, now_ms=self._broker.clock.monotonic_ms())):
                progress.handed = until

    def _must_hold(self, group: str, asked: data_pb2.PullRequest, queue: MessageQueue) -> None:
        locking = self._broker.cluster.sessions.locking
        locking.must_stay()
        locking.must_hold(group, asked.client_id, queue, generation_of(asked.generation), owner=asked.owner)

    async def _found(
        self,
        topic: TopicConfig,
        queue: MessageQueue,
        asked: data_pb2.PullRequest,
        wanted: MessageFilter,
        until_ms: int,
    ) -> ReadResult | IllegalOffset:
        # Reads until something fits the filter, the queue's end is reached and the time is over, or the queue is gone.
        # A filter has turns with everybody else, and an end: the answer says where to go on.
        count = min(asked.batch_max or PULL_DEFAULT, PULL_MAX)
        size = min(asked.bytes_max or PULL_BYTES_DEFAULT, self._broker.settings.receive_bytes_max)
        position, queue_id = asked.offset, queue.queue_id
        turns = 0
        while True:
            low, high = self._broker.store.queue_range(topic.topic_id, queue_id)
            if not low <= position <= high:
                return _out_of_range(position, low, high)
            found = await self._read(topic.topic_id, queue_id, position, count, size, wanted)
            left_ms = until_ms - self._broker.clock.monotonic_ms()
            turns += 1
            if found.messages or (left_ms <= 0 and (found.next_offset >= high or turns >= TURNS_MIN)):
                return found
            stepped, position = found.next_offset > position, found.next_offset
            if position < found.max_offset and stepped:
                await self._broker.clock.sleep_ms(0)
                continue
            grown = [(topic.topic_id, queue_id, position)]
            if left_ms <= 0 or not await self._broker.wait_for_growth(grown, left_ms):
                return found
            self._readable(asked.queue)
            if asked.group:
                self._must_hold(asked.group, asked, queue)

    async def _read(
        self, topic_id: int, queue_id: int, start: int, count: int, size: int, wanted: MessageFilter
    ) -> ReadResult:
        store, look, hashes = self._broker.store, wanted.look(count), wanted.tag_hashes
        found = store.read_hot(topic_id, queue_id, start, count_max=look, bytes_max=size, tag_hashes=hashes)
        if found is None:
            found = await store.read(topic_id, queue_id, start, count_max=look, bytes_max=size, tag_hashes=hashes)
        return found if wanted is EVERYTHING else wanted.sift(found, count)

    async def scan(self, request: bytes, context: RpcContext) -> AsyncGenerator[bytes, None]:
        asked = parsed(data_pb2.ScanRequest, request)
        topic, queue = self._readable(asked.queue)
        uid = self._broker.queue_uid(topic)
        if asked.uid not in {"", uid}:
            raise PreconditionFailed(
                f"queue {queue} was made anew: the range was planned with uid {asked.uid}, it has {uid} now; ask for "
                "its offsets again"
            )
        wanted = _wanted(asked.filter)
        size = asked.block_bytes or SCAN_BYTES_DEFAULT
        size = min(max(size, SCAN_BYTES_MIN), self._broker.settings.receive_bytes_max)
        low, high = self._broker.store.queue_range(topic.topic_id, queue.queue_id)
        position, end = asked.start, min(asked.end, high)
        if not low <= position <= high:
            yield _scan_refused(_out_of_range(position, low, high), context)
            return
        taken = self._taken(asked.group, topic)
        if wanted is EVERYTHING and asked.records.version == FRAME_VERSION:
            told = asked.records
            kept = Kept(head=told.head, system=told.system, check=not told.verifies)
            async for frame in self._records(topic, queue, position, end, size, kept, context, taken):
                yield frame
            return
        look = SCAN_LOOK_FIRST if wanted is EVERYTHING else SCAN_COUNT_MAX
        while position < end:
            count = min(end - position, look)
            found = await self._read(topic.topic_id, queue.queue_id, position, count, size, wanted)
            if position < found.min_offset:
                yield _scan_refused(_out_of_range(position, found.min_offset, found.max_offset), context)
                return
            messages = [message for message in found.messages if message.queue_offset < end]
            following = min(found.next_offset, end)
            head = (SCAN_OK, varint_field(2, position), varint_field(3, following))
            block = b"".join((*head, *_frames(4, messages)))
            taken.messages_out += len(messages)
            taken.bytes_out += len(block)
            yield block
            if following <= position:  # deleted under the reader
                return
            position = following
            look = _next_look(len(messages), count) if wanted is EVERYTHING else look

    async def _records(
        self, topic: TopicConfig, queue: MessageQueue, position: int, end: int, size: int, kept: Kept,
        context: RpcContext, taken: GroupTopicStats,
    ) -> AsyncGenerator[bytes, None]:  # fmt: skip
        """The blocks of a scan as records: what is in the log goes out as it is."""
        parts = b"".join((varint_field(1, kept.head), varint_field(2, kept.system)))
        look = SCAN_LOOK_FIRST
        while position < end:
            count = min(end - position, look)
            found = await self._broker.store.read_block(
                topic.topic_id, queue.queue_id, position, count_max=count, bytes_max=size, kept=kept
            )
            if position < found.min_offset:
                yield _scan_refused(_out_of_range(position, found.min_offset, found.max_offset), context)
                return
            if found.next_offset <= position:  # gone with its topic
                return
            sizes = field(3, found.packed_sizes)
            length = sum(map(len, found.frames))
            before = (parts, varint_field(5, found.checked), sizes, b"\x22", varint(length))  # 4 frames
            inner = sum(map(len, before)) + length
            head = (SCAN_OK, varint_field(2, position), varint_field(3, found.next_offset), b"\x2a", varint(inner))
            block = b"".join((*head, *before, *found.frames))  # 5 records
            found.give_back()
            taken.messages_out += len(found.sizes)
            taken.bytes_out += len(block)
            yield block
            position = found.next_offset
            look = _next_look(len(found.sizes), count)

    def _taken(self, name: str, topic: TopicConfig) -> GroupTopicStats:
        """Where a scan counts what it gives: at the group that it names, if that is one. A scan makes none."""
        group = self._broker.groups.get(name) if name else None
        return GroupTopicStats() if group is None else self._broker.stats.group_topic(group.group_id, topic.topic_id)

    # ------------------------------------------------------------------------------------------------ offsets

    async def query_offsets(self, request: bytes, context: RpcContext) -> bytes:
        asked = parsed(data_pb2.QueryOffsetsRequest, request)
        queues = self._queues(asked)
        known = list(asked.known_max)
        if known and len(known) != len(queues):
            raise BadRequest(f"{len(known)} known_max for {len(queues)} queues; give one per queue, or none")
        if asked.wait_ms > 0:
            store = self._broker.store
            ends = known or [store.queue_range(topic.topic_id, queue.queue_id)[1] for topic, queue in queues]
            watched = [(t.topic_id, q.queue_id, end) for (t, q), end in zip(queues, ends, strict=True)]
            left_ms = self._until_ms(asked.wait_ms, context) - self._broker.clock.monotonic_ms()
            if left_ms > 0:
                await self._broker.wait_for_growth(watched, left_ms)
        group = self._broker.groups.get(asked.group) if asked.group else None
        response = data_pb2.QueryOffsetsResponse(status=OK)
        for (topic, queue), mark_at in zip(queues, marks_asked(asked.mark_at, len(queues)), strict=True):
            offsets = await self._offsets(topic, queue, group, asked.timestamp_ms)
            offsets.mark = await self._mark(topic, queue, mark_at) if mark_at > 0 else ""
            response.offsets.append(offsets)
        return response.SerializeToString()

    async def _mark(self, topic: TopicConfig, queue: MessageQueue, offset: int) -> str:
        """Of the message before an offset; empty: it is not there."""
        await self._broker.clock.sleep_ms(0)  # a read from memory does not give way
        found = await self._broker.store.read_at(topic.topic_id, queue.queue_id, [offset - 1])
        return "".join(mark_of(one.store_ms, one.head, one.system) for one in found)

    async def _offsets(
        self, topic: TopicConfig, queue: MessageQueue, group: GroupConfig | None, timestamp_ms: int
    ) -> data_pb2.QueueOffsets:
        place = (topic.topic_id, queue.queue_id)
        low, high = self._broker.store.queue_range(*place)
        committed = None if group is None else self._broker.progress.committed(group.group_id, *place)
        at = await self._broker.store.offset_at(*place, timestamp_ms) if timestamp_ms > 0 else -1
        return data_pb2.QueueOffsets(
            queue=queue_message(queue),
            min_offset=low,
            max_offset=high,
            committed=-1 if committed is None else committed,
            timestamp_offset=at,
            uid=self._broker.queue_uid(topic),
            young=group is not None and committed is None and low == 0 < high and self._in_memory(*place),
        )

    def _in_memory(self, topic_id: int, queue_id: int) -> bool:
        """Whether the queue's first message can be read without the disk (RB-46)."""
        return self._broker.store.read_hot(topic_id, queue_id, 0, count_max=1, bytes_max=1, tag_hashes=None) is not None

    def _queues(self, asked: data_pb2.QueryOffsetsRequest) -> list[tuple[TopicConfig, MessageQueue]]:
        if len(asked.queues) > QUEUES_MAX:
            raise BadRequest(f"{len(asked.queues)} queues in one call, the limit is {QUEUES_MAX}; ask in parts")
        if asked.queues or not asked.topic:
            return [self._readable(queue) for queue in asked.queues]
        own = self._broker.settings.broker_name
        topic = self._topic(asked.topic)
        return [(topic, MessageQueue(topic.name, own, queue_id)) for queue_id in range(topic.read_queues)]

    async def commit_offsets(self, request: bytes, _context: RpcContext) -> bytes:
        asked = parsed(data_pb2.CommitOffsetsRequest, request)
        if len(asked.offsets) > QUEUES_MAX:
            raise BadRequest(f"{len(asked.offsets)} queues in one call, the limit is {QUEUES_MAX}; commit in parts")
        group = await self._broker.ensure_group(asked.group)
        generation = generation_of(asked.generation)
        places = [(*self._readable(told.queue), told.offset) for told in asked.offsets]
        refused: PreconditionFailed | None = None
        for place in list(places):
            topic, queue, offset = place
            try:
                self._broker.cluster.sessions.locking.must_hold(
                    group.name, asked.client_id, queue, generation, commits=True
                )
            except PreconditionFailed as error:  # what is still its own is kept all the same
                refused = error
                places.remove(place)
                continue
            low, high = self._broker.store.queue_range(topic.topic_id, queue.queue_id)
            if not 0 <= offset <= high:
                raise _out_of_range(offset, low, high)
        waits = [
            self._commit(group, topic, queue, asked.client_id, offset, allow_backward=asked.allow_backward)
            for topic, queue, offset in places
        ]
        for wait in waits:
            if wait is not None:
                await wait
        if refused is not None:
            raise refused
        return data_pb2.CommitOffsetsResponse(status=OK).SerializeToString()

    def _commit(
        self,
        group: GroupConfig,
        topic: TopicConfig,
        queue: MessageQueue,
        client_id: str,
        offset: int,
        *,
        allow_backward: bool = False,
    ) -> asyncio.Future[None] | None:
        fences = self._broker.sessions.fences
        if fences and fences.ignores(group.name, queue, client_id, now_ms=self._broker.clock.monotonic_ms()):
            return None  # an operator moved the group, and this member has not begun again yet
        place = (group.group_id, topic.topic_id, queue.queue_id)
        if not self._broker.progress.commit(*place, offset, allow_backward=allow_backward):
            return None
        return self._broker.journal.record(Committed(*place, offset, reset=allow_backward))

    # ------------------------------------------------------------------------------------------------ deliveries

    async def count_deliveries(self, request: bytes, _context: RpcContext) -> bytes:
        """What the holder of a queue says of deliveries that begin, or that it leaves unfinished."""
        asked = parsed(data_pb2.CountDeliveriesRequest, request)
        topic, queue = self._readable(asked.queue)
        group = self._group(asked.group)
        if len(asked.counts) > COUNTS_MAX:
            raise BadRequest(f"{len(asked.counts)} deliveries in one call, the limit is {COUNTS_MAX}; count in parts")
        deliveries = {told.offset: FINISHED if told.finished else told.deliveries for told in asked.counts}
        wrong = [offset for offset, number in deliveries.items() if offset < 0 or not 1 <= number <= FINISHED]
        if wrong or asked.given_until < 0:
            raise BadRequest(
                f"offset {(*wrong, asked.given_until)[0]} or its count of deliveries is out of range: offsets begin at "
                f"0, counts are 1 to {FINISHED - 1}"
            )
        locking = self._broker.cluster.sessions.locking
        locking.must_hold(group.name, asked.client_id, queue, generation_of(asked.generation), owner=True)
        progress = self._broker.progress.queue(group.group_id, topic.topic_id, queue.queue_id)
        if progress is None:
            raise PreconditionFailed(f"group {group.name} has no offset on queue {queue} yet; commit its start first")
        record = counted(self._broker, progress, deliveries, given_until=asked.given_until)
        if record is not None:
            await record
        return data_pb2.CountDeliveriesResponse(status=OK).SerializeToString()

    # ------------------------------------------------------------------------------------------------ send back

    async def send_back(self, request: bytes, _context: RpcContext) -> bytes:
        """RD-5: to the dead-letter topic, or as a delayed copy to the retry topic."""
        asked = parsed(data_pb2.SendBackRequest, request)
        topic, queue = self._readable(asked.queue)
        group = self._group(asked.group)
        place = (self._broker, group, topic, queue.queue_id, asked.queue_offset)
        progress = self._broker.progress.queue(group.group_id, topic.topic_id, queue.queue_id)
        counts = {} if progress is None else progress.counts
        counted_before = counts.get(asked.queue_offset, 0) % FINISHED
        attempts = max(asked.attempts, counted_before, await attempts_before(*place))
        over = asked.delay_level < 0 or attempts >= group.max_attempts
        if over:
            reason = Reason.ATTEMPTS if attempts >= group.max_attempts else Reason.SENT_BACK
            done = await bury(*place, attempts=max(0, attempts), reason=reason)
        else:
            done = await retry_later(*place, level=asked.delay_level, attempts=max(1, attempts))
        if not done:
            low, high = self._broker.store.queue_range(topic.topic_id, queue.queue_id)
            raise _out_of_range(asked.queue_offset, low, high)
        self._broker.stats.group_topic(group.group_id, topic.topic_id).given_back += 1
        return data_pb2.SendBackResponse(status=OK, dead_lettered=over).SerializeToString()

    # ------------------------------------------------------------------------------------------------ which queue

    def _group(self, name: str) -> GroupConfig:
        group = self._broker.groups.get(name)
        if group is None:
            raise GroupNotFound(f"no consumer group {name!r}; create it with `evenq group create {name}`")
        return group

    def _topic(self, name: str) -> TopicConfig:
        topic = self._broker.topics.get(name)
        if topic is None:
            own = self._broker.settings.broker_name
            raise TopicNotFound(f"no topic {name!r} on broker {own}; create it with `evenq topic create {name}`")
        return topic

    def _readable(self, told: common_pb2.Queue) -> tuple[TopicConfig, MessageQueue]:
        must_be_here(self._broker, told)
        topic = self._topic(told.topic)
        if not 0 <= told.queue_id < topic.queues_ever:  # offsets of a closed queue are still told and committed
            raise BadRequest(
                f"topic {topic.name} has queues 0 to {topic.read_queues - 1} on this broker, not {told.queue_id}"
            )
        return topic, MessageQueue(topic.name, self._broker.settings.broker_name, told.queue_id)

    def _until_ms(self, wait_ms: int, context: RpcContext) -> int:
        settings = self._broker.settings
        now_ms = self._broker.clock.monotonic_ms()
        until_ms = now_ms + min(max(wait_ms, 0), settings.poll_max_ms)
        if context.deadline_ms is not None:
            until_ms = min(until_ms, context.deadline_ms - settings.poll_margin_ms)
        return until_ms


def must_be_readable(topic: TopicConfig, queue_id: int) -> None:
    """Raises PreconditionFailed for a queue that was closed: whoever asks has an old route."""
    if queue_id >= topic.read_queues or not topic.permission.readable:
        raise PreconditionFailed(
            f"queue {queue_id} of topic {topic.name} is not read any more: it has {topic.read_queues} queues here now, "
            f"its permission is {topic.permission.name}; ask for the route again"
        )


def _frames(number: int, messages: Iterable[StoredMessage]) -> Iterable[bytes]:
    return (field(number, delivered(m, extra=extra_fields(m.queue_id, m.queue_offset, m.store_ms))) for m in messages)


def _wanted(told: common_pb2.Filter) -> MessageFilter:
    wanted = filter_of(told)
    return message_filter(wanted.expression, is_sql=wanted.type is FilterType.SQL)


def _out_of_range(offset: int, low: int, high: int) -> IllegalOffset:
    return IllegalOffset(
        f"offset {offset} is outside {low} to {high}, what the queue holds; read on at {low}, or wait at {high}",
        min_offset=low,
        max_offset=high,
    )


def _next_look(taken: int, count: int) -> int:
    """How many entries to look at for the next block: about as many messages fit into it as into the last one."""
    return min(2 * taken if taken == count else taken + taken // 8 + 8, SCAN_COUNT_MAX)


def _scan_refused(error: IllegalOffset, context: RpcContext) -> bytes:
    return data_pb2.ScanBlock(
        status=status_of(error, context.language), first_offset=error.min_offset, next_offset=error.max_offset
    ).SerializeToString()
