"""The life of group members at this broker: sessions of evenq members, leases of v2 clients, waits for queue locks.

Called by `rpc.groups` (streams, locks) and by the v2 handlers (`seen_v2`, `left_v2`). Carries out what the member and
lock tables decide: every change of a group reaches all its sessions at once, a broken stream gets a short grace, a
member that is gone frees its queues. A session's mailbox keeps the newest of each kind of event and never a backlog; a
member whose peer does not take its events for a whole session time-out is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import TYPE_CHECKING

from evenq.errors import PreconditionFailed
from evenq.model import MessageQueue, Subscription
from evenq.serving.rpc import RpcContext
from evenq_broker.core.journal import Locked
from evenq_broker.core.locks import NO_GENERATION, Generation, Grant
from evenq_broker.core.members import Member, Protocol
from evenq_broker.core.resets import Fence, Fences
from evenq_broker.loops.signals import done_within
from evenq_broker.loops.subscriptions import SubscriptionReports

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = [
    "AssignmentChanged",
    "Mail",
    "MembersChanged",
    "OffsetsReset",
    "QueueWanted",
    "Session",
    "Sessions",
    "lock_op",
]

log = logging.getLogger(__name__)

SWEEP_MS = 250
CLIENT_TYPES_OF_GROUPS = frozenset({2, 3, 4, 5, 6})  # apache.rocketmq.v2.ClientType: all consumers, no producers


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """All members of the session's group, as they are when the event is taken."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class AssignmentChanged:
    """A newer decision exists: ask again."""

    topic: str
    generation: Generation


@dataclass(frozen=True, slots=True)
class QueueWanted:
    """Somebody waits for a lock that this member holds."""

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class OffsetsReset:
    """The group was moved on queues that this member holds: begin there again."""

    queues: tuple[MessageQueue, ...]


Mail = MembersChanged | AssignmentChanged | QueueWanted | OffsetsReset


class Session:
    """One member's open stream, as the group sees it: a mailbox with one place per kind of news."""

    def __init__(self, group: str, client_id: str) -> None:
        self.group = group
        self.client_id = client_id
        self.ended = False
        """True when the stream should end: left, dropped, or replaced by a newer stream of the same member."""
        self.waiting_since_ms: int | None = None
        """Monotonic ms since when the oldest event waits to be taken."""
        self._members_changed = False
        self._assignments: dict[str, Generation] = {}
        self._wanted: dict[MessageQueue, None] = {}
        self._reset: dict[MessageQueue, None] = {}
        self._wake = asyncio.Event()

    def members_changed(self, now_ms: int) -> None:
        """The group is not what it was."""
        self._members_changed = True
        self._ring(now_ms)

    def assignment_changed(self, topic: str, generation: Generation, now_ms: int) -> None:
        """Another decision about a topic."""
        self._assignments[topic] = max(generation, self._assignments.get(topic, NO_GENERATION))
        self._ring(now_ms)

    def queue_wanted(self, queue: MessageQueue, now_ms: int) -> None:
        """Somebody else stands in line for a queue this member holds."""
        self._wanted[queue] = None
        self._ring(now_ms)

    def offsets_reset(self, queues: Iterable[MessageQueue], now_ms: int) -> None:
        """The group was moved on these queues."""
        self._reset.update(dict.fromkeys(queues))
        self._ring(now_ms)

    def end(self) -> None:
        """Make `take` return an empty list, for ever."""
        self.ended = True
        self._wake.set()

    async def take(self, members: Sessions) -> list[Mail]:
        """Wait for news and empty the mailbox; an empty list means that the stream should end."""
        while not self.ended:
            await self._wake.wait()
            self._wake.clear()
            mail: list[Mail] = []
            if self._members_changed:
                mail.append(MembersChanged(tuple(members.members(self.group))))
            mail += [AssignmentChanged(topic, generation) for topic, generation in self._assignments.items()]
            mail += [QueueWanted(queue) for queue in self._wanted]
            if self._reset:
                mail.append(OffsetsReset(tuple(self._reset)))
            self._members_changed = False
            self._assignments.clear()
            self._wanted.clear()
            self._reset.clear()
            self.waiting_since_ms = None
            if mail and not self.ended:
                return mail
        return []

    def _ring(self, now_ms: int) -> None:
        if self.waiting_since_ms is None:
            self.waiting_since_ms = now_ms
        self._wake.set()


