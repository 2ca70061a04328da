"""From one assignment and the facts to its next decision, or to the reason why there is none.

Called by `assignment_engine.py`, which keeps the assignments and counts generations. Always true: a strategy that fails
never leaves a group with less than it had. The decision before stands while all its owners and queues are there; when
they are not, `STICKY` divides in the strategy's place, from who has what, and the problem is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from evenq.allocation import Strategy
from evenq.errors import BadRequest
from evenq.model import Generation, MessageQueue
from evenq.model.balance import Weight
from evenq_rebalancer.core import pacing
from evenq_rebalancer.core.decisions import Decision, decide
from evenq_rebalancer.core.groups import MergedFacts
from evenq_rebalancer.core.inputs import Inputs
from evenq_rebalancer.core.modes import ModeTable, RequestModeSetting
from evenq_rebalancer.core.reasons import instead
from evenq_rebalancer.core.sharing import named
from evenq_rebalancer.core.topic_assignments import TopicAssignment

__all__ = ["FALLBACK", "Decider"]

FALLBACK = "STICKY"


class Decider:
    """Reads the facts and modes that it was given; keeps nothing."""

    def __init__(self, facts: MergedFacts, modes: ModeTable, *, machine_rooms: tuple[str, ...]) -> None:
        self._facts = facts
        self._modes = modes
        self._machine_rooms = machine_rooms

    def decide(
        self, group: str, topic: str, assignment: TopicAssignment, *, generation: Generation, wall_ms: int
    ) -> Decision | None:
        """Bring the assignment's decision up to date; what is new to tell about it, None if nothing is."""
        inputs = self._inputs(group, topic, assignment)
        decision = None
        if assignment.decision is None or assignment.eager or assignment.decision.inputs != inputs:
            decision = self._news(group, topic, assignment, inputs, generation, wall_ms)
        else:
            assignment.problem = ""
        assignment.eager, assignment.why, assignment.owed = False, "", {}
        return decision

    def weights(self, group: str, inputs: Inputs) -> dict[MessageQueue, float]:
        """Work of each queue, if the group's policy counts it; else empty."""
        if inputs.balance.weight is not Weight.LAG:
            return {}
        return pacing.lag_weights(inputs.queues, self._facts.lags(group))

    def mode(self, group: str, topic: str) -> RequestModeSetting | None:
        """What an operator set, here or under a leader before; None: nothing."""
        return self._modes.get(group, topic) or self._facts.mode(group, topic)

    def named(self, name: str) -> Strategy:
        """The strategy. Raises BadRequest if it cannot decide here."""
        return named(name, self._machine_rooms, zones=self._facts.has_zones)

    def _inputs(self, group: str, topic: str, assignment: TopicAssignment) -> Inputs:
        facts = self._facts
        queues = facts.queues(topic)
        held = assignment.held
        if held:
            held = {queue: held[queue] for queue in queues if queue in held}
        return Inputs(
            strategy=facts.strategy(group) or assignment.requested_strategy,
            mode=self.mode(group, topic),
            queues=queues,
            members=facts.members(group),
            topic=topic,
            balance=facts.balance(group),
            zones=facts.zones_of_brokers(topic),
            held=held,
        )

    def _news(
        self, group: str, topic: str, assignment: TopicAssignment, inputs: Inputs, generation: Generation, wall_ms: int
    ) -> Decision | None:
        before, problem = assignment.decision, ""
        try:
            decision = self._divide(group, topic, assignment, inputs, generation, wall_ms)
        except BadRequest as error:
            problem = f"{inputs.dividing} cannot decide: {error}"
            # CONFIG is each member's own list; another strategy in its place would give queues that no list names.
            if _stands(before, inputs) or inputs.strategy == "CONFIG":
                assignment.problem = problem
                return None
            fallback = replace(inputs, strategy=FALLBACK, instead_of=inputs.dividing)
            decision = self._divide(group, topic, assignment, fallback, generation, wall_ms)
            decision = replace(decision, reason=decision.reason + instead(fallback, str(error)))
        assignment.problem = problem
        if before is not None and assignment.eager and not self._worth(group, before, decision):
            return None
        # It keeps its generation: with a new one every member would compare and lock its queues again, for nothing.
        if before is not None and decision.says_as(before):
            assignment.decision = before.over(decision.inputs)
            return None
        assignment.decision = decision
        return decision

    def _divide(
        self, group: str, topic: str, assignment: TopicAssignment, inputs: Inputs, generation: Generation, wall_ms: int
    ) -> Decision:
        return decide(
            group=group,
            topic=topic,
            inputs=inputs,
            before=assignment.decision,
            generation=generation,
            now_ms=wall_ms,
            by=self.named,
            owners=lambda: self._owners(group, topic, assignment),
            weights=self.weights(group, inputs),
            why=assignment.why,
        )

    def _owners(self, group: str, topic: str, assignment: TopicAssignment) -> Mapping[MessageQueue, str]:
        """Who had each queue: by the decision that stands, else as brokers report."""
        standing = assignment.owner_of()
        if assignment.decision is not None and assignment.decision.inputs.one_owner and not assignment.decision.unowned:
            return standing
        # What this leader decided counts before what brokers report, which may be from the time before.
        return {**self._facts.holders(group, topic), **standing}

    def _worth(self, group: str, before: Decision, then: Decision) -> bool:
        """False for moves by lags alone that gain too little."""
        if then.inputs.balance.weight is not Weight.LAG or then.inputs != before.inputs:
            return True
        weights, readers = self.weights(group, then.inputs), then.inputs.readers
        now = pacing.imbalance(before.shares, readers, weights)
        return pacing.worth_moving(now, pacing.imbalance(then.shares, readers, weights))


def _stands(before: Decision | None, inputs: Inputs) -> bool:
    """True if the decision before can go on when a strategy fails: its queues are the topic's, its owners are there."""
    if before is None or before.inputs.queues != inputs.queues or before.inputs.held != inputs.held:
        return False
    there = {member.client_id for member in inputs.members}
    return all(client_id in there for client_id, queues in before.shares.items() if queues)
