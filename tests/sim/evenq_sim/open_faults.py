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
}


def known(plan: LifecyclePlan, problem: Problem, faults: Iterable[str] = tuple(OPEN)) -> bool:
    """Whether one of these open faults explains the problem."""
    return any(OPEN[fault](plan, problem) for fault in faults)
