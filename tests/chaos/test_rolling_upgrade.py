"""T9 of the reliability design, short: the copies of a group are replaced one after the other under load, as a StatefulSet
does it; nothing is lost, repeated or out of order, and no second copy stops while the first is not in sync.

Both versions are this one. Another one, there and back: `make replication-upgrade ROUNDS=20 FROM=v0.1.0`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from evenq_proofs.rolling_upgrade.rounds import COPIES, RollingUpgrade
from evenq_proofs.rolling_upgrade.versions import this_version

ROUNDS = int(os.environ.get("EVENQ_TEST_UPGRADE_ROUNDS", "1"))
STALL_MS_MAX = int(os.environ.get("EVENQ_TEST_RECOVERY_MS", "30000"))
"""A test's machine is busy; `make replication-upgrade` judges by 1 s."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + 300 * ROUNDS)]


@pytest.mark.spec("HA-8")
def test_copies_that_are_replaced_one_by_one_under_load_lose_repeat_and_reorder_nothing(tmp_path: Path) -> None:
    version = this_version()
    run = RollingUpgrade(tmp_path, version, version, ROUNDS, stall_ms_max=STALL_MS_MAX)
    problems = run.run()
    print("\n" + run.text())
    assert problems == [], f"everything is in {tmp_path}"
    assert len(run.turns) == COPIES * ROUNDS
    assert sum(turn.led for turn in run.turns) >= ROUNDS, "a leader handed over"
    assert run.outcome.acknowledged > 100
