"""Free when off, exact when on."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from evenq.errors import BadRequest
from evenq.runtime import failpoints
from evenq.runtime.failpoints import (
    COUNTS_VARIABLE,
    POINTS,
    VARIABLE,
    Armed,
    FailpointCount,
    FailpointPlan,
    parse,
    read_counts,
)

ROOT = Path(failpoints.__file__).parents[3]
A, B = "log.before_sync", "group.written"


def test_a_process_without_the_variable_has_an_empty_function():
    assert failpoints.passing.__name__ == "_off"
    assert failpoints.passing.__code__.co_code == (lambda _name: None).__code__.co_code


def test_a_plan_is_a_name_a_passing_and_perhaps_a_sleep():
    assert parse("") == []
    assert parse(f"{A}, {B}:7,answer.before:2:sleep=50") == [
        FailpointPlan(A, 1), FailpointPlan(B, 7), FailpointPlan("answer.before", 2, sleep_ms=50)
    ]  # fmt: skip


def test_a_plan_may_go_on_at_each_later_passing(monkeypatch):
    slept = []
    monkeypatch.setattr(failpoints.time, "sleep", slept.append)
    assert parse(f"{A}:2+:sleep=50") == [FailpointPlan(A, 2, sleep_ms=50, onwards=True)]
    armed = Armed(parse(f"{A}:2+:sleep=50,{B}:2:sleep=70"), None, end=lambda: None)
    for name in (A, A, A, B, B, B):
        armed.passing(name)
    assert slept == [0.05, 0.05, 0.07]


@pytest.mark.parametrize("text", ["nowhere", f"{A}:x", f"{A}:1:explode", f"{A}:1:sleep=soon"])
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(BadRequest, match=re.escape(text.partition(":")[0] if text == "nowhere" else text)):
        parse(text)


def test_the_end_comes_at_the_planned_passing_and_all_is_counted(tmp_path):
    ended = []
    armed = Armed(parse(f"{A}:3"), tmp_path / "counts", end=lambda: ended.append(1))
    for name in (A, B, A, A, A):
        armed.passing(name)
    assert ended == [1]
    counted = read_counts(tmp_path / "counts")
    assert (counted[A], counted[B], counted["answer.before"]) == (
        FailpointCount(4, 1),
        FailpointCount(1, 0),
        FailpointCount(0, 0),
    )


def test_a_process_ends_itself_by_sigkill_and_its_counts_stay(tmp_path):
    for _ in range(2):
        code = f"from evenq.runtime.failpoints import passing\nfor _ in range(9): passing('{A}')"
        environment = {VARIABLE: f"{A}:5", COUNTS_VARIABLE: str(tmp_path / "counts")}
        done = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
        assert done.returncode == -9
    assert read_counts(tmp_path / "counts")[A] == FailpointCount(10, 2)


def test_a_name_that_is_not_listed_is_a_mistake(tmp_path):
    with pytest.raises(BadRequest, match=r"nowhere"):
        Armed([], None, end=lambda: None).passing("nowhere")


def test_every_listed_point_is_in_the_code_and_every_point_in_the_code_is_listed():
    if not (ROOT / "services").is_dir():
        pytest.skip("only in the source tree")
    called: list[str] = []
    for folder in ("src", "services"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            called += re.findall(r'\bpassing\(f?"([^"]+)"\)', path.read_text(encoding="utf-8"))
    stages = [name.partition(".")[2] for name in called if name.startswith("{kind}.")]
    plain = [name for name in called if not name.startswith("{kind}.")]
    assert len(stages) == len(set(stages)) == 4
    kinds = {name.partition(".")[0] for name in POINTS if name.partition(".")[2] in stages and name not in plain}
    assert set(POINTS) == {*plain, *(f"{kind}.{stage}" for kind in kinds for stage in stages)}
    assert len(POINTS) >= 40
    assert all(text.endswith(".") and len(text) > 20 for text in POINTS.values())
