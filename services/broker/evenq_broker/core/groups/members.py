"""Members of each consumer group, as this broker knows them (RG-3): the consumer table.

Evenq sessions and every call of a v2 client update it; the member list, QueryAssignment and the report to the
rebalancer read it. Each member has a lease and expires after a longer silence. Always true: a member list is ascending
by client id (RB-11), and `version(group)` grows whenever the list changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from evenq.errors import TooManyRequests
from evenq.model import MessageModel, Subscription

MEMBERS_MAX = 100_000
FAR_MS = 1 << 60


class Protocol(StrEnum):
    """Kind of a member: it owns queues and commits offsets, or receives and acknowledges."""

    EVENQ = "evenq"
    V2 = "v2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One consumer instance of a group (RG-2)."""

    client_id: str
    protocol: Protocol
    language: str = ""
    version: str = ""  # of the client's software, for people
    model: MessageModel = MessageModel.CLUSTERING
    subscriptions: tuple[Subscription, ...] = ()  # Empty: unknown, which counts as subscribed to every topic
    joined_ms: int = 0  # ms since the epoch, by this broker's clock
    zone: str = ""  # its location by its own label; empty: not reported
    instance: str = ""  # stable name of its place, which its successor will have, too; empty: none
    address: str = ""  # host as this broker sees it, without a port
    capacity: float = 1.0  # its share of the load, relative to other members
    refuses_resets: bool = False  # it stays where it is when an operator moves the group
    strategy: str = ""  # strategy by which an owner divides queues while its group has none; empty: not reported
    unordered: bool = False  # its user allows parallel listener calls for one queue, also of FIFO topics

    def reads(self, topic: str) -> bool:
        """Returns True if the member reads the topic, or has not reported what it reads."""
        return not self.subscriptions or any(subscription.topic == topic for subscription in self.subscriptions)


@dataclass(slots=True)
class MemberTally:
    """A member and its lease; monotonic ms."""

    member: Member
    lease_ms: int
    deadline_ms: int
    suspended: bool = False
    """True while its stream is broken: until it joins again, only signs of life of a v2 client extend the lease."""


