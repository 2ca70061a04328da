"""Progress of each group, and the consumer that holds each queue (LQ-50 to LQ-56, LQ-6).

Each group has two tables: offsets (the last finished message of a queue; -1 = none) and claims. One consumer holds a
queue; others are refused while it is active within the window. Time is an argument. A group's lock makes each call
atomic.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Final

from evenq.errors import IllegalGroup, PreconditionFailed, TooManyRequests
from evenq.local.messages import Queue
from evenq.local.tail import QueueTail
from evenq.model.names import group_problem

HELD_BY_ANOTHER: Final = -2  # LQ-52
NONE_STORED: Final = -1  # LQ-52
GROUPS_MAX: Final = 1_024


class Claim:
    """A queue that one consumer holds."""

    __slots__ = ("key", "lost", "next", "owner", "pending", "queue")

    def __init__(self, key: Queue, owner: str, start: int) -> None:
        self.key = key
        self.owner = owner
        self.next = start
        """Offset to read next."""
        self.pending: dict[int, None] = {}
        """Offsets that were delivered and are not finished, ascending."""
        self.lost = False
        self.queue: QueueTail | None = None


class LocalGroupProgress:
    """Progress of one group (LQ-53 Better: groups share nothing)."""

    def __init__(self, name: str, window_ms: int) -> None:
        self.name = name
        self.window_ms = window_ms
        self.lock = threading.Lock()
        self.offsets: dict[Queue, int] = {}
        """The last finished message of each queue."""
        self.claims: dict[Queue, Claim] = {}
        self.members: dict[str, tuple[str, ...]] = {}
        """Open consumers, and the names they read."""
        self.seen: dict[str, int] = {}
        """Last activity of each consumer, monotonic ms; also of those that left with unfinished messages."""
        self.names: set[str] = set()
        """Names that a consumer of the group has ever read."""
        self.version = 0
        """Number of joins and leaves."""
        self.changes = 0
        """Number of changes of progress."""

    def join(self, client: str, names: tuple[str, ...], now: int) -> None:
        """Adds a consumer. Raises PreconditionFailed if one of that name is open."""
        with self.lock:
            if client in self.members:
                raise PreconditionFailed(
                    f"group {self.name!r} has an open consumer {client!r}: close it, or give this one another name"
                )
            self.members[client] = names
            self.names.update(names)
            self.seen[client] = now
            self.version += 1

    def leave(self, client: str, now: int) -> list[Queue]:
        """Removes a consumer. Returns its finished queues, which are free; the others stay reserved (LQ-6)."""
        with self.lock:
            self.members.pop(client, None)
            self.version += 1
            mine = [claim for claim in self.claims.values() if claim.owner == client]
            freed = [claim.key for claim in mine if not claim.pending]
            for key in freed:
                del self.claims[key]
            if len(freed) == len(mine):
                self.seen.pop(client, None)
            else:
                self.seen[client] = now
            return freed

    def share(self, name: str, queue_count: int, now: int) -> int:
        """Returns how many queues of `name` one active consumer may hold, so that each of them gets some."""
        living = sum(
            name in names and now - self.seen.get(client, -self.window_ms) < self.window_ms
            for client, names in self.members.items()
        )
        return -(-queue_count // max(1, living))

    def query_offset_and_lock(self, client: str, key: Queue, now: int) -> int:
        """Claims a queue: returns its offset, -1 if none is stored, -2 if another consumer holds it (LQ-52, XO-10)."""
        with self.lock:
            return self._claim(client, key, now)

    def claim(self, client: str, key: Queue, now: int) -> Claim | None:
        """Claims a queue; returns the claim, or None if another consumer holds it."""
        with self.lock:
            if self._claim(client, key, now) == HELD_BY_ANOTHER:
                return None
            return self.claims[key]

    def _claim(self, client: str, key: Queue, now: int) -> int:
        held = self.claims.get(key)
        if held is not None and held.owner != client:
            if now - self.seen.get(held.owner, now - self.window_ms) < self.window_ms:
                return HELD_BY_ANOTHER
            held.lost = True  # the window has ended: the previous owner is refused from here on
            held = None
        self.seen[client] = now
        stored = self.offsets.get(key, NONE_STORED)
        if held is None:
            self.claims[key] = Claim(key, client, stored + 1)
            self._forget_the_gone(now)
        return stored

    def _forget_the_gone(self, now: int) -> None:
        if len(self.seen) > 2 * len(self.members) + 64:
            owners = {claim.owner for claim in self.claims.values()}
            gone = [client for client in self.seen if client not in self.members and client not in owners]
            for client in gone:
                if now - self.seen[client] >= self.window_ms:
                    del self.seen[client]

    def release(self, claim: Claim) -> None:
        with self.lock:
            if self.claims.get(claim.key) is claim:
                del self.claims[claim.key]
            claim.lost = True

    def finish(self, claim: Claim, offsets: Iterable[int], now: int) -> int:
        """Finishes messages; returns their number (LQ-56 Better). Raises PreconditionFailed if the claim was lost."""
        with self.lock:
            if claim.lost:
                raise PreconditionFailed(
                    f"queue {claim.key} is no longer held by consumer {claim.owner!r}: it was inactive for "
                    f"{self.window_ms} ms (window_ms), so its unfinished messages go to another consumer"
                )
            self.seen[claim.owner] = now
            pending = claim.pending
            before = len(pending)
            for offset in offsets:
                pending.pop(offset, None)
            finished = next(iter(pending)) - 1 if pending else claim.next - 1
            if finished > self.offsets.get(claim.key, NONE_STORED):  # never goes back (XO-10)
                self.offsets[claim.key] = finished
                self.changes += 1
            return before - len(pending)


class FolderProgress:
    """Progress of all groups of one folder."""

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._lock = threading.Lock()
        self.groups: dict[str, LocalGroupProgress] = {}

    def group(self, name: str) -> LocalGroupProgress:
        """Returns the group of that name, created if new. Raises IllegalGroup, TooManyRequests above 1,024 groups."""
        problem = group_problem(name)
        if problem:
            raise IllegalGroup(problem)
        with self._lock:
            group = self.groups.get(name)
            if group is None:
                if len(self.groups) >= GROUPS_MAX:
                    raise TooManyRequests(f"there are {GROUPS_MAX} groups already, the limit: reuse one of them")
                group = self.groups[name] = LocalGroupProgress(name, self._window_ms)
            return group

    def finished_by_all(self, key: Queue) -> int:
        """Returns the offset before which every group that reads the name has finished; 0 if none reads it."""
        through = [
            group.offsets.get(key, NONE_STORED) + 1 for group in list(self.groups.values()) if key[0] in group.names
        ]
        return min(through, default=0)

    @property
    def changes(self) -> int:
        """Grows with each change of progress."""
        return sum(group.changes for group in list(self.groups.values()))

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = {}
        for name, group in sorted(self.groups.items()):
            with group.lock:
                offsets = sorted(group.offsets.items())
            names = state.setdefault(name, {})
            for (topic, queue_id), offset in offsets:
                names.setdefault(topic, {})[str(queue_id)] = offset
        return state

    def restore(self, state: dict[str, Any]) -> None:
        for name, topics in state.items():
            group = self.group(name)
            group.names.update(topics)
            for topic, queues in topics.items():
                for queue_id, offset in queues.items():
                    group.offsets[topic, int(queue_id)] = int(offset)
