"""Crash enumeration, ALICE windows, truncations, flips, fuzz and failing operations: `evenq_proofs.storage.campaign`.

Every day a few thousand images; EVENQ_TEST_SCALE=full runs the release size (use `python tests/proofs/run.py storage`, which
shows where it is and keeps the ledger).
"""

from __future__ import annotations

import os

import pytest
from evenq_proofs.storage.campaign import Job, jobs, run_job
from evenq_proofs.storage.crashes import crash_everywhere
from evenq_proofs.storage.session import OPTIONS
from evenq_proofs.storage.small_parts import small_parts
from evenq_proofs.storage.workload import record

FULL = os.environ.get("EVENQ_TEST_SCALE") == "full"
LEAST = {"crash": 100, "again": 100, "alice": 20, "truncation": 100, "flip": 100, "fuzz": 200, "fault": 1, "full": 8}


ALL = jobs(full=FULL)
FIRST = {job.kind: job for job in reversed(ALL)}
"""One of each kind."""
QUICK = [FIRST[kind] for kind in LEAST if kind not in {"again", "alice", "truncation", "flip"}]
"""Of `make test`; all others are slow. test_fault_disk.py crashes at every operation and flips every byte of a
small log, too."""


@pytest.mark.timeout(3_600 if FULL else 300)
@pytest.mark.parametrize(
    "job", [pytest.param(job, id=str(job), marks=() if job in QUICK else pytest.mark.slow) for job in ALL]
)
def test_nothing_acknowledged_is_lost_and_nothing_else_is_served(job: Job):
    tally = run_job(job)
    assert not tally.violations, "\n".join(tally.violations[:5])
    assert FULL or tally.images >= LEAST[job.kind]


async def test_the_everyday_crash_jobs_have_at_least_500_points():
    with small_parts():
        trace = await record(OPTIONS)
        daily = [job for job in jobs(full=False) if job.kind == "crash" and job.flush == "sync"]
        places = [range(job.shard, 1 << 30, job.stride) for job in daily]
        count = sum(len(list(crash_everywhere(trace, operations=each, seeds=2))) for each in places)
        assert count >= 500
