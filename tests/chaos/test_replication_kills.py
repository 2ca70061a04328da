"""T3 of the reliability design for groups of copies, short: SIGKILL of leaders, followers and the record's place, with
their disks or without, at random moments and at failpoints.

EVENQ_TEST_GROUP_CYCLES cycles (6 by default). The full run: `make replication-kills CYCLES=1000`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from evenq_proofs.group_faults.kills import GroupKills

pytest.importorskip("kubernetes")

CYCLES = int(os.environ.get("EVENQ_TEST_GROUP_CYCLES", "6"))
SEED = int(os.environ.get("EVENQ_TEST_SEED", "1"))
pytestmark = pytest.mark.timeout(400 + 30 * CYCLES)


@pytest.mark.spec("HA-2", "HA-6")
def test_whoever_of_a_group_is_killed_nothing_acknowledged_is_lost_or_repeated(tmp_path: Path) -> None:
    run = GroupKills(tmp_path, CYCLES, seed=SEED)
    problems = run.run()
    print("\n" + run.text())
    assert problems == [], f"seed {SEED}, everything is in {tmp_path}"
    assert sum(run.killed.values()) == CYCLES
    assert run.elections >= 2, "a leader was killed"
