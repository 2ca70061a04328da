"""Conversion from messages of `evenq.v1` to the views that admin calls return (`core.admin`). Pure.

`view(TopicView, message)` takes each field from the message's field of the same name and converts it by its type, so a
new field needs one line in its view. `DIFFERING` has the fields with another name, place or meaning. A caller gives
those that no message has. An optional field is None if the message lacks it, or has a negative number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from functools import cache, partial
from types import UnionType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from evenq.client.core.admin.broker_group_views import BrokerCopyView, UncleanElectionView
from evenq.client.core.admin.query_views import (
    DeadLetterView,
    FoundMessagesView,
    MessageView,
    ScheduleView,
    TraceEventView,
)
from evenq.client.core.admin.views import (
    BrokerView,
    DifferingFiltersView,
    DrainView,
    ExplainedQueueView,
    ExplainView,
    GroupDetails,
    MemberView,
    PlacementView,
    QueueMoveView,
    QueueView,
    ResizeView,
    SimulationView,
    filter_text,
)
from evenq.client.rpc.translation import model_filter, model_queue
from evenq.model import BrokerAddress, FilterExpression, MessageQueue, MessageType, Weight
from evenq.model.retry import CLASSIC_RETRY, RetryKind, RetryPolicy
from evenq.wire.convert import ms_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.evenq.v1 import admin_pb2, assignment_pb2, dead_letters_pb2, groups_pb2

Fields = dict[str, Any]
ViewT = TypeVar("ViewT")

_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def view(kind: type[ViewT], message: Any, **given: Any) -> ViewT:
    """Returns the view of a message; `given`: fields that the message does not have."""
    fields = given | (DIFFERING[kind](message) if kind in DIFFERING else {})
    for name, hint in _hints(kind).items():
        if name not in fields:
            fields[name] = _field(message, name, hint)
    return kind(**fields)


def views(kind: type[ViewT], messages: Iterable[Any]) -> list[ViewT]:
    return [view(kind, message) for message in messages]


def _field(message: Any, name: str, hint: Any) -> Any:
    value = getattr(message, name)
    if not isinstance(hint, UnionType):
        return _converter(hint)(value)
    may_be_unset = message.DESCRIPTOR.fields_by_name[name].has_presence
    if (may_be_unset and not message.HasField(name)) or (isinstance(value, int) and value < 0):
        return None
    return _converter(get_args(hint)[0])(value)  # X of `X | None`


@cache
def _converter(hint: Any) -> Callable[[Any], Any]:
    if hint in CONVERTERS:
        return CONVERTERS[hint]
    if isinstance(hint, type) and is_dataclass(hint):
        return partial(view, hint)
    if get_origin(hint) is tuple:
        each = _converter(get_args(hint)[0])
        return lambda values: tuple(map(each, values))
    return dict if get_origin(hint) in {dict, Mapping} else lambda value: value


def _part(kind: type, message: Any, *names: str) -> Fields:
    """Returns these fields, taken from a message inside that of the view."""
    return {name: _field(message, name, _hints(kind)[name]) for name in names}


def _message_type(number: v2.MessageType.ValueType) -> MessageType:
    """Returns a topic's type by its number; unspecified means MIXED."""
    return MessageType.MIXED if number == v2.MESSAGE_TYPE_UNSPECIFIED else MessageType(v2.MessageType.Name(number))


def _retry(wire: groups_pb2.RetryPolicy) -> RetryPolicy:
    """Returns the classic policy for brokers that send none."""
    if wire.kind not in set(RetryKind):
        return CLASSIC_RETRY
    return RetryPolicy(
        kind=RetryKind(wire.kind),
        delays_ms=tuple(wire.delays_ms),
        initial_ms=wire.initial_ms,
        max_ms=wire.max_ms,
        multiplier=wire.multiplier or 2.0,
    )


CONVERTERS: Final[Mapping[Any, Callable[[Any], Any]]] = {
    FilterExpression: model_filter,
    MessageQueue: model_queue,
    MessageType: _message_type,
    RetryPolicy: _retry,
    Weight: Weight,
}
"""By the type of a view's field; other values stay as they are."""


def _placement(wire: admin_pb2.TopicPlacement) -> Fields:
    return {"queues": wire.entry.write_queues, "message_type": _message_type(wire.entry.message_type)}


def _topic_queue(wire: admin_pb2.QueueStatus) -> Fields:
    return {"permission": v2.Permission.Name(wire.permission)}


def _differing_filters(wire: admin_pb2.DifferingFilters) -> Fields:
    return {"filters": tuple((model_filter(entry.filter), tuple(entry.client_ids)) for entry in wire.filters)}


def _member(wire: groups_pb2.Member) -> Fields:
    return {
        "model": groups_pb2.MessageModel.Name(wire.model),
        "subscriptions": {entry.topic: filter_text(model_filter(entry.filter)) for entry in wire.subscriptions},
        "capacity": wire.capacity or 1.0,
    }


def _broker(wire: admin_pb2.BrokerSummary) -> Fields:
    return _part(BrokerView, wire.broker, "name", "cluster", "version", "start_ms") | {
        "broker_id": wire.broker.id,
        "addresses": tuple(BrokerAddress("", one.host, one.port, one.tls).address for one in wire.broker.listeners),
    }


