"""One (group, topic) over time, and the table of all of them. Called by `assignment_engine.py` only.

Always true: the table and its index by topic name the same assignments; a queue that an assignment holds is not owed to
anybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from evenq.errors import TooManyRequests
from evenq.model import MessageQueue
from evenq_rebalancer.core.decisions import Decision
from evenq_rebalancer.core.holds import Hold
from evenq_rebalancer.core.member_history import MemberChanges

__all__ = ["TopicAssignment", "TopicAssignments"]

NOTHING: dict[MessageQueue, str] = {}


@dataclass(slots=True)
class TopicAssignment:
    """What stands, and what the next decision must know beside the facts."""

    requested_strategy: str = ""
    """The first strategy that a member asked for; used while the group has none of its own."""
    seen: tuple[int, int, int, str, int] | None = None
    """Versions that `decision` was made, or refused, from."""
    touched: int = 0
    """Grows when something else than the facts asks for a decision."""
    decision: Decision | None = None
    problem: str = ""
    """What is wrong with the newest inputs; the decision before stands, or another strategy divides (RB-12)."""
    moves_total: int = 0
    held: dict[MessageQueue, Hold] = field(default_factory=dict)
    """Queues that wait for a successor."""
    owed: dict[MessageQueue, str] = field(default_factory=dict)
    """Queues that a successor gets with the next decision, by its client id."""
    again_ms: int | None = None
    """Monotonic ms of the next look at the balance: the last decision may have left some for lack of moves."""
    lag_ms: int | None = None
    """Monotonic ms of the last look at the balance of lags."""
    why: str = ""
    """Why `touched` grew, if the inputs do not tell."""
    eager: bool = False
    """The next decision must follow even from equal inputs."""

    def owner_of(self) -> Mapping[MessageQueue, str]:
        """Who had each queue by the decision that stands, successors in the place of whom they follow."""
        owners = self.decision.owner_of() if self.decision else {}
        return owners | self.owed if self.owed else owners

    def take_up(self, held: Mapping[MessageQueue, Hold]) -> None:
        """These waited under the leader before, and go on waiting; one that has decided already knows better."""
        if self.decision is None:
            self.held |= {queue: hold for queue, hold in held.items() if queue not in self.owed}
            self.touched += 1

    def follow(self, changes: MemberChanges) -> bool:
        """Hold the queues of who left, owe those of who came, give up the rest; True if that asks for a decision."""
        touched = self.touched
        decision = self.decision
        if decision is not None and decision.inputs.one_owner:
            for hold in changes.began:
                mine = decision.shares.get(hold.client_id, ())
                self.held |= dict.fromkeys(mine, hold)
                self.touched += bool(mine)
        for hold, successor in changes.taken:
            taken = self._let_go(hold)
            self.owed |= dict.fromkeys(taken, successor)
        for hold in changes.ended:
            self._let_go(hold)
        return self.touched != touched

    def break_holds(self, lags: Mapping[MessageQueue, int], lag_max: int) -> bool:
        """Give up held queues in which more than `lag_max` messages wait; True if there were any."""
        broken = [queue for queue in self.held if lags.get(queue, 0) > lag_max]
        for queue in broken:
            del self.held[queue]
        self.touched += bool(broken)
        return bool(broken)

    def _let_go(self, hold: Hold) -> list[MessageQueue]:
        queues = [queue for queue, waiting in self.held.items() if waiting is hold]
        for queue in queues:
            del self.held[queue]
        self.touched += bool(queues)
        return queues


class TopicAssignments:
    """All assignments, at most `assignments_max`."""

    def __init__(self, *, assignments_max: int) -> None:
        self._assignments_max = assignments_max
        self._assignments: dict[str, dict[str, TopicAssignment]] = {}
        """Group, then topic."""
        self._groups_of: dict[str, dict[str, None]] = {}
        """Topic to the groups that have an assignment about it."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[str, str, TopicAssignment]]:
        """Group, topic and assignment, ascending."""
        for group in sorted(self._assignments):
            for topic, assignment in sorted(self._assignments[group].items()):
                yield group, topic, assignment

    @property
    def full(self) -> bool:
        """True if no assignment can be opened."""
        return self._count >= self._assignments_max

    def get(self, group: str, topic: str) -> TopicAssignment | None:
        """None if there is no such assignment."""
        return self._assignments.get(group, {}).get(topic)

    def of_group(self, group: str) -> dict[str, TopicAssignment]:
        """By topic; do not change it."""
        return self._assignments.get(group, {})

    def groups_of(self, topic: str) -> list[str]:
        """Groups with an assignment about the topic, ascending."""
        return sorted(self._groups_of.get(topic, {}))

    def open(self, group: str, topic: str) -> TopicAssignment:
        """The assignment, made if need be. Raises TooManyRequests when full."""
        assignment = self.get(group, topic)
        if assignment is None:
            if self.full:
                raise TooManyRequests(
                    f"{self._count} pairs of group and topic are watched already; raise decisions_max"
                )
            assignment = TopicAssignment()
            self._assignments.setdefault(group, {})[topic] = assignment
            self._groups_of.setdefault(topic, {})[group] = None
            self._count += 1
        return assignment

    def close(self, group: str, topic: str) -> None:
        """Forget the assignment, which must be there."""
        del self._assignments[group][topic]
        del self._groups_of[topic][group]
        self._count -= 1
        if not self._assignments[group]:
            del self._assignments[group]
        if not self._groups_of[topic]:
            del self._groups_of[topic]

    def check(self, line_is_right: Callable[[TopicAssignment], None]) -> None:
        """Recompute what the module promises; tests call it after each event."""
        assert self._count == sum(map(len, self._assignments.values())) <= self._assignments_max
        assert self._groups_of.keys() == {topic for assignments in self._assignments.values() for topic in assignments}
        for group, topic, assignment in self:
            assert group in self._groups_of[topic]
            assert not assignment.held.keys() & assignment.owed.keys()
            line_is_right(assignment)
