"""`evenq.v1.Data`: blocks in (`rpc.sending.publishing`), blocks out, and offsets (`rpc.delivery.member_progress`), for
members that keep their own progress.

The hot path: what is stored goes out as it is (`core.state.frames`), behind a few fields written by hand; nothing is
parsed or encoded again. Reads are answered from memory without leaving the call; only what is not there waits for the
disk. A pull that finds nothing is parked and woken by the dispatch of new messages (LP-1, LP-3).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from dataclasses import replace

from evenq.errors import (
    IllegalOffset,
    MessageNotFound,
    PreconditionFailed,
)
from evenq.model import FilterType, GroupConfig, MessageQueue, TopicConfig
from evenq.serving.rpc import CallKind, Frames, MessagePieces, Rpc, RpcContext
from evenq.store import Kept, ReadResult, StoredMessage
from evenq.wire.status import status_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2
from evenq_broker.core.dead_letters.delayed_retries import DelayedRetries
from evenq_broker.core.delivery.filters import EVERYTHING, TURNS_MIN, MessageFilter
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.core.state.frames import delivered, extra_fields, field, varint, varint_field
from evenq_broker.loops.cluster.cluster_catalog import ClusterCatalog
from evenq_broker.loops.groups.sessions import Sessions
from evenq_broker.loops.polls.waiting import LongPolls
from evenq_broker.loops.sending.dedup import Deduplicator
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.loops.wire.stored_messages import message_filter
from evenq_broker.loops.wire.translation import filter_of, generation_of
from evenq_broker.rpc.access import rpc
from evenq_broker.rpc.answers import parsed
from evenq_broker.rpc.delivery.member_progress import MemberProgress
from evenq_broker.rpc.delivery.named_queues import NamedQueues, out_of_range
from evenq_broker.rpc.sending.publishing import Publishing
from evenq_broker.runtime import Runtime
from evenq_broker.stats import GroupTopicStats

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


def rpcs(
    runtime: Runtime,
    catalog: Catalog,
    ledger: Ledger,
    *,
    cluster_catalog: ClusterCatalog,
    membership: GroupTables,
    sessions: Sessions,
    long_polls: LongPolls,
    deduplicator: Deduplicator | None,
    delayed_retries: DelayedRetries,
) -> list[Rpc]:
    """The calls of this module."""
    progress = MemberProgress(
        runtime, catalog, ledger, sessions=sessions, long_polls=long_polls, delayed_retries=delayed_retries
    )
    data = _Data(
        runtime, catalog, ledger, membership=membership, sessions=sessions, long_polls=long_polls, progress=progress
    )
    publishing = Publishing(runtime, catalog, ledger, cluster_catalog=cluster_catalog, deduplicator=deduplicator)
    service = "/evenq.v1.Data/"
    return [
        replace(rpc(service + "Publish", publishing.publish, data_pb2.PublishResponse), plain=publishing.plain),
        rpc(service + "Pull", data.pull, data_pb2.PullResponse),
        rpc(service + "Scan", data.scan, data_pb2.ScanBlock, CallKind.SERVER_STREAM),
        rpc(service + "QueryOffsets", progress.query_offsets, data_pb2.QueryOffsetsResponse),
        rpc(service + "CommitOffsets", progress.commit_offsets, data_pb2.CommitOffsetsResponse),
        rpc(service + "CountDeliveries", progress.count_deliveries, data_pb2.CountDeliveriesResponse),
        rpc(service + "SendBack", progress.send_back, data_pb2.SendBackResponse),
    ]


class _Data:
    def __init__(
        self,
        runtime: Runtime,
        catalog: Catalog,
        ledger: Ledger,
        *,
        membership: GroupTables,
        sessions: Sessions,
        long_polls: LongPolls,
        progress: MemberProgress,
    ) -> None:
        self._runtime, self._catalog, self._ledger = runtime, catalog, ledger
        self._membership, self._sessions, self._long_polls = membership, sessions, long_polls
        self._progress, self._named = progress, NamedQueues(runtime, catalog)

    # ------------------------------------------------------------------------------------------------ pull and scan

    async def pull(self, data: bytes, context: RpcContext) -> bytes:
        request = parsed(data_pb2.PullRequest, data)
        topic, queue = self._named.readable(request.queue)
        must_be_readable(topic, queue.queue_id)
        group = await self._catalog.ensure_group(request.group) if request.group else None
        if group is not None:
            sessions = self._sessions
            generation = generation_of(request.generation)
            self._must_hold(group.name, request, queue)
            if sessions.fences:
                sessions.fences.read(group.name, queue, request.client_id, request.offset)
            known = 0 <= request.committed <= self._ledger.store.queue_range(topic.topic_id, queue.queue_id)[1]
            if known and sessions.locking.may_commit(group.name, request.client_id, queue, generation):
                self._progress.commit(group, topic, queue, request.client_id, request.committed)
        wanted = _filter_of(request.filter)
        until_ms = self._named.until_ms(request.wait_ms, context)
        seen = self._membership.locks.changes
        result = await self._read_until(topic, queue, request, wanted, until_ms)
        if group is not None and self._membership.locks.changes != seen:  # maybe it changed hands meanwhile
            self._must_hold(group.name, request, queue)
        if isinstance(result, IllegalOffset):
            return data_pb2.PullResponse(
                status=status_of(result, context.language),
                next_offset=min(max(request.offset, result.min_offset), result.max_offset),
                min_offset=result.min_offset,
                max_offset=result.max_offset,
            ).SerializeToString()
        messages = result.messages
        if group is not None and request.owner:
            self._handed(group, topic, queue, request.client_id, result.next_offset)
        if not messages:
            empty = MessageNotFound(f"nothing new in queue {queue} at {result.next_offset}")
            return data_pb2.PullResponse(
                status=status_of(empty),
                next_offset=result.next_offset,
                min_offset=result.min_offset,
                max_offset=result.max_offset,
            ).SerializeToString()
        parts = [
            PULL_OK,
            varint_field(2, result.next_offset),
            varint_field(3, result.min_offset),
            varint_field(4, result.max_offset),
            *_frames(5, messages),
        ]
        response = b"".join(parts)
        if group is not None:
            stats = self._runtime.stats.group_topic(group.group_id, topic.topic_id)
            stats.messages_out += len(messages)
            stats.bytes_out += len(response)
            stats.went([message.store_ms for message in messages], self._runtime.clock.now_ms())
        return response

    def _handed(self, group: GroupConfig, topic: TopicConfig, queue: MessageQueue, client_id: str, until: int) -> None:
        """The holder of the queue gets what is below `until`."""
        progress = self._ledger.progress.queue(group.group_id, topic.topic_id, queue.queue_id)
        if progress is not None and progress.handed < until:
            fences = self._sessions.fences
            if not (fences and fences.ignores(group.name, queue, client_id, now_ms=self._runtime.clock.monotonic_ms())):
                progress.handed = until

    def _must_hold(self, group: str, request: data_pb2.PullRequest, queue: MessageQueue) -> None:
        locking = self._sessions.locking
        locking.must_stay()
        locking.must_hold(group, request.client_id, queue, generation_of(request.generation), owner=request.owner)

    async def _read_until(
        self,
        topic: TopicConfig,
        queue: MessageQueue,
        request: data_pb2.PullRequest,
        wanted: MessageFilter,
        until_ms: int,
    ) -> ReadResult | IllegalOffset:
        # Reads until something fits the filter, the queue's end is reached and the time is over, or the queue is gone.
        # A filter has turns with everybody else, and an end: the answer says where to go on.
        count = min(request.batch_max or PULL_DEFAULT, PULL_MAX)
        size = min(request.bytes_max or PULL_BYTES_DEFAULT, self._runtime.settings.receive_bytes_max)
        position, queue_id = request.offset, queue.queue_id
        turns = 0
        while True:
            low, high = self._ledger.store.queue_range(topic.topic_id, queue_id)
            if not low <= position <= high:
                return out_of_range(position, low, high)
            result = await self._read(topic.topic_id, queue_id, position, count, size, wanted)
            left_ms = until_ms - self._runtime.clock.monotonic_ms()
            turns += 1
            if result.messages or (left_ms <= 0 and (result.next_offset >= high or turns >= TURNS_MIN)):
                return result
            stepped, position = result.next_offset > position, result.next_offset
            if position < result.max_offset and stepped:
                await self._runtime.clock.sleep_ms(0)
                continue
            grown = [(topic.topic_id, queue_id, position)]
            if left_ms <= 0 or not await self._long_polls.for_growth(grown, left_ms):
                return result
            self._named.readable(request.queue)
            if request.group:
                self._must_hold(request.group, request, queue)

    async def _read(
        self, topic_id: int, queue_id: int, start: int, count: int, size: int, wanted: MessageFilter
    ) -> ReadResult:
        store, look, hashes = self._ledger.store, wanted.look(count), wanted.tag_hashes
        result = store.read_hot(topic_id, queue_id, start, count_max=look, bytes_max=size, tag_hashes=hashes)
        if result is None:
            result = await store.read(topic_id, queue_id, start, count_max=look, bytes_max=size, tag_hashes=hashes)
        return result if wanted is EVERYTHING else wanted.sift(result, count)

    async def scan(self, data: bytes, context: RpcContext) -> AsyncGenerator[Frames, None]:
        request = parsed(data_pb2.ScanRequest, data)
        topic, queue = self._named.readable(request.queue)
        uid = self._catalog.queue_uid(topic)
        if request.uid not in {"", uid}:
            raise PreconditionFailed(
                f"queue {queue} was deleted and created again: the range was planned with uid {request.uid}, it has "
                f"{uid} now; ask for "
                "its offsets again"
            )
        wanted = _filter_of(request.filter)
        size = request.block_bytes or SCAN_BYTES_DEFAULT
        size = min(max(size, SCAN_BYTES_MIN), self._runtime.settings.receive_bytes_max)
        low, high = self._ledger.store.queue_range(topic.topic_id, queue.queue_id)
        position, end = request.start, min(request.end, high)
        if not low <= position <= high:
            yield _scan_refused(out_of_range(position, low, high), context)
            return
        taken = self._taken(request.group, topic)
        if wanted is EVERYTHING and request.records.version == FRAME_VERSION:
            records = request.records
            kept = Kept(head=records.head, system=records.system, check=not records.verifies)
            async for frame in self._records(topic, queue, position, end, size, kept, context, taken):
                yield frame
            return
        look = SCAN_LOOK_FIRST if wanted is EVERYTHING else SCAN_COUNT_MAX
        while position < end:
            count = min(end - position, look)
            result = await self._read(topic.topic_id, queue.queue_id, position, count, size, wanted)
            if position < result.min_offset:
                yield _scan_refused(out_of_range(position, result.min_offset, result.max_offset), context)
                return
            messages = [message for message in result.messages if message.queue_offset < end]
            following = min(result.next_offset, end)
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
    ) -> AsyncGenerator[Frames, None]:  # fmt: skip
        """The blocks of a scan as records: what is in the log goes out as it is."""
        parts = b"".join((varint_field(1, kept.head), varint_field(2, kept.system)))
        look = SCAN_LOOK_FIRST
        while position < end:
            count = min(end - position, look)
            stored = await self._ledger.store.read_block(
                topic.topic_id, queue.queue_id, position, count_max=count, bytes_max=size, kept=kept
            )
            if position < stored.min_offset:
                yield _scan_refused(out_of_range(position, stored.min_offset, stored.max_offset), context)
                return
            if stored.next_offset <= position:  # gone with its topic
                return
            sizes = field(3, stored.packed_sizes)
            length = sum(map(len, stored.frames))
            before = (parts, varint_field(5, stored.checked), sizes, b"\x22", varint(length))  # 4 frames
            inner = sum(map(len, before)) + length
            head = (SCAN_OK, varint_field(2, position), varint_field(3, stored.next_offset), b"\x2a", varint(inner))
            block = MessagePieces([b"".join((*head, *before)), *stored.pieces()])  # 5 records
            stored.give_back()
            taken.messages_out += len(stored.sizes)
            taken.bytes_out += len(block.parts[0]) + length
            yield block
            del block
            position = stored.next_offset
            look = _next_look(len(stored.sizes), count)

    def _taken(self, name: str, topic: TopicConfig) -> GroupTopicStats:
        """Where a scan counts what it gives: at the group that it names, if that is one. A scan makes none."""
        group = self._catalog.groups.get(name) if name else None
        return GroupTopicStats() if group is None else self._runtime.stats.group_topic(group.group_id, topic.topic_id)


def must_be_readable(topic: TopicConfig, queue_id: int) -> None:
    """Raises PreconditionFailed for a queue that was closed: whoever asks has an old route."""
    if queue_id >= topic.read_queues or not topic.permission.readable:
        raise PreconditionFailed(
            f"queue {queue_id} of topic {topic.name} is not read any more: it has {topic.read_queues} queues here now, "
            f"its permission is {topic.permission.name}; ask for the route again"
        )


def _frames(number: int, messages: Iterable[StoredMessage]) -> Iterable[bytes]:
    return (field(number, delivered(m, extra=extra_fields(m.queue_id, m.queue_offset, m.store_ms))) for m in messages)


def _filter_of(requested: common_pb2.Filter) -> MessageFilter:
    expression = filter_of(requested)
    return message_filter(expression.expression, is_sql=expression.type is FilterType.SQL)


def _next_look(taken: int, count: int) -> int:
    """How many entries to look at for the next block: about as many messages fit into it as into the last one."""
    return min(2 * taken if taken == count else taken + taken // 8 + 8, SCAN_COUNT_MAX)


def _scan_refused(error: IllegalOffset, context: RpcContext) -> bytes:
    return data_pb2.ScanBlock(
        status=status_of(error, context.language), first_offset=error.min_offset, next_offset=error.max_offset
    ).SerializeToString()