def _copy(wire: admin_pb2.BrokerCopy) -> Fields:
    """Returns the state's name; UNKNOWN for one that only newer servers have."""
    known = wire.state in admin_pb2.BrokerCopy.State.values()
    return {"state": admin_pb2.BrokerCopy.State.Name(wire.state if known else admin_pb2.BrokerCopy.UNKNOWN)}


def _unclean_election(wire: admin_pb2.UncleanElection) -> Fields:
    return {"lost": tuple(one.copy for one in wire.lost)}


def _resize(wire: admin_pb2.ResizedTopic) -> Fields:
    return _part(ResizeView, wire.entry, "write_queues", "read_queues", "message_type") | {
        "permission": v2.Permission.Name(wire.entry.permission)
    }


def _drain(wire: admin_pb2.DrainBrokerResponse) -> Fields:
    return {"other_writers": wire.writers, "schedule_problems": {}}


def _explain(wire: assignment_pb2.ExplainResponse) -> Fields:
    return {
        "decides": wire.decides or "the rebalancer",
        "generation": f"{wire.generation.epoch}.{wire.generation.counter}" if wire.queues else "",
        "idle": {one.client_id: one.reason for one in wire.idle},
    }


def _queue_move(wire: assignment_pb2.ExplainedQueue) -> Fields:
    return {"before": wire.previous_owner, "after": wire.owner}


def _simulation(wire: assignment_pb2.SimulateResponse) -> Fields:
    return {
        "queues": wire.topic_queues or len({(row.queue.broker_name, row.queue.queue_id) for row in wire.queues}),
        "moves": tuple(views(QueueMoveView, (row for row in wire.queues if row.owner != row.previous_owner))),
        "moved": wire.moves,
        "unowned": sum(not row.owner for row in wire.queues),
        "share_min": wire.queues_per_member_min,
        "share_max": wire.queues_per_member_max,
        "other_zone_before": wire.cross_zone_now,
        "other_zone_after": wire.cross_zone_then,
    }


def _message(wire: admin_pb2.FoundMessage) -> Fields:
    system = wire.message.system_properties
    same = ("message_id", "message_type", "tag", "keys", "message_group", "priority", "lite_topic", "born_host")
    return _part(MessageView, system, *same) | {
        "offset": system.queue_offset,
        "properties": dict(wire.message.user_properties),
        "born_ms": ms_of(system.born_timestamp),
        "store_ms": ms_of(system.store_timestamp),
        "delivery_ms": ms_of(system.delivery_timestamp) if system.HasField("delivery_timestamp") else None,
        "body": wire.message.body,
        "origin_topic": system.dead_letter_queue.topic,
        "origin_message_id": system.dead_letter_queue.message_id,
    }


def _found_messages(wire: admin_pb2.FindMessagesResponse) -> Fields:
    return {"positions": {model_queue(at.queue): at.offset for at in wire.positions}}


def _trace_event(wire: admin_pb2.TraceEvent) -> Fields:
    return {"what": admin_pb2.TraceEvent.Kind.Name(wire.kind)}


def _dead_letter(wire: dead_letters_pb2.DeadLetter) -> Fields:
    return {"queue": model_queue(wire.place)}


def _schedule(state: admin_pb2.ScheduleState) -> Fields:
    definition = state.schedule
    names = ("topic", "name", "every_ms", "missed", "missed_max", "body", "tag", "keys", "message_group", "properties")
    return _part(ScheduleView, definition, *names) | {"schedule": definition.cron}


DIFFERING: Final[Mapping[type, Callable[[Any], Fields]]] = {
    BrokerCopyView: _copy,
    BrokerView: _broker,
    DeadLetterView: _dead_letter,
    DifferingFiltersView: _differing_filters,
    DrainView: _drain,
    ExplainView: _explain,
    FoundMessagesView: _found_messages,
    MemberView: _member,
    MessageView: _message,
    PlacementView: _placement,
    QueueMoveView: _queue_move,
    QueueView: _topic_queue,
    ResizeView: _resize,
    SimulationView: _simulation,
    ScheduleView: _schedule,
    TraceEventView: _trace_event,
    UncleanElectionView: _unclean_election,
}
"""By view: its fields whose name, place or meaning is different in the message."""


def explained_by_locks(details: GroupDetails, topic: str, decides: str) -> ExplainView:
    """Returns an explanation from the queue locks, which brokers have without a rebalancer. `topic` empty: all."""
    zones = {member.client_id: member.zone for member in details.members}
    holders = {at.owner for at in details.queues}
    rows = [
        ExplainedQueueView(
            queue=at.queue,
            state="OWNED" if at.owner else "UNOWNED",
            owner=at.owner,
            since_ms=0,
            reason="holds the queue's lock" if at.owner else "no member holds its lock",
            previous_owner="",
            owner_zone=zones.get(at.owner, ""),
            broker_zone="",
        )
        for at in details.queues
        if topic in {"", at.queue.topic}
    ]
    return ExplainView(
        group=details.summary.group,
        decides=decides,
        strategy=details.summary.strategy,
        generation="",
        queues=tuple(rows),
        idle={
            member.client_id: "it holds no lock"
            if member.protocol == "evenq"
            else "it receives single messages and needs no lock"
            for member in details.members
            if member.client_id not in holders
        },
        problems=(),
    )
