"""All state of a rebalancer: facts from brokers, request modes, and one decision per (group, topic).

`rpc/assignment.py` passes reports and queries to it, `loops/` the time. Every member that queries a (group, topic) gets
its part of the same decision. Changed inputs or a due look at the balance renew a decision, a query never does. A query
first brings its own (group, topic) up to date, so it sees every fact reported before it. A decision that changes
nothing for any member keeps the generation of the previous one.

For `warm_up_ms` after the first report the engine answers no query: only some brokers have reported, and decisions from
half the facts would move queues twice. While a broker that others name is missing, it waits up to `grace_ms` longer.
Its first decisions continue from the owners that brokers report and from the holds of the previous leader, so a new
leader moves no queue without need.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from evenq.errors import BadRequest, GroupNotFound, TopicNotFound
from evenq.model import NO_GENERATION, Generation, MessageModel, MessageQueue
from evenq.model.balance import Weight
from evenq.model.names import RETRY_PREFIX
from evenq_rebalancer.core import pacing
from evenq_rebalancer.core.deciding import Decider
from evenq_rebalancer.core.decisions import Decision
from evenq_rebalancer.core.groups import MergedFacts
from evenq_rebalancer.core.inherited_holds import NOTHING_INHERITED
from evenq_rebalancer.core.member_history import MemberHistory
from evenq_rebalancer.core.modes import ModeTable, RequestMode, RequestModeSetting
from evenq_rebalancer.core.reports import BrokerReport
from evenq_rebalancer.core.simulate import Simulation, Wish, simulate
from evenq_rebalancer.core.topic_assignments import TopicAssignment, TopicAssignments

EPOCH_AHEAD_MAX_MS = 10 * 365 * 86_400_000
"""An epoch more than ten years in the future comes from a wrong clock and is ignored."""
BALANCE_GOES_ON = "balancing continues, some queues at a time"
LAGS_UNEVEN = "some members have much more lag than others"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Upper bounds, and the two times of the engine."""

    grace_ms: int = 10_000
    warm_up_ms: int = 1_000
    brokers_max: int = 1_000
    groups_max: int = 10_000
    topics_max: int = 10_000
    members_max: int = 2_000
    decisions_max: int = 20_000
    request_modes_max: int = 10_000
    machine_rooms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentQuestion:
    """Query of one member for its queues of a topic."""

    group: str
    topic: str
    client_id: str
    strategy: str = ""
    """Requested by the member; the group's own strategy overrides it, so that all members agree."""
    model: MessageModel = MessageModel.CLUSTERING


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """One member's part of a decision."""

    known: bool
    """False: no decision is available, and the member keeps its queues. True without queues: it owns none."""
    reason: str
    queues: tuple[MessageQueue, ...] = ()
    generation: Generation = NO_GENERATION
    strategy: str = ""
    mode: RequestMode = RequestMode.PULL


