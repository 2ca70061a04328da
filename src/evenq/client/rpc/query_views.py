"""From the wire of `evenq.v1` to messages, traces, clients and dead letters (`core.query_views`). Pure; used by
`rpc.queries` alone.
"""

from __future__ import annotations

from evenq.client.core.admin.query_views import (
    ClientView,
    DeadLetterCountView,
    DeadLettersView,
    DeadLetterView,
    FoundMessagesView,
    GroupTraceView,
    MessageTraceView,
    MessageView,
    ReplayView,
    SubscriptionView,
    TraceEventView,
)
from evenq.client.rpc.admin_views import message_type
from evenq.client.rpc.translation import model_filter, model_queue
from evenq.wire.convert import ms_of
from evenq.wire.stubs.evenq.v1 import admin_pb2, dead_letters_pb2

__all__ = ["client_view", "dead_letters", "found_messages", "replay_view", "trace_view"]


def message_view(wire: admin_pb2.FoundMessage) -> MessageView:
    """One stored message."""
    system = wire.message.system_properties
    origin = system.dead_letter_queue
    return MessageView(
        queue=model_queue(wire.queue),
        offset=system.queue_offset,
        message_id=system.message_id,
        message_type=message_type(system.message_type),
        tag=system.tag if system.HasField("tag") else None,
        keys=tuple(system.keys),
        properties=dict(wire.message.user_properties),
        message_group=system.message_group if system.HasField("message_group") else None,
        priority=system.priority if system.HasField("priority") else None,
        lite_topic=system.lite_topic if system.HasField("lite_topic") else None,
        born_ms=ms_of(system.born_timestamp),
        born_host=system.born_host,
        store_ms=ms_of(system.store_timestamp),
        body=wire.message.body,
        body_bytes=wire.body_bytes,
        origin_topic=origin.topic,
        origin_message_id=origin.message_id,
    )


def found_messages(wire: admin_pb2.FindMessagesResponse) -> FoundMessagesView:
    """What a search found."""
    return FoundMessagesView(
        messages=tuple(map(message_view, wire.messages)),
        more=wire.more,
        positions={model_queue(at.queue): at.offset for at in wire.positions},
        silent=tuple(wire.silent),
    )


def trace_view(wire: admin_pb2.MessageTrace) -> MessageTraceView:
    """What became of one stored copy."""
    return MessageTraceView(
        message=message_view(wire.message),
        groups=tuple(
            GroupTraceView(
                group=at.group, state=at.state, attempt=at.attempt, client_id=at.client_id, until_ms=at.until_ms
            )
            for at in wire.groups
        ),
        events=tuple(
            TraceEventView(
                at_ms=event.at_ms,
                what=admin_pb2.TraceEvent.Kind.Name(event.kind),
                group=event.group,
                client_id=event.client_id,
                attempt=event.attempt,
                until_ms=event.until_ms,
            )
            for event in wire.events
        ),
        remembered_since_ms=wire.remembered_since_ms,
    )


def client_view(wire: admin_pb2.ClientSummary) -> ClientView:
    """One client."""
    return ClientView(
        client_id=wire.client_id,
        kind=wire.kind,
        group=wire.group,
        language=wire.language,
        version=wire.version,
        protocol=wire.protocol,
        subscriptions=tuple(
            SubscriptionView(topic=entry.topic, filter=model_filter(entry.filter)) for entry in wire.subscriptions
        ),
        joined_ms=wire.joined_ms,
        last_seen_ms=wire.last_seen_ms,
        brokers=tuple(wire.brokers),
        command_brokers=tuple(wire.command_brokers),
        owned=tuple(map(model_queue, wire.owned)),
        inflight=wire.inflight,
    )


def dead_letters(wire: dead_letters_pb2.ListDeadLettersResponse) -> DeadLettersView:
    """Dead letters and their counts."""
    return DeadLettersView(
        counts=tuple(
            DeadLetterCountView(group=one.group, broker_name=one.broker_name, stored=one.stored, waiting=one.waiting)
            for one in wire.counts
        ),
        letters=tuple(map(_letter, wire.letters)),
        silent=tuple(wire.silent),
    )


def _letter(wire: dead_letters_pb2.DeadLetter) -> DeadLetterView:
    return DeadLetterView(
        queue=model_queue(wire.place),
        offset=wire.offset,
        stored_ms=wire.stored_ms,
        message_id=wire.message_id,
        tag=wire.tag,
        keys=tuple(wire.keys),
        origin=model_queue(wire.origin),
        origin_offset=wire.origin_offset,
        attempts=wire.attempts,
        reason=wire.reason,
        replayed=wire.replayed,
        body_bytes=wire.body_bytes,
        body=wire.body,
        properties=dict(wire.properties),
    )


def replay_view(wire: dead_letters_pb2.ReplayProgress) -> ReplayView:
    """How far a replay is at one broker."""
    return ReplayView(
        broker_name=wire.broker_name,
        total=wire.total,
        replayed=wire.replayed,
        left_out=wire.left_out,
        failed=wire.failed,
        error=wire.error,
        done=wire.done,
        would=dict(wire.would),
    )
