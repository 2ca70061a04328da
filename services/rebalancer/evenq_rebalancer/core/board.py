"""The whole state of a rebalancer: facts from brokers, request modes, and one decision per (group, topic).

Called by `rpc/assignment.py` with what arrives and by `loops/` with the time. Always true: whoever asks about a
(group, topic) is answered from the one decision that stands, and a decision is made anew only when its inputs changed,
never because somebody asked. A question sees every fact that was told before it: it brings its own (group, topic) up
to date first.

After the process starts it answers nothing for `warm_up_ms` from the first report: until then only some brokers have
reported, and decisions over half the facts would move queues twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from evenq.allocation import Strategy
from evenq.errors import BadRequest, GroupNotFound, TooManyRequests, TopicNotFound
from evenq.model import MessageModel, MessageQueue
from evenq_rebalancer.core.decisions import NO_GENERATION, Decision, Generation, Inputs, decide, named
from evenq_rebalancer.core.groups import Facts, Report
from evenq_rebalancer.core.modes import ModeTable, RequestMode, RequestModeSetting
from evenq_rebalancer.core.simulate import Simulation, simulate

__all__ = ["Answer", "Board", "Limits", "Question"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Most of everything, and the two times of the board."""

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
class Question:
    """What should this member read of this topic?"""

    group: str
    topic: str
    client_id: str
    strategy: str = ""
    """What the member would like; the group's own strategy counts before it, so that all members agree."""
    model: MessageModel = MessageModel.CLUSTERING


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The member's part of the decision."""

    known: bool
    """False: nothing can be said; the member keeps what it has. True without queues: it owns none."""
    reason: str
    queues: tuple[MessageQueue, ...] = ()
    generation: Generation = NO_GENERATION
    strategy: str = ""
    mode: RequestMode = RequestMode.PULL


@dataclass(slots=True)
class _Line:
    """One (group, topic) over time."""

    asked: str = ""
    """The first strategy that a member asked for; used while the group has none of its own."""
    seen: tuple[int, int, int, str] | None = None
    """Versions that `decision` was made, or refused, from."""
    decision: Decision | None = None
    problem: str = ""
    """Why the newest inputs led to no decision; the one before then stands (RB-12)."""
    moves_total: int = 0


