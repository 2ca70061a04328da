"""`evenq verify` while brokers are killed with SIGKILL and come back: nothing lost, nothing out of order.

EVENQ_TEST_ROUNDS kills, one every EVENQ_TEST_KILL_SECONDS (6; `make verify MINUTES=10` kills every 30 s). The command
gets no notice of the kills: it sees by itself that a broker is away.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable

import pytest
from evenq_proofs.verify_run import verified_while

from evenq.testing import LocalCluster

ROUNDS = int(os.environ.get("EVENQ_TEST_ROUNDS", "2"))
KILL_SECONDS = int(os.environ.get("EVENQ_TEST_KILL_SECONDS", "6"))
SEED = int(os.environ.get("EVENQ_TEST_SEED", "1"))
SECONDS = (ROUNDS + 1) * KILL_SECONDS
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400 + 2 * SECONDS)]


def test_brokers_are_killed_again_and_again_and_every_promise_is_kept() -> None:
    rng, pause = random.Random(SEED), threading.Event()
    with LocalCluster(brokers=2) as cluster:

        def kill(runs: Callable[[], bool]) -> None:
            for _ in range(ROUNDS):
                pause.wait(KILL_SECONDS)  # the rhythm of the kills, nothing that a test waits for
                if not runs():
                    break
                victim = cluster.brokers[rng.randrange(len(cluster.brokers))]
                victim.kill()
                victim.restart()

        verified_while(cluster.endpoints, SECONDS, kill, after_s=200)
