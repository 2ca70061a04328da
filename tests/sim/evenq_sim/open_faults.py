"""Faults that lifecycle worlds find and that are not mended yet: their problems are left out unless they are asked for.

A fault leaves this table with the change that mends it. `run.py --open` shows everything, open or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from evenq_proofs.sim.checks import Problem

from evenq_sim.lifecycle_plan import LifecyclePlan

__all__ = ["OPEN", "known"]

Fits = Callable[[LifecyclePlan, Problem], bool]


def _has(plan: LifecyclePlan, *whats: str) -> bool:
    return any(step.what in whats for step in plan.steps)


OPEN: dict[str, Fits] = {
    "a queue that is new to its group begins at its end": lambda plan, problem: (
        problem.check == "unread" and plan.from_last
    ),
    "offsets of a deleted topic count for the next one of its name": lambda plan, problem: (
        problem.check in {"unread", "again"} and _has(plan, "recreate topic")
    ),
    "an ordered queue moves while its listener runs": lambda plan, problem: (
        problem.check in {"two listeners", "again"} and plan.readers == "own" and plan.ordered
    ),
    "message groups move while their broker stops": lambda plan, problem: (
        problem.check in {"out of order", "two listeners"} and plan.scene.name == "fifo"
    ),
    "messages of a member that left unseen stay hidden": lambda plan, problem: (
        problem.check in {"held", "unread"} and plan.readers == "push"
    ),
    "retries of a deleted group come to the next one of its name": lambda plan, problem: (
        problem.check in {"old retry", "again"} and _has(plan, "recreate group")
    ),
    "a consumer of lite topics is not told of the end": lambda _, problem: problem.check == "unheard",
    "a broker that has just started refuses the handles of others": lambda plan, problem: (
        problem.check == "again" and plan.readers == "lite"
    ),
}


def known(plan: LifecyclePlan, problem: Problem, faults: Iterable[str] = tuple(OPEN)) -> bool:
    """Whether one of these open faults explains the problem."""
    return any(OPEN[fault](plan, problem) for fault in faults)