class MemberTable:
    """Groups to members. All times are monotonic ms handed in by the caller."""

    def __init__(self, *, members_max: int = MEMBERS_MAX) -> None:
        self._groups: dict[str, dict[str, MemberTally]] = {}
        self._of_client: dict[str, set[str]] = {}
        self._versions: dict[str, int] = {}
        self._listed: dict[str, tuple[Member, ...]] = {}
        self._members_max = members_max
        self._count = 0
        self.next_ms = FAR_MS
        """When the next lease ends, as of the last `expire`, monotonic ms."""
        self.total_version = 0  # grows with every change of any group

    def __len__(self) -> int:
        return self._count

    def join(self, group: str, member: Member, *, now_ms: int, lease_ms: int) -> bool:
        """Adds the member, or renews it with its present data. Returns True if the list changed.

        A rejoining member keeps the time at which it first joined. Raises TooManyRequests when the table is full.
        """
        tallies = self._groups.setdefault(group, {})
        known = tallies.get(member.client_id)
        if known is None:
            if self._count >= self._members_max:
                if not tallies:
                    del self._groups[group]
                raise TooManyRequests(
                    f"the broker keeps {self._members_max} group members and cannot take {member.client_id};"
                    " stop consumers that are not needed, or spread them over more brokers"
                )
            tallies[member.client_id] = MemberTally(member, lease_ms, now_ms + lease_ms)
            self._of_client.setdefault(member.client_id, set()).add(group)
            self._count += 1
            self._changed(group)
            return True
        renewed = replace(member, joined_ms=known.member.joined_ms)
        known.lease_ms, known.deadline_ms, known.suspended = lease_ms, now_ms + lease_ms, False
        if renewed == known.member:
            return False
        known.member = renewed
        self._changed(group)
        return True

    def renew(self, group: str, client_id: str, now_ms: int) -> None:
        """Renews the lease of one member, for a heartbeat on its stream. An unknown one is ignored."""
        tally = self._groups.get(group, {}).get(client_id)
        if tally is not None and not tally.suspended:
            tally.deadline_ms = now_ms + tally.lease_ms

    def touch(self, client_id: str, now_ms: int) -> None:
        """Renews the leases of a v2 client in all its groups, for a sign of life. Unknown clients are ignored.

        Other members renew their leases on their own streams: two machines may use one client id in two groups.
        """
        for group in self._of_client.get(client_id, ()):
            tally = self._groups[group][client_id]
            if tally.member.protocol is Protocol.V2:
                tally.suspended = False  # it lives: only its stream is gone, and some SDKs open no other for minutes
                tally.deadline_ms = now_ms + tally.lease_ms

    def suspend(self, group: str, client_id: str, *, now_ms: int, grace_ms: int) -> None:
        """Drops a member whose stream broke in `grace_ms`, unless it joins again."""
        tally = self._groups.get(group, {}).get(client_id)
        if tally is not None:
            tally.suspended = True
            tally.deadline_ms = min(tally.deadline_ms, now_ms + grace_ms)

    def lost_v2(self, now_ms: int) -> list[str]:
        """Returns v2 clients whose stream broke and whose grace time has ended, sorted."""
        return sorted(
            {
                client_id
                for tallies in self._groups.values()
                for client_id, tally in tallies.items()
                if tally.suspended and tally.deadline_ms <= now_ms and tally.member.protocol is Protocol.V2
            }
        )

    def leave(self, group: str, client_id: str) -> bool:
        """Removes the member immediately; False if it was not there."""
        tallies = self._groups.get(group, {})
        if tallies.pop(client_id, None) is None:
            return False
        self._count -= 1
        if not tallies:
            del self._groups[group]
        groups = self._of_client[client_id]
        groups.discard(group)
        if not groups:
            del self._of_client[client_id]
        self._changed(group)
        return True

    def expire(self, now_ms: int) -> list[tuple[str, str]]:
        """Removes every member whose lease has ended. Returns (group, client id) of each, sorted."""
        over: list[tuple[str, str]] = []
        next_ms = FAR_MS
        for group, tallies in self._groups.items():
            for client_id, tally in tallies.items():
                if tally.deadline_ms <= now_ms:
                    over.append((group, client_id))
                elif tally.deadline_ms < next_ms:
                    next_ms = tally.deadline_ms
        self.next_ms = next_ms
        for group, client_id in sorted(over):
            self.leave(group, client_id)
        return sorted(over)

    def get(self, group: str, client_id: str) -> Member | None:
        tally = self._groups.get(group, {}).get(client_id)
        return None if tally is None else tally.member

    def tallies(self, group: str) -> list[MemberTally]:
        """Returns the same members as `members`, with leases."""
        tallies = self._groups.get(group, {})
        return [tallies[client_id] for client_id in sorted(tallies)]

    def members(self, group: str) -> list[Member]:
        """Returns all members known of the group, ascending by client id (RG-4)."""
        return list(self.listed(group))

    def listed(self, group: str) -> tuple[Member, ...]:
        """Returns the same; one object until something changes, so that callers may cache what they derive from it."""
        listed = self._listed.get(group)
        if listed is None:
            tallies = self._groups.get(group, {})
            listed = tuple(tallies[client_id].member for client_id in sorted(tallies))
            if listed:
                self._listed[group] = listed
        return listed

    def readers(self, group: str, topic: str) -> list[str]:
        """Returns client ids of the clustering members that read the topic, ascending: they share its queues."""
        return [
            member.client_id
            for member in self.members(group)
            if member.model is MessageModel.CLUSTERING and member.reads(topic)
        ]

    def refusing(self, group: str, topic: str) -> str:
        """Returns the client id of a member that reads the topic and follows no reset; empty: all follow."""
        return next((one.client_id for one in self.listed(group) if one.refuses_resets and one.reads(topic)), "")

    def groups(self) -> list[str]:
        """Returns the names of groups that have members, sorted."""
        return sorted(self._groups)

    def groups_of(self, client_id: str) -> list[str]:
        """Returns the groups of the client, sorted."""
        return sorted(self._of_client.get(client_id, ()))

    def v2_groups_of(self, client_id: str) -> list[str]:
        """Returns the groups in which the client is a v2 member, sorted."""
        return [
            group
            for group in self.groups_of(client_id)
            if self._groups[group][client_id].member.protocol is Protocol.V2
        ]

    def version(self, group: str) -> int:
        """Returns a number that grows with each change of the group; 0 if it never had a member."""
        return self._versions.get(group, 0)

    def check(self) -> None:
        pairs = set(self._pairs())
        assert len(pairs) == self._count
        assert pairs == {(group, client) for client, groups in self._of_client.items() for group in groups}
        assert all(self._groups.values()), "a group without members is not kept"
        for group, listed in self._listed.items():
            assert listed == tuple(self._groups[group][client].member for client in sorted(self._groups[group]))

    def _pairs(self) -> Iterator[tuple[str, str]]:
        for group, tallies in self._groups.items():
            for client_id in tallies:
                yield group, client_id

    def _changed(self, group: str) -> None:
        self.total_version += 1
        self._versions[group] = self.total_version
        self._listed.pop(group, None)
