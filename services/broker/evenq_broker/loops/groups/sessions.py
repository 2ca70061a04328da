"""The life of group members at this broker: sessions of evenq members, leases of v2 clients, waits for queue locks.

Called by `rpc.groups.groups` (streams, locks) and by the v2 handlers (`seen_v2`, `left_v2`). Carries out what the
member and lock tables decide: every change of a group reaches all its sessions at once, a broken stream gets a short
grace, a member that is gone frees its queues. A session's mailbox keeps the newest of each kind of event and never a
backlog; a member whose peer does not take its events for a whole session time-out is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType

from evenq.errors import DuplicateClientId
from evenq.model import NO_GENERATION, Generation, GroupConfig, MessageQueue, Subscription
from evenq.serving.rpc import RpcContext
from evenq_broker.core.groups.members import Member, Protocol
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.core.groups.resets import Fences, ResetFence
from evenq_broker.loops.assignment.grants import Grants
from evenq_broker.loops.assignment.rebalancer_link import RebalancerLink
from evenq_broker.loops.clients.connected import ConnectedClients
from evenq_broker.loops.groups.locking import QueueLocks
from evenq_broker.loops.groups.mailbox import Session
from evenq_broker.loops.groups.subscriptions import SubscriptionReports
from evenq_broker.loops.polls.waiting import LongPolls
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.loops.wire.assignment import Share
from evenq_broker.loops.wire.translation import answer_of
from evenq_broker.runtime import Runtime

__all__ = ["Sessions"]

log = logging.getLogger(__name__)

SWEEP_MS = 250
LATE_NAMES = 1_024  # members in the lists that one sweep sends to a group which need not hear them soon
LATE_PARTS = 40  # sweeps over which the largest groups hear them: 10 s, before anybody could divide by them
REFUSED_MAX = 1_000
REFUSED_MS = 10 * 60_000  # twice as long as SDKs wait until they repeat their settings
NO_SHARES: Mapping[str, Share] = MappingProxyType({})
CLIENT_TYPES_OF_GROUPS = frozenset({2, 3, 4, 5, 6})  # apache.rocketmq.v2.ClientType: all consumers, no producers


class Sessions:
    """All sessions and v2 members of one broker."""

    def __init__(
        self,
        runtime: Runtime,
        catalog: Catalog,
        ledger: Ledger,
        *,
        membership: GroupTables,
        clients: ConnectedClients,
        long_polls: LongPolls,
        grants: Grants,
        rebalancer: RebalancerLink | None,
    ) -> None:
        self._runtime, self._catalog = runtime, catalog
        self._membership, self._clients, self._long_polls = membership, clients, long_polls
        self._grants, self._rebalancer = grants, rebalancer
        self._sessions: dict[str, dict[str, Session]] = {}
        self.locking = QueueLocks(
            runtime,
            catalog,
            ledger,
            lambda group, client_id: self._sessions.get(group, {}).get(client_id),
            membership=membership,
            long_polls=long_polls,
        )
        self._late_turn = 0
        self.duplicates: dict[str, int] = {}
        """Group to how many times a second living client came with an id that was taken."""
        self.refused: dict[tuple[str, str], tuple[tuple[str, ...], int]] = {}
        """Group and client id to topics that it wants and may not consume, and when it said so, monotonic ms."""
        self._reports = SubscriptionReports(membership.members, runtime.clock)
        self.fences = Fences()
        """Members that have yet to follow an operator's reset."""

    # ------------------------------------------------------------------------------------------------ evenq members

    def join(self, group: str, member: Member, *, incarnation: int = 0, hands_over: bool = False) -> Session:
        """Open or renew the member's session. `incarnation` tells a client that comes back from another one with the
        same id; `hands_over`: it lets go of its queues when the broker leaves. Raises DuplicateClientId while that
        other one lives, TooManyRequests when the member table is full, ConnectionFailed while the broker is closing.

        An older stream of the same member ends; its locks stay with the member.
        """
        settings = self._runtime.settings
        now_ms = self._runtime.clock.monotonic_ms()
        self.locking.must_stay()
        self._must_be_alone(group, member, incarnation, now_ms)
        changed = self._membership.members.join(group, member, now_ms=now_ms, lease_ms=settings.session_timeout_ms)
        sessions = self._sessions.setdefault(group, {})
        old = sessions.get(member.client_id)
        if old is not None:
            old.end()
        session = Session(group, member.client_id, incarnation=incarnation, now_ms=now_ms, hands_over=hands_over)
        sessions[member.client_id] = session
        self.locking.fencing.joined(group, member)
        if self.fences and (missed := self.fences.of(group, member.client_id)):
            session.offsets_reset(missed, now_ms)
        if changed:
            log.info("member joined group %s: %s", group, member.client_id, extra={"group": group})
            self._tell_group(group, but=member.client_id)
        return session

    def update(self, session: Session, member: Member) -> None:
        """The member sent changed facts on its open stream."""
        lease_ms = self._runtime.settings.session_timeout_ms
        now_ms = self._runtime.clock.monotonic_ms()
        if not session.ended and self._membership.members.join(session.group, member, now_ms=now_ms, lease_ms=lease_ms):
            self._tell_group(session.group)

    def beat(self, session: Session) -> None:
        """A sign of life on the stream."""
        if not session.ended:
            session.heard_ms = self._runtime.clock.monotonic_ms()
            self._membership.members.touch(session.client_id, session.heard_ms)

    def leave(self, session: Session) -> None:
        """The member says goodbye: gone at once, with its locks."""
        if not session.ended:
            self._gone([(session.group, session.client_id)], "left")

    def broken(self, session: Session) -> None:
        """The stream ended without a goodbye: the member has the grace to come back."""
        # A newer stream of the member has ended this one (`join`), whose break is often seen late: the member is there.
        if session.ended:
            return
        session.end()
        self._forget(session.group, session.client_id)
        self._membership.members.suspend(
            session.group,
            session.client_id,
            now_ms=self._runtime.clock.monotonic_ms(),
            grace_ms=self._runtime.settings.session_grace_ms,
        )

    def offsets_reset(self, group: str, queue: MessageQueue, offset: int) -> tuple[str, ResetFence | None]:
        """The group was moved to `offset`: its holder is notified, and the holder's commits do not count until it has
        begun again. Gives the holder and what it is held by; ("", None) if no member owns the queue.
        """
        holder = self._membership.locks.holder(group, queue)
        if not holder:
            return "", None
        now_ms = self._runtime.clock.monotonic_ms()
        fence = self.fences.put(group, queue, holder, offset, now_ms=now_ms)
        session = self._sessions.get(group, {}).get(holder)
        if session is not None:
            session.offsets_reset([queue], now_ms)
        return holder, fence

    def members(self, group: str) -> tuple[Member, ...]:
        """All members of the group, ascending by client id; one object until something changes."""
        return self._membership.members.listed(group)

    def settings_changed(self, group: GroupConfig) -> None:
        """The group was configured anew: its members act by it (SR-1)."""
        now_ms = self._runtime.clock.monotonic_ms()
        for session in self._sessions.get(group.name, {}).values():
            session.settings_changed(group, now_ms)

    def assignment_changed(
        self,
        group: str,
        topic: str,
        generation: Generation = NO_GENERATION,
        shares: Mapping[str, Share] = NO_SHARES,
    ) -> None:
        """A decision about (group, topic) came, or its route changed: tell the group's sessions, each its share."""
        self._grants.changed(group, topic)
        now_ms = self._runtime.clock.monotonic_ms()
        answers = self._membership.answers
        for client_id, session in self._sessions.get(group, {}).items():
            share, soon = shares.get(client_id), True
            if share is not None:
                assignment, before = answer_of(topic, share, generation), answers.last(group, topic, client_id)
                soon = before is None or before.queues != assignment.queues  # who keeps its queues can wait
                answers.keep(group, topic, client_id, assignment)
            session.assignment_changed(topic, generation, now_ms, share, soon=soon)

    def routes_changed(self, topics: Iterable[str]) -> None:
        """These topics have other queues than before: their readers should ask again (NS-8)."""
        now_ms = self._runtime.clock.monotonic_ms()
        changed = list(topics)
        for group, sessions in self._sessions.items():
            soon = not self._decided(group)
            for client_id, session in sessions.items():
                member = self._membership.members.get(group, client_id)
                for topic in changed:
                    if member is not None and member.reads(topic):
                        session.assignment_changed(topic, NO_GENERATION, now_ms, soon=soon)

    def refuse(self, group: str, client_id: str, topics: Sequence[str]) -> None:
        """The client may not consume these topics of its subscriptions; none: it may consume all."""
        self.refused.pop((group, client_id), None)
        if topics:
            self.refused[group, client_id] = tuple(sorted(topics)), self._runtime.clock.monotonic_ms()
            if len(self.refused) > REFUSED_MAX:
                del self.refused[next(iter(self.refused))]

    def refused_of(self, group: str) -> list[tuple[str, tuple[str, ...]]]:
        """Client ids and topics, the newest last: of members, and of clients that were refused lately."""
        since_ms = self._runtime.clock.monotonic_ms() - REFUSED_MS
        return [
            (client_id, topics)
            for (name, client_id), (topics, at_ms) in self.refused.items()
            if name == group and (at_ms >= since_ms or self._membership.members.get(group, client_id) is not None)
        ]

    # ------------------------------------------------------------------------------------------------ v2 members

    def seen_v2(
        self,
        context: RpcContext,
        group: str,
        client_type: int,
        subscriptions: Sequence[Subscription] | None = None,
        now_ms: int | None = None,
    ) -> None:
        """A v2 client gave a sign of life (Heartbeat, Receive, Telemetry, QueryAssignment).

        `client_type`: number of `apache.rocketmq.v2.ClientType`; producers are no members. `subscriptions` None = not
        sent with this call, what is known stays. `now_ms`: wall time, ms. Without client id or group nothing happens.
        """
        if not group or not context.client_id or client_type not in CLIENT_TYPES_OF_GROUPS:
            return
        known = self._membership.members.get(group, context.client_id)
        # Its session says whether it lives, and what it subscribes.
        if known is not None and known.protocol is Protocol.EVENQ:
            return
        if subscriptions is None and known is not None:
            self._membership.members.touch(context.client_id, self._runtime.clock.monotonic_ms())
            return
        member = Member(
            client_id=context.client_id,
            protocol=Protocol.V2,
            language=context.language,
            version=context.headers.get("x-mq-client-version", ""),
            subscriptions=tuple(sorted(subscriptions or (), key=lambda subscription: subscription.topic)),
            joined_ms=self._runtime.clock.now_ms() if now_ms is None else now_ms,
            address=context.host,
        )
        monotonic_ms = self._runtime.clock.monotonic_ms()
        lease_ms = self._runtime.settings.client_silence_ms
        if self._membership.members.join(group, member, now_ms=monotonic_ms, lease_ms=lease_ms):
            self._tell_group(group)

    def touched_v2(self, client_id: str) -> None:
        """Any call of a known client is a sign of life (wire contract 3.2)."""
        self._membership.members.touch(client_id, self._runtime.clock.monotonic_ms())

    def stream_lost_v2(self, client_id: str) -> None:
        """Its last telemetry stream ended without a goodbye: any call within `client_grace_ms` shows that it lives."""
        now_ms = self._runtime.clock.monotonic_ms()
        for group in self._membership.members.groups_of(client_id):
            member = self._membership.members.get(group, client_id)
            if member is not None and member.protocol is Protocol.V2:
                grace_ms = self._runtime.settings.client_grace_ms
                self._membership.members.suspend(group, client_id, now_ms=now_ms, grace_ms=grace_ms)

    def left_v2(self, client_id: str, group: str = "") -> None:
        """NotifyClientTermination: the client leaves the group, or all its groups when none is named."""
        groups = [group] if group else self._membership.members.groups_of(client_id)
        self._gone(
            [(name, client_id) for name in groups if self._membership.members.get(name, client_id)], "terminated"
        )

    def ended_v2(self, client_id: str) -> None:
        """The v2 client is gone. A member of our own protocol with the same id has a session to show that it lives."""
        members = self._membership.members
        found = [(name, members.get(name, client_id)) for name in members.groups_of(client_id)]
        gone = [(name, client_id) for name, member in found if member is not None and member.protocol is Protocol.V2]
        self._gone(gone, "its client ended")

    # ------------------------------------------------------------------------------------------------ inside

    async def sweep(self) -> None:
        """A few times a second, and when a lease ends: drop who is silent or does not read. Runs as a loop of the
        broker.
        """
        returning = self._membership.locks.members()  # a restart must not take queues from members that live through it
        patience_ms = self._runtime.clock.monotonic_ms() + self._runtime.settings.session_timeout_ms
        while True:
            due_ms = self._membership.members.next_ms - self._runtime.clock.monotonic_ms()
            await self._runtime.clock.sleep_ms(max(1, min(SWEEP_MS, due_ms)))
            self._reports.look_late()
            now_ms = self._runtime.clock.monotonic_ms()
            if returning and now_ms >= patience_ms:
                for group, client_id in returning:
                    if self._membership.members.get(group, client_id) is None:
                        self._after(group, client_id, "did not come back")
                returning = []
            self.locking.tick(now_ms)
            self._lost_v2(now_ms)
            for group, client_id in self._membership.members.expire(now_ms):
                self._after(group, client_id, "expired")
            self._gone(self._deaf(now_ms), "does not read")
            self._tell_late(now_ms)
            self._catalog.routes.tick(now_ms)

    async def hand_over(self, limit_ms: int) -> None:
        """The broker is closing: tell all members, and wait at most `limit_ms` until those that understand it have
        finished what they hold, committed it and let go. What is not committed then comes twice.
        """
        self.locking.leave()
        now_ms = self._runtime.clock.monotonic_ms()
        notified: list[tuple[str, str]] = []
        for group, sessions in self._sessions.items():
            for client_id, session in sessions.items():
                session.broker_leaves(limit_ms, now_ms)
                if session.hands_over:
                    notified.append((group, client_id))
        left = await self.locking.let_go(notified, limit_ms)
        fields = {"members": len(notified), "still_holding": left}
        if left:
            log.warning("%d members did not release their queues within %d ms", left, limit_ms, extra=fields)
        elif notified:
            log.info("%d members released their queues", len(notified), extra=fields)

    def close(self) -> None:
        """End all streams and waits."""
        for sessions in self._sessions.values():
            for session in sessions.values():
                session.end()
        self.locking.close()

    def _tell_late(self, now_ms: int) -> None:
        # A large group in parts: its members may share machines with each other and with those who take over queues.
        self._late_turn += 1
        for sessions in self._sessions.values():
            parts = min(LATE_PARTS, 1 + len(sessions) ** 2 // (LATE_NAMES + 1))
            for session in islice(sessions.values(), self._late_turn % parts, None, parts):
                session.late(now_ms)

    def _decided(self, group: str) -> bool:
        """True if a rebalancer tells the group's members what is theirs: they need not know soon who the others are."""
        link, config = self._rebalancer, self._catalog.groups.get(group)
        return link is not None and link.connected and config is not None and bool(config.strategy)

    def _lost_v2(self, now_ms: int) -> None:
        for client_id in self._membership.members.lost_v2(now_ms):
            # It waits for our answer to a receive: its silence is no sign that it is gone.
            if self._long_polls.table.waits(client_id):
                self._membership.members.touch(client_id, now_ms)
            else:
                self._clients.table.lose(client_id)

    def _deaf(self, now_ms: int) -> list[tuple[str, str]]:
        limit_ms = self._runtime.settings.session_timeout_ms
        return [
            (group, client_id)
            for group, sessions in self._sessions.items()
            for client_id, session in sessions.items()
            if session.waiting_since_ms is not None and now_ms - session.waiting_since_ms > limit_ms
        ]

    def _gone(self, members: Iterable[tuple[str, str]], why: str) -> None:
        for group, client_id in members:
            if self._membership.members.leave(group, client_id):
                self._after(group, client_id, why)

    def _after(self, group: str, client_id: str, why: str) -> None:
        log.info("member gone from group %s: %s (%s)", group, client_id, why, extra={"group": group})
        session = self._forget(group, client_id)
        if session is not None:
            session.end()
        self.locking.drop(group, client_id)
        self._membership.answers.forget(client_id, [group])
        self._tell_group(group)

    def _must_be_alone(self, group: str, member: Member, incarnation: int, now_ms: int) -> None:
        other = self._sessions.get(group, {}).get(member.client_id)
        if other is None or other.ended or not incarnation or other.incarnation in {0, incarnation}:
            return
        silent_ms = now_ms - other.heard_ms
        if silent_ms > 2 * self._runtime.settings.session_beat_interval_ms:
            return  # most likely the same program, started again while its old connection looks open
        known = self._membership.members.get(group, member.client_id)
        here = "an unknown host" if known is None else known.address or "an unknown host"
        self.duplicates[group] = self.duplicates.get(group, 0) + 1
        log.warning(
            "group %s: client id %s is used by two members, at %s and at %s",
            group,
            member.client_id,
            here,
            member.address,
            extra={"group": group},
        )
        raise DuplicateClientId(
            f"client id {member.client_id!r} is taken in group {group}: another connected member at {here} has it, "
            f"heard "
            f"of {silent_ms} ms ago; give each consumer a different client id, or none"
        )

    def _forget(self, group: str, client_id: str) -> Session | None:
        sessions = self._sessions.get(group, {})
        session = sessions.pop(client_id, None)
        if not sessions:
            self._sessions.pop(group, None)
        return session

    def _tell_group(self, group: str, *, but: str = "") -> None:
        now_ms, soon = self._runtime.clock.monotonic_ms(), not self._decided(group)
        for client_id, session in self._sessions.get(group, {}).items():
            if client_id != but:
                session.members_changed(now_ms, soon=soon)
        self._reports.look(group)
        self._catalog.changes.facts_changed(group=group)
