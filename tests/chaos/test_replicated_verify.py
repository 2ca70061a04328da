"""`evenq verify` on one group of three copies while leaders are killed with SIGKILL, lose their disks and are stopped
(SIGSTOP), leadership moves, and copies are removed and added: nothing lost, nothing out of order, nothing acknowledged
comes again.

EVENQ_TEST_ROUNDS faults in turn, one every EVENQ_TEST_KILL_SECONDS (8; `make verify-replicated MINUTES=10`: 20 s).
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from evenq_proofs.replicated_group import FAULTS, group, in_sync, play_fault
from evenq_proofs.verify_run import verified_while

ROUNDS = int(os.environ.get("EVENQ_TEST_ROUNDS", "3"))
KILL_SECONDS = int(os.environ.get("EVENQ_TEST_KILL_SECONDS", "8"))
SEED = int(os.environ.get("EVENQ_TEST_SEED", "1"))
SECONDS = (ROUNDS + 1) * KILL_SECONDS
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400 + 3 * SECONDS)]


def test_leaders_and_copies_come_and_go_and_every_promise_is_kept(tmp_path: Path) -> None:
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
                play_fault(cluster, FAULTS[number % len(FAULTS)], rng)

        verified_while(cluster.endpoints, SECONDS, kill, after_s=240)
