"""Seeded worlds of the whole cluster: what `evenq_proofs.sim.checks` says must hold in each of them.

Failures print a story; docs/internals/simulation.md tells how to read it. More seeds: `make sim SEEDS=10000`.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from evenq_sim.lifecycle_plan import AWAY, AWAY_SCENES, LIFECYCLES, SCENES, STAGED, lifecycle_plan
from evenq_sim.plants import PLANTS
from evenq_sim.playing import run
from evenq_sim.scenario import CHAOS, FOLLOWING, plan_of

HERE = Path(__file__).resolve().parent
PROOFS = HERE.parent / "proofs"
SEEDS, BLOCK = 208, 13
QUICK = 2 * BLOCK
"""Seeds of `make test`; those from here on are slow. They meet every fault, too."""

LINES = [line.split() for line in (HERE / "regressions.txt").read_text().splitlines() if line and line[0].isdigit()]
REGRESSIONS = [
    pytest.param(
        int(line[0]), marks=[pytest.mark.xfail(reason="known, see regressions.txt")] if line[1] == "open" else []
    )
    for line in LINES
]
"""`open` as the second word: found, and not mended yet."""
FOUND_BY = {
    "drain": (29, 59), "fence": (8, 16), "ids": (4, 9), "leave": (53, 54),
    "call": (2_000_005, 2_000_035), "homes": (2_000_007, 2_000_013), "ghosts": (2_000_018, 2_000_024),
    "retries": (2_000_004, 2_000_010), "counts": (2_000_093, 2_000_178), "notice": (2_000_002, 2_000_056),
    "awaits": (2_000_066, 2_000_138), "same": (2_000_065, 2_000_094),
    "memory": (4_000_003, 4_000_008),
}  # fmt: skip
"""Seeds that find each planted fault, the second in case a change of the programs makes the first one blind."""
SAME_TWICE = (5, 8, 84, *range(LIFECYCLES, LIFECYCLES + len(SCENES)), STAGED)


def played(seed: int) -> None:
    outcome = run(seed)
    if outcome.problems:
        pytest.fail(f"{outcome.story()}\n\nagain: .venv/bin/python tests/sim/run.py --seed {seed}", pytrace=False)


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_a_seed_that_failed_once_holds_every_promise_now(seed: int) -> None:
    played(seed)


def blocks(begin: int, end: int, slow_from: int) -> list[Any]:
    return [
        pytest.param(first, marks=pytest.mark.slow if first >= slow_from else ()) for first in range(begin, end, BLOCK)
    ]


@pytest.mark.parametrize("first", blocks(0, SEEDS, QUICK))
def test_every_promise_holds_in_every_world(first: int) -> None:
    for seed in range(first, first + BLOCK):
        played(seed)


@pytest.mark.parametrize("first", blocks(FOLLOWING, FOLLOWING + 3 * BLOCK, FOLLOWING + BLOCK))
def test_every_promise_holds_while_groups_get_strategies_and_members_follow(first: int) -> None:
    for seed in range(first, first + BLOCK):
        played(seed)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=pytest.mark.slow if first > LIFECYCLES else ())
        for first in range(LIFECYCLES, LIFECYCLES + 96, len(SCENES))
    ],
)
def test_every_promise_holds_while_topics_and_groups_end_and_begin(first: int) -> None:
    for seed in range(first, first + len(SCENES)):
        played(seed)


@pytest.mark.parametrize(
    "first",
    [pytest.param(first, marks=pytest.mark.slow if first > STAGED else ()) for first in range(STAGED, STAGED + 40, 5)],
)
def test_every_promise_holds_while_a_query_writes_and_its_checkpoint_is_put_back(first: int) -> None:
    for seed in range(first, first + 5):
        played(seed)


@pytest.mark.parametrize(
    "first",
    [pytest.param(first, marks=pytest.mark.slow if first > AWAY else ()) for first in range(AWAY, AWAY + 40, 4)],
)
def test_every_promise_holds_while_a_broker_is_away_and_the_others_restart(first: int) -> None:
    for seed in range(first, first + 4):
        played(seed)


def test_seeds_from_there_on_meet_every_scene_and_every_step_of_it() -> None:
    plans = [lifecycle_plan(seed) for first in (LIFECYCLES, AWAY) for seed in range(first, first + 200)]
    for scene in (*SCENES, *AWAY_SCENES):
        steps = {step.what for plan in plans if plan.scene is scene for step in plan.steps}
        assert steps >= set(scene.steps), scene.name
    assert {plan.readers for plan in plans} == {
        readers for scene in (*SCENES, *AWAY_SCENES) for readers in scene.readers
    }


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_found(plant: str) -> None:
    for seed in FOUND_BY[plant]:
        problems = run(seed, plant=plant).problems
        if problems:
            assert not run(seed).problems, "without the planted fault the seed is clean"
            return
    pytest.fail(f"no known seed finds the planted fault; search with `make sim PLANT={plant}`")


@pytest.mark.slow
def test_one_seed_gives_one_history() -> None:
    text = (
        "import hashlib, sys; sys.path[:0] = sys.argv[1].split(':');"
        "from evenq_sim.playing import run;"
        "print([hashlib.sha256(run(int(seed)).history.text().encode()).hexdigest() for seed in sys.argv[2:]])"
    )
    here = [hashlib.sha256(run(seed).history.text().encode()).hexdigest() for seed in SAME_TWICE]
    events = []
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", text, f"{HERE}:{PROOFS}", *map(str, SAME_TWICE)]
        events.append(
            subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()
        )
    assert events == [str(here), str(here)]


@pytest.mark.parametrize("seeds", [QUICK, SEEDS])
def test_the_fast_seeds_meet_every_fault_and_every_way_to_divide(seeds: int) -> None:
    plans = [plan_of(seed) for seed in range(seeds)]
    assert {step.what for plan in plans for step in plan.steps} == set(CHAOS)
    assert {(plan.ask_server, min(plan.rebalancers, 2)) for plan in plans} >= {
        (False, 0), (True, 0), (True, 1), (True, 2),
    }  # fmt: skip
    assert {plan.strategy for plan in plans} == {"AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "STICKY"}