class AssignmentEngine:
    """State of one term. Generations have `epoch` (ms since the epoch, start of the term), or more if brokers do."""

    def __init__(self, *, epoch: int, limits: EngineLimits) -> None:
        self.facts = MergedFacts(
            grace_ms=limits.grace_ms,
            brokers_max=limits.brokers_max,
            groups_max=limits.groups_max,
            topics_max=limits.topics_max,
            members_max=limits.members_max,
            epoch_max=epoch + EPOCH_AHEAD_MAX_MS,
        )
        self._limits = limits
        self._epoch = epoch
        self._counter = 0
        self._warm_at_ms: int | None = None
        self._modes = ModeTable(entries_max=limits.request_modes_max)
        self._modes_version = 0
        self._decider = Decider(self.facts, self._modes, machine_rooms=limits.machine_rooms)
        self._assignments = TopicAssignments(assignments_max=limits.decisions_max)
        self._member_histories: dict[str, MemberHistory] = {}
        self._holding: dict[str, None] = {}
        """Groups whose member history may have holds."""
        self._again: dict[tuple[str, str], int] = {}
        """Monotonic ms of the next balancing step, by assignment."""
        self._late: dict[tuple[str, str], None] = {}
        """Assignments that the next `settle` handles besides those of changed facts."""
        self._fresh: list[Decision] = []
        self._problems: dict[tuple[str, str], str] = {}
        self._warm = False
        self._settled_warm = False

    # --- events

    def reported(self, stream: int, report: BrokerReport, *, now_ms: int) -> None:
        """Applies a broker's report. `now_ms` is monotonic. Errors as `MergedFacts.reported`."""
        self.facts.reported(stream, report)
        if self._warm_at_ms is None:
            self._warm_at_ms = now_ms + self._limits.warm_up_ms

    def set_mode(self, group: str, topic: str, setting: RequestModeSetting) -> None:
        """Sets PULL or POP for a (group, topic), known or not. Raises BadRequest for POP of a retry topic."""
        if topic.startswith(RETRY_PREFIX) and setting.mode is RequestMode.POP:
            raise BadRequest(f"{topic} is a retry topic, which is always pulled; do not set POP for it")
        if self._modes.put(group, topic, setting):
            self._modes_version += 1
            self._late[group, topic] = None

    def mode(self, group: str, topic: str) -> RequestModeSetting:
        """Returns the setting, or the mode in use where none is set."""
        setting = self._decider.mode(group, topic)
        if setting is None:
            assignment = self._assignments.get(group, topic)
            used = assignment.decision.inputs.request_mode if assignment and assignment.decision else RequestMode.PULL
            setting = RequestModeSetting(mode=used)
        return setting

    def settle(self, *, now_ms: int, wall_ms: int) -> list[Decision]:
        """Brings every assignment up to date. Returns decisions made since the last call, also those of queries."""
        if self.warm(now_ms):
            self._settled_warm = True
            self._heed_epochs()
            for group, topic in self._due(now_ms, wall_ms):
                self._settle(group, topic, now_ms, wall_ms)
        fresh, self._fresh = self._fresh, []
        return fresh

    @property
    def has_news(self) -> bool:
        """True if a query led to decisions that `settle` has not returned yet."""
        return bool(self._fresh)

    def warm(self, now_ms: int) -> bool:
        """True once the warm-up has ended; while brokers that others name are missing, up to `grace_ms` later."""
        if not self._warm and self._warm_at_ms is not None and now_ms >= self._warm_at_ms:
            late = now_ms >= self._warm_at_ms + self._limits.grace_ms
            self._warm = late or not self.facts.missing_brokers()
        return self._warm

    def next_event_ms(self) -> int | None:
        """Monotonic ms of the next change by time alone: the end of a warm-up, grace, hold or balancing pause."""
        times = [self.facts.next_expiry_ms(), min(self._again.values(), default=None)]
        times += [self._member_histories[group].holds.next_ms() for group in self._holding]
        if self._warm_at_ms is not None and not self._settled_warm:
            times.append(self._warm_at_ms)
        return min((time for time in times if time is not None), default=None)

    # --- queries

    def query(self, question: AssignmentQuestion, *, now_ms: int, wall_ms: int) -> QueryResult:
        """Returns one member's part. Raises BadRequest for a strategy that cannot decide here, TooManyRequests."""
        group, topic = question.group, question.topic
        if question.strategy:
            self._decider.named(question.strategy)
        unknown = self._unknown(question, now_ms, wall_ms)
        if unknown:
            return QueryResult(known=False, reason=unknown)
        assignment = self._assignments.open(group, topic)
        # The first request counts for all members: shares of two strategies would overlap.
        if question.strategy and not assignment.requested_strategy:
            assignment.requested_strategy = question.strategy
        decision = self._settle(group, topic, now_ms, wall_ms)
        if decision is None:
            return QueryResult(known=False, reason=assignment.problem)
        queues = decision.shares.get(question.client_id)
        mode = decision.inputs.request_mode
        if question.model is MessageModel.BROADCASTING:
            queues, mode = decision.inputs.queues, RequestMode.PULL  # RB-17
        if queues is None:
            return QueryResult(
                known=False, reason=f"{assignment.problem or 'the member is not part of the last decision'}"
            )
        return QueryResult(
            known=True,
            reason=decision.reason,
            queues=queues,
            generation=decision.generation,
            strategy=decision.strategy,
            mode=mode,
        )

    def explain(self, group: str, topic: str, *, now_ms: int, wall_ms: int) -> list[Decision]:
        """Returns decisions about one topic, or all (`topic` empty), ascending. Raises GroupNotFound, TopicNotFound."""
        if not self.facts.group_version(group):
            raise GroupNotFound(f"no broker reports the consumer group {group!r}; is any of its members running?")
        if topic and not self.facts.topic_version(topic):
            raise TopicNotFound(f"no broker reports the topic {topic!r}; create it first")
        if not self.warm(now_ms):
            return []
        self._heed_epochs()
        self._watch(group, now_ms, wall_ms)
        topics = [topic] if topic else sorted(self._assignments.of_group(group))
        decisions = [self._settle(group, name, now_ms, wall_ms) for name in topics]
        return [decision for decision in decisions if decision is not None]

    def problems(self, group: str, topic: str = "") -> dict[str, str]:
        """Returns the problem of one topic or of all: a strategy that fails, or a topic that no broker reports."""
        assignments = sorted(self._assignments.of_group(group).items())
        return {
            name: assignment.problem for name, assignment in assignments if assignment.problem and topic in {"", name}
        }

    def simulate(self, group: str, topic: str, wish: Wish, *, now_ms: int, wall_ms: int) -> Simulation:
        """Returns the effects of the imagined change. Errors as `explain` and `simulate.simulate`."""
        if wish.strategy:
            self._decider.named(wish.strategy)
        if not topic:
            raise TopicNotFound("a simulation needs a topic; give its name")
        now = self.explain(group, topic, now_ms=now_ms, wall_ms=wall_ms)
        if not now:
            assignment = self._assignments.get(group, topic)
            problem = (
                assignment.problem
                if assignment and assignment.problem
                else "no member has queried it, or the rebalancer has just started"
            )
            raise BadRequest(
                f"there is no decision about group {group!r} and topic {topic!r} to compare with: {problem}"
            )
        return simulate(
            now[0], wish, now_ms=wall_ms, by=self._decider.named, weights=self._decider.weights(group, now[0].inputs)
        )

    # --- views for metrics and new streams

    def decisions(self) -> Iterator[Decision]:
        """Current decisions, by group and topic."""
        return (assignment.decision for _, _, assignment in self._assignments if assignment.decision is not None)

    def moves_total(self, group: str, topic: str) -> int:
        """Number of queues that moved between members since the assignment began."""
        assignment = self._assignments.get(group, topic)
        return assignment.moves_total if assignment else 0

    def troubled(self) -> Iterator[tuple[str, str]]:
        """(group, topic) pairs whose strategy fails now, ascending. A missing topic does not count as a failure."""
        known = self.facts.topic_version
        return ((group, topic) for group, topic, assignment in self._assignments if assignment.problem and known(topic))

    def take_problems(self) -> dict[tuple[str, str], str]:
        """Returns new problems since the last call; the previous decision stays, or another strategy divides."""
        problems, self._problems = self._problems, {}
        return problems

    def check(self) -> None:
        """Recomputes every invariant; tests call it after each event."""
        self.facts.check()
        self._assignments.check(self._check_assignment)
        for group, member_history in self._member_histories.items():
            assert not member_history.holds or group in self._holding

    # --- inside

    def _due(self, now_ms: int, wall_ms: int) -> list[tuple[str, str]]:
        """Assignments that may need a new decision, each once; opens those of changed groups."""
        due: dict[tuple[str, str], None] = {}
        for group in self.facts.take_changed_groups():
            self._watch(group, now_ms, wall_ms)
            due |= dict.fromkeys((group, topic) for topic in sorted(self._assignments.of_group(group)))
        for topic in self.facts.take_changed_topics():
            due |= dict.fromkeys((group, topic) for group in self._assignments.groups_of(topic))
        for group in list(self._holding):
            self._see(group, now_ms, wall_ms)
        for group in self.facts.take_changed_lags():
            self._weigh(group, now_ms)
        for (group, topic), again_ms in list(self._again.items()):
            if again_ms <= now_ms:
                del self._again[group, topic]
                self._look_again(group, topic, BALANCE_GOES_ON)
        due |= self._late
        self._late = {}
        return list(due)

    def _watch(self, group: str, now_ms: int, wall_ms: int) -> None:
        """Opens an assignment for each subscribed topic; closes those that all members have left."""
        self._see(group, now_ms, wall_ms)
        member_history = self._member_histories.get(group)
        if member_history is None:
            for topic in list(self._assignments.of_group(group)):
                self._assignments.close(group, topic)
            return
        members = member_history.members.values()
        subscribed = dict.fromkeys(topic for member in members for topic in member.topics)
        for topic in subscribed:
            # Without an error, because no caller waits for it here: a member that queries the topic gets it.
            if not self._assignments.full:
                self._assignments.open(group, topic)
        if members and all(member.topics for member in members):
            for topic in [topic for topic in self._assignments.of_group(group) if topic not in subscribed]:
                if not topic.startswith(RETRY_PREFIX):  # no member subscribes to it by name
                    self._assignments.close(group, topic)

    def _see(self, group: str, now_ms: int, wall_ms: int) -> None:
        """Passes the current members to the group's history, and the changed holds to its assignments."""
        version = self.facts.group_version(group)
        member_history = self._member_histories.get(group)
        if not version:
            self._member_histories.pop(group, None)
            self._holding.pop(group, None)
            return
        if member_history is None:
            member_history = self._member_histories[group] = MemberHistory()
        next_ms = member_history.holds.next_ms()
        if member_history.version == version and (next_ms is None or next_ms > now_ms):
            return
        changes = member_history.see(
            self.facts.members(group),
            version=version,
            hold_ms=self.facts.balance(group).hold_ms,
            place_of=self.facts.place,
            now_ms=now_ms,
            wall_ms=wall_ms,
            # Only at first sight: afterwards this leader's own holds are newer than the reported ones.
            inherited=NOTHING_INHERITED if member_history.version else self.facts.inherited(group),
        )
        for topic, held in changes.resumed.items():
            if self.facts.topic_version(topic) and not self._assignments.full:
                self._assignments.open(group, topic).take_up(held)
                self._late[group, topic] = None
        for topic, assignment in self._assignments.of_group(group).items():
            if assignment.follow(changes):
                self._late[group, topic] = None
        if member_history.holds:
            self._holding[group] = None
        else:
            self._holding.pop(group, None)
        if changes.began or changes.resumed:
            self._break_holds(group)

    def _break_holds(self, group: str) -> None:
        """Releases held queues with a lag above the group's limit."""
        lag_max = self.facts.balance(group).hold_lag_max
        if group in self._holding and lag_max:
            lags = self.facts.lags(group)
            for topic, assignment in self._assignments.of_group(group).items():
                if assignment.held and assignment.break_holds(lags, lag_max):
                    self._late[group, topic] = None

    def _weigh(self, group: str, now_ms: int) -> None:
        """Handles reported lags: breaks holds, and marks unevenly loaded assignments, each at most once per period."""
        self._break_holds(group)
        if self.facts.balance(group).weight is not Weight.LAG:
            return
        for topic, assignment in self._assignments.of_group(group).items():
            decision = assignment.decision
            if decision is None or not decision.inputs.one_owner:
                continue
            if assignment.lag_ms is not None and now_ms - assignment.lag_ms < pacing.LAG_PERIOD_MS:
                continue
            weights = self._decider.weights(group, decision.inputs)
            if pacing.worth_looking(pacing.imbalance(decision.shares, decision.inputs.readers, weights)):
                assignment.lag_ms = now_ms
                self._look_again(group, topic, LAGS_UNEVEN)

    def _look_again(self, group: str, topic: str, why: str) -> None:
        assignment = self._assignments.get(group, topic)
        if assignment is not None:
            assignment.eager, assignment.why = True, why
            assignment.touched += 1
            self._late[group, topic] = None

    def _settle(self, group: str, topic: str, now_ms: int, wall_ms: int) -> Decision | None:
        """Returns the current decision, renewed if its inputs changed; None if there is none."""
        assignment = self._assignments.get(group, topic)
        if assignment is None:
            return None
        facts = self.facts
        seen = (
            facts.group_version(group),
            facts.topic_version(topic),
            self._modes_version,
            assignment.requested_strategy,
            assignment.touched,
        )
        # Compares versions, not facts, because every query of every member passes here.
        if seen == assignment.seen:
            return assignment.decision
        if not seen[0] or not seen[1]:
            if not seen[0]:
                self._assignments.close(group, topic)
            else:  # the topic was deleted or is not created yet: the assignment waits for it
                assignment.decision, assignment.problem, assignment.seen = (
                    None,
                    f"no broker reports the topic {topic!r}",
                    seen,
                )
            return None
        assignment.seen = seen
        problem = assignment.problem
        decision = self._decider.decide(
            group, topic, assignment, generation=Generation(self._epoch, self._counter + 1), wall_ms=wall_ms
        )
        if assignment.problem and assignment.problem != problem:
            self._problems[group, topic] = assignment.problem
        if decision is not None:
            # Only a decision that changes something gets a new number: for each, all members compare and lock again.
            self._counter += 1
            assignment.moves_total += decision.moves
            if decision.inputs.balance.moves_max and decision.moves:
                self._again[group, topic] = now_ms + pacing.AGAIN_MS
            self._fresh.append(decision)
        return assignment.decision

    def _heed_epochs(self) -> None:
        """Raises all generations above a larger epoch that brokers report: they follow no older generation."""
        if self.facts.epoch_seen <= self._epoch:
            return
        self._epoch = self.facts.epoch_seen + 1
        for _, _, assignment in self._assignments:
            if assignment.decision is not None:
                self._counter += 1
                assignment.decision = assignment.decision.stamped(Generation(self._epoch, self._counter))
                self._fresh.append(assignment.decision)

    def _unknown(self, question: AssignmentQuestion, now_ms: int, wall_ms: int) -> str:
        """Reason why the query has no answer; empty if it has one."""
        if not self.warm(now_ms):
            return "the rebalancer has just started and is collecting reports"
        self._heed_epochs()
        self._see(question.group, now_ms, wall_ms)
        member_history = self._member_histories.get(question.group)
        if member_history is None:
            return f"no broker reports the consumer group {question.group!r}"
        if not self.facts.topic_version(question.topic):
            return f"no broker reports the topic {question.topic!r}"
        if question.client_id not in member_history.members:
            return f"no broker reports the member {question.client_id!r} in group {question.group!r} yet"
        return ""

    def _check_assignment(self, assignment: TopicAssignment) -> None:
        decision = assignment.decision
        if decision is None:
            return
        assert decision.generation <= Generation(self._epoch, self._counter)
        assert list(decision.shares) == [member.client_id for member in decision.inputs.members]
        rows = decision.rows
        assert len(rows.queues) == len(rows.owners) == len(rows.previous) == len(rows.stamps)
