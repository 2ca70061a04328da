"""ReceiveMessage (wire contract 3.9, 5): takes messages of a group from all queues of this broker, or waits for some.

Retries come first, then new messages, from one queue after the other. Frames: status, messages, delivery_timestamp; an
empty poll is one frame, MESSAGE_NOT_FOUND. If the caller does not read the answer to its last frame, the messages go
back to their queues immediately; for a push consumer also if this is noticed after the whole answer was sent
(`UntakenBatch`).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

from evenq.errors import Error, Forbidden, IllegalInvisibleTime, MessageNotFound, TopicNotFound
from evenq.model import NO_GENERATION, GroupConfig, MessageQueue, MessageType, Permission, TopicConfig
from evenq.serving.rpc import Frames, RpcContext
from evenq.wire.convert import duration_ms_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq_broker.core.delivery.attempts import Attempt, Attempts
from evenq_broker.core.delivery.filters import MessageFilter
from evenq_broker.core.delivery.progress import QueueProgress
from evenq_broker.core.polls.poll_table import ANY
from evenq_broker.core.sending.body_digest import NODE
from evenq_broker.core.state.frames import field, varint
from evenq_broker.loops.assignment.grants import Grants
from evenq_broker.loops.clients.connected import ConnectedClients
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.delivery.ending import FetchedMessages, hold
from evenq_broker.loops.delivery.receive_wish import Batch
from evenq_broker.loops.delivery.taking import MessageTaker
from evenq_broker.loops.groups.sessions import Sessions
from evenq_broker.loops.lite.lite_topics import Lites
from evenq_broker.loops.polls.cluster_polls import ClusterPolls
from evenq_broker.loops.polls.waiting import LongPolls
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.stored_messages import message_filter
from evenq_broker.rpc.answers import OK_STATUS, is_public, parsed, status_frame
from evenq_broker.rpc.cluster.forwarding import MARK, READER, ROLE, caller_of, forward_stream, owner_of
from evenq_broker.rpc.lite.lite import LiteReceiver
from evenq_broker.rpc.polls.fetching import Fetched, PassedOn, fetch

_FRAME_BYTES_MAX = {NODE: 4 << 20, "DOTNET": 4 << 20, "RUST": 4 << 20}
"""By `x-mq-language`: the default limit of its gRPC library (wire contract 2.5)."""
_PUSH = 2  # ClientType.PUSH_CONSUMER
_SIMPLE = 3
_PIECE_BYTES = 128 << 10
"""Up to this size, all messages are sent in one piece; above it, one after the other as the client reads."""
_SPIN_MAX = 1_000  # wake-ups of one poll without a message: others were faster, or the filter skipped all
log = logging.getLogger(__name__)


class UntakenBatch:
    """Gives back the batch of an answer that a push consumer did not read: it is redelivered immediately.

    Otherwise it would be held as long as the consumer lives. A consumer that stalls for longer than its poll (a
    suspended machine, a long pause of its process) never reads the answer that arrived meanwhile. When it continues, it
    resets the call, and the server reports that (`evenq.serving.http2.sent_answers`). There is one object for each
    complete answer with messages that a client's life holds. Invariants: deliveries that were acknowledged, changed,
    repeated under the same attempt or released since are not touched; no bytes of messages are kept.
    """

    __slots__ = ("_client_id", "_deadline_ms", "_held", "_ledger", "_runtime", "_taker")

    def __init__(self, kernel: Kernel, taker: MessageTaker, *, batch: Batch, client_id: str) -> None:
        self._runtime, self._ledger, self._taker = kernel.runtime, kernel.ledger, taker
        self._client_id = client_id
        self._held = tuple(batch.held)
        self._deadline_ms = 0
        """Deadline of all deliveries of the batch. A different one shows that the delivery was changed since."""
        for queue, offset, number in self._held:
            entry = queue.pending.get(offset)
            if entry is not None and entry.number == number and entry.client_id == client_id:
                self._deadline_ms = entry.deadline_ms
                break

    def __call__(self) -> None:
        """Gives back the deliveries that have not changed."""
        if self._runtime.closing:
            return
        known, lost = self._ledger.progress.queue, Batch()
        for queue, offset, number in self._held:
            entry = queue.pending.get(offset)
            if (
                entry is not None
                and entry.number == number
                and entry.deadline_ms == self._deadline_ms
                and entry.client_id == self._client_id
                # The offsets of a queue that was deleted and created again name other messages.
                and known(queue.group_id, queue.topic_id, queue.queue_id) is queue
            ):
                lost.held.append((queue, offset, number))
        if lost.held:
            count = len(lost.held)
            log.info("client %s did not read an answer: %d messages are redelivered", self._client_id, count)
            self._taker.give_back(lost)


@dataclass(frozen=True, slots=True)
class _Receive:
    """One decoded and checked request."""

    group: GroupConfig
    topic: TopicConfig
    queue_id: int
    count: int
    message_filter: MessageFilter
    invisible_ms: int
    """Invisible duration; not used with `auto_renew` and a client id: then messages are held while the client lives."""
    client_id: str
    user: str
    """The user to whose share of waiting polls this one counts."""
    poll_until_ms: int
    auto_renew: bool
    attempt_id: str


class ReceiveHandler:
    def __init__(
        self,
        kernel: Kernel,
        taker: MessageTaker,
        *,
        cluster: ClusterLink,
        clients: ConnectedClients,
        fetched: FetchedMessages,
        sessions: Sessions,
        long_polls: LongPolls,
        cluster_polls: ClusterPolls,
        grants: Grants,
        lite: Lites,
    ) -> None:
        self._kernel = kernel
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._cluster, self._clients, self._sessions = cluster, clients, sessions
        self._long_polls, self._cluster_polls, self._grants = long_polls, cluster_polls, grants
        self._lite, self._fetched = lite, fetched
        self._taker = taker
        self._lite_receiving = LiteReceiver(kernel, taker, cluster=cluster)
        settings = kernel.runtime.settings
        self._attempts = Attempts(keep_ms=settings.attempt_keep_ms, attempts_max=settings.attempts_max)

    async def receive(self, data: bytes, context: RpcContext) -> AsyncIterator[Frames]:
        request = parsed(service_pb2.ReceiveMessageRequest, data, context)
        if self._runtime.closing:  # also not from another broker: the ack could not be forwarded any more
            await hold(self._runtime, self._poll_ms(request, context))
            yield _NOTHING
            return
        topic = self._catalog.topics.get(request.message_queue.topic.name)
        address = (
            None
            if _is_everywhere(topic, request)
            else owner_of(self._kernel, request.message_queue.broker.name, context, cluster=self._cluster)
        )
        # For a receive from another broker, that broker notices an untaken answer: here it always counts as taken.
        by_life = request.auto_renew and _is_clients_own(context)
        if address is not None:
            passed = PassedOn(self._runtime, address, request) if by_life else None
            async for frame in forward_stream(self._runtime, address, data, context, for_all=topic is None):
                yield frame
                if passed is not None:
                    passed.note(frame)
            if passed is not None and passed.handles:
                context.untaken = passed
            return
        try:
            receive = await self._understand(request, context)
            batch = await self._take(receive, request, context)
        except Error as error:
            if request.auto_renew:
                # Go polls again 20 ms after any error: delay the answer (wire contract 3.9).
                await self._runtime.clock.sleep_ms(self._hold_ms(context))
            if not is_public(error):
                raise
            yield field(1, status_frame(error, context.language))
            return
        if batch is None:
            yield _NOTHING
            return
        if isinstance(batch, Fetched):
            async with aclosing(self._of_other_broker(receive, batch, context)) as frames:
                async for frame in frames:
                    yield frame
            return
        complete = False
        try:
            if batch.payload_bytes <= _PIECE_BYTES:
                yield [OK_STATUS, *batch.frames, _delivery_time(self._runtime.clock.now_ms())]
            else:
                yield OK_STATUS
                for frame in batch.frames:
                    yield frame
                yield _delivery_time(self._runtime.clock.now_ms())
            complete = True
            self._remember(receive, held=batch.held)
            if by_life:
                context.untaken = UntakenBatch(self._kernel, self._taker, batch=batch, client_id=receive.client_id)
            if self._ledger.trace is not None and receive.client_id and not receive.auto_renew:
                self._trace(receive, batch)
        finally:
            if not complete:
                self._taker.give_back(batch)

    async def _of_other_broker(
        self, receive: _Receive, batch: Fetched, context: RpcContext
    ) -> AsyncGenerator[bytes, None]:
        if self._runtime.closing:  # closing began during the fetch: the ack would come too late
            await batch.given_back()
            yield _NOTHING
            return
        passed, taken = batch.passed_on(), False
        if _is_clients_own(context):
            self._fetched.add(context.client_id, passed.handles, self._runtime.now_ms())
        try:
            async with aclosing(batch.frames()) as frames:
                async for frame in frames:
                    yield frame
            taken = True
        finally:
            if not taken:
                self._fetched.settled(passed.handles)
        self._remember(receive, source=batch.source)
        if receive.auto_renew and _is_clients_own(context):
            context.untaken = partial(self._not_taken, passed)

    def _not_taken(self, passed: PassedOn) -> None:
        self._fetched.settled(passed.handles)
        passed()

    def _trace(self, receive: _Receive, batch: Batch) -> None:
        # The journal names the client only if the client's life holds the delivery.
        assert self._ledger.trace is not None
        held = [(queue.queue_id, offset, number) for queue, offset, number in batch.held]
        self._ledger.trace.taken(
            self._runtime.now_ms(), receive.client_id, receive.group.group_id, receive.topic.topic_id, held
        )

    def _remember(
        self, receive: _Receive, *, held: Sequence[tuple[QueueProgress, int, int]] = (), source: str = ""
    ) -> None:
        if receive.attempt_id:
            attempt = Attempt(
                receive.group.group_id, receive.topic.topic_id, self._runtime.now_ms(), tuple(held), source
            )
            self._attempts.remember(receive.client_id, receive.attempt_id, attempt)

    async def _again(
        self, receive: _Receive, request: service_pb2.ReceiveMessageRequest, context: RpcContext
    ) -> Batch | Fetched | None:
        """Returns the batch of this attempt if its answer was lost (wire contract 5.5)."""
        attempt = self._attempts.recall(
            receive.client_id,
            receive.attempt_id,
            receive.group.group_id,
            receive.topic.topic_id,
            self._runtime.now_ms(),
        )
        if attempt is None:
            return None
        if attempt.source:
            return await fetch(self._kernel, attempt.source, request, context, cluster=self._cluster)
        return await self._taker.again(
            receive.group,
            receive.topic,
            attempt.held,
            invisible_ms=receive.invisible_ms,
            client_id=receive.client_id if receive.auto_renew else "",
        )

    async def _take(
        self, receive: _Receive, request: service_pb2.ReceiveMessageRequest, context: RpcContext
    ) -> Batch | Fetched | None:
        if receive.topic.message_type is not MessageType.LITE or receive.auto_renew:
            return await self._pop(receive, request, context)

        async def here(until_ms: int) -> Batch | Fetched | None:
            return await self._pop(replace(receive, poll_until_ms=until_ms), request, context)

        return await self._lite_receiving.receive(
            receive.group, receive.topic, request, context, here=here, until_ms=receive.poll_until_ms
        )

    def _granted(self, receive: _Receive) -> bool:
        """Returns True if the client may read its queue (wire contract 6.3). Raises PreconditionFailed (OC-18)."""
        if receive.queue_id == ANY:
            return True
        queue = MessageQueue(receive.topic.name, self._runtime.settings.broker_name, receive.queue_id)
        self._sessions.locking.must_hold(receive.group.name, receive.client_id, queue, NO_GENERATION)
        return self._grants.may(receive.group, receive.topic, receive.client_id, receive.queue_id)

    def _lite_queues(self, receive: _Receive) -> list[int] | None:
        if receive.topic.message_type is not MessageType.LITE:
            return None
        return self._lite.queues_of(receive.client_id, receive.group, receive.topic)

    async def _pop(
        self, receive: _Receive, request: service_pb2.ReceiveMessageRequest, context: RpcContext
    ) -> Batch | Fetched | None:
        if receive.attempt_id:
            again = await self._again(receive, request, context)
            if again is not None:
                return again
        for _ in range(_SPIN_MAX):
            if not self._granted(receive):
                await self._long_polls.until_owned(
                    receive.topic.topic_id,
                    receive.queue_id,
                    deadline_ms=receive.poll_until_ms,
                    client_id=receive.client_id,
                    user=receive.user,
                )
                return None
            queues = self._lite_queues(receive)
            batch = await self._taker.pop(
                receive.group,
                receive.topic,
                queue_id=receive.queue_id,
                queues=queues,
                count=receive.count,
                message_filter=receive.message_filter,
                invisible_ms=receive.invisible_ms,
                client_id=receive.client_id if receive.auto_renew else "",
                until_ms=receive.poll_until_ms,
                frame_bytes_max=_FRAME_BYTES_MAX.get(context.language, 0),
                node=context.language == NODE,
                official=context.headers.get(ROLE) != READER,
            )
            if batch is not None:
                return batch
            if self._runtime.now_ms() >= receive.poll_until_ms:
                return None
            source = await self._long_polls.for_messages(
                receive.group.group_id,
                receive.topic.topic_id,
                queue_id=receive.queue_id,
                queues=queues,
                deadline_ms=receive.poll_until_ms,
                client_id=receive.client_id,
                user=receive.user,
                push=receive.auto_renew,
                ahead=queues is None,
            )
            if source is None:
                return None
            if source:
                fetched = await fetch(self._kernel, source, request, context, cluster=self._cluster)
                self._cluster_polls.fetched(
                    receive.group, receive.topic, push=receive.auto_renew, source=source, found=fetched is not None
                )
                if fetched is not None:
                    return fetched
            topic = self._catalog.topics.by_id(receive.topic.topic_id)
            if topic is None:
                raise TopicNotFound(f"topic {receive.topic.name} was deleted")
            if topic is not receive.topic:  # its queues changed while this call waited
                receive = replace(receive, topic=topic)
        return None

    async def _joined(
        self, request: service_pb2.ReceiveMessageRequest, context: RpcContext, group_name: str
    ) -> GroupConfig:
        """Returns the group; the client is a member from now on."""
        group = self._catalog.groups.get(group_name) or await self._catalog.ensure_group(group_name)
        if context.client_id:
            kind = _PUSH if request.auto_renew else _SIMPLE
            client = self._clients.table.seen(
                context.client_id, self._runtime.now_ms(), group=group_name, language=context.language
            )
            self._sessions.seen_v2(context, group_name, client.client_type or kind, None)
        return group

    async def _understand(self, request: service_pb2.ReceiveMessageRequest, context: RpcContext) -> _Receive:
        settings = self._runtime.settings
        topic_name, group_name = request.message_queue.topic.name, request.group.name
        topic = self._catalog.topics.get(topic_name)
        if topic is None:
            if self._catalog.groups.get(group_name) is not None or settings.auto_create_groups:
                # A group that waits for a topic will read it from its first message.
                await self._joined(request, context, group_name)
            topic = self._catalog.read_topic(topic_name)
        if topic.permission is not Permission.READ_WRITE and not topic.permission.readable:
            raise Forbidden(
                f"topic {topic.name} has no readable queue on this broker; its permission is {topic.permission.name}"
            )
        group = await self._joined(request, context, group_name)
        queue_id = request.message_queue.id
        return _Receive(
            group=group,
            topic=topic,
            queue_id=_queue(queue_id, topic, push=request.auto_renew),
            count=min(max(request.batch_size, 1), settings.receive_batch_max),
            message_filter=message_filter(
                request.filter_expression.expression, is_sql=request.filter_expression.type == definition_pb2.SQL
            ),
            invisible_ms=self._invisible(request),
            client_id=context.client_id,
            user=caller_of(context),
            poll_until_ms=self._runtime.now_ms() + self._poll_ms(request, context),
            auto_renew=request.auto_renew,
            attempt_id=request.attempt_id if context.client_id else "",
        )

    def _invisible(self, request: service_pb2.ReceiveMessageRequest) -> int:
        settings = self._runtime.settings
        if request.auto_renew or not request.HasField("invisible_duration"):
            return settings.invisible_default_ms
        invisible_ms = duration_ms_of(request.invisible_duration)
        if not 1 <= invisible_ms <= settings.invisible_max_ms:
            raise IllegalInvisibleTime(
                f"the invisible duration is {invisible_ms} ms, the range is 1 to {settings.invisible_max_ms} ms"
            )
        return invisible_ms

    def _poll_ms(self, request: service_pb2.ReceiveMessageRequest, context: RpcContext) -> int:
        settings = self._runtime.settings
        left_ms = self._left_ms(context)
        if request.HasField("long_polling_timeout"):
            poll_ms = max(0, duration_ms_of(request.long_polling_timeout))
        else:
            poll_ms = settings.poll_default_ms
        return max(0, min(poll_ms, settings.poll_max_ms, poll_ms if left_ms is None else left_ms))

    def _left_ms(self, context: RpcContext) -> int | None:
        if context.deadline_ms is None:
            return None
        return context.deadline_ms - self._runtime.clock.monotonic_ms() - self._runtime.settings.poll_margin_ms

    def _hold_ms(self, context: RpcContext) -> int:
        left_ms = self._left_ms(context)
        hold_ms = self._runtime.settings.error_hold_ms
        return hold_ms if left_ms is None else max(0, min(hold_ms, left_ms))


def _queue(queue_id: int, topic: TopicConfig, *, push: bool) -> int:
    # A queue id is used for push consumers only: simple ones name any queue (wire contract 6.3). The queues of a
    # PRIORITY topic are its levels, and all consumers take the highest first; those of a LITE topic are in no route.
    whole = not push or topic.message_type in {MessageType.PRIORITY, MessageType.LITE}
    return ANY if whole or not 0 <= queue_id < topic.read_queues else queue_id


def _is_clients_own(context: RpcContext) -> bool:
    """Returns False for a call without a client id, and for one of another broker, which has the client."""
    return bool(context.client_id) and MARK not in context.headers


def _is_everywhere(topic: TopicConfig | None, request: service_pb2.ReceiveMessageRequest) -> bool:
    """Returns True if the messages may come from any broker, whichever is named (`rpc.lite.lite`)."""
    return topic is not None and topic.message_type is MessageType.LITE and not request.auto_renew


def _delivery_time(now_ms: int) -> bytes:
    seconds, rest = divmod(now_ms, 1000)
    moment = b"\x08" + varint(seconds) + (b"\x10" + varint(rest * 1_000_000) if rest else b"")
    return field(3, moment)


_NOTHING = field(1, status_frame(MessageNotFound("no new message")))
