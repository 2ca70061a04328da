"""Faults that lifecycle worlds find and that are not mended yet: their problems are left out unless they are asked for.

A fault leaves this table with the change that mends it. `run.py --open` shows everything, open or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from evenq_proofs.sim.checks import Problem

from evenq_sim.lifecycle_plan import LifecyclePlan

Fits = Callable[[LifecyclePlan, Problem], bool]


OPEN: dict[str, Fits] = {}
"""By what the fault is, in a few words."""


def known(plan: LifecyclePlan, problem: Problem, faults: Iterable[str] = tuple(OPEN)) -> bool:
    """Whether one of these open faults explains the problem."""
    return any(OPEN[fault](plan, problem) for fault in faults)
