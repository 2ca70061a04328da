"""The page on Celery, as printed: an application, its worker, a task, remote control, a priority."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from evenq_proofs.waiting import until

PAGE = "docs/guides/celery.md"
SLOW_S = 300

pytestmark = pytest.mark.timeout(900)


def environment():
    binaries = Path(sys.executable).parent
    return {**os.environ, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}", "C_FORCE_ROOT": "1"}


def test_the_application_of_the_page_runs_with_its_commands(blocks, endpoint, tmp_path):
    program, _ = blocks(PAGE, "python")
    (tmp_path / "tasks.py").write_text(program.at(endpoint))
    make, worker, send, ping = [
        line for block in blocks(PAGE, "") for line in block.commands() if not line.startswith("evenq ")
    ]

    def typed(line):
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=SLOW_S,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    typed(make)
    log = tmp_path / "worker.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {worker}"], cwd=tmp_path, env=environment(), stdout=output, stderr=output
        )
    try:
        until(lambda: " ready." in log.read_text(), log.read_text, seconds=SLOW_S)
        assert typed(send) == "5\n"
        assert "pong" in typed(ping)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SLOW_S) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_priorities_and_the_topics_of_a_user_without_create(blocks, endpoint, shell, start):
    _, program = blocks(PAGE, "python")
    process = start(program.at(endpoint))
    output, _ = process.communicate(timeout=SLOW_S)
    assert process.returncode == 0, output
    assert "PRIORITY" in shell("evenq topic show shop-celery")
    for block in blocks(PAGE, ""):
        for line in block.commands():
            if line.startswith("evenq "):
                shell(line)
    assert "celery-%broadcast" in shell("evenq topic list")
