"""Telemetry (wire contract 4): answers every Settings with OK and Settings of the same shape, from the group's own
configuration.

A group or topic that the caller has no grant for is answered like one that does not exist, and left out of what the
broker knows of its clients: an SDK that got no settings would not start, and not say why. Its next calls are refused.

The subscription in a consumer's settings is also where its group begins, if the group is new there (`begin_group`).

Besides, it carries what the broker sends unasked, like transaction checks (`loops.clients.streams`). Nothing else
depends on the stream: clients whose stream broke long ago are served all the same. A stream is read only as fast as its
client reads the answers, so a client that stops reading holds one answer and disturbs no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import islice

from evenq.errors import Error
from evenq.model import FilterExpression, FilterType, MessageType, StartPolicy, Subscription
from evenq.model.delay_levels import DelayLevels
from evenq.model.retry import CLASSIC_RETRY, RetryKind, RetryPolicy
from evenq.runtime.tasks import spawn
from evenq.serving.rpc import CallKind, Rpc, RpcContext
from evenq.wire.convert import duration_ms_of, set_duration_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq_broker.loops.clients.connected import ConnectedClients
from evenq_broker.loops.clients.streams import TelemetryStream
from evenq_broker.loops.groups.sessions import Sessions
from evenq_broker.loops.polls.waiting import LongPolls
from evenq_broker.loops.progress.starting import GroupStarts
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.transactions.transactions import Transactions
from evenq_broker.rpc.access import MESSAGING, rpc
from evenq_broker.rpc.answers import parsed
from evenq_broker.runtime import Runtime

__all__ = ["rpcs", "settings_reply"]

PRODUCER_ATTEMPTS = 3
_HTTP = "HTTP"  # what Node.js calls itself
_PYTHON = "PYTHON"
_RUST = "RUST"
_LIST_ONLY = frozenset({_PYTHON, "CPP"})  # an exponential policy is one second to them
_SQL = 2
_BEGINNERS = frozenset({definition_pb2.PUSH_CONSUMER, definition_pb2.SIMPLE_CONSUMER})
_BEGUN_MAX = 256  # topics of one subscription; on further ones the group begins with its first receive


def rpcs(
    runtime: Runtime,
    catalog: Catalog,
    *,
    clients: ConnectedClients,
    starts: GroupStarts,
    sessions: Sessions,
    long_polls: LongPolls,
    transactions: Transactions,
) -> list[Rpc]:
    """The one call of this module."""

    async def begin_group(settings: definition_pb2.Settings, context: RpcContext) -> None:
        # An SDK sends its settings before its start returns and receives some time later: what is sent between the two
        # belongs to the group (RB-46). The answer waits for the record, as that of a first receive does.
        topics = [
            topic
            for entry in islice(settings.subscription.subscriptions, _BEGUN_MAX)
            if ("topic", entry.topic.name) not in context.refused
            and (topic := catalog.topics.get(entry.topic.name)) is not None
            and topic.permission.readable
            and topic.message_type is not MessageType.LITE
        ]
        if not topics or settings.client_type not in _BEGINNERS:
            return
        try:
            group = await catalog.ensure_group(settings.subscription.group.name)
        except Error:
            return  # its receives say why
        policy = StartPolicy(young_from_first=runtime.settings.young_from_first)
        await asyncio.gather(*(starts.begin(group, topic, policy) for topic in topics))

    async def telemetry(requests: AsyncIterator[bytes], context: RpcContext) -> AsyncIterator[bytes]:
        stream = clients.open_stream(context.client_id, context.language)
        reading = spawn(
            _read(
                runtime,
                catalog,
                requests,
                stream,
                context,
                clients=clients,
                sessions=sessions,
                transactions=transactions,
                begin_group=begin_group,
            ),
            name="telemetry",
        )
        try:
            while frames := await stream.take():
                for frame in frames:
                    yield frame
            if stream.error is not None:
                raise stream.error  # a request that made no sense ended the stream: say why
        finally:
            left = reading.done() and stream.error is None
            reading.cancel()
            clients.streams.close(stream)
            # Streams of Rust are short by design; its heartbeats tell whether it lives.
            if context.language != _RUST and not clients.streams.reaches(context.client_id):
                sessions.stream_lost_v2(context.client_id)
                if left and context.client_id:  # it said its last word: if it waits for its polls, it is at its end
                    long_polls.end_client(context.client_id)

    return [rpc(MESSAGING + "Telemetry", telemetry, service_pb2.TelemetryCommand, CallKind.BIDI)]


async def _read(
    runtime: Runtime,
    catalog: Catalog,
    requests: AsyncIterator[bytes],
    stream: TelemetryStream,
    context: RpcContext,
    *,
    clients: ConnectedClients,
    sessions: Sessions,
    transactions: Transactions,
    begin_group: Callable[[definition_pb2.Settings, RpcContext], Awaitable[None]],
) -> None:
    try:
        async for request in requests:
            command = parsed(service_pb2.TelemetryCommand, request, context)
            if command.HasField("settings"):
                if clients.table.after_goodbye(context.client_id, runtime.now_ms()):
                    # Java and Node.js open a broken stream again after a second, also if the client was closed in
                    # between. Java then waits without limit for the end of this stream, which it never ends itself.
                    await stream.answer(settings_reply(runtime, catalog, command.settings, context))
                    return
                if not _group_refused(command.settings, context):
                    _remember(runtime, command.settings, context, clients=clients, sessions=sessions)
                    await begin_group(command.settings, context)
                    stream.client_type, stream.retired = command.settings.client_type, False
                published = (topic.name for topic in command.settings.publishing.topics)
                granted = [topic for topic in published if ("topic", topic) not in context.refused]
                fresh = clients.streams.publish(stream, granted)
                if fresh:
                    transactions.producer_came(fresh)
                await stream.answer(settings_reply(runtime, catalog, command.settings, context))
            else:
                clients.commands.answered(context.client_id, command)
    except Error as error:
        stream.error = error
    finally:
        stream.end()


def settings_reply(
    runtime: Runtime, catalog: Catalog, client_settings: definition_pb2.Settings, context: RpcContext
) -> bytes:
    """What the client said, with the server's part filled in (4.3)."""
    reply = service_pb2.TelemetryCommand()
    reply.status.code = definition_pb2.OK
    settings = reply.settings
    settings.CopyFrom(client_settings)
    settings.metric.on = False
    if settings.HasField("subscription"):
        _fill_subscription(runtime, catalog, settings, context)
    else:
        settings.publishing.max_body_size = runtime.settings.body_bytes_max
        settings.publishing.validate_message_type = True
        _fill_exponential(settings, PRODUCER_ATTEMPTS, 10, 1_000)
    return reply.SerializeToString()


