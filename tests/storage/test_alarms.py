"""The judge notices: a disk whose sync does nothing, a replaced file that is renamed before it is synced, a folder that
is never synced, and a store that answers too early.
"""

from __future__ import annotations

import contextlib
import shlex
import sys

import pytest
from evenq_proofs.storage import campaign, crashes
from evenq_proofs.storage.session import OPTIONS
from evenq_proofs.storage.small_parts import small_parts
from evenq_proofs.storage.workload import record

from evenq.runtime.accelerator import Accelerator


@pytest.mark.parametrize(
    "lie", ["sync", *(pytest.param(lie, marks=pytest.mark.slow) for lie in ("sync new", "sync_folder"))]
)
async def test_a_disk_that_lies_is_caught(lie):
    with small_parts():
        trace = await record(OPTIONS, operations=60, lies=frozenset({lie}))
        tally = await crashes.crash_all(trace, operations=range(5, 1 << 30, 9), seeds=2)
        assert tally.images > 100
        assert tally.violations


@pytest.mark.slow
async def test_a_store_that_answers_before_the_sync_is_caught(monkeypatch):
    def execute(self, batch):
        self._log.write(batch.runs)

    monkeypatch.setattr("evenq.store.log.writer.Writer._execute", execute)
    with small_parts():
        trace = await record(OPTIONS, operations=40)
        tally = await crashes.crash_all(trace, operations=range(3, 1 << 30, 5), seeds=1)
        assert any("at least" in violation for violation in tally.violations)


@pytest.mark.slow  # as many crashes as the other alarms together
async def test_a_recovery_that_serves_what_it_did_not_sync_is_caught(monkeypatch):
    async def begin(self, *_):
        pass

    monkeypatch.setattr("evenq.store.message_store.MessageStore._begin", begin)
    with small_parts():
        trace = await record(OPTIONS, operations=40)
        tally = await crashes.crash_again(trace, operations=range(20, 200, 20), seeds=1)
        assert tally.violations


@pytest.mark.slow
async def test_half_an_append_call_is_caught(monkeypatch):
    monkeypatch.setattr("evenq.store.opening.recovery.FLAG_MORE", 0)
    with small_parts():
        trace = await record(OPTIONS, operations=60)
        tally = await crashes.crash_all(trace, operations=range(3, 1 << 30, 5), seeds=2)
        assert any("whole append calls" in violation for violation in tally.violations)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_a_frame_whose_checksum_nobody_looks_at_is_caught(monkeypatch, seed):
    plain = Accelerator(module=None, state="off")  # the compiled packer would write right checksums
    monkeypatch.setattr("evenq.store.log.appender.accelerator", lambda: plain)
    for name, module in list(sys.modules.items()):
        if name.startswith("evenq.store.") and hasattr(module, "crc32c"):
            monkeypatch.setattr(module, "crc32c", lambda *_: 0)
    job = campaign.Job("fuzz", "sync", seed, 60, 0, 1, 300)
    assert campaign.run_job(job).violations


@pytest.mark.parametrize("flush", ["sync", pytest.param("async", marks=pytest.mark.slow)])
@pytest.mark.parametrize("heard", ["goes on", pytest.param("", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_store_that_syncs_again_after_a_failed_sync_is_caught(monkeypatch, flush, heard):
    def sync(self):
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.sync()
            self._file.sync()

    monkeypatch.setattr("evenq.store.log.commit_log.CommitLog.sync", sync)
    if not heard:  # what is lost is seen too, not only that the store does not stop
        monkeypatch.setattr("evenq_proofs.storage.faults.check_stopped", lambda *_: None)
    violations = campaign.run_job(campaign.Job("fault", flush, 1, 60, 1, 3, name="EIO forgets")).violations
    assert any(heard in violation for violation in violations)


@pytest.mark.slow  # as many crashes as the other alarms together
def test_a_start_that_only_syncs_what_a_failed_sync_left_is_caught(monkeypatch):
    monkeypatch.setattr("evenq.store.opening.recovery.Recovery._write_again", lambda *_: None)
    violations = campaign.run_job(campaign.Job("fault", "sync", 1, 60, 3, 4, name="EIO forgets")).violations
    assert any("acknowledged messages are missing" in violation for violation in violations)


@pytest.mark.parametrize(
    "job",
    [
        campaign.Job("crash", "sync", 1, 40, 3, 30, 1),
        campaign.Job("alice", "sync", 1, 40, 512, 5, 8),
    ],
    ids=str,
)
def test_a_violation_names_the_command_that_runs_just_it(monkeypatch, job):
    def execute(self, batch):
        self._log.write(batch.runs)

    monkeypatch.setattr("evenq.store.log.writer.Writer._execute", execute)
    violations = campaign.run_job(job).violations
    assert violations
    words = shlex.split(violations[-1].partition("again: ")[2])
    assert words[:3] == ["python", "-m", "evenq_proofs.storage"]
    assert campaign.Job.of(words[4]) == job
    tally = campaign.run_job(campaign.Job.of(words[4]), only=words[6])
    assert violations[-1] in tally.violations
    assert tally.images < 10
