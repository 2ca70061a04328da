"""`tools/second_look.py`: what fails twice fails, what fails once is named, and many failures get no second look."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.tools.conftest import load_tool

SUITE = """
from pathlib import Path
import pytest

HERE = Path(__file__).parent

@pytest.mark.parametrize("number", range({count}))
def test_one(number):
    beside = HERE / f"seen-{{number}}"
    times = int(beside.read_text()) if beside.exists() else 0
    beside.write_text(str(times + 1))
    assert times >= {failures} or number >= {failing}
"""


@pytest.fixture(scope="module")
def second_look() -> ModuleType:
    return load_tool("second_look")


@pytest.mark.parametrize(
    ("failing", "failures", "code", "runs_of_first", "unstable"),
    [(0, 0, 0, 1, False), (2, 1, 0, 2, True), (2, 9, 1, 2, False), (4, 1, 1, 1, False)],
    ids=["all pass", "fail once", "fail twice", "too many"],
)
@pytest.mark.slow
def test_the_second_run_decides_over_a_few_failures(
    second_look: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str], *,
    failing: int, failures: int, code: int, runs_of_first: int, unstable: bool,
) -> None:  # fmt: skip
    suite = tmp_path / "test_suite.py"
    suite.write_text(SUITE.format(count=6, failing=failing, failures=failures))
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-c", "/dev/null", str(suite)]
    assert second_look.main(command, caches=tmp_path / "caches") == code
    assert int((tmp_path / "seen-0").read_text()) == runs_of_first
    assert int((tmp_path / "seen-5").read_text()) == 1, "what passed is not run again"
    assert ("UNSTABLE, failed and then passed" in capfd.readouterr().out) is unstable


def test_a_suite_that_cannot_be_collected_gets_no_second_look(second_look: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text("import there_is_no_such_module_at_all\n")
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", str(tmp_path / "test_suite.py")]
    assert second_look.main(command, caches=tmp_path / "caches") == 2


@pytest.mark.slow
def test_a_failure_of_an_earlier_run_is_forgotten(second_look: ModuleType, tmp_path: Path) -> None:
    suite = tmp_path / "test_suite.py"
    suite.write_text(SUITE.format(count=1, failing=1, failures=2))
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", str(suite)]
    assert second_look.main(command, caches=tmp_path / "caches") == 1
    assert second_look.main(command, caches=tmp_path / "caches") == 0
    assert int((tmp_path / "seen-0").read_text()) == 3
