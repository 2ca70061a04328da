"""Conversions between the cluster's types and their `evenq.v1` messages, for loops and `rpc` (style.md 2)."""

from __future__ import annotations

from collections.abc import Iterable

from evenq.errors import BadRequest
from evenq.model import (
    BalancePolicy,
    BrokerAddress,
    FilterExpression,
    FilterType,
    Generation,
    GroupConfig,
    MessageModel,
    MessageQueue,
    MessageType,
    Permission,
    QueueCounts,
    Subscription,
    TopicConfig,
    Weight,
)
from evenq.model.retry import RetryKind, RetryPolicy
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2, groups_pb2, registry_pb2
from evenq_broker.core.assignment.local import Answer
from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.core.groups.members import Member, Protocol
from evenq_broker.core.groups.subscriptions import different_filters, wanted_of

LABEL_MAX = 255
CAPACITY_MAX = 1_000_000.0
_TYPES = {
    MessageType.NORMAL: definition_pb2.NORMAL,
    MessageType.FIFO: definition_pb2.FIFO,
    MessageType.DELAY: definition_pb2.DELAY,
    MessageType.TRANSACTION: definition_pb2.TRANSACTION,
    MessageType.LITE: definition_pb2.LITE,
    MessageType.PRIORITY: definition_pb2.PRIORITY,
    MessageType.MIXED: definition_pb2.MESSAGE_TYPE_UNSPECIFIED,
}
_TYPE_OF_NUMBER = {int(number): kind for kind, number in _TYPES.items()}


def message_type_number(kind: MessageType) -> definition_pb2.MessageType.ValueType:
    """Returns the number on the wire; MIXED is 0, "unspecified", in `evenq.v1` topic entries."""
    return _TYPES[kind]


def message_type_of(number: int, *, unspecified: MessageType = MessageType.MIXED) -> MessageType:
    """Returns the type of a wire number; `unspecified` for 0. Raises BadRequest for an unknown number."""
    if number == 0:
        return unspecified
    kind = _TYPE_OF_NUMBER.get(number)
    if kind is None:
        raise BadRequest(f"message type {number} is unknown; the types are 1 (NORMAL) to 6 (PRIORITY)")
    return kind


def queue_message(queue: MessageQueue) -> common_pb2.Queue:
    """Returns the wire form of a queue."""
    return common_pb2.Queue(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id)


def queue_of(queue: common_pb2.Queue) -> MessageQueue:
    """Returns the queue of a request."""
    return MessageQueue(queue.topic, queue.broker_name, queue.queue_id)


def generation_of(generation: common_pb2.Generation) -> Generation:
    """Returns the generation of a request; (0, 0) without one."""
    return Generation(generation.epoch, generation.counter)


def answer_of(topic: str, share: common_pb2.Share, generation: Generation) -> Answer:
    """Returns a member's part of a decision."""
    queues = tuple(
        MessageQueue(topic, part.broker_name, queue_id) for part in share.queues for queue_id in part.queue_ids
    )
    return Answer(queues, share.strategy, generation.epoch, generation.counter)


def filter_of(message: common_pb2.Filter) -> FilterExpression:
    """Returns the filter of a request; an empty expression means every message."""
    kind = FilterType.SQL if message.type == common_pb2.Filter.SQL else FilterType.TAG
    return FilterExpression(message.expression or "*", kind)


def filter_message(expression: FilterExpression) -> common_pb2.Filter:
    """Returns the wire form of a filter."""
    return common_pb2.Filter(type=common_pb2.Filter.Type.Value(expression.type.value), expression=expression.expression)


# --------------------------------------------------------------------------------------------------- brokers and topics


def counts_of(broker_name: str, topic: TopicConfig, *, draining: bool = False) -> QueueCounts:
    """Returns a topic of this broker as routes show it; a `draining` broker takes no messages for any."""
    return QueueCounts(
        broker_name=broker_name,
        read_queues=topic.read_queues,
        write_queues=topic.write_queues,
        permission=topic.permission.without_writing() if draining else topic.permission,
        message_type=topic.message_type,
        chosen=topic.chosen,
        uid=topic.uid,
    )


def permission_of(counts: QueueCounts, queue_id: int) -> definition_pb2.Permission.ValueType:
    """Returns the permission of one queue of a topic, as a route shows it; -1 means any."""
    readable = counts.permission.readable and queue_id < counts.read_queues
    writable = counts.permission.writable and queue_id < counts.write_queues
    if readable and writable:
        return definition_pb2.READ_WRITE
    if readable:
        return definition_pb2.READ
    return definition_pb2.WRITE if writable else definition_pb2.NONE


