"""The life of group members at this broker: sessions of evenq members, leases of v2 clients.

Problem: a queue belongs to one member at a time, so all members need the same list of members. A member may end,
crash, hang, lose its connection, or return under its id. The broker must notice each case, free the queues of members
that are gone soon, and keep the queues of living ones.

Idea: each member has a lease in the member table. A member of evenq's own protocol renews it on its open stream, its
session. A v2 client has no session: each call renews its lease. When a member is gone, `_after` ends its session,
passes its queue locks on (`locking`), and notifies the other members. Notifications go through a mailbox
(`mailbox.py`). Callers: `rpc.groups.groups` (streams, locks), v2 handlers (`seen_v2`, `left_v2`), and the shutdown
(`hand_over`).

Invariants:
- A member has at most one open session: a newer stream ends the older one, and the locks stay with the member.
- A mailbox keeps the newest of each kind of event, never a backlog. A member that does not read its events for
  `session_timeout_ms` is dropped.
- Two living clients with one id: the second one is rejected, not the first. A client that is silent for two heartbeats
  counts as replaced by its restarted program.
- A member that is gone loses its session, its locks and its assignment answers in one step, so its late commits fail.
- Locks outlive a restart of the broker: their holders have `session_timeout_ms` to return.

Example, with the default settings: a consumer holds queues 0 to 3, and its machine loses power. Its last heartbeat came
at 0 s (they come every 3 s), and its connection looks open. Its lease ends at 10 s; `sweep` drops it at that time, and
members that wait for its queues get them in the same step. If only its process crashes, the stream breaks
immediately: `broken` leaves it 1 s to open a new one, so its queues pass on after 1 s.

References: `docs/internals/promises.md` (rolling a broker; locks outlive a restart); decisions 0008, 0017, 0023, 0110.
Leases were described by Gray and Cheriton (1989).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType

from evenq.errors import DuplicateClientId
from evenq.model import NO_GENERATION, Generation, GroupConfig, MessageQueue, Subscription
from evenq.runtime.clock import Clock
from evenq.serving.rpc import RpcContext
from evenq_broker.core.groups.members import Member, MemberTable, Protocol
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.core.groups.resets import Fences, ResetFence
from evenq_broker.core.groups.subscriptions import different_filters, wanted_of
from evenq_broker.loops.assignment.grants import Grants
from evenq_broker.loops.assignment.rebalancer_link import RebalancerLink
from evenq_broker.loops.clients.connected import ConnectedClients
from evenq_broker.loops.groups.locking import QueueLocks
from evenq_broker.loops.groups.mailbox import Session
from evenq_broker.loops.polls.waiting import LongPolls
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.assignment import Share
from evenq_broker.loops.wire.translation import answer_of

log = logging.getLogger(__name__)
SWEEP_MS = 250
LATE_NAMES = 1_024  # members in the lists that one sweep sends to a group for which they are not urgent
LATE_PARTS = 40  # sweeps over which the largest groups get them: 10 s, before any member could divide by them
REFUSED_MAX = 1_000
REFUSED_MS = 10 * 60_000  # twice the interval in which SDKs repeat their settings
NO_SHARES: Mapping[str, Share] = MappingProxyType({})
CLIENT_TYPES_OF_GROUPS = frozenset({2, 3, 4, 5, 6})  # apache.rocketmq.v2.ClientType: all consumers, no producers
_PAUSE_MS = 60_000
_CLIENTS_SHOWN = 3  # of each filter
_AT_ONCE_MAX = 64  # members of a group that is checked with each change


class SubscriptionReports:
    """Reports to operators groups whose members filter a topic differently: once when it begins, and again at most once
    a minute while members come and go. Large groups are checked once for many changes, so that the cost of thousands of
    joining clients does not grow with the square of their number.
    """

    def __init__(self, members: MemberTable, clock: Clock) -> None:
        self._members = members
        self._clock = clock
        self._warned_ms: dict[tuple[str, str], int] = {}  # (group, topic) -> monotonic ms
        self._large: set[str] = set()
        self._late: set[str] = set()

    def look(self, group: str) -> None:
        """Checks a group whose members or subscriptions changed."""
        if group in self._large:
            self._late.add(group)
        else:
            self._look(group)

    def look_late(self) -> None:
        """Checks the large groups that have changed; to be called a few times a second."""
        late, self._late = self._late, set()
        for group in late:
            self._look(group)

    def _look(self, group: str) -> None:
        members = self._members.members(group)
        if len(members) > _AT_ONCE_MAX:
            self._large.add(group)
        else:
            self._large.discard(group)
        differing = different_filters(wanted_of(members))
        for key in [key for key in self._warned_ms if key[0] == group and key[1] not in differing]:
            del self._warned_ms[key]
            log.info("group %s: all members use the same filter for topic %s again", *key, extra={"group": group})
        now_ms = self._clock.monotonic_ms()
        for topic, filters in differing.items():
            last_ms = self._warned_ms.get((group, topic))
            if last_ms is not None and now_ms - last_ms < _PAUSE_MS:
                continue
            self._warned_ms[group, topic] = now_ms
            shown = {one.expression: clients[:_CLIENTS_SHOWN] for one, clients in filters.items()}
            log.warning(
                "group %s: members filter topic %s differently; messages that one filter excludes are skipped for the "
                "whole group. Use one filter, or separate groups",
                group,
                topic,
                extra={"group": group, "topic": topic, "filters": shown},
            )


class Sessions:
    """All sessions and v2 members of one broker."""

    def __init__(
        self,
        kernel: Kernel,
        *,
        membership: GroupTables,
        clients: ConnectedClients,
        long_polls: LongPolls,
        grants: Grants,
        rebalancer: RebalancerLink | None,
    ) -> None:
        self._runtime, self._catalog = kernel.runtime, kernel.catalog
        self._membership, self._clients, self._long_polls = membership, clients, long_polls
        self._grants, self._rebalancer = grants, rebalancer
        self._sessions: dict[str, dict[str, Session]] = {}
        """Group to client id to its open session. Each belongs to a member of the table."""
        self.locking = QueueLocks(
            kernel,
            lambda group, client_id: self._sessions.get(group, {}).get(client_id),
            membership=membership,
            long_polls=long_polls,
        )
        self._late_turn = 0
        """Counts sweeps: chooses the part of a large group that gets its list now."""
        self.duplicates: dict[str, int] = {}
        """Group to the number of rejected second clients with an id in use."""
        self.refused: dict[tuple[str, str], tuple[tuple[str, ...], int]] = {}
        """Group and client id to subscribed topics that it may not consume, and when they were noted, monotonic ms."""
        self._reports = SubscriptionReports(membership.members, kernel.runtime.clock)
        self.fences = Fences()
        """Members that have yet to follow an operator's reset."""

    # ------------------------------------------------------------------------------------------------ evenq members

    def join(self, group: str, member: Member, *, incarnation: int = 0, hands_over: bool = False) -> Session:
        """Opens or renews the member's session. `incarnation` distinguishes a returning client from another one with
        the same id; `hands_over`: it releases its queues when the broker stops. Raises DuplicateClientId while that
        other one lives, TooManyRequests when the member table is full, ConnectionFailed while the broker is closing.
        """
        settings = self._runtime.settings
        now_ms = self._runtime.clock.monotonic_ms()
        self.locking.must_stay()
        self._must_be_alone(group, member, incarnation, now_ms)
        changed = self._membership.members.join(group, member, now_ms=now_ms, lease_ms=settings.session_timeout_ms)
        sessions = self._sessions.setdefault(group, {})
        old = sessions.get(member.client_id)
        if old is not None:  # the member opened a new stream; its locks stay
            old.end()
        session = Session(group, member.client_id, incarnation=incarnation, now_ms=now_ms, hands_over=hands_over)
        sessions[member.client_id] = session
        self.locking.fencing.joined(group, member)
        if self.fences and (missed := self.fences.of(group, member.client_id)):  # resets while it was away
            session.offsets_reset(missed, now_ms)
        if changed:
            log.info("member joined group %s: %s", group, member.client_id, extra={"group": group})
            self._tell_group(group, but=member.client_id)
        return session

    def update(self, session: Session, member: Member) -> None:
        """Stores changed facts that the member sent on its open stream."""
        lease_ms = self._runtime.settings.session_timeout_ms
        now_ms = self._runtime.clock.monotonic_ms()
        if not session.ended and self._membership.members.join(session.group, member, now_ms=now_ms, lease_ms=lease_ms):
            self._tell_group(session.group)

    def beat(self, session: Session) -> None:
        """Renews the lease for a heartbeat on the stream."""
        if not session.ended:
            session.heard_ms = self._runtime.clock.monotonic_ms()
            self._membership.members.renew(session.group, session.client_id, session.heard_ms)

    def leave(self, session: Session) -> None:
        """Removes a member that ends by its own message, immediately and with its locks."""
        if not session.ended:
            self._gone([(session.group, session.client_id)], "left")

    def broken(self, session: Session) -> None:
        """Leaves a member the grace to return: its stream ended without a Leave message."""
        # A newer stream of the member has ended this one (`join`): its break is often detected late.
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
        """Notifies the holder of a reset to `offset`, and fences its commits. Returns both, or ("", None)."""
        holder = self._membership.locks.holder(group, queue)
        if not holder:
            return "", None
        now_ms = self._runtime.clock.monotonic_ms()
        fence = self.fences.put(group, queue, holder, offset, now_ms=now_ms)
        session = self._sessions.get(group, {}).get(holder)
        if session is not None:  # otherwise `join` notifies it
            session.offsets_reset([queue], now_ms)
        return holder, fence

    def members(self, group: str) -> tuple[Member, ...]:
        """Returns all members of the group, ascending by client id; one object until something changes."""
        return self._membership.members.listed(group)

    def settings_changed(self, group: GroupConfig) -> None:
        """Notifies the members of changed group settings (SR-1)."""
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
        """Notifies the group's sessions of a decision about (group, topic), each with its share, or of a new route."""
        self._grants.changed(group, topic)
        now_ms = self._runtime.clock.monotonic_ms()
        answers = self._membership.answers
        for client_id, session in self._sessions.get(group, {}).items():
            share, soon = shares.get(client_id), True
            if share is not None:
                assignment, before = answer_of(topic, share, generation), answers.last(group, topic, client_id)
                soon = before is None or before.queues != assignment.queues  # a member that keeps its queues can wait
                answers.keep(group, topic, client_id, assignment)
            session.assignment_changed(topic, generation, now_ms, share, soon=soon)

    def routes_changed(self, topics: Iterable[str]) -> None:
        """Notifies readers that these topics have other queues: they query their assignments again (NS-8)."""
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
        """Notes topics that the client subscribes to and may not consume; none: it may consume all."""
        self.refused.pop((group, client_id), None)
        if topics:
            self.refused[group, client_id] = tuple(sorted(topics)), self._runtime.clock.monotonic_ms()
            if len(self.refused) > REFUSED_MAX:
                del self.refused[next(iter(self.refused))]

    def refused_of(self, group: str) -> list[tuple[str, tuple[str, ...]]]:
        """Returns client ids and topics, the newest last: of members, and of clients that were rejected lately."""
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
        """Renews the lease of a v2 client for a call (Heartbeat, Receive, Telemetry, QueryAssignment), or adds it.

        `client_type`: number of `apache.rocketmq.v2.ClientType`; producers are not members. `subscriptions` None: not
        in this call, the known ones stay. `now_ms`: wall time, ms. Without client id or group nothing happens.
        """
        if not group or not context.client_id or client_type not in CLIENT_TYPES_OF_GROUPS:
            return
        known = self._membership.members.get(group, context.client_id)
        # A member of evenq's own protocol: its session shows whether it lives, and its subscriptions.
        if known is not None and known.protocol is Protocol.EVENQ:
            return
        if subscriptions is None and known is not None:  # a renewal only
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
        """Renews the leases of a known v2 client: any call is a sign of life (wire contract 3.2)."""
        self._membership.members.touch(client_id, self._runtime.clock.monotonic_ms())

    def has_share_v2(self, client_id: str) -> bool:
        """True if this v2 client may have queues that no other member reads: its group has a strategy or owners."""
        return any(map(self._divides, self._membership.members.v2_groups_of(client_id)))

    def stream_lost_v2(self, client_id: str) -> None:
        """Leaves a client without a telemetry stream `client_grace_ms`: any call in it shows that it lives."""
        now_ms = self._runtime.clock.monotonic_ms()
        grace_ms = self._runtime.settings.client_grace_ms
        for group in self._membership.members.v2_groups_of(client_id):
            self._membership.members.suspend(group, client_id, now_ms=now_ms, grace_ms=grace_ms)

    def left_v2(self, client_id: str, group: str = "") -> None:
        """Removes a v2 client from the group, or from all its groups if `group` is empty: it sent
        NotifyClientTermination. A member of evenq's own protocol with the same id keeps its session.
        """
        known = self._membership.members.v2_groups_of(client_id)
        self._gone([(name, client_id) for name in known if group in {"", name}], "terminated")

    def ended_v2(self, client_id: str) -> None:
        """Removes a v2 client that is gone. A member of evenq's own protocol with the same id keeps its session."""
        groups = self._membership.members.v2_groups_of(client_id)
        self._gone([(group, client_id) for group in groups], "its client ended")

    # ------------------------------------------------------------------------------------------------ inside

    async def sweep(self) -> None:
        """Drops silent members and those that do not read. Runs as a loop of the broker."""
        returning = self._membership.locks.members()  # holders from before a restart may live: they get time to return
        patience_ms = self._runtime.clock.monotonic_ms() + self._runtime.settings.session_timeout_ms
        while True:
            due_ms = self._membership.members.next_ms - self._runtime.clock.monotonic_ms()
            await self._runtime.clock.sleep_ms(max(1, min(SWEEP_MS, due_ms)))
            self._reports.look_late()
            now_ms = self._runtime.clock.monotonic_ms()
            if returning and now_ms >= patience_ms:  # their time is up
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
        """Notifies all members that the broker stops. Waits at most `limit_ms` until those that support it have
        committed and released their queues. Uncommitted messages are then redelivered.
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
        """Ends all streams and waits."""
        for sessions in self._sessions.values():
            for session in sessions.values():
                session.end()
        self.locking.close()

    def _tell_late(self, now_ms: int) -> None:
        # A large group in parts: its members may share machines with each other and with new owners of queues.
        self._late_turn += 1
        for sessions in self._sessions.values():
            parts = min(LATE_PARTS, 1 + len(sessions) ** 2 // (LATE_NAMES + 1))
            for session in islice(sessions.values(), self._late_turn % parts, None, parts):
                session.late(now_ms)

    def _divides(self, group: str) -> bool:
        config = self._catalog.groups.get(group)
        return group in self._sessions or (config is not None and bool(config.strategy))

    def _decided(self, group: str) -> bool:
        """True if a rebalancer assigns the group's queues: its members need the list of the others less soon."""
        link, config = self._rebalancer, self._catalog.groups.get(group)
        return link is not None and link.connected and config is not None and bool(config.strategy)

    def _lost_v2(self, now_ms: int) -> None:
        for client_id in self._membership.members.lost_v2(now_ms):
            # It waits for an answer to a receive: its silence does not show that it is gone.
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
            return  # most likely the same program, restarted while its old connection looks open
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
            f"last seen {silent_ms} ms ago; give each consumer a different client id, or none"
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
