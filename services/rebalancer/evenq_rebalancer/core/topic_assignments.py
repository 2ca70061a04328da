"""Assignment of one (group, topic) over time, and the table of all assignments.

Invariants: the table and its index by topic contain the same assignments; a held queue is not owed to any member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from evenq.errors import TooManyRequests
from evenq.model import MessageQueue
from evenq_rebalancer.core.decisions import Decision
from evenq_rebalancer.core.holds import Hold
from evenq_rebalancer.core.member_history import MemberChanges

NOTHING: dict[MessageQueue, str] = {}


@dataclass(slots=True)
class TopicAssignment:
    """Current decision, and the state besides the facts that the next one depends on."""

    requested_strategy: str = ""
    """The first strategy that a member requested; used while the group has none of its own."""
    seen: tuple[int, int, int, str, int] | None = None
    """Versions from which `decision` was made or refused."""
    touched: int = 0
    """Grows when a decision is due for another reason than facts."""
    decision: Decision | None = None
    problem: str = ""
    """Problem of the newest inputs; the previous decision stays, or another strategy divides (RB-12)."""
    moves_total: int = 0
    held: dict[MessageQueue, Hold] = field(default_factory=dict)
    owed: dict[MessageQueue, str] = field(default_factory=dict)
    """Client ids of the successors that get queues with the next decision."""
    again_ms: int | None = None
    """Monotonic ms of the next balancing step, after a decision that reached its limit of moves."""
    lag_ms: int | None = None
    """Monotonic ms of the last look at the balance of lags."""
    why: str = ""
    """Reason of `touched`, if the inputs do not show it."""
    eager: bool = False
    """True: equal inputs are divided again, too."""

    def owner_of(self) -> Mapping[MessageQueue, str]:
        """Returns the owner of each queue by the current decision; successors replace the members that they follow."""
        owners = self.decision.owner_of() if self.decision else {}
        return owners | self.owed if self.owed else owners

    def take_up(self, held: Mapping[MessageQueue, Hold]) -> None:
        """Holds queues that the previous leader held."""
        if self.decision is None:  # a decision of this leader is newer than inherited holds
            self.held |= {queue: hold for queue, hold in held.items() if queue not in self.owed}
            self.touched += 1

    def follow(self, changes: MemberChanges) -> bool:
        """Applies changed holds to the queues. True if a new decision is due."""
        touched = self.touched
        decision = self.decision
        if decision is not None and decision.inputs.one_owner:  # shared queues have readers left
            for hold in changes.began:
                mine = decision.shares.get(hold.client_id, ())
                self.held |= dict.fromkeys(mine, hold)
                self.touched += bool(mine)
        for hold, successor in changes.taken:  # the next decision gives exactly these queues to the successor
            taken = self._let_go(hold)
            self.owed |= dict.fromkeys(taken, successor)
        for hold in changes.ended:  # the next decision divides them among all
            self._let_go(hold)
        return self.touched != touched

    def break_holds(self, lags: Mapping[MessageQueue, int], lag_max: int) -> bool:
        """Releases held queues with a lag above `lag_max`; True if there were any."""
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
        """By group, then topic."""
        self._groups_of: dict[str, dict[str, None]] = {}
        """Groups with an assignment about each topic."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[str, str, TopicAssignment]]:
        """Iterates over group, topic and assignment, ascending."""
        for group in sorted(self._assignments):
            for topic, assignment in sorted(self._assignments[group].items()):
                yield group, topic, assignment

    @property
    def full(self) -> bool:
        return self._count >= self._assignments_max

    def get(self, group: str, topic: str) -> TopicAssignment | None:
        return self._assignments.get(group, {}).get(topic)

    def of_group(self, group: str) -> dict[str, TopicAssignment]:
        """Returns the assignments by topic; do not change the result."""
        return self._assignments.get(group, {})

    def groups_of(self, topic: str) -> list[str]:
        """Returns groups with an assignment about the topic, ascending."""
        return sorted(self._groups_of.get(topic, {}))

    def open(self, group: str, topic: str) -> TopicAssignment:
        """Returns the assignment, new if there is none. Raises TooManyRequests when full."""
        assignment = self.get(group, topic)
        if assignment is None:
            if self.full:
                raise TooManyRequests(
                    f"{self._count} pairs of group and topic have an assignment already; raise decisions_max"
                )
            assignment = TopicAssignment()
            self._assignments.setdefault(group, {})[topic] = assignment
            self._groups_of.setdefault(topic, {})[group] = None
            self._count += 1
        return assignment

    def close(self, group: str, topic: str) -> None:
        """Removes the assignment, which must exist."""
        del self._assignments[group][topic]
        del self._groups_of[topic][group]
        self._count -= 1
        if not self._assignments[group]:
            del self._assignments[group]
        if not self._groups_of[topic]:
            del self._groups_of[topic]

    def check(self, line_is_right: Callable[[TopicAssignment], None]) -> None:
        """Recomputes the invariants; tests call it after each event."""
        assert self._count == sum(map(len, self._assignments.values())) <= self._assignments_max
        assert self._groups_of.keys() == {topic for assignments in self._assignments.values() for topic in assignments}
        for group, topic, assignment in self:
            assert group in self._groups_of[topic]
            assert not assignment.held.keys() & assignment.owed.keys()
            line_is_right(assignment)
