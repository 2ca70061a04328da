"""From the wire of `evenq.v1` to what the admin calls tell (`core.views`). Pure; used by `rpc.admin` alone."""

from __future__ import annotations

from evenq.client.core.admin.broker_group_views import (
    BrokerCopyView,
    BrokerGroupView,
    LostPairView,
    UncleanElectionView,
    UncleanPlanView,
)
from evenq.client.core.admin.views import (
    BrokerView,
    DifferingFiltersView,
    DrainView,
    ExplainedQueueView,
    ExplainView,
    GroupDetails,
    GroupQueueView,
    GroupTroublesView,
    GroupView,
    MemberView,
    MissingBrokerView,
    OffsetMoveView,
    QueueMoveView,
    ResizeView,
    SimulationView,
    UnfinishedView,
    WithdrawView,
    filter_text,
)
from evenq.client.rpc.translation import model_filter, model_queue
from evenq.model import BalancePolicy, BrokerAddress, MessageType, Weight
from evenq.model.retry import CLASSIC_RETRY, RetryKind, RetryPolicy
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.evenq.v1 import admin_pb2, assignment_pb2, groups_pb2

__all__ = [
    "broker_group",
    "broker_view",
    "drain_view",
    "explained_by_locks",
    "explanation",
    "group_details",
    "group_view",
    "member_view",
    "message_type",
    "missing_broker",
    "offset_move",
    "resize_view",
    "simulation",
    "withdraw_view",
]


def message_type(number: v2.MessageType.ValueType) -> MessageType:
    """Of a topic, by its number."""
    return MessageType.MIXED if number == v2.MESSAGE_TYPE_UNSPECIFIED else MessageType(v2.MessageType.Name(number))


def group_view(wire: admin_pb2.GroupSummary) -> GroupView:
    """A group at a glance."""
    return GroupView(
        group=wire.group,
        ordered=wire.ordered,
        max_attempts=wire.max_attempts,
        strategy=wire.strategy,
        members=wire.members,
        topics=wire.topics,
        lag=wire.lag,
        balance=BalancePolicy(
            weight=Weight(wire.balance.weight),
            moves_max=wire.balance.moves_max,
            hold_ms=wire.balance.hold_ms,
            hold_lag_max=wire.balance.hold_lag_max,
        ),
        retry=_retry(wire.retry),
        silent=tuple(wire.silent),
    )


def _retry(wire: groups_pb2.RetryPolicy) -> RetryPolicy:
    """Empty from a broker that knows no policies."""
    if wire.kind not in set(RetryKind):
        return CLASSIC_RETRY
    return RetryPolicy(
        kind=RetryKind(wire.kind),
        delays_ms=tuple(wire.delays_ms),
        initial_ms=wire.initial_ms,
        max_ms=wire.max_ms,
        multiplier=wire.multiplier or 2.0,
    )


def group_details(wire: admin_pb2.DescribeGroupResponse) -> GroupDetails:
    """A group, its members and its progress."""
    return GroupDetails(
        summary=group_view(wire.summary),
        members=tuple(map(member_view, wire.members)),
        queues=tuple(
            GroupQueueView(
                queue=model_queue(q.queue),
                committed=q.committed,
                max_offset=q.max_offset,
                lag=q.lag,
                inflight=q.inflight,
                owner=q.owner,
                min_offset=q.min_offset,
                next_store_ms=q.next_store_ms,
            )
            for q in wire.queues
        ),
        differing_filters=tuple(
            DifferingFiltersView(
                topic=one.topic,
                filters=tuple((model_filter(entry.filter), tuple(entry.client_ids)) for entry in one.filters),
            )
            for one in wire.differing_filters
        ),
        troubles=GroupTroublesView(
            retries_waiting=wire.troubles.retries_waiting,
            given_back=wire.troubles.given_back,
            timed_out=wire.troubles.timed_out,
            dead_letters=wire.troubles.dead_letters,
            oldest_ms=wire.troubles.oldest_ms,
        ),
    )


