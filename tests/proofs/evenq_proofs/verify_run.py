"""`evenq verify` beside a cluster in which brokers are killed, and the judgement of what it says: the same for each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

__all__ = ["verified_while"]


def verified_while(endpoints: str, seconds: int, kill: Callable[[Callable[[], bool]], None], *, after_s: int) -> None:
    """Run the command for so many seconds while `kill` does its work, and assert that every promise was kept. `kill`
    is given a way to ask whether the command still runs; the command has `after_s` more to end.
    """
    command = [
        sys.executable, "-m", "evenq.cli", "verify", "--endpoints", endpoints, "--seconds", str(seconds),
        "--rate", os.environ.get("EVENQ_TEST_RATE", "20"), "--tolerance", os.environ.get("EVENQ_TEST_TOLERANCE_MS", "60000"), "--drain", "180", "--json",
    ]  # fmt: skip
    verifying = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        kill(lambda: verifying.poll() is None)
        printed, errors = verifying.communicate(timeout=after_s + seconds)
    finally:
        if verifying.poll() is None:
            verifying.kill()
            verifying.communicate()
    assert printed, errors
    told = json.loads(printed)
    rows = {row["kind"]: row for row in told["kinds"]}
    print("\n" + "\n".join(f"{kind}: {row}" for kind, row in rows.items()))
    assert told["outages"] >= 1, "the kills were seen"
    for kind, row in rows.items():
        assert row["sent"] > 0, (kind, told)
        assert (row["lost"], row["refused"], row["after_ack"]) == (0, 0, 0), (kind, told["problems"])
    assert [rows[kind]["reordered"] for kind in ("fifo", "priority", "lite")] == [0, 0, 0], told["problems"]
    assert (rows["delay"]["early"], rows["transaction"]["leaked"]) == (0, 0), told["problems"]
    assert verifying.returncode == 0, told.get("problems")
