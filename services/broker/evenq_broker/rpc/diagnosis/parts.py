"""Converts the state of a group into its wire form (`GroupPart`) and the facts of `core.diagnosis.diagnosis`."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from evenq.model import GroupConfig, MessageQueue, MessageType, TopicConfig
from evenq.model.names import RETRY_PREFIX
from evenq.wire.stubs.evenq.v1 import admin_pb2, assignment_pb2, common_pb2, diagnosis_pb2, groups_pb2
from evenq_broker.core.dead_letters.delayed_retries import DelayedRetries
from evenq_broker.core.diagnosis.group_facts import (
    AssignedQueues,
    BrokerPart,
    Decided,
    GivenQueue,
    GroupFacts,
    LostBroker,
    MemberAt,
    QueueAt,
    ScheduleTroubles,
)
from evenq_broker.core.diagnosis.own_division import own_division, owner_of
from evenq_broker.core.diagnosis.stuck_queues import StuckQueues
from evenq_broker.core.groups.members import MemberTally, Protocol
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.core.sending.schedules import ScheduleTable
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.dead_letters.replay import waiting_letters
from evenq_broker.loops.groups.sessions import Sessions
from evenq_broker.loops.resizing.resizing import unfinished
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.translation import (
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
from evenq_broker.runtime import Runtime

QUEUES_MAX = 20_000
REFUSED_MAX = 100
STRANDED_MAX = 1_000
ROWS_MAX = 20_000
SLICE = 500
HOUR_MS = 3_600_000


class GroupParts:
    """The state of groups at this broker, in its wire form."""

    def __init__(
        self,
        kernel: Kernel,
        *,
        cluster: ClusterLink,
        membership: GroupTables,
        sessions: Sessions,
        delayed_retries: DelayedRetries,
        stuck_queues: StuckQueues,
        schedules: ScheduleTable,
    ) -> None:
        self._kernel = kernel
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._cluster, self._membership, self._sessions = cluster, membership, sessions
        self._delayed_retries, self._stuck_queues = delayed_retries, stuck_queues
        self._schedules = schedules

    async def here(self, name: str) -> diagnosis_pb2.GroupPart:
        """Returns the state of the group at this broker; long work yields to other calls."""
        group, tallies = self._catalog.groups.get(name), self._membership.members.tallies(name)
        part = diagnosis_pb2.GroupPart(
            broker_name=self._runtime.settings.broker_name,
            known=group is not None,
            duplicates=self._sessions.duplicates.get(name, 0),
        )
        now_ms = self._runtime.clock.now_ms()
        for one in self._cluster.known.brokers.missing():
            part.lost.add(
                name=one.name, gone_ms=max(0, now_ms - one.gone_ms), unread=one.unread, dead_letters=one.dead_letters
            )
        for client_id, topics in self._sessions.refused_of(name)[-REFUSED_MAX:]:
            part.refused.add(client_id=client_id, topics=topics)
        part.members.extend(self._member(tally) for tally in tallies)
        part.told.extend(self._assignments(name, tallies))
        if group is None:
            return part
        given_back, timed_out, part.delivered = deliveries_of(self._runtime, group)
        part.failed = given_back + timed_out
        part.retries_waiting = retries_of(self._kernel, group, delayed_retries=self._delayed_retries)
        part.strategy, part.ordered = group.strategy, group.ordered
        part.settings.CopyFrom(group_settings(group))
        for topic in self._topics(group, tallies):
            counts = counts_of(self._runtime.settings.broker_name, topic, draining=self._catalog.draining)
            part.topics.append(entry_of(topic.name, counts))
            self._add_schedules(part, topic)
            part.stranded.extend(self._stranded(group, topic)[: STRANDED_MAX - len(part.stranded)])
            for queue_id in range(topic.read_queues if topic.permission.readable else 0):
                if len(part.queues) >= QUEUES_MAX:
                    return part
                part.queues.append(self._queue(group, topic, queue_id))
                if len(part.queues) % SLICE == 0:
                    await self._runtime.clock.sleep_ms(1)
        return part

    def _stranded(self, group: GroupConfig, topic: TopicConfig) -> list[diagnosis_pb2.QueueState]:
        """Returns queues that the group has not finished and cannot read, without those that were not readable yet."""
        unread = topic.closed if topic.permission.readable else range(topic.queues_ever)
        closed = [one for one in unread if not topic.permission.readable or one >= topic.write_queues]
        return [
            diagnosis_pb2.QueueState(queue=queue_message(one.queue), committed=-1, lag=one.lag, inflight=one.inflight)
            for one in unfinished(self._kernel, topic, closed, membership=self._membership)
            if one.group == group.name
        ]

    def _add_schedules(self, part: diagnosis_pb2.GroupPart, topic: TopicConfig) -> None:
        now_ms, known = self._runtime.clock.monotonic_ms(), self._schedules.of(topic.topic_id)
        failing = [one.trouble for one in known if one.state == "failing"]
        missed = sum(one.missed_at_ms is not None and now_ms - one.missed_at_ms < HOUR_MS for one in known)
        if failing or missed:
            part.schedules.add(topic=topic.name, failing=len(failing), problem=(failing or [""])[0], missed=missed)

    def _topics(self, group: GroupConfig, tallies: Iterable[MemberTally]) -> list[TopicConfig]:
        """Returns topics that the group has read or its members subscribe to, without LITE topics: they have
        no owners.
        """
        read = [self._catalog.topics.by_id(topic_id) for topic_id in self._ledger.progress.topics_of(group.group_id)]
        subscribed = {one.topic for tally in tallies for one in tally.member.subscriptions}
        topics = {
            topic.name: topic for topic in (*read, *map(self._catalog.topics.get, subscribed)) if topic is not None
        }
        return [topics[name] for name in sorted(topics) if topics[name].message_type is not MessageType.LITE]

    def _member(self, tally: MemberTally) -> diagnosis_pb2.MemberState:
        left_ms = tally.deadline_ms - self._runtime.clock.monotonic_ms()
        return diagnosis_pb2.MemberState(
            member=member_message(tally.member),
            age_ms=max(0, self._runtime.clock.now_ms() - tally.member.joined_ms),
            silent_ms=min(tally.lease_ms, max(0, tally.lease_ms - left_ms)),
            lease_ms=tally.lease_ms,
            lost=tally.suspended,
        )

    def _assignments(self, group: str, tallies: Iterable[MemberTally]) -> Iterable[diagnosis_pb2.ToldQueues]:
        """Yields the assignments that members without locks received, as far as single queues are known."""
        rows = 0
        for tally in tallies:
            if tally.member.protocol is not Protocol.V2:
                continue
            for topic, assignment in self._membership.answers.answers_of(group, tally.member.client_id).items():
                queues = [queue_message(queue) for queue in assignment.queues if queue.queue_id >= 0]
                rows += len(queues)
                if rows > ROWS_MAX:
                    return
                generation = common_pb2.Generation(epoch=assignment.epoch, counter=assignment.counter)
                yield diagnosis_pb2.ToldQueues(
                    client_id=tally.member.client_id, topic=topic, generation=generation, queues=queues
                )

    def _queue(self, group: GroupConfig, topic: TopicConfig, queue_id: int) -> diagnosis_pb2.QueueState:
        queue_key = (group.group_id, topic.topic_id, queue_id)
        queue = MessageQueue(topic.name, self._runtime.settings.broker_name, queue_id)
        now_ms = self._runtime.clock.monotonic_ms()
        state = diagnosis_pb2.QueueState(
            queue=queue_message(queue), holder=self._membership.locks.holder(group.name, queue), committed=-1
        )
        progress = self._ledger.progress.queue(*queue_key)
        if progress is None:
            return state
        low, high = self._ledger.store.queue_range(topic.topic_id, queue_id)
        state.committed = progress.committed
        state.lag = self._ledger.progress.lag(*queue_key, low, high)
        state.inflight = progress.inflight(low, high)
        state.unmoved_ms = self._stuck_queues.unmoved_ms(queue_key, progress.committed, now_ms=now_ms)
        head = progress.pending.get(progress.committed)
        state.head_attempt = 0 if head is None else head.attempt
        back = self._stuck_queues.back(queue_key, now_ms=now_ms)
        if back is not None and progress.committed < back.from_offset:
            state.back_from, state.back_to, state.back_ms = back.from_offset, back.to_offset, now_ms - back.at_ms
        return state


def part_of(part: diagnosis_pb2.GroupPart) -> BrokerPart:
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
        assigned=tuple(
            AssignedQueues(one.client_id, one.topic, generation_of(one.generation), tuple(map(queue_of, one.queues)))
            for one in part.told
        ),
        counts={entry.name: counts_of_entry(part.broker_name, entry) for entry in part.topics},
        stranded=tuple(QueueAt(queue=queue_of(one.queue), lag=one.lag) for one in part.stranded),
        settings=_settings_of(part.settings) if part.HasField("settings") else {},
        revised_ms=part.settings.revised_ms,
        duplicates=part.duplicates,
        refused={one.client_id: tuple(one.topics) for one in part.refused},
        lost=tuple(LostBroker(one.name, one.gone_ms, one.unread, one.dead_letters) for one in part.lost),
        retries_waiting=part.retries_waiting,
        failed=part.failed,
        delivered=part.delivered,
        schedules=tuple(ScheduleTroubles(one.topic, one.failing, one.problem, one.missed) for one in part.schedules),
    )


def _settings_of(settings: groups_pb2.GroupSettings) -> dict[str, str]:
    retry = [
        settings.retry.kind,
        *settings.retry.delays_ms,
        settings.retry.initial_ms,
        settings.retry.max_ms,
        settings.retry.multiplier,
    ]
    balance = [
        settings.balance.weight,
        settings.balance.moves_max,
        settings.balance.hold_ms,
        settings.balance.hold_lag_max,
    ]
    return {
        "strategy": settings.strategy,
        "max_attempts": str(settings.max_attempts),
        "ordered": "yes" if settings.ordered else "no",
        "start_from": settings.start_from,
        "retry": " ".join(str(one) for one in retry if one),
        "balance": " ".join(str(one) for one in balance if one) or "EVEN",
    }


def decided_of(response: assignment_pb2.ExplainResponse, *, now_ms: int) -> Decided:
    """Returns the decision in the rebalancer's answer. `now_ms`: since the epoch."""
    return Decided(
        strategy=response.strategy,
        queues=tuple(
            GivenQueue(
                queue=queue_of(one.queue),
                owner=one.owner,
                age_ms=max(0, now_ms - one.since_ms),
                held=one.state == "HELD",
                owner_zone=one.owner_zone,
                broker_zone=one.broker_zone,
            )
            for one in response.queues
        ),
        idle={one.client_id: one.reason for one in response.idle},
        problems=tuple(response.problems),
    )


