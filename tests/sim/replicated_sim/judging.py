"""The verdict of a world: the history checker, no answers of deposed leaders, equal logs, and nothing ended by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from evenq_broker.core.delivery.fence import is_fenced
from evenq_broker.loops.state.journal import LOG_TIME_SLACK_MS
from evenq_proofs.group_faults.clients import acks_of_deposed
from evenq_proofs.kill_loop.clients import INVISIBLE_MS

from evenq.testing.checker import Tolerances, check
from evenq.testing.history import Event, to_line
from replicated_sim.scenario import GroupPlan

if TYPE_CHECKING:
    from replicated_sim.world import GroupWorld

TICK_MS = 10
"""Two clocks of one broker tick at different moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOutcome:
    """What came of a seed."""

    plan: GroupPlan
    history: list[Event]
    problems: list[str]
    notes: list[str]
    acknowledged: int
    elections: int
    delivered: int
    ended_ms: int

    def text(self) -> str:
        """All that happened; equal for two runs of one seed."""
        return "\n".join([*(to_line(event) for event in self.history), *self.notes, *self.problems])

    def story(self) -> str:
        """For a person."""
        lines = [f"seed {self.plan.seed}: {self.plan}", *(f"  {problem}" for problem in self.problems[:10]), ""]
        return "\n".join([*lines, *self.notes])


def judged(world: GroupWorld) -> GroupOutcome:
    """After the play."""
    problems = list(world.problems)
    problems += acks_of_deposed(world.acknowledged, world.place.elections)[:5]
    # Clocks that are hours apart make windows of the log's time that hold nothing (docs/guides/failures.md).
    limits = Tolerances(recovery_ms_max=60_000, stored_once=not world.plan.clocks_off)
    report = check(world.recorder.events, limits=limits)
    problems += [f"{anomaly.kind}: {anomaly.text}" for anomaly in report.anomalies[:10]]
    problems += world.unequal
    return GroupOutcome(
        plan=world.plan,
        history=world.recorder.events,
        problems=problems,
        notes=world.notes,
        acknowledged=len(world.acknowledged),
        elections=len(world.place.elections),
        delivered=report.delivered,
        ended_ms=int(world.loop.now_ms),
    )


def late_again(world: GroupWorld) -> list[str]:
    """At every moment: what was delivered, and is not acknowledged, comes again within its invisible time, also if the
    one before led when it was delivered, and whatever the clocks say (decision 90).
    """
    found = []
    for copy in world.copies:
        term = copy.term if copy.alive else None
        if term is None or not term.serves:
            continue
        now_ms = term.broker.runtime.now_ms()
        for queue in term.broker.ledger.progress.queues():
            for offset, entry in queue.pending.items():
                left_ms = entry.deadline_ms - now_ms
                if is_fenced(entry):  # its call ends it
                    continue
                if left_ms > INVISIBLE_MS + LOG_TIME_SLACK_MS + TICK_MS and not entry.client_id:
                    found.append(f"late again: queue {queue.queue_id} at {offset} comes in {left_ms} ms at {copy.name}")
        try:
            term.broker.ledger.progress.check()
        except AssertionError as error:
            # Also what lets a queue's head stand still: one that is blocked by nothing, or in hand without an end.
            found.append(f"progress at {copy.name}: {error!r}")
    return found[:3]


def unequal(world: GroupWorld) -> list[str]:
    """While no leader has more than the others, or after a stop in order: what the logs hold at the same place is the
    same.
    """
    logs = [copy.disk.log_files() for copy in world.copies]
    if len(logs) < 2:
        return []
    common = sorted(set.intersection(*(set(log) for log in logs)))
    if not common:
        return [f"the copies have no log file in common: {[sorted(log) for log in logs]}"]
    found = []
    for name in common:
        parts = [log[name].rstrip(b"\0") for log in logs]
        shortest = min(map(len, parts))
        if len({part[:shortest] for part in parts}) != 1:
            found.append(f"{name} differs between the copies")
    return found