class Sessions:
    """All sessions and v2 members of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sessions: dict[str, dict[str, Session]] = {}
        self._tickets: dict[int, asyncio.Future[bool]] = {}
        self._reports = SubscriptionReports(broker.members, broker.clock)
        self.fences = Fences()
        """Members that have yet to follow an operator's reset."""

    # ------------------------------------------------------------------------------------------------ evenq members

    def join(self, group: str, member: Member) -> Session:
        """Open or renew the member's session. Raises TooManyRequests when the member table is full.

        An older stream of the same member ends; its locks stay with the member.
        """
        settings = self._broker.settings
        now_ms = self._broker.clock.monotonic_ms()
        changed = self._broker.members.join(group, member, now_ms=now_ms, lease_ms=settings.session_timeout_ms)
        sessions = self._sessions.setdefault(group, {})
        old = sessions.get(member.client_id)
        if old is not None:
            old.end()
        session = sessions[member.client_id] = Session(group, member.client_id)
        if self.fences and (missed := self.fences.of(group, member.client_id)):
            session.offsets_reset(missed, now_ms)
        if changed:
            log.info("member joined", extra={"group": group, "client_id": member.client_id})
            self._tell_group(group, but=member.client_id)
        return session

    def update(self, session: Session, member: Member) -> None:
        """The member told changed facts on its open stream."""
        lease_ms = self._broker.settings.session_timeout_ms
        now_ms = self._broker.clock.monotonic_ms()
        if not session.ended and self._broker.members.join(session.group, member, now_ms=now_ms, lease_ms=lease_ms):
            self._tell_group(session.group)

    def beat(self, session: Session) -> None:
        """A sign of life on the stream."""
        if not session.ended:
            self._broker.members.touch(session.client_id, self._broker.clock.monotonic_ms())

    def leave(self, session: Session) -> None:
        """The member says goodbye: gone at once, with its locks."""
        if not session.ended:
            self._gone([(session.group, session.client_id)], "left")

    def broken(self, session: Session) -> None:
        """The stream ended without a goodbye: the member has the grace to come back."""
        if session.ended or self._sessions.get(session.group, {}).get(session.client_id) is not session:
            return
        session.end()
        self._forget(session.group, session.client_id)
        self._broker.members.suspend(
            session.group,
            session.client_id,
            now_ms=self._broker.clock.monotonic_ms(),
            grace_ms=self._broker.settings.session_grace_ms,
        )

    def offsets_reset(self, group: str, queue: MessageQueue, offset: int) -> tuple[str, Fence | None]:
        """The group was moved to `offset`: whoever holds the queue is told, and its commits do not count until it has
        begun again. Gives the holder and what it is held by; ("", None) if nobody owns the queue.
        """
        holder = self._broker.locks.holder(group, queue)
        if not holder:
            return "", None
        now_ms = self._broker.clock.monotonic_ms()
        fence = self.fences.put(group, queue, holder, offset, now_ms=now_ms)
        session = self._sessions.get(group, {}).get(holder)
        if session is not None:
            session.offsets_reset([queue], now_ms)
        return holder, fence

    def members(self, group: str) -> list[Member]:
        """All members of the group, ascending by client id."""
        return self._broker.members.members(group)

    def assignment_changed(self, group: str, topic: str, generation: Generation = NO_GENERATION) -> None:
        """A decision about (group, topic) came, or its route changed: tell the group's sessions."""
        now_ms = self._broker.clock.monotonic_ms()
        for session in self._sessions.get(group, {}).values():
            session.assignment_changed(topic, generation, now_ms)

    def routes_changed(self, topics: Iterable[str]) -> None:
        """These topics have other queues than before: whoever reads them should ask again (NS-8)."""
        now_ms = self._broker.clock.monotonic_ms()
        wanted = list(topics)
        for group, sessions in self._sessions.items():
            for client_id, session in sessions.items():
                member = self._broker.members.get(group, client_id)
                for topic in wanted:
                    if member is not None and member.reads(topic):
                        session.assignment_changed(topic, NO_GENERATION, now_ms)

    # ------------------------------------------------------------------------------------------------ v2 members

    def seen_v2(
        self,
        context: RpcContext,
        group: str,
        client_type: int,
        subscriptions: Sequence[Subscription] | None,
        now_ms: int | None = None,
    ) -> None:
        """A v2 client gave a sign of life (Heartbeat, Receive, Telemetry, QueryAssignment).

        `client_type`: number of `apache.rocketmq.v2.ClientType`; producers are no members. `subscriptions` None = not
        told by this call, what is known stays. `now_ms`: wall time, ms. Without client id or group nothing happens.
        """
        if not group or not context.client_id or client_type not in CLIENT_TYPES_OF_GROUPS:
            return
        known = self._broker.members.get(group, context.client_id)
        if known is not None and known.protocol is Protocol.EVENQ:
            return
        if subscriptions is None and known is not None:
            self._broker.members.touch(context.client_id, self._broker.clock.monotonic_ms())
            return
        member = Member(
            client_id=context.client_id,
            protocol=Protocol.V2,
            language=context.language,
            version=context.headers.get("x-mq-client-version", ""),
            subscriptions=tuple(sorted(subscriptions or (), key=lambda subscription: subscription.topic)),
            joined_ms=self._broker.clock.now_ms() if now_ms is None else now_ms,
            address=context.host,
        )
        monotonic_ms = self._broker.clock.monotonic_ms()
        lease_ms = self._broker.settings.client_silence_ms
        if self._broker.members.join(group, member, now_ms=monotonic_ms, lease_ms=lease_ms):
            self._tell_group(group)

    def touched_v2(self, client_id: str) -> None:
        """Any call of a known client is a sign of life (wire contract 3.2)."""
        self._broker.members.touch(client_id, self._broker.clock.monotonic_ms())

    def left_v2(self, client_id: str, group: str = "") -> None:
        """NotifyClientTermination: the client leaves the group, or all its groups when none is named."""
        groups = [group] if group else self._broker.members.groups_of(client_id)
        self._gone([(name, client_id) for name in groups if self._broker.members.get(name, client_id)], "terminated")

    # ------------------------------------------------------------------------------------------------ locks

    async def lock(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        *,
        wait_ms: int,
        generation: Generation = NO_GENERATION,
    ) -> list[bool]:
        """Take queues for a member, waiting up to `wait_ms` for their present holders.

        True for each queue that is its own now. Raises PreconditionFailed if the client is no member here, or asks
        under a generation that was overtaken.
        """
        self.must_be_member(group, client_id)
        locks = self._broker.locks
        for queue in queues:
            self.must_not_be_stale(group, client_id, queue, generation)
        granted = [locks.acquire(group, client_id, queue, generation) for queue in queues]
        if all(granted) or wait_ms <= 0:
            await self._safe()
            return granted
        waits: dict[int, asyncio.Future[bool]] = {}
        try:
            for queue in (queue for queue, is_own in zip(queues, granted, strict=True) if not is_own):
                ticket = locks.wait(group, client_id, queue, generation)
                waits[ticket] = self._tickets[ticket] = asyncio.get_running_loop().create_future()
                self._ask_holder(group, queue)
            everything: asyncio.Future[bool] = asyncio.ensure_future(_all_of(waits.values()))
            await done_within(everything, wait_ms, clock=self._broker.clock)
        finally:
            for ticket in waits:
                locks.cancel(ticket)
                self._tickets.pop(ticket, None)
        await self._safe()
        return [locks.holder(group, queue) == client_id for queue in queues]

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Let go; whoever waits longest has the queue at once."""
        for queue in queues:
            self._granted(self._broker.locks.release(group, client_id, queue))

    def must_be_member(self, group: str, client_id: str) -> None:
        """Raise PreconditionFailed unless the client is a member of the group at this broker."""
        if self._broker.members.get(group, client_id) is None:
            raise PreconditionFailed(
                f"client {client_id!r} is not in group {group} at broker {self._broker.settings.broker_name}: "
                "its session was never opened or has ended; open a session and try again"
            )

    def must_not_be_stale(self, group: str, client_id: str, queue: MessageQueue, generation: Generation) -> None:
        """Raise PreconditionFailed if somebody else got the queue under a newer generation (OC-18)."""
        if self._broker.locks.stale(group, client_id, queue, generation):
            raise PreconditionFailed(
                f"generation {generation.epoch}.{generation.counter} of queue {queue} in group {group} is over: "
                f"{self._broker.locks.holder(group, queue) or 'another member'} got it under a newer one; "
                "ask for your assignment again"
            )

    # ------------------------------------------------------------------------------------------------ inside

    async def sweep(self) -> None:
        """Once every quarter of a second: drop who is silent or does not read. Runs as a loop of the broker."""
        returning = self._broker.locks.members()  # a restart must not take queues from members that live through it
        patience_ms = self._broker.clock.monotonic_ms() + self._broker.settings.session_timeout_ms
        while True:
            await self._broker.clock.sleep_ms(SWEEP_MS)
            self._reports.look_late()
            now_ms = self._broker.clock.monotonic_ms()
            if returning and now_ms >= patience_ms:
                for group, client_id in returning:
                    if self._broker.members.get(group, client_id) is None:
                        self._after(group, client_id, "did not come back")
                returning = []
            for group, client_id in self._broker.members.expire(now_ms):
                self._after(group, client_id, "expired")
            self._gone(self._deaf(now_ms), "does not read")
            self._broker.routes.tick(now_ms)

    def close(self) -> None:
        """End all streams and waits."""
        for sessions in self._sessions.values():
            for session in sessions.values():
                session.end()
        for future in self._tickets.values():
            future.cancel()

    def _deaf(self, now_ms: int) -> list[tuple[str, str]]:
        limit_ms = self._broker.settings.session_timeout_ms
        return [
            (group, client_id)
            for group, sessions in self._sessions.items()
            for client_id, session in sessions.items()
            if session.waiting_since_ms is not None and now_ms - session.waiting_since_ms > limit_ms
        ]

    def _gone(self, members: Iterable[tuple[str, str]], why: str) -> None:
        for group, client_id in members:
            if self._broker.members.leave(group, client_id):
                self._after(group, client_id, why)

    def _after(self, group: str, client_id: str, why: str) -> None:
        log.info("member gone", extra={"group": group, "client_id": client_id, "why": why})
        session = self._forget(group, client_id)
        if session is not None:
            session.end()
        self._granted(self._broker.locks.drop(group, client_id))
        self._broker.cluster.answers.forget(client_id, [group])
        self._tell_group(group)

    def _forget(self, group: str, client_id: str) -> Session | None:
        sessions = self._sessions.get(group, {})
        session = sessions.pop(client_id, None)
        if not sessions:
            self._sessions.pop(group, None)
        return session

    def _tell_group(self, group: str, *, but: str = "") -> None:
        now_ms = self._broker.clock.monotonic_ms()
        for client_id, session in self._sessions.get(group, {}).items():
            if client_id != but:
                session.members_changed(now_ms)
        self._reports.look(group)
        self._broker.cluster.facts_changed()

    def _ask_holder(self, group: str, queue: MessageQueue) -> None:
        holder = self._broker.locks.holder(group, queue)
        session = self._sessions.get(group, {}).get(holder)
        if session is not None:
            session.queue_wanted(queue, self._broker.clock.monotonic_ms())

    async def _safe(self) -> None:
        """Whoever is told that a queue is its own must still find it so after a restart of the broker."""
        if record := self._record_locks():
            await record

    def _record_locks(self) -> asyncio.Future[None] | None:
        moved = self._broker.locks.moved()
        if not moved or self._broker.store.failure is not None:
            return None
        return self._broker.journal.record(*starmap(lock_op, moved))

    def _granted(self, grants: Iterable[Grant]) -> None:
        self._record_locks()
        for grant in grants:
            future = self._tickets.pop(grant.ticket, None)
            if future is not None and not future.done():
                future.set_result(True)
            if any(self._broker.locks.waiters(grant.group, grant.queue)):
                self._ask_holder(grant.group, grant.queue)


def lock_op(group: str, queue: MessageQueue, client_id: str, generation: Generation) -> Locked:
    """The journal's words for who holds a queue."""
    return Locked(group, queue, client_id, generation.epoch, generation.counter)


async def _all_of(futures: Iterable[asyncio.Future[bool]]) -> bool:
    for future in list(futures):
        await asyncio.shield(future)
    return True
