"""The script of the hook before a rollback, run by a shell with an `evenq` that ends as the test says."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from evenq_helm.chart import find, render

Run = Callable[..., "subprocess.CompletedProcess[str]"]
HOST = "evenq.default.svc.cluster.local"
BROKERS = {
    "brokers": [{"broker": f"evenq-broker-{number}"} for number in range(3)],
    "broker_groups": [{"copies": 1}],
}


@pytest.fixture
def run(helm: str, tmp_path: Path) -> Run:
    """Runs the script of a revision with two broker groups."""

    def run(code: int, output: str = "", *, port: int = 1, empty: int = 0) -> subprocess.CompletedProcess[str]:
        ports = f"broker.port={port},tls.port={port + 1}"
        job = find(render(helm, "--set", ports), "Job", "evenq-rollback")
        (container,) = job["spec"]["template"]["spec"]["containers"]
        *shell, script = container["command"]
        (tmp_path / "shown").write_text(output)
        fake = tmp_path / "evenq"
        fake.write_text(
            f'#!/bin/sh\n[ "$2" = show ] || exit {empty}\ncat {tmp_path}/shown\n'
            f'[ {code} = 0 ] || echo "error: the call is not signed" >&2\nexit {code}\n'
        )
        fake.chmod(0o755)
        (tmp_path / "python").unlink(missing_ok=True)
        (tmp_path / "python").symlink_to(sys.executable)
        path = f"{tmp_path}:{os.environ['PATH']}"
        return subprocess.run(
            [*shell, script.replace(HOST, "127.0.0.1")],
            env={"PATH": path}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    return run


def test_a_rollback_passes_where_no_broker_answers(run: Run) -> None:
    """It may be the repair."""
    done = run(5)
    assert done.returncode == 0
    assert "No broker answers, so nothing is checked" in done.stdout


@pytest.mark.parametrize("code", [1, 2, 4])
def test_a_rollback_is_refused_where_a_broker_refuses_or_fails(run: Run, code: int) -> None:
    """The older revision has no keys, and the running brokers require them: their messages would be lost unread."""
    done = run(code)
    assert done.returncode == 1
    assert "the call is not signed" in done.stdout + done.stderr
    assert "Refused: the brokers do not show the cluster" in done.stdout
    assert "status=pending-rollback" in done.stdout


def test_a_rollback_is_refused_where_brokers_accept_connections_and_do_not_answer(run: Run) -> None:
    """The older revision is without TLS, or the other way round."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        for port in (server.getsockname()[1], server.getsockname()[1] - 1):
            done = run(5, port=port)
            assert done.returncode == 1
            assert "Refused: brokers accept connections" in done.stdout
            assert "status=pending-rollback" in done.stdout


def test_a_rollback_is_refused_where_the_answer_does_not_list_the_brokers(run: Run) -> None:
    """A copy of a group without a leader reports its own group alone."""
    done = run(0, json.dumps({"broker_groups": [{"copies": 1}]}))
    assert done.returncode == 1
    assert "Refused: the answer does not list the brokers" in done.stdout
    assert "status=pending-rollback" in done.stdout


def test_a_rollback_is_refused_while_a_broker_that_would_go_has_messages(run: Run) -> None:
    done = run(0, json.dumps(BROKERS), empty=1)
    assert done.returncode == 1
    assert "would remove evenq-broker-2 before" in done.stdout
    assert run(0, json.dumps(BROKERS)).returncode == 0
