"""`make test` may leave tests out, `make check` may not, and CI only slow ones. Read from make itself, which runs nothing."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from evenq_proofs.make_targets import make_targets
from evenq_proofs.whole_runs import skip_or_fail

ROOT = Path(__file__).resolve().parents[3]


def commands_of(*words: str, everything: bool = False) -> list[str]:
    """What make would run."""
    of_make = {
        "EVENQ_TEST_ALL",
        "EVENQ_TEST_SLOW",
        "MAKEFLAGS",
        "MFLAGS",
        "MAKELEVEL",
    }  # this may run below another make
    environment = {name: value for name, value in os.environ.items() if name not in of_make}
    if everything:
        environment["EVENQ_TEST_ALL"] = "1"
    done = subprocess.run(["make", "-n", *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_make_check_runs_every_folder_of_tests_and_leaves_no_slow_test_out() -> None:
    runs = [command for command in commands_of("check", everything=True) if "/pytest " in command]
    assert runs
    assert not [command for command in runs if "slow" in command]
    whole = {word for command in runs if " -k " not in command for word in shlex.split(command)}
    folders = {path.relative_to(ROOT).parts[1] for path in (ROOT / "tests").glob("*/**/test_*.py")} - {"data"}
    assert {f"tests/{folder}" for folder in folders} <= whole
    chosen = {choice for command in runs for choice in re.findall(r'-m "?([a-z ]+)"?', command)}
    assert chosen == {"kubernetes", "not kubernetes"}, "one half each"


def test_ci_runs_the_test_command_of_the_readme() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    assert "EVENQ_TEST_ALL=1" in ci
    assert "make check" in ci
    assert "EVENQ_TEST_SLOW=$(git rev-list --count HEAD" in ci, "another share of the slow tests for each commit"
    test = [command for command in commands_of("test", everything=True) if "/pytest " in command]
    assert set(test) <= set(commands_of("check", everything=True))


MAY_BE_SKIPPED = {
    "tests/integration/test_one_address.py": "keys make no difference here",
    "tests/unit/evenq/runtime/test_failpoints.py": "only in the source tree",
    "tests/unit/evenq/store/io/test_disk.py": "this file system",
    "tests/docs/test_first_minute.py": "does not work here",
}
"""Skips of tests that would prove nothing here, or that need a registry on the internet: file -> part of the reason."""


def test_no_test_is_skipped_in_ci_because_something_is_missing() -> None:
    bare = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        name, content = path.relative_to(ROOT).as_posix(), path.read_text()
        nodes = ast.walk(ast.parse(content)) if "pytest.skip(" in content else ()
        for function in (one for one in nodes if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)):
            text = ast.unparse(function)
            skips = re.findall(r"pytest\.skip\((.*)\)", text)
            if "'EVENQ_TEST_ALL'" not in text:
                bare += [f"{name}: {skip}" for skip in skips if MAY_BE_SKIPPED.get(name, name) not in skip]
    assert not bare, "call evenq_proofs.whole_runs.skip_or_fail"


def test_what_a_test_lacks_fails_it_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENQ_TEST_ALL", "1")
    with pytest.raises(pytest.fail.Exception, match="no helm; with EVENQ_TEST_ALL"):
        skip_or_fail("no helm")
    monkeypatch.delenv("EVENQ_TEST_ALL")
    with pytest.raises(pytest.skip.Exception, match="no helm"):
        skip_or_fail("no helm")


def test_ci_tests_each_version_of_python_that_the_package_names() -> None:
    classifiers = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    tested = jobs["python"]["strategy"]["matrix"]["python"]
    assert set(classifiers) <= {"3.11", *tested}, "3.11: .ci/run"
    assert jobs["python"]["steps"][-1]["run"] == "make test PYTHON=python${{ matrix.python }}"


def test_make_lets_python_keep_what_it_compiled() -> None:
    """Where the environment forbids it, each worker of pytest and each server of a test compiles every module again."""
    shown = subprocess.run(
        ["make", "--silent", "--no-print-directory", "--eval", 'shown: ; @echo "[$$PYTHONDONTWRITEBYTECODE]"', "shown"],
        cwd=ROOT, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert shown == "[]\n"


def test_what_make_test_leaves_out_is_said_with_targets_that_are_there() -> None:
    *runs, said = commands_of("test")
    assert all("not slow" in command for command in runs if "/pytest " in command)
    named = {word for words in re.findall(r"make ([a-z ]+)", said) for word in words.split()}
    targets = make_targets()
    assert {"unit", "integration", "check"} <= named <= targets


def test_every_target_but_that_of_ci_is_listed() -> None:
    listing = subprocess.run(
        ["make", "-s", "help", "campaigns"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    listed = set(re.findall(r"^  \x1b\[1m([a-z-]+) *\x1b\[0m \S", listing, re.MULTILINE))
    assert listed == make_targets() - {"kubernetes-and-walks"}