def offset_move(wire: admin_pb2.OffsetMove) -> OffsetMoveView:
    """What a reset does to one queue."""
    return OffsetMoveView(
        queue=model_queue(wire.queue),
        before=wire.before,
        after=wire.after,
        inflight=wire.inflight,
        owner=wire.owner,
        error=wire.error,
        note=wire.note,
        min_offset=wire.min_offset,
        max_offset=wire.max_offset,
    )


def member_view(wire: groups_pb2.Member) -> MemberView:
    """One member of a group."""
    return MemberView(
        client_id=wire.client_id,
        language=wire.language,
        version=wire.version,
        protocol=wire.protocol,
        model=groups_pb2.MessageModel.Name(wire.model),
        subscriptions={entry.topic: filter_text(model_filter(entry.filter)) for entry in wire.subscriptions},
        joined_ms=wire.joined_ms,
        zone=wire.zone,
        instance=wire.instance,
        address=wire.address,
        capacity=wire.capacity or 1.0,
    )


def broker_view(wire: admin_pb2.BrokerSummary) -> BrokerView:
    """One broker."""
    return BrokerView(
        name=wire.broker.name,
        broker_id=wire.broker.id,
        cluster=wire.broker.cluster,
        addresses=tuple(BrokerAddress("", one.host, one.port, one.tls).address for one in wire.broker.listeners),
        version=wire.broker.version,
        start_ms=wire.broker.start_ms,
        topics=wire.topics,
        messages_in=wire.messages_in,
        messages_out=wire.messages_out,
        log_bytes=wire.log_bytes,
        connections=wire.connections,
        answered=wire.answered,
        draining=wire.draining,
    )


def broker_group(wire: admin_pb2.BrokerGroup) -> BrokerGroupView:
    """The copies of one broker's data."""
    return BrokerGroupView(
        broker_name=wire.broker_name,
        mode=wire.mode,
        epoch=wire.epoch,
        leader=_known(wire.leader),
        in_sync_min=wire.in_sync_min,
        copies=tuple(
            BrokerCopyView(
                copy=one.copy,
                address=one.address,
                state=_state(one.state),
                may_lead=one.may_lead,
                log_end=_known(one.log_end),
                lag_bytes=_known(one.lag_bytes),
                lag_ms=_known(one.lag_ms),
                away_since_ms=one.away_since_ms,
                committed_end=_known(one.committed_end) if one.HasField("committed_end") else None,
                log_epoch=_known(one.log_epoch) if one.HasField("log_epoch") else None,
            )
            for one in wire.copies
        ),
        unclean=tuple(map(_unclean_election, wire.unclean)),
    )


def unclean_plan(wire: admin_pb2.ElectUncleanResponse) -> UncleanPlanView:
    """What would be, or was, given up."""
    return UncleanPlanView(
        group=broker_group(wire.group),
        suggested=_known(wire.suggested),
        refusal=wire.refusal,
        lost=tuple(
            LostPairView(copy=one.copy, store_id=one.store_id, away_since_ms=one.away_since_ms) for one in wire.lost
        ),
        election=_unclean_election(wire.election) if wire.HasField("election") else None,
    )


def _unclean_election(wire: admin_pb2.UncleanElection) -> UncleanElectionView:
    return UncleanElectionView(
        epoch=wire.epoch,
        copy=wire.copy,
        store_id=wire.store_id,
        time_ms=wire.time_ms,
        log_end=wire.log_end,
        lost=tuple(one.copy for one in wire.lost),
        reason=wire.reason,
    )


def _known(number: int) -> int | None:
    return None if number < 0 else number


def _state(number: admin_pb2.BrokerCopy.State.ValueType) -> str:
    """A newer server may know more of them."""
    known = number in admin_pb2.BrokerCopy.State.values()
    return admin_pb2.BrokerCopy.State.Name(number if known else admin_pb2.BrokerCopy.UNKNOWN)


