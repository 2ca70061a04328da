"""The process queue table of one consumer: assignments in, commands out (RB-19 to RB-36), with a lock for each owned
queue.

Owned by the consumer's loop, which executes the commands and reports back. RocketMQ has two states: in the table or
not. Here a queue passes `locking -> starting -> active -> leaving`, so that an old owner finishes before a new one
starts (the better way of RB-37). Invariants: a queue is in one state; only an active queue is pulled; a queue that is
assigned while it leaves is locked anew once it has left.

    assigned            -> Lock(queue)                  broadcasting: FindStart(queue)
    lock granted        -> Start(queue, offset)         or FindStart(queue) if never consumed
    start found         -> Start(queue, offset)
    not assigned        -> Stop(queue)                  the loop drains, commits, unlocks, then calls left()
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from evenq.client.core.reading.start_offset import StoredOffset, stored_start
from evenq.errors import InvalidTransition
from evenq.model import MessageQueue, QueueOffset

OVERLAP_MS = 120_000
"""Longest time for which a lock of another member is taken for a hand-over: twice the longest `drain_ms`, and more than
`revoke_ms` (90 s), up to which an ordered call may hold the queue.
"""


@dataclass(frozen=True, slots=True)
class Lock:
    """Command to lock the queue at its broker; answered with `locked`."""

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class FindStart:
    """Command to find the start of a queue that the group never consumed; answered with `start_found`."""

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class Start:
    """Command to make a process queue and pull (RB-32)."""

    queue: MessageQueue
    offset: QueueOffset
    first: bool
    """True: the group has no stored offset here yet."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Command to stop pulling, drain, commit (unless `fenced`), and unlock; answered with `left`."""

    queue: MessageQueue
    fenced: bool = False
    """Another member holds the queue now: nothing may be committed."""
    stalled: bool = False
    """True: stopped by RB-20, and logged as an error."""


@dataclass(frozen=True, slots=True)
class Unlock:
    """Command to release a lock that is not needed (RB-31)."""

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class RetrySoon:
    """Command to rebalance again in 500 ms (RB-33)."""


Command = Lock | FindStart | Start | Stop | Unlock | RetrySoon


class State(StrEnum):
    LOCKING = "locking"
    STARTING = "starting"
    ACTIVE = "active"
    LEAVING = "leaving"


