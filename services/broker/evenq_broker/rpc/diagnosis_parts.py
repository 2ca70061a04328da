"""Between a group as this broker sees it, its wire form (`GroupPart`), and the facts that `core.diagnosis` judges."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from evenq.model import GroupConfig, MessageQueue, MessageType, TopicConfig
from evenq.wire.stubs.evenq.v1 import assignment_pb2, common_pb2, diagnosis_pb2, groups_pb2
from evenq_broker.core.group_facts import BrokerPart, Decided, GivenQueue, LostBroker, MemberAt, QueueAt, Told
from evenq_broker.core.members import MemberTally, Protocol
from evenq_broker.loops.resizing import unfinished
from evenq_broker.loops.translation import (
    counts_of,
    counts_of_entry,
    entry_of,
    generation_of,
    group_settings,
    member_message,
    member_of,
    queue_message,
    queue_of,
)
from evenq_broker.rpc.group_troubles import deliveries_of, retries_of

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["decided_of", "part_here", "part_of"]

QUEUES_MAX = 20_000
STRANDED_MAX = 1_000
TOLD_MAX = 20_000
SLICE = 500


async def part_here(broker: Broker, name: str) -> diagnosis_pb2.GroupPart:
    """What this broker tells of the group, in slices between other work."""
    group, tallies = broker.groups.get(name), broker.members.tallies(name)
    part = diagnosis_pb2.GroupPart(
        broker_name=broker.settings.broker_name,
        known=group is not None,
        duplicates=broker.sessions.duplicates.get(name, 0),
    )
    now_ms = broker.clock.now_ms()
    for one in broker.cluster.known.brokers.missing():
        part.lost.add(
            name=one.name, gone_ms=max(0, now_ms - one.gone_ms), unread=one.unread, dead_letters=one.dead_letters
        )
    part.members.extend(_member(broker, tally) for tally in tallies)
    part.told.extend(_told(broker, name, tallies))
    if group is None:
        return part
    given_back, timed_out, part.delivered = deliveries_of(broker, group)
    part.failed, part.retries_waiting = given_back + timed_out, retries_of(broker, group)
    part.strategy, part.ordered = group.strategy, group.ordered
    part.settings.CopyFrom(group_settings(group))
    for topic in _topics(broker, group, tallies):
        counts = counts_of(broker.settings.broker_name, topic, draining=broker.draining)
        part.topics.append(entry_of(topic.name, counts))
        part.stranded.extend(_stranded(broker, group, topic)[: STRANDED_MAX - len(part.stranded)])
        for queue_id in range(topic.read_queues if topic.permission.readable else 0):
            if len(part.queues) >= QUEUES_MAX:
                return part
            part.queues.append(_queue(broker, group, topic, queue_id))
            if len(part.queues) % SLICE == 0:
                await broker.clock.sleep_ms(1)
    return part


def _stranded(broker: Broker, group: GroupConfig, topic: TopicConfig) -> list[diagnosis_pb2.QueueState]:
    """Queues that the group cannot read and has not finished. Those that are written and not read yet are the topic's
    trouble, not the group's.
    """
    unread = topic.closed if topic.permission.readable else range(topic.queues_ever)
    closed = [one for one in unread if not topic.permission.readable or one >= topic.write_queues]
    return [
        diagnosis_pb2.QueueState(queue=queue_message(one.queue), committed=-1, lag=one.lag, inflight=one.inflight)
        for one in unfinished(broker, topic, closed)
        if one.group == group.name
    ]


def _topics(broker: Broker, group: GroupConfig, tallies: Iterable[MemberTally]) -> list[TopicConfig]:
    """Topics here that the group has read, or that its members subscribe; those of lite messages have no owners."""
    read = [broker.topics.by_id(topic_id) for topic_id in broker.progress.topics_of(group.group_id)]
    wanted = {one.topic for tally in tallies for one in tally.member.subscriptions}
    found = {topic.name: topic for topic in (*read, *map(broker.topics.get, wanted)) if topic is not None}
    return [found[name] for name in sorted(found) if found[name].message_type is not MessageType.LITE]


def _member(broker: Broker, tally: MemberTally) -> diagnosis_pb2.MemberState:
    left_ms = tally.deadline_ms - broker.clock.monotonic_ms()
    return diagnosis_pb2.MemberState(
        member=member_message(tally.member),
        age_ms=max(0, broker.clock.now_ms() - tally.member.joined_ms),
        silent_ms=min(tally.lease_ms, max(0, tally.lease_ms - left_ms)),
        lease_ms=tally.lease_ms,
        lost=tally.suspended,
    )


def _told(broker: Broker, group: str, tallies: Iterable[MemberTally]) -> Iterable[diagnosis_pb2.ToldQueues]:
    """What members without locks were told to read, as far as it is told queue by queue."""
    rows = 0
    for tally in tallies:
        if tally.member.protocol is not Protocol.V2:
            continue
        for topic, answer in broker.cluster.answers.told(group, tally.member.client_id).items():
            queues = [queue_message(queue) for queue in answer.queues if queue.queue_id >= 0]
            rows += len(queues)
            if rows > TOLD_MAX:
                return
            generation = common_pb2.Generation(epoch=answer.epoch, counter=answer.counter)
            yield diagnosis_pb2.ToldQueues(
                client_id=tally.member.client_id, topic=topic, generation=generation, queues=queues
            )


def _queue(broker: Broker, group: GroupConfig, topic: TopicConfig, queue_id: int) -> diagnosis_pb2.QueueState:
    place = (group.group_id, topic.topic_id, queue_id)
    queue = MessageQueue(topic.name, broker.settings.broker_name, queue_id)
    now_ms = broker.clock.monotonic_ms()
    state = diagnosis_pb2.QueueState(
        queue=queue_message(queue), holder=broker.locks.holder(group.name, queue), committed=-1
    )
    progress = broker.progress.queue(*place)
    if progress is None:
        return state
    low, high = broker.store.queue_range(topic.topic_id, queue_id)
    state.committed = progress.committed
    state.lag = broker.progress.lag(*place, low, high)
    state.inflight = len(progress.pending)
    state.unmoved_ms = broker.heads.unmoved_ms(place, progress.committed, now_ms=now_ms)
    head = progress.pending.get(progress.committed)
    state.head_attempt = 0 if head is None else head.attempt
    back = broker.heads.back(place, now_ms=now_ms)
    if back is not None and progress.committed < back.from_offset:
        state.back_from, state.back_to, state.back_ms = back.from_offset, back.to_offset, now_ms - back.at_ms
    return state


# ------------------------------------------------------------------------------------------------- from the wire


def part_of(part: diagnosis_pb2.GroupPart) -> BrokerPart:
    """What a broker told."""
    return BrokerPart(
        broker_name=part.broker_name,
        members=tuple(
            MemberAt(
                member=member_of(
                    one.member,
                    joined_ms=one.member.joined_ms,
                    address=one.member.address,
                    protocol=Protocol(one.member.protocol or Protocol.V2),
                ),
                age_ms=one.age_ms,
                silent_ms=one.silent_ms,
                lease_ms=one.lease_ms,
                lost=one.lost,
            )
            for one in part.members
        ),
        queues=tuple(
            QueueAt(
                queue=queue_of(one.queue),
                holder=one.holder,
                committed=one.committed,
                lag=one.lag,
                inflight=one.inflight,
                unmoved_ms=one.unmoved_ms,
                head_attempt=one.head_attempt,
                back_from=one.back_from if one.HasField("back_from") else -1,
                back_to=one.back_to,
                back_ms=one.back_ms,
            )
            for one in part.queues
        ),
        told=tuple(
            Told(one.client_id, one.topic, generation_of(one.generation), tuple(map(queue_of, one.queues)))
            for one in part.told
        ),
        counts={entry.name: counts_of_entry(part.broker_name, entry) for entry in part.topics},
        stranded=tuple(QueueAt(queue=queue_of(one.queue), lag=one.lag) for one in part.stranded),
        settings=_settings_of(part.settings) if part.HasField("settings") else {},
        revised_ms=part.settings.revised_ms,
        duplicates=part.duplicates,
        lost=tuple(LostBroker(one.name, one.gone_ms, one.unread, one.dead_letters) for one in part.lost),
        retries_waiting=part.retries_waiting,
        failed=part.failed,
        delivered=part.delivered,
    )


def _settings_of(told: groups_pb2.GroupSettings) -> dict[str, str]:
    """As `evenq group create` names them."""
    retry = [told.retry.kind, *told.retry.delays_ms, told.retry.initial_ms, told.retry.max_ms, told.retry.multiplier]
    balance = [told.balance.weight, told.balance.moves_max, told.balance.hold_ms, told.balance.hold_lag_max]
    return {
        "strategy": told.strategy,
        "max_attempts": str(told.max_attempts),
        "ordered": "yes" if told.ordered else "no",
        "start_from": told.start_from,
        "retry": " ".join(str(one) for one in retry if one),
        "balance": " ".join(str(one) for one in balance if one) or "EVEN",
    }


def decided_of(answer: assignment_pb2.ExplainResponse, *, now_ms: int) -> Decided:
    """What the rebalancer told. `now_ms`: since the epoch."""
    return Decided(
        strategy=answer.strategy,
        queues=tuple(
            GivenQueue(
                queue=queue_of(one.queue),
                owner=one.owner,
                age_ms=max(0, now_ms - one.since_ms),
                held=one.state == "HELD",
                owner_zone=one.owner_zone,
                broker_zone=one.broker_zone,
            )
            for one in answer.queues
        ),
        idle={one.client_id: one.reason for one in answer.idle},
        problems=tuple(answer.problems),
    )
