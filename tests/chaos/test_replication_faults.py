"""T5 of the reliability design for groups of copies, short: links between the copies break in some shapes under senders
and receivers; nothing is lost, nothing acknowledged comes again, and no deposed leader answers.

EVENQ_TEST_FAULT_SECONDS for each shape (8 by default). All shapes: `make replication-faults SECONDS=180`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from evenq_proofs.group_faults.campaign import FaultRun
from evenq_proofs.group_faults.shapes import SHAPES, SHORT

pytest.importorskip("kubernetes")

SECONDS = float(os.environ.get("EVENQ_TEST_FAULT_SECONDS", "8"))
SEED = int(os.environ.get("EVENQ_TEST_SEED", "1"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400 + 6 * SECONDS)]


@pytest.mark.spec("HA-2")
def test_broken_links_between_the_copies_lose_and_repeat_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    assert len(SHAPES) >= 12
    run = FaultRun(tmp_path, SHORT, SECONDS, seed=SEED)
    problems = run.run()
    print("\n" + run.text())
    assert problems == [], f"seed {SEED}, everything is in {tmp_path}"
    assert set(run.applied) == set(SHORT)
    assert run.elections >= 2, "a leader was deposed"