def add_own_division(
    response: assignment_pb2.ExplainResponse, facts: GroupFacts, shared: Collection[str], *, topic: str
) -> None:
    """Replaces the owner `*` of queues that members divide by the lock's holder. `topic` empty: of all `shared`."""
    own = own_division(facts, shared)
    if not own.reasons:
        return
    zones = {name: views[-1].member.zone for name, views in facts.members.items()}
    broker_zones = {one.queue.broker_name: one.broker_zone for one in response.queues}
    decided = [one for one in response.queues if one.queue.topic not in own.reasons]
    del response.queues[:], response.idle[:], response.idle_members[:]
    response.queues.extend(decided)
    for at in own.queues:
        if topic in {"", at.queue.topic}:
            owner = owner_of(at, facts)
            response.queues.add(
                queue=queue_message(at.queue),
                owner=owner,
                state="OWNED" if owner else "UNOWNED",
                reason=own.reasons[at.queue.topic] if at.holder else "no member holds its lock",
                owner_zone=zones.get(owner, ""),
                broker_zone=broker_zones.get(at.queue.broker_name, ""),
            )
    owners = {one.owner for one in response.queues}
    for client_id in sorted(own.idle.keys() - owners):
        response.idle_members.append(client_id)
        response.idle.add(client_id=client_id, reason=own.idle[client_id])
    response.strategy = own.strategy
    response.decides = "its members: the group has no strategy"


