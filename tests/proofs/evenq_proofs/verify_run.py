"""`evenq verify` beside a cluster in which brokers are killed, and the judgement of what it says: the same for each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable

from evenq import Admin
from evenq.errors import Error
from evenq.verify import Kind


def begun(admin: Admin) -> bool:
    """Whether the command has made its groups: before that it would take a dead cluster for none."""
    try:
        return len(admin.list_groups()) == len(Kind)
    except Error:
        return False


def verified_while(endpoints: str, seconds: int, kill: Callable[[Callable[[], bool]], None], *, after_s: int) -> None:
    """Run the command for this number of seconds while `kill` does its work, and assert that every promise was kept. `kill`
    is given a way to ask whether the command still runs; the command has `after_s` more to end.
    """
    command = [
        sys.executable, "-m", "evenq.cli", "verify", "--endpoints", endpoints, "--seconds", str(seconds),
        "--rate", os.environ.get("EVENQ_TEST_RATE", "20"), "--tolerance", os.environ.get("EVENQ_TEST_TOLERANCE_MS", "60000"), "--drain", "180", "--json",
    ]  # fmt: skip
    pause = threading.Event()
    verifying = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        with Admin(endpoint=endpoints) as admin:
            while verifying.poll() is None and not begun(admin):
                pause.wait(0.1)
        kill(lambda: verifying.poll() is None)
        printed, errors = verifying.communicate(timeout=after_s + seconds)
    finally:
        if verifying.poll() is None:
            verifying.kill()
            verifying.communicate()
    assert printed, errors
    output = json.loads(printed)
    rows = {row["kind"]: row for row in output["kinds"]}
    print("\n" + "\n".join(f"{kind}: {row}" for kind, row in rows.items()))
    assert output["outages"] >= 1, "the kills were seen"
    for kind, row in rows.items():
        assert row["sent"] > 0, (kind, output)
        assert (row["lost"], row["refused"], row["after_ack"]) == (0, 0, 0), (kind, output["problems"])
    assert [rows[kind]["reordered"] for kind in ("fifo", "priority", "lite")] == [0, 0, 0], output["problems"]
    assert (rows["delay"]["early"], rows["transaction"]["leaked"]) == (0, 0), output["problems"]
    assert verifying.returncode == 0, output.get("problems")
