"""SendMessage (wire contract 3.7): one message or many of one topic, answered when they are as safe as the flush mode
says.

The hot path of producers: one parse, one append, one future, an answer made of bytes. A verdict stands at both levels,
because some SDKs read only the status of the response and others only those of the entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenq.errors import Error, Forbidden, MessageCorrupted, TooManyRequests
from evenq.model import MessageType, TopicConfig
from evenq.model.names import is_system_topic
from evenq.serving.rpc import RpcContext
from evenq.store import Append
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq_broker.core.frames import field, varint
from evenq_broker.core.resources import qualified
from evenq_broker.core.validation import Limits, checked
from evenq_broker.rpc.answers import OK_STATUS, code_of, parsed, several, status_frame, told

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["Sending", "limits_of", "must_be_open", "must_be_writable"]


def limits_of(broker: Broker) -> Limits:
    """What the settings say about one message."""
    settings = broker.settings
    return Limits(
        body_bytes_max=settings.body_bytes_max,
        properties_max=settings.properties_max,
        properties_bytes_max=settings.properties_bytes_max,
        store_host=broker.addresses[0].target if broker.addresses else "",
    )


def must_be_open(topic: str) -> None:
    """Raises Forbidden for a topic that only the broker itself writes to."""
    if is_system_topic(topic):
        raise Forbidden(f"only the broker writes to {topic}; send to the topic its messages came from")


def must_be_writable(topic: TopicConfig) -> None:
    """Raises Forbidden for a topic whose permission does not let anybody send."""
    if not topic.permission.writable:
        raise Forbidden(
            f"topic {topic.name} has no writable queue on this broker; its permission is {topic.permission.name}"
        )


class Sending:
    """The handler of SendMessage."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._limits: Limits | None = None
        self._turn = 0

    async def send(self, request: bytes, context: RpcContext) -> bytes:
        """Store the messages; one entry for each, in order."""
        asked = parsed(service_pb2.SendMessageRequest, request)
        messages = asked.messages
        ids = [message.system_properties.message_id for message in messages]
        try:
            topic = await self._topic(asked, context)
            if len(messages) == 1:
                stored = self.check(messages[0], topic)
                await self._broker.store.append((stored,))
                self._count(topic, (stored,))
                entry = _ok_entry(ids[0], stored.queue_offset)
                return OK_STATUS + entry
            return await self._send_many(asked, ids, topic, context)
        except Error as error:
            if not ids or not told(error):
                raise
            status = status_frame(error, context.language)
            return b"".join((field(1, status), *(_entry(status, message_id) for message_id in ids)))

    async def _send_many(
        self, asked: service_pb2.SendMessageRequest, ids: list[str], topic: TopicConfig, context: RpcContext
    ) -> bytes:
        good: list[Append] = []
        verdicts: list[Append | bytes] = []
        for message in asked.messages:
            try:
                stored = self.check(message, topic)
            except Error as error:
                verdicts.append(status_frame(error, context.language))
            else:
                good.append(stored)
                verdicts.append(stored)
        if good:
            await self._broker.store.append(good)
            self._count(topic, good)
        entries = [
            _entry(verdict, message_id) if isinstance(verdict, bytes) else _ok_entry(message_id, verdict.queue_offset)
            for message_id, verdict in zip(ids, verdicts, strict=True)
        ]
        bad = [verdict for verdict in verdicts if isinstance(verdict, bytes)]
        if not bad:
            return OK_STATUS + b"".join(entries)
        alike = not good and len({code_of(status) for status in bad}) == 1
        return field(1, bad[0] if alike else several()) + b"".join(entries)

    def check(self, message: object, topic: TopicConfig) -> Append:
        """The message ready for the store, with its queue."""
        limits = self._limits
        if limits is None:
            limits = self._limits = limits_of(self._broker)
        stored = checked(message, topic, limits, now_ms=self._broker.clock.now_ms())  # type: ignore[arg-type]  # a v2 Message
        if stored.queue_id < 0:
            self._turn += 1
            stored.queue_id = self._turn % topic.write_queues
        return stored

    async def _topic(self, asked: service_pb2.SendMessageRequest, context: RpcContext) -> TopicConfig:
        messages = asked.messages
        if not messages:
            raise MessageCorrupted("the request holds no message; send at least one")
        if len(messages) > self._broker.settings.send_batch_max:
            raise TooManyRequests(
                f"the request holds {len(messages)} messages, the limit is {self._broker.settings.send_batch_max}; "
                "send fewer at once"
            )
        resource = messages[0].topic
        for message in messages[1:]:
            if message.topic != resource:
                raise MessageCorrupted(
                    f"the request holds messages of topics {resource.name!r} and {message.topic.name!r}; send one "
                    "topic at a time"
                )
        name = resource.name if not resource.resource_namespace else qualified(resource)
        topic = self._broker.topics.get(name)
        if topic is None:
            name = qualified(resource, context.namespace)
            must_be_open(name)  # before it is made
            topic = await self._broker.ensure_topic(name, message_type=_type_for(messages[0]))
        must_be_open(topic.name)
        must_be_writable(topic)
        return topic

    def _count(self, topic: TopicConfig, stored: list[Append] | tuple[Append, ...]) -> None:
        stats = self._broker.stats.topic(topic.topic_id)
        stats.messages_in += len(stored)
        for entry in stored:
            stats.bytes_in += len(entry.head) + len(entry.system)


def _type_for(message: object) -> MessageType:
    # A topic made by its first message takes what that message is.
    system = message.system_properties  # type: ignore[attr-defined]  # a v2 Message
    return MessageType.FIFO if system.HasField("message_group") else MessageType.NORMAL


def _ok_entry(message_id: str, offset: int) -> bytes:
    name = message_id.encode()
    payload = _OK_AND_NAME + varint(len(name)) + name + b"\x20" + varint(offset)
    return b"\x12" + varint(len(payload)) + payload


_OK_AND_NAME = OK_STATUS + b"\x12"


def _entry(status: bytes, message_id: str) -> bytes:
    return field(2, field(1, status) + field(2, message_id.encode()))
