"""`pytest --forks N`: every test is reported once, also if its process dies, and fixtures end after an interrupt."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from evenq_proofs.waiting import until

LIMIT_S = 240
"""Bounds a hang: each of these runs needs a second of CPU, and three processes."""
PROOFS = Path(__file__).resolve().parents[2] / "proofs"
BESIDE = """
import os, sys, time, warnings
from pathlib import Path
import pytest

HERE = Path(__file__).parent

def note(name):
    with (HERE / name).open("a") as file:
        file.write(f"{os.getpid()}\\n")

def wait_for(name):
    deadline = time.monotonic() + 200
    while not (HERE / name).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
"""
MEETING = """
from beside import *

@pytest.fixture(scope="module", autouse=True)
def stage():
    note("begun-{own}")
    yield
    note("ended-{own}")

def test_meets_a_test_of_the_other_file(tmp_path):
    note("met-{own}")
    wait_for("met-{other}")
    (tmp_path / "file").write_text("")

def test_is_run_by_the_same_process():
    note("met-{own}")
    warnings.warn("one of {own}")
"""
KINDS = """
from beside import *

def test_fails():
    print("a line of the failed test")
    assert HERE is None

@pytest.fixture
def broken():
    raise ValueError

def test_has_a_broken_fixture(broken):
    pass

@pytest.mark.skip(reason="on purpose")
def test_is_skipped():
    pass

@pytest.mark.xfail(strict=True)
def test_is_expected_to_fail():
    assert HERE is None
"""
DYING = """
import os

def test_passes():
    pass

def test_dies():
    os._exit(3)

def test_comes_after_it():
    pass
"""
WAITING = """
from beside import *

@pytest.fixture
def server():
    note("begun")
    yield
    note("ended")

def test_waits(server):
    time.sleep(200)
"""


def begin(folder: Path, *options: str, **files: str) -> subprocess.Popen[str]:
    (folder / "beside.py").write_text(BESIDE)
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    plugins = ("evenq_proofs.forks", "no:cacheprovider", "no:hypothesispytest", "no:xdist")
    words = [word for one in plugins for word in ("-p", one)]
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", *words]
    options = (*options, f"--rootdir={folder}", f"--basetemp={folder / 'tmp'}", "--forks=2", str(folder))
    path = os.pathsep.join([str(PROOFS), str(folder)])
    return subprocess.Popen(
        [*command, *options], env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, text=True
    )


def printed(process: subprocess.Popen[str], code: int) -> str:
    try:
        text, _ = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode == code, text
    return text


def test_two_processes_run_files_at_the_same_time_and_each_test_is_reported(tmp_path: Path) -> None:
    meeting = {own: MEETING.format(own=own, other=other) for own, other in (("a", "b"), ("b", "a"))}
    process = begin(tmp_path, **meeting, kinds=KINDS, dying=DYING)
    text = printed(process, 1)
    processes = {}
    for own in "ab":
        notes = [(tmp_path / f"{name}-{own}").read_text().split() for name in ("begun", "met", "ended")]
        assert [len(lines) for lines in notes] == [1, 2, 1], text
        [processes[own]] = set().union(*notes)
    assert len({*processes.values(), str(process.pid)}) == 3
    assert "a line of the failed test" in text
    assert "UserWarning: one of a" in text
    assert re.search(r"FAILED .*test_dying.py::test_dies", text)
    assert re.search(r"FAILED .*test_dying.py::test_comes_after_it", text)
    assert re.search(r"\n3 failed, 5 passed, 1 skipped, 1 xfailed, 2 warnings, 1 error in", text)


def test_fixtures_end_after_an_interrupt(tmp_path: Path) -> None:
    process = begin(tmp_path, waiting=WAITING)
    until((tmp_path / "begun").exists, seconds=LIMIT_S)
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in printed(process, 2)
    assert (tmp_path / "ended").exists()


@pytest.mark.slow
def test_the_first_failure_ends_all_processes_if_one_is_enough(tmp_path: Path) -> None:
    text = printed(begin(tmp_path, "-x", waiting=WAITING, kinds=KINDS), 1)
    assert "stopping after 1 failures" in text
    assert "1 failed" in text
    assert "passed" not in text
