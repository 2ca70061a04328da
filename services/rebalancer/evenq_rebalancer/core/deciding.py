"""The next decision of one assignment, or the reason why there is none.

`assignment_engine.py` keeps the assignments and counts generations. A failing strategy never takes queues from a group:
the previous decision stays valid while all its owners and queues exist. Otherwise `STICKY` divides in place of the
strategy, starting from the current owners, and the problem is reported.
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

FALLBACK = "STICKY"


class Decider:
    """Maker of decisions from facts and modes, without state of its own."""

    def __init__(self, facts: MergedFacts, modes: ModeTable, *, machine_rooms: tuple[str, ...]) -> None:
        self._facts = facts
        self._modes = modes
        self._machine_rooms = machine_rooms

    def decide(
        self, group: str, topic: str, assignment: TopicAssignment, *, generation: Generation, wall_ms: int
    ) -> Decision | None:
        """Brings the assignment's decision up to date. Returns it if members must receive it, otherwise None."""
        inputs = self._inputs(group, topic, assignment)
        decision = None
        if assignment.decision is None or assignment.eager or assignment.decision.inputs != inputs:
            decision = self._news(group, topic, assignment, inputs, generation, wall_ms)
        else:
            assignment.problem = ""
        assignment.eager, assignment.why, assignment.owed = False, "", {}
        return decision

    def weights(self, group: str, inputs: Inputs) -> dict[MessageQueue, float]:
        """Work of each queue, if the group's policy counts it; otherwise empty."""
        if inputs.balance.weight is not Weight.LAG:
            return {}
        return pacing.lag_weights(inputs.queues, self._facts.lags(group))

    def mode(self, group: str, topic: str) -> RequestModeSetting | None:
        """Setting of an operator, under this leader or a previous one; None: not set."""
        return self._modes.get(group, topic) or self._facts.mode(group, topic)

    def named(self, name: str) -> Strategy:
        """Returns the strategy. Raises BadRequest if it cannot decide here."""
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
            # CONFIG is each member's own list; another strategy would give queues that no list names.
            if _stands(before, inputs) or inputs.strategy == "CONFIG":
                assignment.problem = problem
                return None
            fallback = replace(inputs, strategy=FALLBACK, instead_of=inputs.dividing)
            decision = self._divide(group, topic, assignment, fallback, generation, wall_ms)
            decision = replace(decision, reason=decision.reason + instead(fallback, str(error)))
        assignment.problem = problem
        if before is not None and assignment.eager and not self._worth(group, before, decision):
            return None
        # The generation stays: with a new one every member would compare and lock its queues again, without need.
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
        """Previous owner of each queue: from the current decision, otherwise from reports of brokers."""
        standing = assignment.owner_of()
        if assignment.decision is not None and assignment.decision.inputs.one_owner and not assignment.decision.unowned:
            return standing
        # This leader's decision overrides reports of brokers, which may be older.
        return {**self._facts.holders(group, topic), **standing}

    def _worth(self, group: str, before: Decision, then: Decision) -> bool:
        """False if only lags changed and the new division gains too little."""
        if then.inputs.balance.weight is not Weight.LAG or then.inputs != before.inputs:
            return True
        weights, readers = self.weights(group, then.inputs), then.inputs.readers
        now = pacing.imbalance(before.shares, readers, weights)
        return pacing.worth_moving(now, pacing.imbalance(then.shares, readers, weights))


def _stands(before: Decision | None, inputs: Inputs) -> bool:
    """True if the previous decision may stay when a strategy fails: its queues and owners all exist."""
    if before is None or before.inputs.queues != inputs.queues or before.inputs.held != inputs.held:
        return False
    there = {member.client_id for member in inputs.members}
    return all(client_id in there for client_id, queues in before.shares.items() if queues)
