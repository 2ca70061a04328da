"""`evenq verify` on one group of three copies while brokers are killed with SIGKILL, their leader first of all, and now
and then a killed one loses its disk: nothing lost, nothing out of order, nothing acknowledged comes again.

EVENQ_TEST_ROUNDS kills, one every EVENQ_TEST_KILL_SECONDS (8; `make verify-replicated MINUTES=10` kills every 20 s).
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from evenq_proofs.replicated_group import group, in_sync, leader_of
from evenq_proofs.verify_run import verified_while

ROUNDS = int(os.environ.get("EVENQ_TEST_ROUNDS", "3"))
KILL_SECONDS = int(os.environ.get("EVENQ_TEST_KILL_SECONDS", "8"))
SEED = int(os.environ.get("EVENQ_TEST_SEED", "1"))
SECONDS = (ROUNDS + 1) * KILL_SECONDS
pytestmark = pytest.mark.timeout(400 + 3 * SECONDS)


def test_leaders_are_killed_and_disks_are_lost_and_every_promise_is_kept(tmp_path: Path) -> None:
    rng, pause = random.Random(SEED), threading.Event()
    with group(
        tmp_path, REPLICATION__SUSPECT_MS="3000"
    ) as cluster:  # a busy machine's pauses are not to move the leader
        in_sync(cluster, 3)

        def kill(runs: Callable[[], bool]) -> None:
            for number in range(ROUNDS):
                pause.wait(KILL_SECONDS)  # the rhythm of the kills, nothing that a test waits for
                if not runs():
                    break
                in_sync(cluster, 3)
                leader = leader_of(cluster)
                victim = leader if number % 3 < 2 else rng.choice(cluster.brokers)
                victim.kill()
                if number % 2:
                    shutil.rmtree(tmp_path / victim.name)
                leader_of(cluster)
                victim.restart(timeout_ms=60_000)

        verified_while(cluster.endpoints, SECONDS, kill, after_s=240)