def entry_of(topic: str, counts: QueueCounts) -> registry_pb2.TopicEntry:
    """Returns the wire form of a topic on one broker."""
    return registry_pb2.TopicEntry(
        name=topic,
        message_type=message_type_number(counts.message_type),
        read_queues=counts.read_queues,
        write_queues=counts.write_queues,
        permission=definition_pb2.Permission.Value(counts.permission.name),
        chosen=counts.chosen,
        uid=counts.uid,
    )


def broker_info(view: RegisteredBroker) -> registry_pb2.BrokerInfo:
    """Returns the wire form of a broker without its topics."""
    return registry_pb2.BrokerInfo(
        name=view.name,
        id=view.broker_id,
        cluster=view.cluster,
        epoch=view.epoch,
        incarnation=view.incarnation,
        listeners=[registry_pb2.Listener(name=a.listener, host=a.host, port=a.port, tls=a.tls) for a in view.addresses],
        version=view.version,
        start_ms=view.start_ms,
        copies=view.copies,
        followers=view.followers,
    )


def broker_state(view: RegisteredBroker) -> registry_pb2.BrokerState:
    """Returns the wire form of a broker and all that it stores, topics ascending."""
    return registry_pb2.BrokerState(
        broker=broker_info(view),
        data_version=view.data_version,
        topics=[entry_of(topic, view.topics[topic]) for topic in sorted(view.topics)],
    )


def broker_view(state: registry_pb2.BrokerState) -> RegisteredBroker | None:
    """Returns a broker as a nameserver sent it; None for one without an address, which cannot be reached."""
    broker = state.broker
    if not broker.listeners or not broker.name:
        return None
    return RegisteredBroker(
        name=broker.name,
        broker_id=broker.id,
        cluster=broker.cluster,
        epoch=broker.epoch,
        incarnation=broker.incarnation,
        addresses=tuple(
            BrokerAddress(listener.name, listener.host, listener.port, listener.tls) for listener in broker.listeners
        ),
        version=broker.version,
        start_ms=broker.start_ms,
        copies=max(1, broker.copies),
        followers=tuple(broker.followers),
        data_version=state.data_version,
        topics={entry.name: counts_of_entry(broker.name, entry) for entry in state.topics},
    )


def counts_of_entry(broker_name: str, entry: registry_pb2.TopicEntry) -> QueueCounts:
    """Returns a topic of another broker as routes show it."""
    known = entry.permission in {1, 2, 3, 4}
    return QueueCounts(
        broker_name=broker_name,
        read_queues=entry.read_queues,
        write_queues=entry.write_queues,
        permission=Permission(entry.permission) if known else Permission.READ_WRITE,
        message_type=_TYPE_OF_NUMBER.get(entry.message_type, MessageType.MIXED),
        chosen=entry.chosen,
        uid=entry.uid,
    )


# --------------------------------------------------------------------------------------------------- groups and members


def member_message(member: Member) -> groups_pb2.Member:
    """Returns the wire form of a member."""
    return groups_pb2.Member(
        client_id=member.client_id,
        language=member.language,
        version=member.version,
        protocol=member.protocol.value,
        model=groups_pb2.MessageModel.Value(member.model.value),
        subscriptions=[
            groups_pb2.MemberSubscription(
                topic=subscription.topic,
                filter=filter_message(subscription.filter),
                version=subscription.version,
            )
            for subscription in member.subscriptions
        ],
        joined_ms=member.joined_ms,
        zone=member.zone,
        instance=member.instance,
        address=member.address,
        capacity=member.capacity,
        refuses_resets=member.refuses_resets,
        strategy=member.strategy,
        unordered=member.unordered,
    )


