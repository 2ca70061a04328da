"""Fence between the old owner of a queue and its new one (OC-18): who may read and commit the queue for its group.

A member of our SDK owns a queue while it holds the queue's lock here. A client that is a member, or was one until its
session ended, must be the holder, and its generation must not be older than the lock's. Otherwise it is refused. So is
a client without the lock that declares itself an owner, also if this broker does not know it (it restarted while the
member slept). Callers that never were members (tools, jobs, consumers with chosen queues) hold no locks: they may read,
but not commit over a holder. Called by `loops.groups.locking`. Pure.
"""

from __future__ import annotations

from collections import OrderedDict

from evenq.model import NO_GENERATION, Generation, MessageModel, MessageQueue
from evenq_broker.core.groups.locks import LockTable
from evenq_broker.core.groups.members import Member, MemberTable, Protocol

OWNERS_MAX = 20_000


class QueueFence:
    """Rights to read and commit, from the lock and member tables and a memory of former members."""

    def __init__(self, locks: LockTable, members: MemberTable, *, owners_max: int = OWNERS_MAX) -> None:
        self._locks = locks
        self._members = members
        self._owners: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._owners_max = owners_max

    def joined(self, group: str, member: Member) -> None:
        """Remembers a new member if it owns queues."""
        if member.model is MessageModel.CLUSTERING:
            self.owned(group, member.client_id)

    def owned(self, group: str, client_id: str) -> None:
        """Remembers that the client was a member that owns queues, maybe before a restart; the oldest is dropped."""
        self._owners[group, client_id] = None
        self._owners.move_to_end((group, client_id))
        if len(self._owners) > self._owners_max:
            self._owners.popitem(last=False)

    def refusal(
        self,
        group: str,
        client_id: str,
        queue: MessageQueue,
        generation: Generation,
        *,
        commits: bool,
        owner: bool = False,
    ) -> str | None:
        """Returns why it may not, as a sentence; None: it may. `commits`: it also stores an offset. `owner`: it
        declares itself that it must hold the queue.
        """
        holder = self._locks.holder(group, queue)
        if holder and holder == client_id:
            newest = self._locks.generation(group, queue)
            if generation == NO_GENERATION or generation >= newest:
                return None
            return (
                f"generation {generation.epoch}.{generation.counter} of queue {queue} in group {group} is outdated: "
                f"the queue is held under {newest.epoch}.{newest.counter} now; request your assignment again"
            )
        if not owner and not self._owns(group, client_id) and not (commits and holder):
            return None
        now = f"{holder!r} holds it" if holder else "no member holds it"
        if generation != NO_GENERATION and generation < self._locks.generation(group, queue):
            return (
                f"generation {generation.epoch}.{generation.counter} of queue {queue} in group {group} is outdated: "
                f"{now} and the queue was given under a newer one; request your assignment again"
            )
        return f"client {client_id!r} does not hold queue {queue} of group {group}: {now}; lock it first"

    def _owns(self, group: str, client_id: str) -> bool:
        """Returns True if it is, or was, a member that owns queues: it must hold what it reads."""
        member = self._members.get(group, client_id)
        if member is None:
            return (group, client_id) in self._owners
        return member.protocol is Protocol.EVENQ and member.model is MessageModel.CLUSTERING
