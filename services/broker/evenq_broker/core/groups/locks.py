"""Queue locks: at most one holder for each group and queue (TQ-9), kept by the broker that owns the queue.

A lock lives as long as its holder's session. Members that want a held lock wait in line: first come, first served among
those of the newest generation. A released lock passes on in the same step, so no third member can slip in. Each lock
remembers the newest generation that it was granted under: an older request of a member without the queue is stale and
refused (fencing, OC-18).
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from evenq.errors import TooManyRequests
from evenq.model import NO_GENERATION, Generation, MessageQueue

WAITERS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Grant:
    """A lock that a waiter got; the owner of the ticket notifies it."""

    ticket: int
    group: str
    queue: MessageQueue
    client_id: str


@dataclass(frozen=True, slots=True)
class _Waiter:
    ticket: int
    client_id: str
    generation: Generation


@dataclass(slots=True)
class _Lock:
    holder: str = ""
    generation: Generation = NO_GENERATION
    line: deque[_Waiter] = field(default_factory=deque)


_NO_LOCK = _Lock()


class LockTable:
    """Locks of all groups. Pure: the caller limits how long a member waits."""

    def __init__(self, *, waiters_max: int = WAITERS_MAX) -> None:
        self._locks: dict[tuple[str, MessageQueue], _Lock] = {}
        self._tickets: dict[int, tuple[str, MessageQueue]] = {}
        self._held: dict[tuple[str, str], dict[MessageQueue, None]] = {}
        self._of_group: dict[str, int] = {}
        self._versions: dict[tuple[str, str], int] = {}
        self._waiting: dict[tuple[str, str], dict[int, None]] = {}  # group, client id -> its tickets
        self._last_ticket = 0
        self._waiters_max = waiters_max
        self._moved: dict[tuple[str, MessageQueue], None] = {}
        self.changes = 0
        """Grows whenever a lock changes hands: a caller that saw the same number has missed nothing."""

    def holder(self, group: str, queue: MessageQueue) -> str:
        """Returns the client id of the queue's holder; empty if it is free."""
        lock = self._locks.get((group, queue))
        return "" if lock is None else lock.holder

    def any_of(self, group: str) -> bool:
        """Returns True if members hold queues of the group; called before each receive."""
        return group in self._of_group

    def holds(self, group: str, client_id: str, queue: MessageQueue, generation: Generation) -> bool:
        """Returns True if the client holds the queue, under a generation that is not newer; called for each pull."""
        lock = self._locks.get((group, queue))
        if lock is None or lock.holder != client_id or not client_id:
            return False
        return generation is NO_GENERATION or lock.generation is NO_GENERATION or generation >= lock.generation

    def generation(self, group: str, queue: MessageQueue) -> Generation:
        """Returns the newest generation the queue was given under."""
        lock = self._locks.get((group, queue))
        return NO_GENERATION if lock is None else lock.generation

    def waiters(self, group: str, queue: MessageQueue) -> list[str]:
        """Returns client ids that wait for the queue, first come first."""
        lock = self._locks.get((group, queue))
        return [] if lock is None else [waiter.client_id for waiter in lock.line]

    def wanted(self) -> dict[str, int]:
        """Returns group -> number of held queues that another member waits for. A hand-over takes a short time; two
        members whose lists name one queue may wait for any time (AL-14).
        """
        return dict(Counter(group for group, _ in dict.fromkeys(self._tickets.values())))

    def held(self, group: str, client_id: str) -> list[MessageQueue]:
        """Returns the queues that the member holds, sorted."""
        return sorted(self._held.get((group, client_id), ()))

    def holdings(self, group: str, client_id: str) -> list[tuple[MessageQueue, Generation]]:
        """Returns the queues that the member holds, with their generations, in the order in which it got them."""
        return [(queue, self._locks[group, queue].generation) for queue in self._held.get((group, client_id), ())]

    def version(self, group: str, client_id: str) -> int:
        """Returns a number that changes whenever `holdings` does; 0 if the member holds nothing."""
        return self._versions.get((group, client_id), 0)

    def members(self) -> list[tuple[str, str]]:
        """Returns group and client id of every holder, sorted."""
        return sorted(self._held)

    def overtaken(self) -> list[tuple[str, MessageQueue]]:
        """Returns held queues that another member waits for under a newer generation than they were granted under."""
        places = dict.fromkeys(self._tickets.values())
        return [key for key in places if self._newest_wish(key) > self._locks[key].generation]

    def _newest_wish(self, key: tuple[str, MessageQueue]) -> Generation:
        return max((waiter.generation for waiter in self._locks[key].line), default=NO_GENERATION)

    def counts(self) -> dict[str, int]:
        """Returns the number of locked queues of each group that holds any."""
        return dict(self._of_group)

    def holders(self) -> list[tuple[str, MessageQueue, str, Generation]]:
        """Returns group, queue, client id and generation of every held lock."""
        return [(*key, lock.holder, lock.generation) for key, lock in self._locks.items() if lock.holder]

    def remembered(self) -> list[tuple[str, MessageQueue, str, Generation]]:
        """Returns the same, and free queues (no client id) that were granted under a generation, for a snapshot.
        Without them an older decision could be carried out after a restart.
        """
        return [
            (*key, lock.holder, lock.generation)
            for key, lock in self._locks.items()
            if lock.holder or lock.generation > NO_GENERATION
        ]

    def moved(self) -> list[tuple[str, MessageQueue, str, Generation]]:
        """Returns the same for locks that changed hands since the last call; an empty client id: it is free."""
        changes = []
        for group, queue in self._moved:
            lock = self._locks.get((group, queue), _NO_LOCK)
            changes.append((group, queue, lock.holder, lock.generation))
        self._moved.clear()
        return changes

    def restore(self, group: str, queue: MessageQueue, client_id: str, generation: Generation) -> None:
        """Sets a lock as the journal has it; an empty client id: it is free."""
        lock = self._locks.setdefault((group, queue), _Lock())
        if lock.holder:
            self.release(group, lock.holder, queue)
        if client_id:
            self._give(group, queue, lock, client_id, generation)
        lock.generation = max(lock.generation, generation)
        # They are in the journal already.
        self._moved.clear()

    def acquire(self, group: str, client_id: str, queue: MessageQueue, generation: Generation = NO_GENERATION) -> bool:
        """Takes the queue if it is free or the client's already. Returns True if the client holds it now."""
        lock = self._locks.setdefault((group, queue), _Lock())
        if lock.holder not in {"", client_id}:
            return False
        self._give(group, queue, lock, client_id, generation)
        return True

    def wait(self, group: str, client_id: str, queue: MessageQueue, generation: Generation = NO_GENERATION) -> int:
        """Waits in line for a queue that `acquire` refused; returns the ticket. Raises TooManyRequests."""
        if len(self._tickets) >= self._waiters_max:
            raise TooManyRequests(
                f"{self._waiters_max} members wait for queue locks at this broker already; try again in a second"
            )
        self._last_ticket += 1
        self._locks[group, queue].line.append(_Waiter(self._last_ticket, client_id, generation))
        self._tickets[self._last_ticket] = (group, queue)
        self._waiting.setdefault((group, client_id), {})[self._last_ticket] = None
        return self._last_ticket

    def cancel(self, ticket: int) -> None:
        """Leaves the line. A ticket that was granted or is unknown is ignored."""
        where = self._tickets.get(ticket)
        if where is not None:
            line = self._locks[where].line
            waiter = next(waiter for waiter in line if waiter.ticket == ticket)
            line.remove(waiter)
            self._forget(where[0], waiter)

    def release(self, group: str, client_id: str, queue: MessageQueue) -> list[Grant]:
        """Releases the queue to the head of the line. A queue that the client does not hold is ignored."""
        lock = self._locks.get((group, queue))
        if lock is None or lock.holder != client_id:
            return []
        self._held[group, client_id].pop(queue, None)
        self._of_group[group] -= 1
        if not self._of_group[group]:
            del self._of_group[group]
        self._changed(group, client_id)
        if not self._held[group, client_id]:
            del self._held[group, client_id], self._versions[group, client_id]
        lock.holder = ""
        self._moved[group, queue] = None
        return self._pass_on(group, queue, lock)

    def drop(self, group: str, client_id: str) -> list[Grant]:
        """Removes the member from every line and releases everything that it holds."""
        for ticket in list(self._waiting.get((group, client_id), ())):
            self.cancel(ticket)
        return [grant for queue in self.held(group, client_id) for grant in self.release(group, client_id, queue)]

    def stale(self, group: str, client_id: str, queue: MessageQueue, generation: Generation) -> bool:
        """Returns True for a request to refuse: another member got the queue under a newer generation than this one."""
        if generation == NO_GENERATION:
            return False
        lock = self._locks.get((group, queue))
        return lock is not None and lock.holder != client_id and generation < lock.generation

    def forget_group(self, group: str) -> None:
        """Forgets the deleted group, also its generations."""
        for key in [key for key in self._locks if key[0] == group]:
            self._moved.pop(key, None)
            for waiter in self._locks.pop(key).line:
                self._forget(group, waiter)
        for holder in [holder for holder in self._held if holder[0] == group]:
            del self._held[holder], self._versions[holder]
        self._of_group.pop(group, None)

    def forget_topic(self, topic: str) -> None:
        """Forgets the deleted topic: a new one of the same name begins without holders and generations."""
        for group, queue in [key for key in self._locks if key[1].topic == topic]:
            lock = self._locks[group, queue]
            while lock.line:
                self._forget(group, lock.line.popleft())
            if lock.holder:
                self.release(group, lock.holder, queue)
            del self._locks[group, queue]
            self._moved.pop((group, queue), None)

    def check(self) -> None:
        held = {(group, lock.holder, queue) for (group, queue), lock in self._locks.items() if lock.holder}
        assert held == {(g, client, queue) for (g, client), queues in self._held.items() for queue in queues}
        assert self._versions.keys() == self._held.keys()
        assert self._of_group == dict(Counter(group for group, _, _ in held))
        waiting = {waiter.ticket: key for key, lock in self._locks.items() for waiter in lock.line}
        assert waiting == self._tickets
        assert all(self._waiting.values())
        assert {(key, ticket) for key, tickets in self._waiting.items() for ticket in tickets} == {
            ((group, waiter.client_id), waiter.ticket)
            for (group, _), lock in self._locks.items()
            for waiter in lock.line
        }
        assert all(lock.holder for lock in self._locks.values() if lock.line), "no member waits for a free queue"

    def _pass_on(self, group: str, queue: MessageQueue, lock: _Lock) -> list[Grant]:
        if not lock.line:
            return []
        head = max(lock.line, key=lambda waiter: waiter.generation)  # the first of those with the newest decision
        lock.line.remove(head)
        self._forget(group, head)
        self._give(group, queue, lock, head.client_id, head.generation)
        grants = [Grant(head.ticket, group, queue, head.client_id)]
        for waiter in [waiter for waiter in lock.line if waiter.client_id == head.client_id]:
            lock.line.remove(waiter)  # another call of the same member is answered, too
            self._forget(group, waiter)
            grants.append(Grant(waiter.ticket, group, queue, head.client_id))
        return grants

    def _forget(self, group: str, waiter: _Waiter) -> None:
        del self._tickets[waiter.ticket]
        tickets = self._waiting[group, waiter.client_id]
        del tickets[waiter.ticket]
        if not tickets:
            del self._waiting[group, waiter.client_id]

    def _give(self, group: str, queue: MessageQueue, lock: _Lock, client_id: str, generation: Generation) -> None:
        if lock.holder != client_id or generation > lock.generation:
            self._moved[group, queue] = None
            self._changed(group, client_id)
        lock.holder = client_id
        # Also when an older decision gets a free queue: the newest generation keeps refusing older ones (OC-18).
        lock.generation = max(lock.generation, generation)
        held = self._held.setdefault((group, client_id), {})
        if queue not in held:
            held[queue] = None
            self._of_group[group] = self._of_group.get(group, 0) + 1

    def _changed(self, group: str, client_id: str) -> None:
        self.changes += 1
        self._versions[group, client_id] = self.changes
