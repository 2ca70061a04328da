"""Pulls of the v2 protocol (wire contract 7), which tools may use; no SDK does. Queue ids are those of the route."""

from __future__ import annotations

from collections.abc import AsyncIterator

from evenq.errors import (
    BadRequest,
    GroupNotFound,
    IllegalOffset,
    MessageNotFound,
    OffsetNotFound,
    PreconditionFailed,
    TopicNotFound,
)
from evenq.model import GroupConfig, TopicConfig
from evenq.serving.rpc import RpcContext
from evenq.store import ReadResult
from evenq.wire.convert import duration_ms_of, requested_ms_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq_broker.core.delivery.filters import TURNS_MIN, MessageFilter
from evenq_broker.core.sending.body_digest import NODE, for_node
from evenq_broker.core.state.frames import delivered, extra_fields, field, varint_field
from evenq_broker.core.state.records import Committed
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.delivery.ending import hold
from evenq_broker.loops.polls.waiting import LongPolls
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.stored_messages import message_filter
from evenq_broker.rpc.answers import OK_STATUS, parsed, status_frame
from evenq_broker.rpc.cluster.forwarding import caller_of, forward, forward_stream, owner_of


class PullHandler:
    """The handlers of PullMessage, UpdateOffset, GetOffset and QueryOffset."""

    def __init__(self, kernel: Kernel, *, cluster: ClusterLink, long_polls: LongPolls) -> None:
        self._kernel = kernel
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._cluster, self._long_polls = cluster, long_polls

    async def pull(self, data: bytes, context: RpcContext) -> AsyncIterator[bytes]:
        """Yields status, messages, and next_offset, the last also without messages (MESSAGE_NOT_FOUND)."""
        request = parsed(service_pb2.PullMessageRequest, data, context)
        if self._runtime.closing:
            await hold(self._runtime, self._until_ms(request, context) - self._runtime.clock.monotonic_ms())
            yield _NOTHING
            yield varint_field(3, request.offset)
            return
        address = owner_of(self._kernel, request.message_queue.broker.name, context, cluster=self._cluster)
        if address is not None:
            async for frame in forward_stream(self._runtime, address, data, context):
                yield frame
            return
        topic, queue_id = self._queue(request.message_queue)
        expression = request.filter_expression
        requested_filter = message_filter(expression.expression, is_sql=expression.type == definition_pb2.SQL)
        until_ms, user = self._until_ms(request, context), caller_of(context)
        result = await self._read_until(request, topic, queue_id, requested_filter, until_ms, user=user)
        yield OK_STATUS if result.messages else _NOTHING
        for message in for_node(result.messages) if context.language == NODE else result.messages:
            extra = extra_fields(queue_id, message.queue_offset, message.store_ms)
            yield field(2, delivered(message, extra=extra))
        yield varint_field(3, result.next_offset)

    async def _read_until(
        self,
        request: service_pb2.PullMessageRequest,
        topic: TopicConfig,
        queue_id: int,
        requested_filter: MessageFilter,
        until_ms: int,
        *,
        user: str,
    ) -> ReadResult:
        # Reads until a message passes the filter, or the queue's end is reached and the time is up.
        settings = self._runtime.settings
        position = request.offset
        count = min(
            request.batch_size if request.batch_size > 0 else settings.receive_batch_max, settings.receive_batch_max
        )
        turns = 0
        while True:
            low, high = self._ledger.store.queue_range(topic.topic_id, queue_id)
            if not low <= position <= high:
                raise IllegalOffset(
                    f"offset {position} is outside {low} to {high} of queue {queue_id} of {topic.name}; "
                    "pull from an offset in this range",
                    min_offset=low,
                    max_offset=high,
                )
            result = await self._ledger.store.read(
                topic.topic_id,
                queue_id,
                position,
                count_max=requested_filter.look(count),
                bytes_max=settings.receive_bytes_max,
                tag_hashes=requested_filter.tag_hashes,
            )
            result = requested_filter.sift(result, count)
            if result.messages:
                return result
            stepped, position = result.next_offset > position, result.next_offset
            left_ms = until_ms - self._runtime.clock.monotonic_ms()
            turns += 1
            if stepped and position < result.max_offset:
                if left_ms <= 0 and turns >= TURNS_MIN:
                    return result
                await self._runtime.clock.sleep_ms(0)
                continue
            grown = [(topic.topic_id, queue_id, position)]
            grew = left_ms > 0 and await self._long_polls.for_growth(grown, left_ms, user=user)
            self._queue_of(topic.name, queue_id)  # it may have been deleted meanwhile
            if not grew:
                return result

    def _until_ms(self, request: service_pb2.PullMessageRequest, context: RpcContext) -> int:
        settings = self._runtime.settings
        now_ms = self._runtime.clock.monotonic_ms()
        until_ms = now_ms + min(max(duration_ms_of(request.long_polling_timeout), 0), settings.poll_max_ms)
        if context.deadline_ms is not None:
            until_ms = min(until_ms, context.deadline_ms - settings.poll_margin_ms)
        return until_ms

    async def update_offset(self, data: bytes, context: RpcContext) -> bytes:
        """Stores the group's next offset of one queue; never moves it backward."""
        request = parsed(service_pb2.UpdateOffsetRequest, data, context)
        address = owner_of(self._kernel, request.message_queue.broker.name, context, cluster=self._cluster)
        if address is not None:
            return await forward(self._runtime, address, data, context)
        topic, queue_id = self._queue(request.message_queue)
        group = self._group(request.group.name)
        low, high = self._ledger.store.queue_range(topic.topic_id, queue_id)
        if not 0 <= request.offset <= high:
            raise IllegalOffset(
                f"offset {request.offset} is outside 0 to {high} of queue {queue_id} of {topic.name}",
                min_offset=low,
                max_offset=high,
            )
        if self._ledger.progress.commit(group.group_id, topic.topic_id, queue_id, request.offset):
            await self._ledger.journal.record(Committed(group.group_id, topic.topic_id, queue_id, request.offset))
        else:
            await self._ledger.journal.still_leads()
        return OK_STATUS

    async def get_offset(self, data: bytes, context: RpcContext) -> bytes:
        request = parsed(service_pb2.GetOffsetRequest, data, context)
        address = owner_of(self._kernel, request.message_queue.broker.name, context, cluster=self._cluster)
        if address is not None:
            return await forward(self._runtime, address, data, context)
        topic, queue_id = self._queue(request.message_queue)
        name = request.group.name
        group = self._catalog.groups.get(name)
        committed = None
        if group is not None:
            committed = self._ledger.progress.committed(group.group_id, topic.topic_id, queue_id)
        await self._ledger.journal.still_leads()  # a successor may know a later offset, or a new group
        if committed is None:
            raise OffsetNotFound(
                f"group {name!r} has no offset on queue {queue_id} of {topic.name} yet; get a start from QueryOffset"
            )
        return OK_STATUS + varint_field(2, committed)

    async def query_offset(self, data: bytes, context: RpcContext) -> bytes:
        """Returns the first offset, the end, or the first offset stored at or after a time."""
        request = parsed(service_pb2.QueryOffsetRequest, data, context)
        address = owner_of(self._kernel, request.message_queue.broker.name, context, cluster=self._cluster)
        if address is not None:
            return await forward(self._runtime, address, data, context)
        topic, queue_id = self._queue(request.message_queue)
        low, high = self._ledger.store.queue_range(topic.topic_id, queue_id)
        match request.query_offset_policy:
            case definition_pb2.BEGINNING:
                offset = low
            case definition_pb2.END:
                offset = high
            case definition_pb2.TIMESTAMP:
                if not request.HasField("timestamp"):
                    raise BadRequest("the policy TIMESTAMP needs a timestamp; give one")
                offset = await self._ledger.store.offset_at(
                    topic.topic_id, queue_id, requested_ms_of(request.timestamp, "timestamp")
                )
            case unknown:
                raise BadRequest(f"the policy {unknown} is unknown; give BEGINNING, END or TIMESTAMP")
        return OK_STATUS + varint_field(2, offset)

    def _queue(self, queue: definition_pb2.MessageQueue) -> tuple[TopicConfig, int]:
        own = self._runtime.settings.broker_name
        if queue.broker.name not in {"", own}:  # another one's queue 0 is not ours (wire contract 7)
            raise PreconditionFailed(
                f"queue {queue.id} of {queue.topic.name} is at broker {queue.broker.name!r}, which broker {own} cannot "
                "reach now; query the route again"
            )
        return self._queue_of(queue.topic.name, queue.id)

    def _queue_of(self, name: str, queue_id: int) -> tuple[TopicConfig, int]:
        topic = self._catalog.topics.get(name)
        if topic is None:
            raise TopicNotFound(f"no topic {name!r} on broker {self._runtime.settings.broker_name}")
        if not 0 <= queue_id < topic.read_queues:
            raise BadRequest(
                f"queue {queue_id} of {name} is outside 0 to {topic.read_queues - 1}; use a queue of the route"
            )
        return topic, queue_id

    def _group(self, name: str) -> GroupConfig:
        group = self._catalog.groups.get(name)
        if group is None:
            raise GroupNotFound(f"no consumer group {name!r}; create it with `evenq group create {name}`")
        return group


_NOTHING = field(1, status_frame(MessageNotFound("no new message")))