def _fill_subscription(
    runtime: Runtime, catalog: Catalog, settings: definition_pb2.Settings, context: RpcContext
) -> None:
    subscription = settings.subscription
    # Without a grant no client learns how a group is configured.
    group = None if _group_refused(settings, context) else catalog.groups.get(subscription.group.name)
    attempts = group.max_attempts if group is not None else runtime.settings.default_group_max_attempts
    subscription.fifo = group is not None and group.ordered
    subscription.receive_batch_size = runtime.settings.receive_batch_max
    simple = settings.client_type in {definition_pb2.SIMPLE_CONSUMER, definition_pb2.LITE_SIMPLE_CONSUMER}
    if not simple or duration_ms_of(subscription.long_polling_timeout) <= 0:
        set_duration_ms(subscription.long_polling_timeout, runtime.settings.poll_default_ms)
    if settings.client_type in {definition_pb2.LITE_PUSH_CONSUMER, definition_pb2.LITE_SIMPLE_CONSUMER}:
        subscription.lite_subscription_quota = runtime.settings.lite_subscriptions_max
        subscription.max_lite_topic_size = runtime.settings.lite_topic_size_max
    retry = group.retry if group is not None else CLASSIC_RETRY
    _fill_retry(settings, attempts, retry, runtime.delay_levels, context.language)


def _fill_retry(
    settings: definition_pb2.Settings, attempts: int, retry: RetryPolicy, levels: DelayLevels, language: str
) -> None:
    # Who understands what: wire contract 4.4. The exact pauses of Node.js are kept by the server
    # (`rpc.delivery.settle`).
    exponential = retry.kind is RetryKind.EXPONENTIAL
    pauses_ms = retry.pauses_ms(attempts - 1, levels=levels)
    if language == _HTTP:
        # Node.js knows only the exponential policy and takes its seconds for milliseconds.
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


def _remember(
    runtime: Runtime,
    settings: definition_pb2.Settings,
    context: RpcContext,
    *,
    clients: ConnectedClients,
    sessions: Sessions,
) -> None:
    if not context.client_id:
        return
    group = ""
    subscriptions: list[Subscription] = []
    if settings.HasField("subscription"):
        group = settings.subscription.group.name
        subscriptions = list(_subscriptions(settings.subscription.subscriptions))
    try:
        client = clients.table.seen(
            context.client_id,
            runtime.now_ms(),
            client_type=settings.client_type,
            group=group,
            language=context.language,
            calls=False,
        )
        # Queues of a topic that it may not read are divided among the others.
        may = [entry for entry in subscriptions if ("topic", entry.topic) not in context.refused]
        client.refused = bool(subscriptions) and not may
        if group:
            missing = [entry.topic for entry in subscriptions if ("topic", entry.topic) in context.refused]
            sessions.refuse(group, context.client_id, missing)
        client.subscriptions = {entry.topic: entry.filter.expression for entry in may}
        if client.refused:
            sessions.left_v2(context.client_id, group)
        elif group:
            sessions.seen_v2(context, group, settings.client_type, may)
    except Error:
        return  # a full table is no reason to leave the client without settings


def _subscriptions(entries: Iterable[definition_pb2.SubscriptionEntry]) -> Iterable[Subscription]:
    for entry in entries:
        kind = FilterType.SQL if entry.expression.type == _SQL else FilterType.TAG
        expression = FilterExpression(entry.expression.expression or "*", kind)
        yield Subscription(entry.topic.name, expression)
