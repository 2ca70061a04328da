"""Who is in which consumer group, as this broker knows it (RG-3): the consumer table.

Fed by evenq sessions and by every call of a v2 client; asked by the member list, by QueryAssignment and by the report
to the rebalancer. Each member has a lease: silence beyond it makes the member expire. Always true: a member list is
ascending by client id (RB-11), and `version(group)` grows whenever what the list would show has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from evenq.errors import TooManyRequests
from evenq.model import MessageModel, Subscription

__all__ = ["Member", "MemberTable", "MemberTally", "Protocol"]

MEMBERS_MAX = 100_000
FAR_MS = 1 << 60


class Protocol(StrEnum):
    """How a member works: it owns queues and commits offsets, or receives and acknowledges."""

    EVENQ = "evenq"
    V2 = "v2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One consumer instance of a group (RG-2)."""

    client_id: str
    protocol: Protocol
    language: str = ""
    version: str = ""
    """Of the client's software, for people."""
    model: MessageModel = MessageModel.CLUSTERING
    subscriptions: tuple[Subscription, ...] = ()
    """Empty: unknown, counts as subscribed to every topic asked for."""
    joined_ms: int = 0
    """Ms since the epoch, by this broker's clock."""
    zone: str = ""
    """Where it runs, by its own label; empty: it did not say."""
    instance: str = ""
    """Stable name of its place, which a successor will have again; empty: none."""
    address: str = ""
    """Host as this broker sees it, without a port."""
    capacity: float = 1.0
    """How much it can take beside others."""
    refuses_resets: bool = False
    """It goes on where it is when an operator moves the group."""
    strategy: str = ""
    """Divides the queues of an owner while its group has no strategy; empty: not reported."""
    unordered: bool = False
    """Its user wants listener calls of one queue side by side, also of FIFO topics."""

    def reads(self, topic: str) -> bool:
        """True if the member wants the topic, or has not said what it wants."""
        return not self.subscriptions or any(subscription.topic == topic for subscription in self.subscriptions)


@dataclass(slots=True)
class MemberTally:
    """A member and its lease; monotonic ms."""

    member: Member
    lease_ms: int
    deadline_ms: int
    suspended: bool = False
    """True while its stream is broken: signs of life do not extend the lease until it joins again, but those of a v2
    client end this.
    """


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
        """When the next lease ends, as things stood at the last `expire`, monotonic ms."""
        self.total_version = 0
        """Grows with every change of any group."""

    def __len__(self) -> int:
        return self._count

    def join(self, group: str, member: Member, *, now_ms: int, lease_ms: int) -> bool:
        """Add the member or renew it with what it tells now; True if the list changed.

        A rejoining member keeps the time at which it first joined. Raises TooManyRequests when the table is full.
        """
        tallies = self._groups.setdefault(group, {})
        known = tallies.get(member.client_id)
        if known is None:
            if self._count >= self._members_max:
                if not tallies:
                    del self._groups[group]
                raise TooManyRequests(
                    f"the broker keeps {self._members_max} group members and has no room for {member.client_id};"
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

    def touch(self, client_id: str, now_ms: int) -> None:
        """A sign of life: renew the client's lease in every group it is in. Unknown clients are no error."""
        for group in self._of_client.get(client_id, ()):
            tally = self._groups[group][client_id]
            if tally.suspended and tally.member.protocol is Protocol.V2:
                tally.suspended = False  # it lives: only its stream is gone, and some SDKs open no other for minutes
            if not tally.suspended:
                tally.deadline_ms = now_ms + tally.lease_ms

    def suspend(self, group: str, client_id: str, *, now_ms: int, grace_ms: int) -> None:
        """The member's stream broke: drop it in `grace_ms` unless it joins again."""
        tally = self._groups.get(group, {}).get(client_id)
        if tally is not None:
            tally.suspended = True
            tally.deadline_ms = min(tally.deadline_ms, now_ms + grace_ms)

    def lost_v2(self, now_ms: int) -> list[str]:
        """V2 clients whose stream broke and whose grace is over, sorted."""
        return sorted({
            client_id
            for tallies in self._groups.values()
            for client_id, tally in tallies.items()
            if tally.suspended and tally.deadline_ms <= now_ms and tally.member.protocol is Protocol.V2
        })  # fmt: skip

    def leave(self, group: str, client_id: str) -> bool:
        """Remove the member at once; False if it was not there."""
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
        """Remove every member whose lease is over; (group, client id) of each, sorted."""
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
        """One member, or None."""
        tally = self._groups.get(group, {}).get(client_id)
        return None if tally is None else tally.member

    def tallies(self, group: str) -> list[MemberTally]:
        """The same as `members`, with leases."""
        tallies = self._groups.get(group, {})
        return [tallies[client_id] for client_id in sorted(tallies)]

    def members(self, group: str) -> list[Member]:
        """All members known of the group, ascending by client id (RG-4)."""
        return list(self.listed(group))

    def listed(self, group: str) -> tuple[Member, ...]:
        """The same; one object until something changes, for those who keep what they made of it."""
        listed = self._listed.get(group)
        if listed is None:
            tallies = self._groups.get(group, {})
            listed = tuple(tallies[client_id].member for client_id in sorted(tallies))
            if listed:
                self._listed[group] = listed
        return listed

    def readers(self, group: str, topic: str) -> list[str]:
        """Client ids of the clustering members that read the topic, ascending: whom its queues are shared among."""
        return [
            member.client_id
            for member in self.members(group)
            if member.model is MessageModel.CLUSTERING and member.reads(topic)
        ]

    def refusing(self, group: str, topic: str) -> str:
        """Client id of a member that reads the topic and follows no reset; empty: all do."""
        return next((one.client_id for one in self.listed(group) if one.refuses_resets and one.reads(topic)), "")

    def groups(self) -> list[str]:
        """Names of the groups that have members, sorted."""
        return sorted(self._groups)

    def groups_of(self, client_id: str) -> list[str]:
        """Groups the client is in, sorted."""
        return sorted(self._of_client.get(client_id, ()))

    def version(self, group: str) -> int:
        """Grows with each change of the group; 0 if it never had a member."""
        return self._versions.get(group, 0)

    def mismatched(self, group: str) -> bool:
        """True if two clustering members that sent their subscriptions do not want the same (RG-8)."""
        subscriptions = {
            tuple(sorted((s.topic, s.filter.type, s.filter.expression) for s in member.subscriptions))
            for member in self.members(group)
            if member.subscriptions and member.model is MessageModel.CLUSTERING
        }
        return len(subscriptions) > 1

    def check(self) -> None:
        """Recompute every invariant; tests call it after each event."""
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