def member_of(
    member: groups_pb2.Member, *, joined_ms: int, address: str = "", protocol: Protocol = Protocol.EVENQ
) -> Member:
    """Returns the member that a session's Join describes; subscriptions sorted by topic. `address`: the peer's host, as
    this broker sees it. Raises BadRequest for labels and capacities outside their bounds.
    """
    for name, label in (("zone", member.zone), ("instance", member.instance), ("strategy", member.strategy)):
        if len(label) > LABEL_MAX or not label.isprintable():
            raise BadRequest(f"the {name} {label[:80]!r} is not valid: give at most {LABEL_MAX} printable characters")
    if not 0 <= member.capacity <= CAPACITY_MAX:
        raise BadRequest(f"the capacity is {member.capacity:g}; give more than 0 and at most {CAPACITY_MAX:g} (0 = 1)")
    return Member(
        client_id=member.client_id,
        protocol=protocol,
        language=member.language,
        version=member.version,
        model=MessageModel.BROADCASTING if member.model == groups_pb2.BROADCASTING else MessageModel.CLUSTERING,
        subscriptions=_subscriptions(member.subscriptions),
        joined_ms=joined_ms,
        zone=member.zone,
        instance=member.instance,
        address=address,
        capacity=member.capacity or 1.0,
        refuses_resets=member.refuses_resets,
        strategy=member.strategy,
        unordered=member.unordered,
    )


def _subscriptions(messages: Iterable[groups_pb2.MemberSubscription]) -> tuple[Subscription, ...]:
    by_topic = {s.topic: Subscription(s.topic, filter_of(s.filter), s.version) for s in messages}
    return tuple(by_topic[topic] for topic in sorted(by_topic))


def differing_filters(members: Iterable[groups_pb2.Member]) -> list[admin_pb2.DifferingFilters]:
    """Returns topics that members of one group filter differently, with the members of each filter."""
    differing = different_filters(wanted_of([member_of(member, joined_ms=member.joined_ms) for member in members]))
    return [
        admin_pb2.DifferingFilters(
            topic=topic,
            filters=[
                admin_pb2.FilterOfMembers(filter=filter_message(one), client_ids=clients)
                for one, clients in filters.items()
            ],
        )
        for topic, filters in differing.items()
    ]


def group_settings(group: GroupConfig) -> groups_pb2.GroupSettings:
    """Returns the configuration of a group for its members."""
    return groups_pb2.GroupSettings(
        ordered=group.ordered,
        max_attempts=group.max_attempts,
        strategy=group.strategy,
        start_from=group.start_from.value,
        retry=retry_message(group.retry),
        balance=balance_message(group.balance),
        revised_ms=group.revised_ms,
    )


def balance_message(balance: BalancePolicy) -> groups_pb2.BalancePolicy:
    """Returns the wire form of a balance policy."""
    return groups_pb2.BalancePolicy(
        weight=balance.weight.value,
        moves_max=balance.moves_max,
        hold_ms=balance.hold_ms,
        hold_lag_max=balance.hold_lag_max,
    )


def balance_of(message: groups_pb2.BalancePolicy) -> BalancePolicy:
    """Returns the policy of a request. Raises BadRequest for an unknown weight and for numbers outside their ranges."""
    if message.weight not in set(Weight):
        known = ", ".join(weight for weight in Weight if weight)
        raise BadRequest(f"weight {message.weight[:40]!r} is unknown; give one of {known}, or none for even shares")
    try:
        return BalancePolicy(
            weight=Weight(message.weight),
            moves_max=message.moves_max,
            hold_ms=message.hold_ms,
            hold_lag_max=message.hold_lag_max,
        )
    except ValueError as error:
        raise BadRequest(str(error)) from error


def retry_message(retry: RetryPolicy) -> groups_pb2.RetryPolicy:
    """Returns the wire form of a retry policy."""
    if retry.kind is RetryKind.EXPONENTIAL:
        return groups_pb2.RetryPolicy(
            kind=retry.kind.value, initial_ms=retry.initial_ms, max_ms=retry.max_ms, multiplier=retry.multiplier
        )
    return groups_pb2.RetryPolicy(kind=retry.kind.value, delays_ms=retry.delays_ms)


def retry_of(message: groups_pb2.RetryPolicy) -> RetryPolicy:
    """Returns the policy of a request. Raises BadRequest for an unknown kind and for numbers outside their ranges."""
    if message.kind not in set(RetryKind):
        raise BadRequest(f"retry kind {message.kind[:40]!r} is unknown; give one of {', '.join(RetryKind)}")
    try:
        return RetryPolicy(
            kind=RetryKind(message.kind),
            delays_ms=tuple(message.delays_ms),
            initial_ms=message.initial_ms,
            max_ms=message.max_ms,
            multiplier=message.multiplier or 2.0,
        )
    except ValueError as error:
        raise BadRequest(str(error)) from error
