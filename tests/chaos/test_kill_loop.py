"""T3 of the reliability design, short: kill -9 of a store and of a broker at failpoints and at random; then drain, judge, verify.

EVENQ_TEST_CYCLES cycles for each flush mode (20 by default). The release runs 1,000 of each: `python tests/proofs/run.py kill_loop
--cycles 1000 --flush sync --hits-min 5 --ledger tests/chaos/ledger.md`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from evenq_proofs.kill_loop.loop import KillLoop

CYCLES = int(os.environ.get("EVENQ_TEST_CYCLES", "20"))
SEED = int(os.environ.get("EVENQ_TEST_SEED", "1"))
BROKER_SHARE = 0.2
pytestmark = pytest.mark.timeout(300 + 3 * CYCLES)


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_whatever_was_acknowledged_survives_a_kill_anywhere(tmp_path: Path, flush: str) -> None:
    result = KillLoop(tmp_path, flush=flush, seed=SEED, cycles=CYCLES, broker_share=BROKER_SHARE).run()
    print("\n" + result.text())
    assert not result.problems, f"{result.problems}; seed {SEED}, everything is in {tmp_path}"
    assert sum(result.hits.values()) >= CYCLES // 2, "most cycles end at a failpoint"
    if CYCLES >= 60:
        assert [point for point, passed in result.passed.items() if not passed] == []
    assert result.start_ms_max <= 60_000
