"""Blocks in: `evenq.v1.Data/Publish`, many messages of one topic stored in one step of one queue (`rpc.data`).

A retried block is answered like the first one as far as its messages are known by their ids (`loops.once`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from evenq.errors import (
    BadRequest,
    IllegalMessageGroup,
    MessageCorrupted,
    NotImplementedYet,
    PreconditionFailed,
    QueueClosed,
)
from evenq.model import MessageType, TopicConfig
from evenq.serving.rpc import RpcContext
from evenq.store import Append, TimerAppend
from evenq.wire.status import status_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2
from evenq_broker.core.recent import key_of, pack_place, unpack_place
from evenq_broker.core.validation import Limits, checked
from evenq_broker.rpc.answers import parsed
from evenq_broker.rpc.send import limits_of, must_be_open, must_be_writable, type_of

if TYPE_CHECKING:
    from evenq_broker.broker import Broker
    from evenq_broker.loops.once import Once

__all__ = ["Publishing", "must_be_here"]

OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")
PUBLISH_MAX = 10_000


class Publishing:
    """Blocks of messages for this broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._turn: dict[int, int] = {}
        self._limits: Limits | None = None

    async def publish(self, request: bytes, context: RpcContext) -> bytes:
        """Store a block: all of its messages in one queue, or none."""
        try:
            return await self._publish(request)
        except QueueClosed as error:
            return data_pb2.PublishResponse(status=status_of(error, context.language), closed=True).SerializeToString()

    async def _publish(self, request: bytes) -> bytes:
        asked = parsed(data_pb2.PublishRequest, request)
        told = asked.queue
        must_be_here(self._broker, told)
        if not 0 < len(asked.messages) <= PUBLISH_MAX:
            raise MessageCorrupted(f"the block has {len(asked.messages)} messages; send 1 to {PUBLISH_MAX}")
        must_be_open(told.topic)
        topic = self._broker.topics.get(told.topic)
        if topic is None:
            topic = await self._broker.ensure_topic(told.topic, message_type=type_of(asked.messages[0]))
            if told.queue_id >= topic.write_queues:  # chosen from a route that was only a prospect
                told.queue_id = -1
        must_be_writable(self._broker, topic)
        if told.queue_id != -1 and not 0 <= told.queue_id < topic.write_queues:
            if 0 <= told.queue_id < topic.queues_ever:
                raise QueueClosed(
                    f"queue {told.queue_id} of topic {topic.name} takes no messages any more: it has "
                    f"{topic.write_queues} queues here now; ask for the route again"
                )
            raise BadRequest(
                f"topic {topic.name} takes messages in queues 0 to {topic.write_queues - 1} of this broker, not "
                f"{told.queue_id}; -1 lets the broker choose"
            )
        once = self._broker.once
        names = [message.system_properties.message_id for message in asked.messages] if once is not None else []
        entries = [self._entry(message, topic) for message in asked.messages]
        if topic.message_type is MessageType.LITE:  # behind the check: a message of another kind is no reason to go on
            raise NotImplementedYet(f"topic {topic.name} takes LITE messages; send them with SendMessage")
        queue_id = self._choose(told.queue_id, topic, entries)
        for entry in entries:
            entry.queue_id = queue_id
        if once is None:
            await self._append(entries, topic)
        elif (repeated := await self._append_once(once, names, entries, topic)) is not None:
            return repeated
        return data_pb2.PublishResponse(
            status=OK,
            queue=common_pb2.Queue(topic=topic.name, broker_name=self._broker.settings.broker_name, queue_id=queue_id),
            first_offset=entries[0].queue_offset,
            store_ms=entries[0].store_ms,
        ).SerializeToString()

    async def _append(self, entries: Sequence[Append | TimerAppend], topic: TopicConfig) -> None:
        await self._broker.store.append(entries)  # type: ignore[arg-type]  # a block has no timers (`_entry`)
        self._broker.stats.topic(topic.topic_id).came([len(entry.head) for entry in entries])

    async def _append_once(
        self, once: Once, names: list[str], entries: list[Append], topic: TopicConfig
    ) -> bytes | None:
        """Store what was not stored before. None if all of it is new, else the answer."""
        assert self._limits is not None
        digest, topic_id = self._limits.digest, topic.topic_id
        claims = [
            (key_of(name.encode(), entry.system[digest], topic_id), entry)
            for name, entry in zip(names, entries, strict=True)
        ]
        answers = await once.store(claims, lambda new: self._append(new, topic), _place_of)
        if all(entry.queue_offset >= 0 for entry in entries):
            return None
        places = [unpack_place(answer) if isinstance(answer, int) else (-1, -1) for answer in answers]
        return data_pb2.PublishResponse(
            status=OK,
            queue=common_pb2.Queue(
                topic=topic.name, broker_name=self._broker.settings.broker_name, queue_id=places[0][0]
            ),
            first_offset=places[0][1],
            store_ms=max(entry.store_ms for entry in entries),
            offsets=[offset for _, offset in places],
            queue_ids=[queue_id for queue_id, _ in places],
        ).SerializeToString()

    def _entry(self, message: definition_pb2.Message, topic: TopicConfig) -> Append:
        resource = message.topic
        if resource.name not in {"", topic.name}:
            raise MessageCorrupted(f"a block is for one topic: {topic.name}, a message names {resource.name}")
        if resource.resource_namespace:
            raise MessageCorrupted(
                f"a message names a namespace, {resource.resource_namespace[:64]!r}; a block's topic is a full name, "
                f"{topic.name}"
            )
        resource.name = topic.name
        if self._limits is None:
            self._limits = limits_of(self._broker)
        entry = checked(message, topic, self._limits, now_ms=self._broker.clock.now_ms())
        if isinstance(entry, TimerAppend):
            raise NotImplementedYet("a block holds no delayed and no transaction messages; send them with SendMessage")
        return entry

    def _choose(self, told: int, topic: TopicConfig, entries: Sequence[Append]) -> int:
        if told >= 0 and topic.message_type is not MessageType.PRIORITY:
            return told
        lanes = {entry.queue_id for entry in entries}
        if lanes == {-1}:
            turn = self._turn.get(topic.topic_id, -1) + 1
            self._turn[topic.topic_id] = turn
            return turn % topic.write_queues
        if len(lanes) > 1:
            raise IllegalMessageGroup(
                f"the messages of the block belong into {len(lanes)} queues of topic {topic.name}; "
                "name the queue, or send one block per message group or priority"
            )
        return lanes.pop()


def must_be_here(broker: Broker, told: common_pb2.Queue) -> None:
    """Raises PreconditionFailed for a queue of another broker; no name means this one."""
    own = broker.settings.broker_name
    if told.broker_name not in {"", own}:
        raise PreconditionFailed(
            f"queue {told.topic}@{told.broker_name}:{told.queue_id} is not of broker {own}; ask for the route again"
        )


def _place_of(stored: Append | TimerAppend) -> int:
    assert isinstance(stored, Append), "a block has no timers"
    return pack_place(stored.queue_id, stored.queue_offset)