class RebalanceTable:
    """Queues of one consumer. `locks` is False in broadcasting, where nothing is divided (CS-12)."""

    def __init__(self, *, locks: bool = True) -> None:
        self._locks = locks
        self._states: dict[MessageQueue, State] = {}
        self._assigned: dict[str, set[MessageQueue]] = {}
        self._history: dict[MessageQueue, list[str]] = {}
        self._closing = False

    def assign(
        self, topic: str, assigned: Iterable[MessageQueue], *, stalled: Callable[[MessageQueue], bool] = lambda _: False
    ) -> list[Command]:
        """Applies the topic's new assignment. `stalled`: True for an active queue to which RB-20 applies."""
        due = set() if self._closing else set(assigned)
        self._assigned[topic] = due
        commands: list[Command] = []
        for queue in [queue for queue in self._states if queue.topic == topic]:
            # Queues in other states are decided when they leave these (`locked`, `start_found`, `left`).
            if self._states[queue] is not State.ACTIVE:
                continue
            if queue not in due:
                commands.append(self._active_to_leaving(queue))
            elif stalled(queue):
                commands.append(self._active_to_leaving(queue, stalled=True))
        # Stops come first, so that others can take these queues while this member still waits for its locks.
        commands += [self._none_to_taken(queue) for queue in sorted(due) if queue not in self._states]
        return commands

    def retake(self, topic: str, *, reachable: Callable[[str], bool]) -> list[Command]:
        """Takes queues of the last assignment that are in no state and whose broker is reachable again."""
        lost = [queue for queue in self._assigned.get(topic, ()) if queue not in self._states]
        return [self._none_to_taken(queue) for queue in sorted(lost) if reachable(queue.broker_name)]

    def keep_topics(self, subscribed: Iterable[str]) -> list[Command]:
        """Stops the queues of topics that are not subscribed any more (RB-5), by `assign` (the better way of RB-7)."""
        keep = set(subscribed)
        gone = [topic for topic in self._assigned if topic not in keep]
        commands = [command for topic in gone for command in self.assign(topic, ())]
        for topic in gone:
            del self._assigned[topic]
        return commands

    def locked(self, queue: MessageQueue, *, granted: bool, committed: int = -1) -> list[Command]:
        """Applies the answer to a lock request."""
        self._expect(queue, State.LOCKING)
        if not granted:
            self._forget(queue, "refused")
            return [RetrySoon()] if self._is_assigned(queue) else []
        if not self._is_assigned(queue):
            self._forget(queue, "granted in vain")
            return [Unlock(queue)]
        match stored_start(committed):
            case StoredOffset.KNOWN:
                return [self._to_active(queue, QueueOffset(committed), first=False)]
            case StoredOffset.NEVER:
                self._set(queue, State.STARTING)
                return [FindStart(queue)]
            case StoredOffset.UNUSABLE:
                self._forget(queue, "stored offset unusable")
                return [Unlock(queue), RetrySoon()]

    def start_found(self, queue: MessageQueue, offset: QueueOffset | None, *, first: bool = True) -> list[Command]:
        """Applies a start offset; None or negative: it could not be found (RB-30). `first`: none was stored so far."""
        self._expect(queue, State.STARTING)
        if offset is None or offset < 0 or not self._is_assigned(queue):
            still_assigned = self._is_assigned(queue)
            self._forget(queue, "not started")
            return [*([Unlock(queue)] if self._locks else []), *([RetrySoon()] if still_assigned else [])]
        return [self._to_active(queue, offset, first=first)]

    def lost(self, queue: MessageQueue) -> list[Command]:
        """Stops a queue that another member holds, without a commit. If still assigned, it is taken anew afterwards."""
        if self._states.get(queue) is not State.ACTIVE:
            return []
        return [self._active_to_leaving(queue, fenced=True)]

    def vacate(self, queues: Iterable[MessageQueue]) -> list[Command]:
        """Stops queues of a broker that goes away for a while. Assigned ones are taken anew when it is back."""
        return [self._active_to_leaving(queue) for queue in queues if self._states.get(queue) is State.ACTIVE]

    def left(self, queue: MessageQueue) -> list[Command]:
        """Notes that the loop has released a stopped queue."""
        self._expect(queue, State.LEAVING)
        self._forget(queue, "left")
        # Assigned again while it drained: a new lock is needed, as another member may have had it in between.
        return [self._none_to_taken(queue)] if self._is_assigned(queue) else []

    def close(self) -> list[Command]:
        """Stops all queues and takes no more."""
        self._closing = True
        return [command for topic in list(self._assigned) for command in self.assign(topic, ())]

    def working(self, topic: str | None = None) -> set[MessageQueue]:
        """Returns the active queues: the working set of RB-15."""
        return {
            queue
            for queue, state in self._states.items()
            if state is State.ACTIVE and (topic is None or queue.topic == topic)
        }

    def balanced(self) -> bool:
        """True if the working set of every topic is its assignment (RB-4, RB-15)."""
        return all(self.working(topic) == queues for topic, queues in self._assigned.items())

    def known(self, queue: MessageQueue) -> bool:
        """True if the queue is in some state, so that this member may hold its lock on purpose."""
        return queue in self._states

    def brokers(self) -> set[str]:
        """Returns the brokers of all queues that are in some state or assigned."""
        brokers = {queue.broker_name for queues in self._assigned.values() for queue in queues}
        return brokers | {queue.broker_name for queue in self._states}

    @property
    def empty(self) -> bool:
        return not self._states

    def check(self) -> None:
        """Recomputes every invariant; tests call it after each event."""
        for queue, state in self._states.items():
            if state is State.ACTIVE:
                assert self._is_assigned(queue), f"active queue {queue} is assigned"
            if not self._locks:
                assert state is not State.LOCKING
        for queues in self._assigned.values():
            assert not (self._closing and queues)

    def _none_to_taken(self, queue: MessageQueue) -> Command:
        self._set(queue, State.LOCKING if self._locks else State.STARTING)
        return Lock(queue) if self._locks else FindStart(queue)

    def _to_active(self, queue: MessageQueue, offset: QueueOffset, *, first: bool) -> Command:
        self._set(queue, State.ACTIVE)
        return Start(queue, offset, first)

    def _active_to_leaving(self, queue: MessageQueue, *, fenced: bool = False, stalled: bool = False) -> Command:
        self._set(queue, State.LEAVING)
        return Stop(queue, fenced, stalled)

    def _is_assigned(self, queue: MessageQueue) -> bool:
        return queue in self._assigned.get(queue.topic, ())

    def _set(self, queue: MessageQueue, state: State) -> None:
        self._states[queue] = state
        story = self._history.setdefault(queue, [])
        story.append(state.value)
        del story[:-8]

    def _forget(self, queue: MessageQueue, why: str) -> None:
        del self._states[queue]
        story = self._history[queue]
        story.append(why)
        del story[:-8]
        if not self._is_assigned(queue):
            # Topics come and go: a history is kept only for assigned queues.
            del self._history[queue]

    def _expect(self, queue: MessageQueue, state: State) -> None:
        if self._states.get(queue) is not state:
            raise InvalidTransition(f"{queue} should be {state}; its history: {self._history.get(queue, ['unknown'])}")


class Overlaps:
    """Queues of this member's share whose locks others keep: nothing else detects a queue in two members' lists
    (AL-14).

    Called by `loops.ownership` with each answer to a lock request. Times are monotonic ms.
    """

    def __init__(self) -> None:
        self._since_ms: dict[MessageQueue, int] = {}
        self._reported: set[MessageQueue] = set()

    def refused(self, queue: MessageQueue, now_ms: int) -> bool:
        """Notes that another member holds the queue. True, once, when that has lasted for `OVERLAP_MS`."""
        overlaps = now_ms - self._since_ms.setdefault(queue, now_ms) >= OVERLAP_MS
        news = overlaps and queue not in self._reported
        if news:
            self._reported.add(queue)
        return news

    def over(self, queue: MessageQueue) -> None:
        """Notes that the lock was granted, or that its holder is not known."""
        self._since_ms.pop(queue, None)
        self._reported.discard(queue)

    def assigned(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """Forgets queues that the topic's new share does not contain."""
        for queue in [queue for queue in self._since_ms if queue.topic == topic and queue not in queues]:
            self.over(queue)
