"""The commands of docs/guides/store_tool.md run as printed, one after the other, in a reader's folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = "docs/guides/store_tool.md"


@pytest.fixture
def reader(tmp_path):
    """Types one line in the reader's folder; returns exit code and output."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def type_in(line, **more):
        done = subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False,
            env={**environment, **more},
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    return type_in


def test_every_command_of_the_guide_runs_as_printed(blocks, reader, tmp_path):
    up, produce, *commands = [command for block in blocks(PAGE, "") for command in block.commands()]
    assert up == "evenq up --data ./queue"
    words = [sys.executable, "-m", "evenq.cli", *up.split()[1:], "--port", "0", "--metrics-port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path)
    try:
        line = process.stdout.readline()
        code, _, err = reader(produce, EVENQ_ENDPOINT=line.split()[1])
        assert code == 0, err
        beside, events, _ = reader(next(command for command in commands if "verify" in command))
        assert beside == 0
        assert "the running broker still writes" in events
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    events = {}
    for command in commands:
        code, events[command], err = reader(command)
        assert code == 0, f"{command}\n{events[command]}{err}"
    assert events["evenq store verify ./queue/broker-a"].rstrip().endswith("\nclean")
    assert events["evenq store dump ./queue/broker-a --topic orders --limit 3"].count("\n") == 3
    assert (tmp_path / "orders.parquet").stat().st_size > 0
    assert (tmp_path / "everything.jsonl").read_text().count("\n") > 1000
