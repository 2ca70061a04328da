"""`evenq verify` while brokers are killed with SIGKILL and come back: nothing lost, nothing out of order.

EVENQ_TEST_ROUNDS kills, one every EVENQ_TEST_KILL_SECONDS (6; `make verify MINUTES=10` kills every 30 s). The command
is told nothing of the kills: it sees by itself that a broker is away.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading

import pytest

from evenq.testing import LocalCluster

ROUNDS = int(os.environ.get("EVENQ_TEST_ROUNDS", "2"))
KILL_SECONDS = int(os.environ.get("EVENQ_TEST_KILL_SECONDS", "6"))
SEED = int(os.environ.get("EVENQ_TEST_SEED", "1"))
SECONDS = (ROUNDS + 1) * KILL_SECONDS
pytestmark = pytest.mark.timeout(240 + 2 * SECONDS)


def test_brokers_are_killed_again_and_again_and_every_promise_is_kept() -> None:
    rng, pause = random.Random(SEED), threading.Event()
    with LocalCluster(brokers=2) as cluster:
        command = [
            sys.executable, "-m", "evenq.cli", "verify", "--endpoints", cluster.endpoints, "--seconds", str(SECONDS),
            "--rate", os.environ.get("EVENQ_TEST_RATE", "20"), "--tolerance", "5000", "--drain", "180", "--json",
        ]  # fmt: skip
        verifying = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            for _ in range(ROUNDS):
                pause.wait(KILL_SECONDS)  # the rhythm of the kills, nothing that a test waits for
                if verifying.poll() is not None:
                    break
                victim = cluster.brokers[rng.randrange(len(cluster.brokers))]
                victim.kill()
                victim.restart()
            printed, errors = verifying.communicate(timeout=200 + SECONDS)
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
