"""The programs of docs/guides/taskiq.md with a real `taskiq worker`, and the arguments that its table lists."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from evenq_proofs.waiting import until

from evenq.taskiq import EvenqBroker

PAGE = "docs/guides/taskiq.md"
LIMIT_S = 240
pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def worker(blocks, endpoint: str, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """The page's worker with the page's `tasks.py`; returns what it printed so far."""
    tasks = next(block for block in blocks(PAGE, "python") if "def send_invoice" in block.text)
    (tmp_path / "tasks.py").write_text(tasks.at(endpoint))
    (command,) = [line for block in blocks(PAGE, "") for line in block.commands()]
    words = shlex.split(command)
    assert words[0] == "taskiq"
    log = tmp_path / "worker.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=tmp_path,
            env=environment(),
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        until(lambda: log.read_text().count("Listening started") == 2, log.read_text, seconds=LIMIT_S)
        yield log.read_text
        process.terminate()
        assert process.wait(timeout=LIMIT_S) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def test_the_worker_of_the_guide_runs_the_tasks_of_its_client(worker, blocks, endpoint, tmp_path) -> None:
    (client,) = [block for block in blocks(PAGE, "python") if "from tasks import" in block.text]
    (tmp_path / "client.py").write_text(client.at(endpoint))
    subprocess.run(
        [sys.executable, "-W", "error", "client.py"], cwd=tmp_path, env=environment(), check=True, timeout=LIMIT_S
    )
    until(lambda: "sent invoice 17" in worker() and "sent invoice 18" in worker(), worker, seconds=LIMIT_S)
    assert worker().index("sent invoice 17") < worker().index("sent invoice 18")


def test_the_other_programs_of_the_guide_run(blocks, endpoint, start) -> None:
    programs = [block for block in blocks(PAGE, "python") if "from tasks import" not in block.text]
    assert len(programs) >= 4
    for program in programs:
        process = start(program.at(endpoint))
        output, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, f"{program}\n{output}"


def test_the_guide_lists_each_argument_with_its_default() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8").partition("## Arguments")[2]
    rows = re.findall(r"^\| (`[^|]+) \| ([^|]*) \|", text, re.MULTILINE)
    listed = {name: default.strip() for names, default in rows for name in re.findall(r"`(\w+)`", names)}
    given = dict(inspect.signature(EvenqBroker.__init__).parameters)
    assert set(listed) == set(given) - {"self", "context"}
    for name in ("invisible_ms", "held_ms_max", "prefetch", "priorities"):
        assert int(listed[name].replace(",", "")) == given[name].default
