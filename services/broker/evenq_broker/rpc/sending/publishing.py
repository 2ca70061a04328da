"""`evenq.v1.Data/Publish`: stores a block of messages of one topic in one queue, in one step.

The front has checked and cut blocks of plain messages (`core.sending.plain_sends`); all others are decoded here. Both
are stored in the same way. A retried block gets the answer of the first one, for messages whose ids are still known
(`loops.sending.dedup`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, cast

from evenq.errors import (
    BadRequest,
    IllegalMessageGroup,
    MessageCorrupted,
    NotImplementedYet,
    PreconditionFailed,
    QueueClosed,
)
from evenq.model import MessageType, TopicConfig
from evenq.model.names import is_system_topic
from evenq.runtime.accelerator import accelerator
from evenq.serving.rpc import RpcContext
from evenq.store import Append, TimerAppend
from evenq.wire.status import status_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2
from evenq_broker.core.sending.body_digest import mark_of
from evenq_broker.core.sending.dedup_window import Key, key_of, pack_place, unpack_place
from evenq_broker.core.sending.native_sends import plain_reader
from evenq_broker.core.sending.plain_sends import PlainBlock, PlainSends
from evenq_broker.core.sending.validation import MessageLimits, checked_in_block
from evenq_broker.core.state.frames import varint_field
from evenq_broker.loops.cluster.cluster_catalog import ClusterCatalog
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.sending.dedup import Deduplicator
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.rpc.answers import OK, parsed
from evenq_broker.rpc.sending.elsewhere import OWNED
from evenq_broker.rpc.sending.homes import Homes
from evenq_broker.rpc.sending.send import must_be_open, must_be_writable, type_of
from evenq_broker.runtime import Runtime, limits_of

if TYPE_CHECKING:
    from evenq_broker.loops.sending.dedup import Deduplicator

OK_HEAD = data_pb2.PublishResponse(status=OK).SerializeToString()
FIRST_OFFSET, STORE_MS = 3, 4
"""Numbers of fields of the answer."""
PUBLISH_MAX = 10_000


class PublishHandler:
    def __init__(
        self,
        kernel: Kernel,
        *,
        cluster: ClusterLink,
        cluster_catalog: ClusterCatalog,
        deduplicator: Deduplicator | None,
    ) -> None:
        self._kernel = kernel
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._cluster_catalog, self._deduplicator = cluster_catalog, deduplicator
        self._homes = Homes(kernel, cluster=cluster)
        self._turn: dict[int, int] = {}

    def plain(self, request: bytes) -> PlainBlock | None:
        """Reads a plain request without protobuf; None: it is not plain."""
        return self._plain_sends.read_block(request)

    async def publish(self, data: bytes, context: RpcContext) -> bytes:
        """Stores all messages of a block in one queue, or none."""
        try:
            if context.plain is not None:
                block = cast("PlainBlock", context.plain)
                topic = self._plain_topic(block)
                if topic is not None:
                    return await self._publish_plain(block, topic)
            return await self._publish(data)
        except QueueClosed as error:
            return data_pb2.PublishResponse(status=status_of(error, context.language), closed=True).SerializeToString()

    def _plain_topic(self, block: PlainBlock) -> TopicConfig | None:
        """Returns the topic if it accepts the block here now; None: the full path must check or refuse it."""
        topic = self._catalog.topics.get(block.topic)
        if (
            topic is None
            or topic.message_type is not MessageType.NORMAL
            or self._catalog.draining
            or not topic.permission.writable
            or not -1 <= block.queue_id < topic.write_queues
            or len(block.entries) > PUBLISH_MAX
            or is_system_topic(block.topic)
        ):
            return None
        return topic

    async def _publish_plain(self, block: PlainBlock, topic: TopicConfig) -> bytes:
        entries, queue_id, topic_id = block.entries, block.queue_id, topic.topic_id
        if queue_id < 0:
            queues = topic.write_queues
            for entry in entries:
                if not 0 < entry.queue_id < queues:
                    entry.queue_id = -1
            queue_id = self._choose(queue_id, topic, entries)
        for entry in entries:
            entry.topic_id = topic_id
            entry.queue_id = queue_id
        keys: list[Key] = []
        if self._deduplicator is not None:
            suffix = topic_id.to_bytes(4, "big")
            keys = [key + suffix for key in block.keys]
        return await self._stored(keys, entries, topic)

    async def _publish(self, data: bytes) -> bytes:
        request = parsed(data_pb2.PublishRequest, data)
        queue = request.queue
        must_be_here(self._runtime, queue)
        if not 0 < len(request.messages) <= PUBLISH_MAX:
            raise MessageCorrupted(f"the block has {len(request.messages)} messages; send 1 to {PUBLISH_MAX}")
        must_be_open(queue.topic)
        topic = self._catalog.topics.get(queue.topic)
        if topic is None:
            topic = await self._cluster_catalog.ensure_topic(queue.topic, message_type=self._first_kind(request))
            if queue.queue_id >= topic.write_queues:  # chosen from the prospective route of a missing topic
                queue.queue_id = -1
        must_be_writable(self._kernel, topic)
        if queue.queue_id != -1 and not 0 <= queue.queue_id < topic.write_queues:
            if 0 <= queue.queue_id < topic.queues_ever:
                raise QueueClosed(
                    f"queue {queue.queue_id} of topic {topic.name} accepts no messages any more: it has "
                    f"{topic.write_queues} queues here now; query the route again"
                )
            raise BadRequest(
                f"topic {topic.name} accepts messages in queues 0 to {topic.write_queues - 1} of this broker, not "
                f"{queue.queue_id}; -1 lets the broker choose"
            )
        if topic.message_type in OWNED:
            self._homes.must_not_be_away(
                topic.name, {message.system_properties.message_group for message in request.messages}
            )
        names = [message.system_properties.message_id for message in request.messages]
        limits, now_ms = self._limits, self._runtime.clock.now_ms
        entries = [checked_in_block(message, topic, limits, now_ms=now_ms()) for message in request.messages]
        if topic.message_type is MessageType.LITE:  # after the check, whose errors have priority
            raise _no_lite(topic.name)
        queue_id = self._choose(queue.queue_id, topic, entries)
        for entry in entries:
            entry.queue_id = queue_id
        keys: list[Key] = []
        if self._deduplicator is not None:
            topic_id = topic.topic_id
            keys = [
                key_of(name.encode(), mark_of(entry.head, entry.system), topic_id)
                for name, entry in zip(names, entries, strict=True)
            ]
        return await self._stored(keys, entries, topic)

    def _first_kind(self, request: data_pb2.PublishRequest) -> MessageType:
        """Returns the type of the topic that the block would create. Raises the refusal of the block."""
        kind = type_of(request.messages[0])
        prospect = self._catalog.prospect(request.queue.topic, kind)
        for message in request.messages:
            copy = definition_pb2.Message()
            copy.CopyFrom(message)  # a check consumes its message
            checked_in_block(copy, prospect, self._limits, now_ms=self._runtime.clock.now_ms())
        if kind is MessageType.LITE:
            raise _no_lite(request.queue.topic)
        return kind

    async def _stored(self, keys: list[Key], entries: list[Append], topic: TopicConfig) -> bytes:
        """Stores new messages; returns the answer. `keys`: of the messages in the deduplication window, if any."""
        once = self._deduplicator
        if once is None:
            await self._append(entries, topic)
        elif once.claim_all(keys, entries):
            try:
                await self._append(entries, topic)
            except BaseException as error:
                once.broken(list(zip(keys, entries, strict=True)), error)
                raise
            once.kept_all(keys, entries)
        elif (repeated := await self._append_once(once, keys, entries, topic)) is not None:
            return repeated
        first = entries[0]
        return b"".join(
            (
                OK_HEAD,
                _queue_field(topic.name, self._runtime.settings.broker_name, first.queue_id),
                varint_field(FIRST_OFFSET, first.queue_offset),
                varint_field(STORE_MS, first.store_ms),
            )
        )

    async def _append(self, entries: Sequence[Append | TimerAppend], topic: TopicConfig) -> None:
        await self._ledger.store.append(entries)  # type: ignore[arg-type]  # a block has no timers
        self._runtime.stats.topic(topic.topic_id).came([len(entry.head) for entry in entries])

    async def _append_once(
        self, once: Deduplicator, keys: list[Key], entries: list[Append], topic: TopicConfig
    ) -> bytes | None:
        """Stores new messages. Returns None if all are new, otherwise the answer."""
        claims = list(zip(keys, entries, strict=True))
        answers = await once.store(claims, lambda new: self._append(new, topic), _place_of)
        if all(entry.queue_offset >= 0 for entry in entries):
            return None
        places = [unpack_place(result) if isinstance(result, int) else (-1, -1) for result in answers]
        return data_pb2.PublishResponse(
            status=OK,
            queue=common_pb2.Queue(
                topic=topic.name, broker_name=self._runtime.settings.broker_name, queue_id=places[0][0]
            ),
            first_offset=places[0][1],
            store_ms=max(entry.store_ms for entry in entries),
            offsets=[offset for _, offset in places],
            queue_ids=[queue_id for queue_id, _ in places],
        ).SerializeToString()

    def _choose(self, queue_id: int, topic: TopicConfig, entries: Sequence[Append]) -> int:
        if queue_id >= 0 and topic.message_type is not MessageType.PRIORITY:
            return queue_id
        lanes = {entry.queue_id for entry in entries}
        if lanes == {-1}:
            turn = self._turn.get(topic.topic_id, -1) + 1
            self._turn[topic.topic_id] = turn
            return turn % topic.write_queues
        if len(lanes) > 1:
            raise IllegalMessageGroup(
                f"the messages of the block belong to {len(lanes)} queues of topic {topic.name}; "
                "name the queue, or send one block per message group or priority"
            )
        return lanes.pop()

    @cached_property
    def _limits(self) -> MessageLimits:
        return limits_of(self._runtime)

    @cached_property
    def _plain_sends(self) -> PlainSends:
        return plain_reader(accelerator().module, self._limits, broker_name=self._runtime.settings.broker_name)


def _no_lite(topic: str) -> NotImplementedYet:
    return NotImplementedYet(f"topic {topic} takes LITE messages; send them with SendMessage")


def must_be_here(runtime: Runtime, queue: common_pb2.Queue) -> None:
    """Raises PreconditionFailed for a queue of another broker; an empty name means this one."""
    own = runtime.settings.broker_name
    if queue.broker_name not in {"", own}:
        raise PreconditionFailed(
            f"queue {queue.topic}@{queue.broker_name}:{queue.queue_id} is not at broker {own}; query the route again"
        )


@lru_cache(4_096)
def _queue_field(topic: str, broker_name: str, queue_id: int) -> bytes:
    queue = common_pb2.Queue(topic=topic, broker_name=broker_name, queue_id=queue_id)
    return data_pb2.PublishResponse(queue=queue).SerializeToString()


def _place_of(stored: Append | TimerAppend) -> int:
    assert isinstance(stored, Append), "a block has no timers"
    return pack_place(stored.queue_id, stored.queue_offset)