def missing_broker(wire: admin_pb2.MissingBroker) -> MissingBrokerView:
    """One that is not there."""
    return MissingBrokerView(
        name=wire.name, gone_ms=wire.gone_ms, unread=wire.unread, dead_letters=wire.dead_letters, changes=wire.changes
    )


def resize_view(wire: admin_pb2.ResizedTopic) -> ResizeView:
    """A topic's queues on one broker."""
    return ResizeView(
        broker_name=wire.broker_name,
        write_queues=wire.entry.write_queues,
        read_queues=wire.entry.read_queues,
        permission=v2.Permission.Name(wire.entry.permission),
        unfinished=tuple(map(unfinished_view, wire.unfinished)),
        message_type=message_type(wire.entry.message_type),
        unread=wire.unread,
        stored=wire.stored,
    )


def unfinished_view(wire: admin_pb2.UnfinishedQueue) -> UnfinishedView:
    """What a group has yet to read in one queue."""
    return UnfinishedView(queue=model_queue(wire.queue), group=wire.group, lag=wire.lag, inflight=wire.inflight)


def withdraw_view(wire: admin_pb2.ResizedTopic) -> WithdrawView:
    """What is left of a topic on a broker that it leaves."""
    return WithdrawView(
        broker_name=wire.broker_name,
        gone=wire.gone,
        unfinished=tuple(map(unfinished_view, wire.unfinished)),
        unread=wire.unread,
        delayed=wire.delayed,
        stored=wire.stored,
    )


def drain_view(wire: admin_pb2.DrainBrokerResponse) -> DrainView:
    """What is left on a broker."""
    return DrainView(
        broker_name=wire.broker_name,
        draining=wire.draining,
        empty=wire.empty,
        unfinished=tuple(map(unfinished_view, wire.unfinished)),
        lag=wire.lag,
        delayed=wire.delayed,
        unread=wire.unread,
        dead_letters=wire.dead_letters,
        other_writers=wire.writers,
    )


def explanation(group: str, wire: assignment_pb2.ExplainResponse) -> ExplainView:
    """What a rebalancer says of its decisions."""
    rows = [
        ExplainedQueueView(
            queue=model_queue(row.queue),
            state=row.state,
            owner=row.owner,
            since_ms=row.since_ms,
            reason=row.reason,
            previous_owner=row.previous_owner,
            owner_zone=row.owner_zone,
            broker_zone=row.broker_zone,
        )
        for row in wire.queues
    ]
    return ExplainView(
        group=group,
        decides=wire.decides or "the rebalancer",
        strategy=wire.strategy,
        generation=f"{wire.generation.epoch}.{wire.generation.counter}" if rows else "",
        queues=tuple(rows),
        idle={one.client_id: one.reason for one in wire.idle},
        problems=tuple(wire.problems),
    )


def explained_by_locks(details: GroupDetails, topic: str, decides: str) -> ExplainView:
    """What brokers know by themselves: who holds the locks. `topic` empty: of all."""
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
            else "it takes what others leave: it needs no lock"
            for member in details.members
            if member.client_id not in holders
        },
        problems=(),
    )


def simulation(topic: str, wire: assignment_pb2.SimulateResponse) -> SimulationView:
    """What would be if."""
    return SimulationView(
        topic=topic,
        queues=wire.topic_queues or len({(row.queue.broker_name, row.queue.queue_id) for row in wire.queues}),
        strategy=wire.strategy,
        moves=tuple(
            QueueMoveView(queue=model_queue(row.queue), before=row.previous_owner, after=row.owner)
            for row in wire.queues
            if row.owner != row.previous_owner
        ),
        moved=wire.moves,
        unowned=sum(not row.owner for row in wire.queues),
        share_min=wire.queues_per_member_min,
        share_max=wire.queues_per_member_max,
        other_zone_before=wire.cross_zone_now,
        other_zone_after=wire.cross_zone_then,
    )
