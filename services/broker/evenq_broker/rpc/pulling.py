"""The pull path of the v2 protocol (wire contract 7): no SDK calls it, tools may. Queue ids are those of the route."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

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
from evenq.wire.convert import duration_ms_of, ms_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq_broker.core.filters import TURNS_MIN, MessageFilter, message_filter
from evenq_broker.core.frames import delivered, extra_fields, field, varint_field
from evenq_broker.core.journal import Committed
from evenq_broker.rpc.answers import OK_STATUS, parsed, status_frame
from evenq_broker.rpc.forwarding import forward, forward_stream, owner_of

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["Pulling"]


class Pulling:
    """PullMessage, UpdateOffset, GetOffset, QueryOffset."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def pull(self, request: bytes, context: RpcContext) -> AsyncIterator[bytes]:
        """Status, messages, next_offset; the last also when nothing came (MESSAGE_NOT_FOUND)."""
        asked = parsed(service_pb2.PullMessageRequest, request, context)
        if self._broker.ending.begun:
            await self._broker.ending.hold(self._until_ms(asked, context) - self._broker.clock.monotonic_ms())
            yield _NOTHING
            yield varint_field(3, asked.offset)
            return
        address = owner_of(self._broker, asked.message_queue.broker.name, context)
        if address is not None:
            async for frame in forward_stream(self._broker, address, request, context):
                yield frame
            return
        topic, queue_id = self._queue(asked.message_queue)
        told = asked.filter_expression
        wanted = message_filter(told.expression, is_sql=told.type == definition_pb2.SQL)
        found = await self._found(asked, topic, queue_id, wanted, self._until_ms(asked, context))
        yield OK_STATUS if found.messages else _NOTHING
        for message in found.messages:
            extra = extra_fields(queue_id, message.queue_offset, message.store_ms)
            yield field(2, delivered(message, extra=extra))
        yield varint_field(3, found.next_offset)

    async def _found(
        self,
        asked: service_pb2.PullMessageRequest,
        topic: TopicConfig,
        queue_id: int,
        wanted: MessageFilter,
        until_ms: int,
    ) -> ReadResult:
        # Reads on until something fits the filter, or the queue's end is reached and the time is over.
        broker, settings = self._broker, self._broker.settings
        position = asked.offset
        count = min(
            asked.batch_size if asked.batch_size > 0 else settings.receive_batch_max, settings.receive_batch_max
        )
        turns = 0
        while True:
            low, high = broker.store.queue_range(topic.topic_id, queue_id)
            if not low <= position <= high:
                raise IllegalOffset(
                    f"offset {position} is outside {low} to {high} of queue {queue_id} of {topic.name}; "
                    "pull from one in it",
                    min_offset=low,
                    max_offset=high,
                )
            found = await broker.store.read(
                topic.topic_id,
                queue_id,
                position,
                count_max=wanted.look(count),
                bytes_max=settings.receive_bytes_max,
                tag_hashes=wanted.tag_hashes,
            )
            found = wanted.sift(found, count)
            if found.messages:
                return found
            stepped, position = found.next_offset > position, found.next_offset
            left_ms = until_ms - broker.clock.monotonic_ms()
            turns += 1
            if stepped and position < found.max_offset:
                if left_ms <= 0 and turns >= TURNS_MIN:
                    return found
                await broker.clock.sleep_ms(0)
                continue
            grown = [(topic.topic_id, queue_id, position)]
            grew = left_ms > 0 and await broker.wait_for_growth(grown, left_ms)
            self._queue_of(topic.name, queue_id)  # it may have been deleted meanwhile
            if not grew:
                return found

    def _until_ms(self, asked: service_pb2.PullMessageRequest, context: RpcContext) -> int:
        settings = self._broker.settings
        now_ms = self._broker.clock.monotonic_ms()
        until_ms = now_ms + min(max(duration_ms_of(asked.long_polling_timeout), 0), settings.poll_max_ms)
        if context.deadline_ms is not None:
            until_ms = min(until_ms, context.deadline_ms - settings.poll_margin_ms)
        return until_ms

    async def update_offset(self, request: bytes, context: RpcContext) -> bytes:
        """Store the group's next offset of one queue; never backward."""
        asked = parsed(service_pb2.UpdateOffsetRequest, request, context)
        address = owner_of(self._broker, asked.message_queue.broker.name, context)
        if address is not None:
            return await forward(self._broker, address, request, context)
        topic, queue_id = self._queue(asked.message_queue)
        group = self._group(asked.group.name)
        low, high = self._broker.store.queue_range(topic.topic_id, queue_id)
        if not 0 <= asked.offset <= high:
            raise IllegalOffset(
                f"offset {asked.offset} is outside 0 to {high} of queue {queue_id} of {topic.name}",
                min_offset=low,
                max_offset=high,
            )
        if self._broker.progress.commit(group.group_id, topic.topic_id, queue_id, asked.offset):
            await self._broker.journal.record(Committed(group.group_id, topic.topic_id, queue_id, asked.offset))
        return OK_STATUS

    async def get_offset(self, request: bytes, context: RpcContext) -> bytes:
        """The group's committed offset of one queue."""
        asked = parsed(service_pb2.GetOffsetRequest, request, context)
        address = owner_of(self._broker, asked.message_queue.broker.name, context)
        if address is not None:
            return await forward(self._broker, address, request, context)
        topic, queue_id = self._queue(asked.message_queue)
        name = asked.group.name
        group = self._broker.groups.get(name)
        committed = None
        if group is not None:
            committed = self._broker.progress.committed(group.group_id, topic.topic_id, queue_id)
        if committed is None:
            raise OffsetNotFound(
                f"group {name!r} has no offset on queue {queue_id} of {topic.name} yet; begin where QueryOffset says"
            )
        return OK_STATUS + varint_field(2, committed)

    async def query_offset(self, request: bytes, context: RpcContext) -> bytes:
        """The first, the next new, or the first offset stored at or after a time."""
        asked = parsed(service_pb2.QueryOffsetRequest, request, context)
        address = owner_of(self._broker, asked.message_queue.broker.name, context)
        if address is not None:
            return await forward(self._broker, address, request, context)
        topic, queue_id = self._queue(asked.message_queue)
        low, high = self._broker.store.queue_range(topic.topic_id, queue_id)
        match asked.query_offset_policy:
            case definition_pb2.BEGINNING:
                offset = low
            case definition_pb2.END:
                offset = high
            case definition_pb2.TIMESTAMP:
                if not asked.HasField("timestamp"):
                    raise BadRequest("the policy TIMESTAMP needs a timestamp; give one")
                offset = await self._broker.store.offset_at(topic.topic_id, queue_id, ms_of(asked.timestamp))
            case unknown:
                raise BadRequest(f"the policy {unknown} is unknown; ask for BEGINNING, END or TIMESTAMP")
        return OK_STATUS + varint_field(2, offset)

    def _queue(self, queue: definition_pb2.MessageQueue) -> tuple[TopicConfig, int]:
        own = self._broker.settings.broker_name
        if queue.broker.name not in {"", own}:  # another one's queue 0 is not ours (wire contract 7)
            raise PreconditionFailed(
                f"queue {queue.id} of {queue.topic.name} is at broker {queue.broker.name!r}, of which broker {own} "
                "does not hear now; ask for the route again"
            )
        return self._queue_of(queue.topic.name, queue.id)

    def _queue_of(self, name: str, queue_id: int) -> tuple[TopicConfig, int]:
        topic = self._broker.topics.get(name)
        if topic is None:
            raise TopicNotFound(f"no topic {name!r} on broker {self._broker.settings.broker_name}")
        if not 0 <= queue_id < topic.read_queues:
            raise BadRequest(
                f"queue {queue_id} of {name} is outside 0 to {topic.read_queues - 1}; take one of the route"
            )
        return topic, queue_id

    def _group(self, name: str) -> GroupConfig:
        group = self._broker.groups.get(name)
        if group is None:
            raise GroupNotFound(f"no consumer group {name!r}; create it with `evenq group create {name}`")
        return group


_NOTHING = field(1, status_frame(MessageNotFound("no new message")))