def troubles_of(
    kernel: Kernel, group: GroupConfig, queues: Iterable[admin_pb2.GroupQueue], *, delayed_retries: DelayedRetries
) -> admin_pb2.GroupTroubles:
    """Returns the failures of a group at this broker: waiting retries, failed deliveries, dead letters, oldest unread
    message. `queues`: the group's here, with the times of their oldest messages.
    """
    given_back, timed_out, _ = deliveries_of(kernel.runtime, group)
    return admin_pb2.GroupTroubles(
        retries_waiting=retries_of(kernel, group, delayed_retries=delayed_retries),
        given_back=given_back,
        timed_out=timed_out,
        dead_letters=waiting_letters(kernel, group.name)[1],
        oldest_ms=min((at.next_store_ms for at in queues if at.lag and at.next_store_ms), default=0),
    )


def add_troubles(total: admin_pb2.GroupTroubles, other: admin_pb2.GroupTroubles) -> None:
    total.retries_waiting += other.retries_waiting
    total.given_back += other.given_back
    total.timed_out += other.timed_out
    total.dead_letters += other.dead_letters
    total.oldest_ms = min((one for one in (total.oldest_ms, other.oldest_ms) if one), default=0)


def retries_of(kernel: Kernel, group: GroupConfig, *, delayed_retries: DelayedRetries) -> int:
    """Returns the number of failed messages that wait for redelivery here now."""
    waiting = sum(queue.waiting() for queue in kernel.ledger.progress.queues() if queue.group_id == group.group_id)
    topic = kernel.catalog.topics.get(RETRY_PREFIX + group.name)
    return waiting + (delayed_retries.waiting(topic.topic_id) if topic is not None else 0)


def deliveries_of(runtime: Runtime, group: GroupConfig) -> tuple[int, int, int]:
    """Returns the deliveries given back, those not finished in time, and all, since this broker's start."""
    counted = [stats for (group_id, _), stats in runtime.stats.group_topics.items() if group_id == group.group_id]
    return (
        sum(stats.given_back for stats in counted),
        sum(stats.timed_out for stats in counted),
        sum(stats.messages_out for stats in counted),
    )
