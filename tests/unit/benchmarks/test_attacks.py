"""The pure parts of `benchmarks/attacks.py`: what counts as a failed call, and when a goal is met."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def attacks() -> Iterator[Any]:
    """The module, imported as the program imports its neighbours."""
    before = set(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module("attacks")
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in set(sys.modules) - before:
            if str(BENCHMARKS) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


def served(attacks: Any, **more: Any) -> Any:
    return attacks.Row(**{
        "attack": "PING flood", "front": "http2", "times_ms": [1.0] * 99 + [80.0], "waits_ms": [1.0] * 100,
        "again_ms": 5.0, "grown_mb": 3.0, **more,
    })  # fmt: skip


def test_a_quantile_is_a_value_that_was_seen(attacks: Any) -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert [attacks.quantile_of(values, part) for part in (0, 0.5, 0.99, 1)] == [1, 50, 99, 100]
    assert attacks.quantile_of([], 0.5) == math.inf


def test_a_failed_call_took_for_ever(attacks: Any) -> None:
    row = served(attacks, failed=2)
    assert (row.at(0.5), row.at(1)) == (1.0, math.inf)
    assert row.cells()[2] == "1.00 / never / never"
    assert row.cells()[4] == "102, 2"
    assert not row.ok


@pytest.mark.parametrize(
    "more",
    [
        {"times_ms": [101.0] * 100},
        {"grown_mb": 65.0},
        {"failed": 1},
        {"again_ms": None},
        {"alive": False},
        {"times_ms": []},
    ],
    ids=str,
)
def test_each_goal_can_be_missed(attacks: Any, more: dict[str, Any]) -> None:
    assert served(attacks).ok
    assert not served(attacks, **more).ok
    assert served(attacks, **more).cells()[-1] == "no"


def test_grpcio_has_no_goal(attacks: Any) -> None:
    assert served(attacks, front="grpcio", failed=7).cells()[-2:] == ("-", "-")


def test_what_became_of_the_broker_and_of_the_attack_is_said(attacks: Any) -> None:
    assert served(attacks).afterwards == "yes, in 5 ms"
    assert served(attacks, again_ms=None, last_answer_s=2.5).afterwards == "no: last answer after 2.5 s"
    assert served(attacks, alive=False, last_answer_s=2.5).afterwards == "no: it died after 2.5 s"
    row = served(attacks, grown_mb=1_504.0, stopped_after_s=4.0, opened=500, ended=3, unmade=2)
    assert row.cells()[5:7] == ("+1504 (stopped after 4.0 s)", "3 of 500, 2 never made")


def test_attackers_keep_to_their_share_of_a_core(attacks: Any) -> None:
    crowd = attacks.attackers.Crowd("127.0.0.1:1", 0.5, 0.2)
    while crowd.goes_on():
        sum(range(20_000))
    done = crowd.close()
    assert done.secs >= 0.5
    assert done.cpu_s <= 0.2 * done.secs + 0.02


def test_all_attacks_are_named_once(attacks: Any) -> None:
    assert len(attacks.NAMES) == len(set(attacks.NAMES)) == 13
