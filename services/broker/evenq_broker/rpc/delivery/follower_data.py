"""Reads by offset at a follower: `Pull`, `Scan` and `QueryOffsets` of `evenq.v1.Data`, at its address for other copies.

Only for callers that set `any_copy`. A follower has no locks and sessions, and no reliable progress. So it refuses
owners of queues, returns no committed offsets, and changes no progress: those calls go to the leader. It never reports
that an offset is after the end of a queue: its leader may have more messages.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from evenq.errors import BadRequest, HaNotAvailable, PreconditionFailed, QueueReplaced
from evenq.model import MessageQueue, TopicConfig
from evenq.serving.auth.calls import rpc
from evenq.serving.rpc import Frames, Rpc, RpcContext
from evenq.store import ReadResult
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2
from evenq_broker.core.delivery.filters import TURNS_MIN
from evenq_broker.loops.replication.follower_reads import FollowerReads, FollowerView
from evenq_broker.loops.wire.translation import queue_message
from evenq_broker.rpc.answers import OK, parsed
from evenq_broker.rpc.delivery.member_progress import QUEUES_MAX
from evenq_broker.rpc.delivery.named_queues import NamedQueues, out_of_range
from evenq_broker.rpc.delivery.queue_blocks import (
    PULL_BYTES_DEFAULT,
    PULL_DEFAULT,
    PULL_MAX,
    compiled_filter,
    must_be_readable,
    nothing_new,
    outside,
    pulled,
    read_queue,
    replaced,
    scan_size,
    scanned,
)
from evenq_broker.runtime import Runtime
from evenq_broker.stats import GroupTopicStats


def follower_rpcs(runtime: Runtime, reads: FollowerReads) -> list[Rpc]:
    data, service = _FollowerData(runtime, reads), "/evenq.v1.Data/"
    return [
        rpc(service + "Pull", data.pull),
        rpc(service + "Scan", data.scan),
        rpc(service + "QueryOffsets", data.query_offsets),
    ]


class _FollowerData:
    def __init__(self, runtime: Runtime, reads: FollowerReads) -> None:
        self._runtime, self._reads = runtime, reads

    async def pull(self, data: bytes, context: RpcContext) -> bytes:
        request = parsed(data_pb2.PullRequest, data)
        _must_take_any(any_copy=request.any_copy)
        if request.owner:
            raise PreconditionFailed("the owner of a queue must read from the leader, which keeps the queue's lock")
        requested_filter = compiled_filter(request.filter)
        count = min(request.batch_max or PULL_DEFAULT, PULL_MAX)
        size = min(request.bytes_max or PULL_BYTES_DEFAULT, self._runtime.settings.receive_bytes_max)
        position, turns, until_ms = request.offset, 0, 0
        while True:
            view = await self._reads.view()
            named = NamedQueues(self._runtime, view.names)
            until_ms = until_ms or named.until_ms(request.wait_ms, context)
            try:
                topic, queue = _readable(named, request.queue, request.uid)
            except QueueReplaced as error:
                return replaced(error, context)
            low, high = view.log.queue_range(topic.topic_id, queue.queue_id)
            if position < low:
                return outside(out_of_range(position, low, high), position, context)
            result = ReadResult([], position, low, high)
            if position < high:
                result = await read_queue(
                    view.log, topic.topic_id, queue.queue_id, position, count, size, requested_filter
                )
            if result.messages:
                self._reads.messages_out += len(result.messages)
                return pulled(result)
            turns += 1
            stepped, position = result.next_offset > position, result.next_offset
            left_ms = until_ms - self._runtime.clock.monotonic_ms()
            if left_ms <= 0 and (position >= high or turns >= TURNS_MIN):
                return nothing_new(queue, result)
            if stepped and position < result.max_offset:
                await self._runtime.clock.sleep_ms(0)
            elif left_ms <= 0:
                return nothing_new(queue, result)
            else:
                await self._reads.grown(view.log.end, left_ms)

    async def scan(self, data: bytes, context: RpcContext) -> AsyncGenerator[Frames, None]:
        request = parsed(data_pb2.ScanRequest, data)
        _must_take_any(any_copy=request.any_copy)
        view = await self._reads.view()
        topic, queue = NamedQueues(self._runtime, view.names).readable(request.queue, request.uid)
        ids = (topic.topic_id, queue.queue_id)
        if request.start > view.log.queue_range(*ids)[1]:
            raise HaNotAvailable(f"this copy does not know yet that queue {queue} is committed up to {request.start}")
        size = scan_size(request, self._runtime.settings.receive_bytes_max)
        taken = GroupTopicStats()
        try:
            async for block in scanned(view.log, *ids, request, context, size=size, taken=taken):
                yield block
        finally:
            self._reads.messages_out += taken.messages_out

    async def query_offsets(self, data: bytes, _context: RpcContext) -> bytes:
        request = parsed(data_pb2.QueryOffsetsRequest, data)
        _must_take_any(any_copy=request.any_copy)
        if request.group or request.wait_ms or any(request.mark_at):
            raise BadRequest(
                "a follower returns ranges of queues only; query the leader for progress, growth and marks"
            )
        view = await self._reads.view()
        response = data_pb2.QueryOffsetsResponse(status=OK)
        for topic, queue in self._queues(view, request):
            response.offsets.append(await _offsets(view, topic, queue, request.timestamp_ms))
        return response.SerializeToString()

    def _queues(
        self, view: FollowerView, request: data_pb2.QueryOffsetsRequest
    ) -> list[tuple[TopicConfig, MessageQueue]]:
        if len(request.queues) > QUEUES_MAX:
            raise BadRequest(f"{len(request.queues)} queues in one call, the limit is {QUEUES_MAX}; use several calls")
        named = NamedQueues(self._runtime, view.names)
        if request.queues or not request.topic:
            return [named.readable(queue) for queue in request.queues]
        topic, own = named.topic(request.topic), self._runtime.settings.broker_name
        return [(topic, MessageQueue(topic.name, own, queue_id)) for queue_id in range(topic.read_queues)]


async def _offsets(
    view: FollowerView, topic: TopicConfig, queue: MessageQueue, timestamp_ms: int
) -> data_pb2.QueueOffsets:
    ids = (topic.topic_id, queue.queue_id)
    low, high = view.log.queue_range(*ids)
    at = await view.log.offset_at(*ids, timestamp_ms) if timestamp_ms > 0 else -1
    return data_pb2.QueueOffsets(
        queue=queue_message(queue),
        min_offset=low,
        max_offset=high,
        committed=-1,
        timestamp_offset=at,
        uid=view.names.queue_uid(topic),
    )


def _readable(named: NamedQueues, requested_queue: common_pb2.Queue, uid: str) -> tuple[TopicConfig, MessageQueue]:
    topic, queue = named.readable(requested_queue, uid)
    must_be_readable(topic, queue.queue_id)
    return topic, queue


def _must_take_any(*, any_copy: bool) -> None:
    if not any_copy:
        raise HaNotAvailable("this copy is a follower, and the call does not set any_copy; call the leader")