class Board:
    """See the module. `epoch` is this process's start, ms since the epoch: it makes generations grow over restarts."""

    def __init__(self, *, epoch: int, limits: Limits) -> None:
        self.facts = Facts(
            grace_ms=limits.grace_ms,
            brokers_max=limits.brokers_max,
            groups_max=limits.groups_max,
            topics_max=limits.topics_max,
            members_max=limits.members_max,
        )
        self._limits = limits
        self._epoch = epoch
        self._counter = 0
        self._warm_at_ms: int | None = None
        self._modes = ModeTable(entries_max=limits.request_modes_max)
        self._modes_version = 0
        self._lines: dict[str, dict[str, _Line]] = {}
        """Group, then topic."""
        self._groups_of: dict[str, dict[str, None]] = {}
        """Topic to the groups that have a line about it."""
        self._lines_count = 0
        self._late: dict[tuple[str, str], None] = {}
        """Lines to look at in the next `settle`, beside those of changed facts."""
        self._fresh: list[Decision] = []
        self._problems: dict[tuple[str, str], str] = {}
        self._settled_warm = False

    # --- events

    def reported(self, stream: int, report: Report, *, now_ms: int) -> None:
        """A broker told something. `now_ms` is monotonic. Errors as `Facts.reported`."""
        self.facts.reported(stream, report)
        if self._warm_at_ms is None:
            self._warm_at_ms = now_ms + self._limits.warm_up_ms

    def set_mode(self, group: str, topic: str, setting: RequestModeSetting) -> None:
        """Set PULL or POP for a (group, topic), which need not be known yet."""
        if self._modes.put(group, topic, setting):
            self._modes_version += 1
            self._late[group, topic] = None

    def mode(self, group: str, topic: str) -> RequestModeSetting:
        """What is set, or what is used as long as nothing is."""
        setting = self._modes.get(group, topic)
        if setting is None:
            line = self._line(group, topic)
            used = line.decision.inputs.request_mode if line and line.decision else RequestMode.PULL
            setting = RequestModeSetting(mode=used)
        return setting

    def settle(self, *, now_ms: int, wall_ms: int) -> list[Decision]:
        """Bring every line up to date; the decisions made since the last call, those of questions included."""
        if self.warm(now_ms):
            self._settled_warm = True
            for group, topic in self._due():
                self._settle(group, topic, wall_ms)
        fresh, self._fresh = self._fresh, []
        return fresh

    @property
    def has_news(self) -> bool:
        """True if `settle` has something to hand out because of a question."""
        return bool(self._fresh)

    def warm(self, now_ms: int) -> bool:
        """True once enough time has passed since the first report for all brokers to have told theirs."""
        return self._warm_at_ms is not None and now_ms >= self._warm_at_ms

    def next_event_ms(self) -> int | None:
        """Monotonic ms of the next thing that time alone brings: the end of the warm-up, or of a broker's grace."""
        times = [self.facts.next_expiry_ms()]
        if self._warm_at_ms is not None and not self._settled_warm:
            times.append(self._warm_at_ms)
        return min((time for time in times if time is not None), default=None)

    # --- questions

    def query(self, question: Question, *, now_ms: int, wall_ms: int) -> Answer:
        """One member's part. Raises BadRequest for a strategy that cannot decide here, TooManyRequests when full."""
        if question.strategy:
            self._named(question.strategy)
        unknown = self._unknown(question, now_ms)
        if unknown:
            return Answer(known=False, reason=unknown)
        line = self._open(question.group, question.topic)
        if question.strategy and not line.asked:
            line.asked = question.strategy
        decision = self._settle(question.group, question.topic, wall_ms)
        if decision is None:
            return Answer(known=False, reason=line.problem)
        queues = decision.shares.get(question.client_id)
        mode = decision.inputs.request_mode
        if question.model is MessageModel.BROADCASTING:
            queues, mode = decision.inputs.queues, RequestMode.PULL  # RB-17
        if queues is None:
            return Answer(known=False, reason=f"{line.problem or 'the member is not part of the last decision'}")
        return Answer(
            known=True,
            reason=decision.reason,
            queues=queues,
            generation=decision.generation,
            strategy=decision.strategy,
            mode=mode,
        )

    def explain(self, group: str, topic: str, *, now_ms: int, wall_ms: int) -> list[Decision]:
        """The decisions about one topic of a group, or about all (`topic` empty), ascending topic. Starts no new
        ones.
        """
        if not self.facts.group_version(group):
            raise GroupNotFound(f"no broker tells of the consumer group {group!r}; is any of its members running?")
        if topic and not self.facts.topic_version(topic):
            raise TopicNotFound(f"no broker tells of the topic {topic!r}; create it first")
        if not self.warm(now_ms):
            return []
        self._watch(group)
        topics = [topic] if topic else sorted(self._lines.get(group, {}))
        decisions = [self._settle(group, name, wall_ms) for name in topics]
        return [decision for decision in decisions if decision is not None]

    def simulate(
        self, group: str, topic: str, *, members: int, queues: int, strategy: str, now_ms: int, wall_ms: int
    ) -> Simulation:
        """What would change if. Errors as `explain` and `simulate.simulate`."""
        if strategy:
            self._named(strategy)
        if not topic:
            raise TopicNotFound("a simulation is about one topic; name it")
        now = self.explain(group, topic, now_ms=now_ms, wall_ms=wall_ms)
        if not now:
            line = self._line(group, topic)
            problem = (
                line.problem if line and line.problem else "no member has asked for it, or the rebalancer just started"
            )
            raise BadRequest(
                f"there is no decision about group {group!r} and topic {topic!r} to compare with: {problem}"
            )
        return simulate(now[0], members=members, queues=queues, strategy=strategy, now_ms=wall_ms, by=self._named)

    # --- views for metrics and new streams

    def decisions(self) -> Iterator[Decision]:
        """All decisions that stand, by group and topic."""
        for group in sorted(self._lines):
            for topic in sorted(self._lines[group]):
                decision = self._lines[group][topic].decision
                if decision is not None:
                    yield decision

    def moves_total(self, group: str, topic: str) -> int:
        """Queues that went from one member to another since the line began."""
        line = self._line(group, topic)
        return line.moves_total if line else 0

    def take_problems(self) -> dict[tuple[str, str], str]:
        """(group, topic) whose inputs led to no decision since the last call, with the reason; the decision before
        stands.
        """
        problems, self._problems = self._problems, {}
        return problems

    def check(self) -> None:
        """Recompute every invariant; tests call it after each event."""
        self.facts.check()
        assert self._lines_count == sum(map(len, self._lines.values())) <= self._limits.decisions_max
        assert self._groups_of.keys() == {topic for lines in self._lines.values() for topic in lines}
        for group, lines in self._lines.items():
            for topic, line in lines.items():
                assert group in self._groups_of[topic]
                decision = line.decision
                if decision is None:
                    continue
                assert decision.generation <= Generation(self._epoch, self._counter)
                assert list(decision.shares) == [member.client_id for member in decision.inputs.members]

    # --- inside

    def _due(self) -> list[tuple[str, str]]:
        """Lines that may need a new decision, each once; opens those that changed facts ask for."""
        due = dict.fromkeys(self._late)
        self._late = {}
        for group in self.facts.take_changed_groups():
            self._watch(group)
            due |= dict.fromkeys((group, topic) for topic in sorted(self._lines.get(group, {})))
        for topic in self.facts.take_changed_topics():
            due |= dict.fromkeys((group, topic) for group in sorted(self._groups_of.get(topic, {})))
        return list(due)

    def _watch(self, group: str) -> None:
        """Open a line for each topic that members subscribe; close those that all members have left."""
        if not self.facts.group_version(group):
            for topic in list(self._lines.get(group, {})):
                self._close(group, topic)
            return
        members = self.facts.members(group)
        subscribed = dict.fromkeys(topic for member in members for topic in member.topics)
        for topic in subscribed:
            if self._lines_count < self._limits.decisions_max:
                self._open(group, topic)
        if members and all(member.topics for member in members):
            for topic in [topic for topic in self._lines.get(group, {}) if topic not in subscribed]:
                self._close(group, topic)

    def _settle(self, group: str, topic: str, wall_ms: int) -> Decision | None:
        """The decision that stands, made anew if its inputs changed; None if there is none."""
        line = self._line(group, topic)
        if line is None:
            return None
        seen = (self.facts.group_version(group), self.facts.topic_version(topic), self._modes_version, line.asked)
        if seen == line.seen:
            return line.decision
        if not seen[0] or not seen[1]:
            if not seen[0]:
                self._close(group, topic)
            else:  # the topic is gone, or not yet there: the line waits for it
                line.decision, line.problem, line.seen = None, f"no broker tells of the topic {topic!r}", seen
            return None
        line.seen = seen
        inputs = Inputs(
            strategy=self.facts.strategy(group) or line.asked,
            mode=self._modes.get(group, topic),
            queues=self.facts.queues(topic),
            members=self.facts.members(group),
        )
        if line.decision is None or line.decision.inputs != inputs:
            self._decide(group, topic, line, inputs, wall_ms)
        else:
            line.problem = ""
        return line.decision

    def _decide(self, group: str, topic: str, line: _Line, inputs: Inputs, wall_ms: int) -> None:
        try:
            decision = decide(
                group=group,
                topic=topic,
                inputs=inputs,
                before=line.decision,
                generation=Generation(self._epoch, self._counter + 1),
                now_ms=wall_ms,
                by=self._named,
            )
        except BadRequest as error:
            line.problem = f"{inputs.dividing} cannot decide: {error}"
            self._problems[group, topic] = line.problem
            return
        self._counter += 1
        line.decision, line.problem = decision, ""
        line.moves_total += decision.moves
        self._fresh.append(decision)

    def _unknown(self, question: Question, now_ms: int) -> str:
        """Why nothing can be said to this member; empty if something can."""
        if not self.warm(now_ms):
            return "the rebalancer has just started and is collecting reports"
        if not self.facts.group_version(question.group):
            return f"no broker tells of the consumer group {question.group!r}"
        if not self.facts.topic_version(question.topic):
            return f"no broker tells of the topic {question.topic!r}"
        if not any(member.client_id == question.client_id for member in self.facts.members(question.group)):
            return f"no broker tells of the member {question.client_id!r} in group {question.group!r} yet"
        return ""

    def _named(self, name: str) -> Strategy:
        return named(name, self._limits.machine_rooms)

    def _line(self, group: str, topic: str) -> _Line | None:
        return self._lines.get(group, {}).get(topic)

    def _open(self, group: str, topic: str) -> _Line:
        line = self._line(group, topic)
        if line is None:
            if self._lines_count >= self._limits.decisions_max:
                raise TooManyRequests(
                    f"{self._lines_count} pairs of group and topic are watched already; raise decisions_max"
                )
            line = _Line()
            self._lines.setdefault(group, {})[topic] = line
            self._groups_of.setdefault(topic, {})[group] = None
            self._lines_count += 1
        return line

    def _close(self, group: str, topic: str) -> None:
        del self._lines[group][topic]
        del self._groups_of[topic][group]
        self._lines_count -= 1
        if not self._lines[group]:
            del self._lines[group]
        if not self._groups_of[topic]:
            del self._groups_of[topic]
