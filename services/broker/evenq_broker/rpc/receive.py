"""ReceiveMessage (wire contract 3.9, 5): pop for a group from all queues of this broker, or wait until there is
something.

Retries first, then fresh messages, queue after queue in turn. Frames: status, messages, delivery_timestamp; an empty
poll is the one frame MESSAGE_NOT_FOUND. Whatever the caller did not take to the last frame goes back to its queue at
once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from evenq.errors import Error, Forbidden, IllegalInvisibleTime, MessageNotFound, TopicNotFound
from evenq.model import GroupConfig, MessageQueue, MessageType, Permission, TopicConfig
from evenq.serving.rpc import Frames, RpcContext
from evenq.wire.convert import duration_ms_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq_broker.core.attempts import Attempt, Attempts
from evenq_broker.core.delivery import QueueProgress
from evenq_broker.core.filters import MessageFilter, message_filter
from evenq_broker.core.frames import field, varint
from evenq_broker.core.locks import NO_GENERATION
from evenq_broker.core.polls import ANY
from evenq_broker.loops.popping import Batch, Popping
from evenq_broker.rpc.answers import OK_STATUS, parsed, status_frame, told
from evenq_broker.rpc.fetching import Fetched, fetch
from evenq_broker.rpc.forwarding import forward_stream, owner_of
from evenq_broker.rpc.lite import LiteReceiving

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["Receiving"]

_PUSH = 2  # ClientType.PUSH_CONSUMER
_SIMPLE = 3
_PIECE_BYTES = 128 << 10
"""Messages of so many bytes together leave in one piece; of more, one after another as the client reads."""
_SPIN_MAX = 1_000  # wake-ups of one poll that find nothing: others were faster, or all was filtered out


@dataclass(frozen=True, slots=True)
class _Receive:
    """One request, understood."""

    group: GroupConfig
    topic: TopicConfig
    queue_id: int
    count: int
    wanted: MessageFilter
    invisible_ms: int
    """How long without an answer; 0 with `client_id`: as long as the client lives."""
    client_id: str
    poll_until_ms: int
    auto_renew: bool
    attempt_id: str


class Receiving:
    """The handler of ReceiveMessage."""

    def __init__(self, broker: Broker, popping: Popping) -> None:
        self._broker = broker
        self._popping = popping
        self._lite = LiteReceiving(broker, popping)
        settings = broker.settings
        self._attempts = Attempts(keep_ms=settings.attempt_keep_ms, attempts_max=settings.attempts_max)

    async def receive(self, request: bytes, context: RpcContext) -> AsyncIterator[Frames]:
        """The frames of one answer."""
        asked = parsed(service_pb2.ReceiveMessageRequest, request, context)
        if self._broker.ending.begun:  # not through this broker either: the ack might not find its way any more
            await self._broker.ending.hold(self._poll_ms(asked, context))
            yield _NOTHING
            return
        address = (
            None if self._is_everywhere(asked) else owner_of(self._broker, asked.message_queue.broker.name, context)
        )
        if address is not None:
            async for frame in forward_stream(self._broker, address, request, context):
                yield frame
            return
        try:
            wanted = await self._understand(asked, context)
            batch = await self._take(wanted, asked, context)
        except Error as error:
            if asked.auto_renew:
                # Go polls again 20 ms after any error: hold it back (wire contract 3.9).
                await self._broker.clock.sleep_ms(self._hold_ms(context))
            if not told(error):
                raise
            yield field(1, status_frame(error, context.language))
            return
        if batch is None:
            yield _NOTHING
            return
        if isinstance(batch, Fetched):
            async for frame in batch.frames():
                yield frame
            self._remember(wanted, source=batch.source)
            return
        complete = False
        try:
            if batch.payload_bytes <= _PIECE_BYTES:
                yield [OK_STATUS, *batch.frames, _delivery_time(self._broker.clock.now_ms())]
            else:
                yield OK_STATUS
                for frame in batch.frames:
                    yield frame
                yield _delivery_time(self._broker.clock.now_ms())
            complete = True
            self._remember(wanted, held=batch.held)
            if self._broker.trace is not None and wanted.client_id and not wanted.auto_renew:
                self._trace(wanted, batch)
        finally:
            if not complete:
                self._popping.give_back(batch)

    def _is_everywhere(self, asked: service_pb2.ReceiveMessageRequest) -> bool:
        """True if the answer is what any broker has (`rpc.lite`), whichever one is named."""
        topic = self._broker.topics.get(asked.message_queue.topic.name)
        return topic is not None and topic.message_type is MessageType.LITE and not asked.auto_renew

    def _trace(self, wanted: _Receive, batch: Batch) -> None:
        # The journal names the client only where its life holds the delivery.
        assert self._broker.trace is not None
        held = [(queue.queue_id, offset, number) for queue, offset, number in batch.held]
        self._broker.trace.taken(
            self._broker.now_ms(), wanted.client_id, wanted.group.group_id, wanted.topic.topic_id, held
        )

    # ------------------------------------------------------------------------------------------------ lost answers

    def _remember(
        self, wanted: _Receive, *, held: Sequence[tuple[QueueProgress, int, int]] = (), source: str = ""
    ) -> None:
        if wanted.attempt_id:
            attempt = Attempt(wanted.group.group_id, wanted.topic.topic_id, self._broker.now_ms(), tuple(held), source)
            self._attempts.remember(wanted.client_id, wanted.attempt_id, attempt)

    async def _again(
        self, wanted: _Receive, asked: service_pb2.ReceiveMessageRequest, context: RpcContext
    ) -> Batch | Fetched | None:
        """The batch of this attempt, if its answer got lost on the way (wire contract 5.5)."""
        attempt = self._attempts.recall(
            wanted.client_id, wanted.attempt_id, wanted.group.group_id, wanted.topic.topic_id, self._broker.now_ms()
        )
        if attempt is None:
            return None
        if attempt.source:
            return await fetch(self._broker, attempt.source, asked, context)
        return await self._popping.again(
            wanted.group,
            wanted.topic,
            attempt.held,
            invisible_ms=wanted.invisible_ms,
            client_id=wanted.client_id if wanted.auto_renew else "",
        )

    async def _take(
        self, wanted: _Receive, asked: service_pb2.ReceiveMessageRequest, context: RpcContext
    ) -> Batch | Fetched | None:
        if wanted.topic.message_type is not MessageType.LITE or wanted.auto_renew:
            return await self._pop(wanted, asked, context)

        async def here(until_ms: int) -> Batch | Fetched | None:
            return await self._pop(replace(wanted, poll_until_ms=until_ms), asked, context)

        return await self._lite.receive(
            wanted.group, wanted.topic, asked, context, here=here, until_ms=wanted.poll_until_ms
        )

    def _granted(self, wanted: _Receive) -> bool:
        """True if the client may wait for the queue it names (wire contract 6.3). Raises PreconditionFailed for a
        member of our own SDK that does not hold it (OC-18).
        """
        if wanted.queue_id == ANY:
            return True
        queue = MessageQueue(wanted.topic.name, self._broker.settings.broker_name, wanted.queue_id)
        self._broker.sessions.locking.must_hold(wanted.group.name, wanted.client_id, queue, NO_GENERATION)
        return self._broker.grants.may(wanted.group, wanted.topic, wanted.client_id, wanted.queue_id)

    def _lite_queues(self, wanted: _Receive) -> list[int] | None:
        if wanted.topic.message_type is not MessageType.LITE:
            return None
        return self._broker.lite.queues_of(wanted.client_id, wanted.group, wanted.topic)

    async def _pop(
        self, wanted: _Receive, asked: service_pb2.ReceiveMessageRequest, context: RpcContext
    ) -> Batch | Fetched | None:
        broker = self._broker
        if wanted.attempt_id:
            again = await self._again(wanted, asked, context)
            if again is not None:
                return again
        for _ in range(_SPIN_MAX):
            if not self._granted(wanted):
                await broker.waiting.until_owned(
                    wanted.topic.topic_id,
                    wanted.queue_id,
                    deadline_ms=wanted.poll_until_ms,
                    client_id=wanted.client_id,
                )
                return None
            queues = self._lite_queues(wanted)
            batch = await self._popping.pop(
                wanted.group,
                wanted.topic,
                queue_id=wanted.queue_id,
                queues=queues,
                count=wanted.count,
                wanted=wanted.wanted,
                invisible_ms=wanted.invisible_ms,
                client_id=wanted.client_id if wanted.auto_renew else "",
                until_ms=wanted.poll_until_ms,
            )
            if batch is not None:
                return batch
            if broker.now_ms() >= wanted.poll_until_ms:
                return None
            source = await broker.waiting.for_messages(
                wanted.group.group_id,
                wanted.topic.topic_id,
                queue_id=wanted.queue_id,
                queues=queues,
                deadline_ms=wanted.poll_until_ms,
                client_id=wanted.client_id,
                push=wanted.auto_renew,
            )
            if source is None:
                return None
            if source:
                found = await fetch(broker, source, asked, context)
                broker.wide_polls.fetched(
                    wanted.group, wanted.topic, push=wanted.auto_renew, source=source, found=found is not None
                )
                if found is not None:
                    return found
            topic = broker.topics.by_id(wanted.topic.topic_id)
            if topic is None:
                raise TopicNotFound(f"topic {wanted.topic.name} was deleted")
            if topic is not wanted.topic:  # it has other queues since this call waits
                wanted = replace(wanted, topic=topic)
        return None

    async def _joined(
        self, asked: service_pb2.ReceiveMessageRequest, context: RpcContext, group_name: str
    ) -> GroupConfig:
        """The group; its client is a member from now on."""
        broker = self._broker
        group = broker.groups.get(group_name) or await broker.ensure_group(group_name)
        if context.client_id:
            kind = _PUSH if asked.auto_renew else _SIMPLE
            client = broker.clients.seen(context.client_id, broker.now_ms(), group=group_name)
            broker.sessions.seen_v2(context, group_name, client.client_type or kind, None)
        return group

    async def _understand(self, asked: service_pb2.ReceiveMessageRequest, context: RpcContext) -> _Receive:
        broker, settings = self._broker, self._broker.settings
        topic_name, group_name = asked.message_queue.topic.name, asked.group.name
        topic = broker.topics.get(topic_name)
        if topic is None:
            if broker.groups.get(group_name) is not None or settings.auto_create_groups:
                await self._joined(asked, context, group_name)  # who waits for a topic reads it from its first message
            topic = broker.read_topic(topic_name)
        if topic.permission is not Permission.READ_WRITE and not topic.permission.readable:
            raise Forbidden(
                f"topic {topic.name} has no readable queue on this broker; its permission is {topic.permission.name}"
            )
        group = await self._joined(asked, context, group_name)
        queue_id = asked.message_queue.id
        return _Receive(
            group=group,
            topic=topic,
            queue_id=_queue(queue_id, topic, push=asked.auto_renew),
            count=min(max(asked.batch_size, 1), settings.receive_batch_max),
            wanted=message_filter(
                asked.filter_expression.expression, is_sql=asked.filter_expression.type == definition_pb2.SQL
            ),
            invisible_ms=self._invisible(asked),
            client_id=context.client_id,
            poll_until_ms=broker.now_ms() + self._poll_ms(asked, context),
            auto_renew=asked.auto_renew,
            attempt_id=asked.attempt_id if context.client_id else "",
        )

    def _invisible(self, asked: service_pb2.ReceiveMessageRequest) -> int:
        settings = self._broker.settings
        if asked.auto_renew or not asked.HasField("invisible_duration"):
            return settings.invisible_default_ms
        invisible_ms = duration_ms_of(asked.invisible_duration)
        if not 1 <= invisible_ms <= settings.invisible_max_ms:
            raise IllegalInvisibleTime(
                f"the invisible duration is {invisible_ms} ms, the range is 1 to {settings.invisible_max_ms} ms"
            )
        return invisible_ms

    def _poll_ms(self, asked: service_pb2.ReceiveMessageRequest, context: RpcContext) -> int:
        settings = self._broker.settings
        left_ms = self._left_ms(context)
        if asked.HasField("long_polling_timeout"):
            poll_ms = max(0, duration_ms_of(asked.long_polling_timeout))
        else:
            poll_ms = settings.poll_default_ms
        return max(0, min(poll_ms, settings.poll_max_ms, poll_ms if left_ms is None else left_ms))

    def _left_ms(self, context: RpcContext) -> int | None:
        if context.deadline_ms is None:
            return None
        return context.deadline_ms - self._broker.clock.monotonic_ms() - self._broker.settings.poll_margin_ms

    def _hold_ms(self, context: RpcContext) -> int:
        left_ms = self._left_ms(context)
        hold_ms = self._broker.settings.error_hold_ms
        return hold_ms if left_ms is None else max(0, min(hold_ms, left_ms))


def _queue(asked: int, topic: TopicConfig, *, push: bool) -> int:
    # A real queue id is honoured for push consumers only: simple ones name any queue (wire contract 6.3). The queues of
    # a PRIORITY topic are its levels, and everybody takes the highest first; those of a LITE topic are in no route.
    whole = not push or topic.message_type in {MessageType.PRIORITY, MessageType.LITE}
    return ANY if whole or not 0 <= asked < topic.read_queues else asked


def _delivery_time(now_ms: int) -> bytes:
    seconds, rest = divmod(now_ms, 1000)
    moment = b"\x08" + varint(seconds) + (b"\x10" + varint(rest * 1_000_000) if rest else b"")
    return field(3, moment)


_NOTHING = field(1, status_frame(MessageNotFound("no new message")))
