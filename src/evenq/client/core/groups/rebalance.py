"""The process queue table of one consumer: assignments in, commands out (RB-19 to RB-36), with a lock around every
ownership.

Owned by the consumer's loop, which carries the commands out and reports back. Where RocketMQ has two states (in the
table or not), a queue here walks `locking -> starting -> active -> leaving`, so that an old owner finishes before a
new one starts (RB-37's better way). Always true: a queue is in one state; only an active one is pulled; a queue
that is wanted while it leaves is locked anew once it has left.

    assigned            -> Lock(queue)                  broadcasting: FindStart(queue)
    lock granted        -> Start(queue, offset)         or FindStart(queue) if never consumed
    start found         -> Start(queue, offset)
    not assigned        -> Stop(queue)                  the loop drains, commits, unlocks, then calls left()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from evenq.client.core.reading.start_offset import StoredOffset, stored_start
from evenq.errors import InvalidTransition
from evenq.model import MessageQueue, QueueOffset

__all__ = ["Command", "FindStart", "Lock", "RebalanceTable", "RetrySoon", "Start", "State", "Stop", "Unlock"]


@dataclass(frozen=True, slots=True)
class Lock:
    """Take the queue at its broker; answer with `locked`."""

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class FindStart:
    """Ask where to start a queue that the group never consumed; answer with `start_found`."""

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class Start:
    """Make a process queue and pull (RB-32)."""

    queue: MessageQueue
    offset: QueueOffset
    first: bool
    """True: the group has no stored offset here yet."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop pulling at once; drain, commit (unless `fenced`), unlock; answer with `left`."""

    queue: MessageQueue
    fenced: bool = False
    """Another member holds the queue now: nothing may be committed."""
    stalled: bool = False
    """Dropped by RB-20, log as an error."""


@dataclass(frozen=True, slots=True)
class Unlock:
    """Let go of a queue that was locked in vain (RB-31)."""

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class RetrySoon:
    """Rebalance again in 500 ms (RB-33)."""


Command = Lock | FindStart | Start | Stop | Unlock | RetrySoon


class State(StrEnum):
    """Where a queue is on its way."""

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
        """The topic's new assignment. `stalled` tells of an active queue whether RB-20 applies."""
        due = set() if self._closing else set(assigned)
        self._assigned[topic] = due
        commands: list[Command] = []
        for queue in [queue for queue in self._states if queue.topic == topic]:
            # What is on its way is judged when it arrives (`locked`, `start_found`, `left`): one place for each state
            # decides.
            if self._states[queue] is not State.ACTIVE:
                continue
            if queue not in due:
                commands.append(self._active_to_leaving(queue))
            elif stalled(queue):
                commands.append(self._active_to_leaving(queue, stalled=True))
        # Those that leave come first, so that others may have them while we still wait for our locks.
        commands += [self._none_to_taken(queue) for queue in sorted(due) if queue not in self._states]
        return commands

    def retake(self, topic: str, *, reachable: Callable[[str], bool]) -> list[Command]:
        """What is wanted by the last assignment and in no state: its broker is back before a newer one is known."""
        lost = [queue for queue in self._assigned.get(topic, ()) if queue not in self._states]
        return [self._none_to_taken(queue) for queue in sorted(lost) if reachable(queue.broker_name)]

    def keep_topics(self, subscribed: Iterable[str]) -> list[Command]:
        """RB-5: drop what belongs to topics that are not subscribed any more, through the same hook (RB-7's better
        way).
        """
        keep = set(subscribed)
        gone = [topic for topic in self._assigned if topic not in keep]
        commands = [command for topic in gone for command in self.assign(topic, ())]
        for topic in gone:
            del self._assigned[topic]
        return commands

    def locked(self, queue: MessageQueue, *, granted: bool, committed: int = -1) -> list[Command]:
        """A lock request was answered."""
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
        """The start offset is known; None or negative: it could not be found (RB-30). `first`: nothing was stored
        so far.
        """
        self._expect(queue, State.STARTING)
        if offset is None or offset < 0 or not self._is_assigned(queue):
            still_assigned = self._is_assigned(queue)
            self._forget(queue, "not started")
            return [*([Unlock(queue)] if self._locks else []), *([RetrySoon()] if still_assigned else [])]
        return [self._to_active(queue, offset, first=first)]

    def lost(self, queue: MessageQueue) -> list[Command]:
        """Another member holds the queue: stop without a commit. Wanted or not, it is taken anew after it has left."""
        if self._states.get(queue) is not State.ACTIVE:
            return []
        return [self._active_to_leaving(queue, fenced=True)]

    def vacate(self, queues: Iterable[MessageQueue]) -> list[Command]:
        """Their broker goes for a while: hand over what is read of it. What is wanted is taken anew when it is back."""
        return [self._active_to_leaving(queue) for queue in queues if self._states.get(queue) is State.ACTIVE]

    def left(self, queue: MessageQueue) -> list[Command]:
        """The loop has let go of a stopped queue."""
        self._expect(queue, State.LEAVING)
        self._forget(queue, "left")
        # Assigned again while it drained: taken anew with a new lock, as another member may have had it between.
        return [self._none_to_taken(queue)] if self._is_assigned(queue) else []

    def close(self) -> list[Command]:
        """Want nothing any more."""
        self._closing = True
        return [command for topic in list(self._assigned) for command in self.assign(topic, ())]

    def working(self, topic: str | None = None) -> set[MessageQueue]:
        """Active queues: the working set of RB-15."""
        return {
            queue
            for queue, state in self._states.items()
            if state is State.ACTIVE and (topic is None or queue.topic == topic)
        }

    def balanced(self) -> bool:
        """True if every topic's working set is its assignment (RB-15), for all topics (RB-4)."""
        return all(self.working(topic) == queues for topic, queues in self._assigned.items())

    def known(self, queue: MessageQueue) -> bool:
        """True if the queue is in some state, so that its lock may be ours on purpose."""
        return queue in self._states

    def brokers(self) -> set[str]:
        """Brokers of all queues that are in some state, or should be."""
        brokers = {queue.broker_name for queues in self._assigned.values() for queue in queues}
        return brokers | {queue.broker_name for queue in self._states}

    @property
    def empty(self) -> bool:
        """True if no queue is in any state."""
        return not self._states

    def check(self) -> None:
        """Recompute every invariant; tests call it after each event."""
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
            # Queues come and go with topics; a story is kept only for those that are due.
            del self._history[queue]

    def _expect(self, queue: MessageQueue, state: State) -> None:
        if self._states.get(queue) is not state:
            raise InvalidTransition(f"{queue} should be {state}, its story is {self._history.get(queue, ['unknown'])}")
