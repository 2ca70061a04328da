"""Telemetry (wire contract 4): answers every Settings with OK and Settings of the same form, from the configuration of
the group.

A group or topic without a grant is answered like one that does not exist, and is not stored for the client. Without
settings an SDK would not start, and would not report why; its next calls are refused with a reason.

A consumer's settings also fix the start of a group that is new on their topics (`begin_group`).

The stream also carries commands of the broker, such as transaction checks (`loops.clients.streams`). Nothing else
depends on it: clients without a stream are served as well. A stream is read only as fast as its client reads the
answers, so a client that stops reading occupies one answer and delays no other client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import islice

from evenq.errors import Error
from evenq.model import FilterExpression, FilterType, MessageType, Subscription
from evenq.model.delay_levels import DelayLevels
from evenq.model.retry import CLASSIC_RETRY, RetryKind, RetryPolicy
from evenq.runtime.tasks import spawn
from evenq.serving.auth.calls import MESSAGING, rpc
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.convert import duration_ms_of, set_duration_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq_broker.loops.clients.connected import ConnectedClients
from evenq_broker.loops.clients.streams import TelemetryStream
from evenq_broker.loops.groups.departures import Departures
from evenq_broker.loops.groups.sessions import Sessions
from evenq_broker.loops.polls.waiting import LongPolls
from evenq_broker.loops.progress.starting import GroupStarts
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.transactions.transactions import Transactions
from evenq_broker.rpc.answers import OK_STATUS, parsed
from evenq_broker.rpc.cluster.forwarding import MARK
from evenq_broker.runtime import Runtime

PRODUCER_ATTEMPTS = 3
_HTTP = "HTTP"  # the name of Node.js
_PYTHON = "PYTHON"
_RUST = "RUST"
_LIST_ONLY = frozenset({_PYTHON, "CPP"})  # they read an exponential policy as 1 s
_SQL = 2
_BEGINNERS = frozenset({definition_pb2.PUSH_CONSUMER, definition_pb2.SIMPLE_CONSUMER})
_BEGUN_MAX = 256  # topics of one subscription; on further ones the group starts with its first receive


class Clients:
    """The handlers of Heartbeat and NotifyClientTermination (wire contract 3.5, 3.6)."""

    def __init__(
        self, runtime: Runtime, *, clients: ConnectedClients, departures: Departures, sessions: Sessions
    ) -> None:
        self._runtime = runtime
        self._clients, self._departures, self._sessions = clients, departures, sessions

    async def heartbeat(self, data: bytes, context: RpcContext) -> bytes:
        """Returns OK, also for a new client and for one without an id."""
        request = parsed(service_pb2.HeartbeatRequest, data, context)
        client_id = context.client_id
        if client_id:
            group = request.group.name
            client = self._clients.table.seen(
                client_id,
                self._runtime.now_ms(),
                client_type=request.client_type,
                group=group,
                language=context.language,
            )
            if client.refused:
                return OK_STATUS
            if group:
                self._sessions.seen_v2(context, group, request.client_type, None)
            else:
                self._sessions.touched_v2(client_id)
        return OK_STATUS

    async def terminate(self, data: bytes, context: RpcContext) -> bytes:
        """Ends a client. With MARK the call comes from a broker of an older version, which sends it to all others."""
        parsed(service_pb2.NotifyClientTerminationRequest, data, context)
        client_id = context.client_id
        if client_id:
            self._sessions.left_v2(client_id)
            self._departures.goodbye(client_id, spread=MARK not in context.headers)
        return OK_STATUS


class TelemetryHandler:
    """The handler of Telemetry."""

    def __init__(
        self,
        kernel: Kernel,
        *,
        clients: ConnectedClients,
        starts: GroupStarts,
        sessions: Sessions,
        long_polls: LongPolls,
        transactions: Transactions,
    ) -> None:
        self._kernel = kernel
        self._runtime, self._catalog = kernel.runtime, kernel.catalog
        self._clients, self._starts, self._sessions = clients, starts, sessions
        self._long_polls, self._transactions = long_polls, transactions

    def rpcs(self) -> list[Rpc]:
        return [rpc(MESSAGING + "Telemetry", self.telemetry)]

    async def _begin_group(self, settings: definition_pb2.Settings, context: RpcContext) -> None:
        # An SDK sends its settings before its start returns, and receives later: messages sent in between belong to
        # the group (RB-46). The answer waits for the record, like that of a first receive.
        topics = [
            topic
            for entry in islice(settings.subscription.subscriptions, _BEGUN_MAX)
            if ("topic", entry.topic.name) not in context.refused
            and (topic := self._catalog.topics.get(entry.topic.name)) is not None
            and topic.permission.readable
            and topic.message_type is not MessageType.LITE
        ]
        if not topics or settings.client_type not in _BEGINNERS:
            return
        try:
            group = await self._catalog.ensure_group(settings.subscription.group.name)
        except Error:
            return  # its receives report the error
        await asyncio.gather(*(self._starts.begin(group, topic, self._starts.official) for topic in topics))

    async def telemetry(self, requests: AsyncIterator[bytes], context: RpcContext) -> AsyncIterator[bytes]:
        stream = self._clients.open_stream(context.client_id, context.language)
        reading = spawn(self._read(requests, stream, context), name="telemetry")
        try:
            while frames := await stream.take():
                for frame in frames:
                    yield frame
            if stream.error is not None:
                raise stream.error  # a request that was not valid ended the stream
        finally:
            left = reading.done() and stream.error is None
            reading.cancel()
            self._clients.streams.close(stream)
            # Streams of Rust are short by design; its heartbeats show that it lives.
            if context.language != _RUST and not self._clients.streams.reaches(context.client_id):
                self._sessions.stream_lost_v2(context.client_id)
                if left and context.client_id:  # the client closed its side: it ends, and may wait for its polls
                    self._long_polls.end_client(context.client_id)

    async def _read(self, requests: AsyncIterator[bytes], stream: TelemetryStream, context: RpcContext) -> None:
        try:
            async for request in requests:
                command = parsed(service_pb2.TelemetryCommand, request, context)
                if command.HasField("settings"):
                    if self._clients.table.after_goodbye(context.client_id, self._runtime.now_ms()):
                        # Java and Node.js reopen a broken stream after 1 s, even if the client was closed in between.
                        # Java then waits without limit for the end of this stream, which it never ends itself.
                        await stream.answer(settings_reply(self._kernel, command.settings, context))
                        return
                    if not _group_refused(command.settings, context):
                        self._remember(command.settings, context)
                        await self._begin_group(command.settings, context)
                        stream.client_type, stream.retired = command.settings.client_type, False
                    published = (topic.name for topic in command.settings.publishing.topics)
                    granted = [topic for topic in published if ("topic", topic) not in context.refused]
                    fresh = self._clients.streams.publish(stream, granted)
                    if fresh:
                        self._transactions.producer_came(fresh)
                    await stream.answer(settings_reply(self._kernel, command.settings, context))
                else:
                    self._clients.commands.answered(context.client_id, command)
        except Error as error:
            stream.error = error
        finally:
            stream.end()

    def _remember(self, settings: definition_pb2.Settings, context: RpcContext) -> None:
        if not context.client_id:
            return
        group = ""
        subscriptions: list[Subscription] = []
        if settings.HasField("subscription"):
            group = settings.subscription.group.name
            subscriptions = list(_subscriptions(settings.subscription.subscriptions))
        try:
            client = self._clients.table.seen(
                context.client_id,
                self._runtime.now_ms(),
                client_type=settings.client_type,
                group=group,
                language=context.language,
                calls=False,
            )
            # Queues of a topic that the client may not read are divided among the others.
            may = [entry for entry in subscriptions if ("topic", entry.topic) not in context.refused]
            client.refused = bool(subscriptions) and not may
            if group:
                missing = [entry.topic for entry in subscriptions if ("topic", entry.topic) in context.refused]
                self._sessions.refuse(group, context.client_id, missing)
            client.subscriptions = {entry.topic: entry.filter.expression for entry in may}
            if client.refused:
                self._sessions.left_v2(context.client_id, group)
            elif group:
                self._sessions.seen_v2(context, group, settings.client_type, may)
        except Error:
            return  # the client gets its settings even if the table is full


def settings_reply(kernel: Kernel, client_settings: definition_pb2.Settings, context: RpcContext) -> bytes:
    """Returns the client's settings with the server's part filled in (4.3)."""
    reply = service_pb2.TelemetryCommand()
    reply.status.code = definition_pb2.OK
    settings = reply.settings
    settings.CopyFrom(client_settings)
    settings.metric.on = False
    if settings.HasField("subscription"):
        _fill_subscription(kernel, settings, context)
    else:
        settings.publishing.max_body_size = kernel.runtime.settings.body_bytes_max
        settings.publishing.validate_message_type = True
        _fill_exponential(settings, PRODUCER_ATTEMPTS, 10, 1_000)
    return reply.SerializeToString()


def _fill_subscription(kernel: Kernel, settings: definition_pb2.Settings, context: RpcContext) -> None:
    subscription = settings.subscription
    # Without a grant, a client must not learn the configuration of a group.
    group = None if _group_refused(settings, context) else kernel.catalog.groups.get(subscription.group.name)
    attempts = group.max_attempts if group is not None else kernel.runtime.settings.default_group_max_attempts
    subscription.fifo = group is not None and group.ordered
    subscription.receive_batch_size = kernel.runtime.settings.receive_batch_max
    simple = settings.client_type in {definition_pb2.SIMPLE_CONSUMER, definition_pb2.LITE_SIMPLE_CONSUMER}
    if not simple or duration_ms_of(subscription.long_polling_timeout) <= 0:
        set_duration_ms(subscription.long_polling_timeout, kernel.runtime.settings.poll_default_ms)
    if settings.client_type in {definition_pb2.LITE_PUSH_CONSUMER, definition_pb2.LITE_SIMPLE_CONSUMER}:
        subscription.lite_subscription_quota = kernel.runtime.settings.lite_subscriptions_max
        subscription.max_lite_topic_size = kernel.runtime.settings.lite_topic_size_max
    retry = group.retry if group is not None else CLASSIC_RETRY
    _fill_retry(settings, attempts, retry, kernel.runtime.delay_levels, context.language)


def _fill_retry(
    settings: definition_pb2.Settings, attempts: int, retry: RetryPolicy, levels: DelayLevels, language: str
) -> None:
    # Policies that each SDK understands: wire contract 4.4. The server keeps exact pauses for Node.js
    # (`rpc.delivery.settle`).
    exponential = retry.kind is RetryKind.EXPONENTIAL
    pauses_ms = retry.pauses_ms(attempts - 1, levels=levels)
    if language == _HTTP:
        # Node.js knows only the exponential policy, and reads its seconds as milliseconds.
        first_ms, longest_ms = (retry.initial_ms, retry.max_ms) if exponential else (pauses_ms[0], max(pauses_ms))
        multiplier = retry.multiplier if exponential else (1.0 if first_ms == longest_ms else 2.0)
        _fill_exponential(settings, attempts, max(1, first_ms) * 1_000, max(1, longest_ms) * 1_000, multiplier)
    elif exponential and language not in _LIST_ONLY:
        _fill_exponential(settings, attempts, retry.initial_ms, retry.max_ms, retry.multiplier)
    else:
        policy = settings.backoff_policy
        policy.Clear()
        policy.max_attempts = attempts
        for pause_ms in pauses_ms:
            whole_ms = -(-pause_ms // 1_000) * 1_000 if language == _PYTHON else pause_ms  # it reads seconds only
            set_duration_ms(policy.customized_backoff.next.add(), whole_ms)


def _fill_exponential(
    settings: definition_pb2.Settings, attempts: int, first_ms: int, max_ms: int, multiplier: float = 2.0
) -> None:
    policy = settings.backoff_policy
    policy.Clear()
    policy.max_attempts = attempts
    set_duration_ms(policy.exponential_backoff.initial, first_ms)
    set_duration_ms(policy.exponential_backoff.max, max_ms)
    policy.exponential_backoff.multiplier = multiplier


def _group_refused(settings: definition_pb2.Settings, context: RpcContext) -> bool:
    return ("group", settings.subscription.group.name) in context.refused


def _subscriptions(entries: Iterable[definition_pb2.SubscriptionEntry]) -> Iterable[Subscription]:
    for entry in entries:
        kind = FilterType.SQL if entry.expression.type == _SQL else FilterType.TAG
        expression = FilterExpression(entry.expression.expression or "*", kind)
        yield Subscription(entry.topic.name, expression)
