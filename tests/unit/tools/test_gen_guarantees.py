"""`tools/gen_guarantees.py` lists guarantees with the tests of their promises, and refuses one that nothing proves."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.tools.conftest import load_tool

load_tool("spec_table")
gen_guarantees = load_tool("gen_guarantees")
THIS = "tests/unit/tools/test_gen_guarantees.py"
Row = gen_guarantees.Row
INDEX = [Row("AA-1", "one", ""), Row("AA-2", "two", "open: it is not built"), Row("AA-3", "three", "an argument")]
TABLE = {"AA-1": ["tests/spec/test_a.py::test_x", "tests/spec/test_b.py::test_y", "tests/spec/test_b.py::test_z"]}


def page(**guarantee: Any) -> str:
    groups = [{"title": "Group", "guarantee": [{"name": "Name", "text": "Text.\n", **guarantee}]}]
    return str(gen_guarantees.page(groups, INDEX, TABLE))


def test_a_guarantee_names_its_tests_and_its_promises() -> None:
    text = page(ids=["AA-1"], tests=[THIS])
    assert "## Group\n\n### Name\n\nText.\n" in text
    own, most, other = (
        text.index(path) for path in (f"(../{THIS})", "(../tests/spec/test_b.py)", "(../tests/spec/test_a.py)")
    )
    assert own < most < other, "named ones first, then the files with the most tests"
    assert "Promises: AA-1." in text
    assert "- AA-2: two. Today: it is not built." in text


@pytest.mark.parametrize(
    ("guarantee", "problem"),
    [
        ({"ids": ["AA-2"]}, "AA-2 is without a test"),
        ({"ids": ["AA-9"]}, "AA-9 is not a promise"),
        ({"tests": ["tests/gone.py"]}, "tests/gone.py does not exist"),
        ({}, "names no promise and no test"),
    ],
)
def test_a_guarantee_that_nothing_proves_is_refused(guarantee: dict[str, Any], problem: str) -> None:
    with pytest.raises(SystemExit, match=problem):
        page(**guarantee)


@pytest.mark.slow
def test_an_edited_page_is_noticed_and_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gen_guarantees.main(["--check"]) == 0, capsys.readouterr().out
    monkeypatch.setattr(gen_guarantees, "PAGE", tmp_path / "guarantees.md")
    assert gen_guarantees.main(["--check"]) == 1
    assert gen_guarantees.main([]) == 0
    assert gen_guarantees.main(["--check"]) == 0
