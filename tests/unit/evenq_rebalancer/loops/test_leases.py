"""From the setting to the lease."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

import pytest
from evenq_rebalancer.core.election import Record
from evenq_rebalancer.loops import leases
from evenq_rebalancer.loops.kubernetes_lease import KubernetesLease
from evenq_rebalancer.loops.leases import FileLease, lease_of
from evenq_rebalancer.settings import RebalancerSettings
from pydantic import ValidationError

from evenq.errors import PersistenceTimeout, SettingsError


def test_each_form_of_the_setting_gives_its_lease() -> None:
    assert lease_of(RebalancerSettings()) is None
    assert isinstance(lease_of(RebalancerSettings(lease="file:/tmp/x")), FileLease)
    assert isinstance(lease_of(RebalancerSettings(lease="kubernetes:evenq-rebalancer")), KubernetesLease)


def test_one_that_others_could_not_reach_is_refused() -> None:
    with pytest.raises(SettingsError, match="advertise"):
        lease_of(RebalancerSettings(lease="file:/tmp/x", host="0.0.0.0"))
    assert lease_of(RebalancerSettings(lease="file:/tmp/x", host="0.0.0.0", advertise="10.0.0.5:8083"))


@pytest.mark.parametrize("lease", ["", "file:", "kubernetes:", "kubernetes:A_b", "etcd:x"])
def test_other_forms_are_refused(lease: str) -> None:
    with pytest.raises(ValidationError, match="lease"):
        RebalancerSettings(lease=lease)


def test_times_that_would_let_two_lead_are_refused() -> None:
    with pytest.raises(ValidationError, match="does not hold"):
        RebalancerSettings(lease_ms=1_000, lease_renew_ms=1_000)


def record(holder: str, began_ms: int = 7) -> Record:
    return Record(holder=holder, duration_ms=6_000, began_ms=began_ms)


async def test_it_is_made_read_and_replaced_only_at_the_version_that_was_read(tmp_path: Path) -> None:
    one, two = FileLease(tmp_path / "new" / "lease"), FileLease(tmp_path / "new" / "lease")
    assert await one.read() is None
    assert await one.write(record("a"), "some version") is None
    first = await one.write(record("a"), "")
    assert first
    assert await two.write(record("b"), "") is None, "there is one by now"
    seen = await two.read()
    assert seen is not None
    assert (seen.record, seen.version) == (record("a"), first)
    second = await one.write(record("a"), first)
    assert second not in {None, first}, "each renewal has another version, though it says the same"
    assert await two.write(record("b"), first) is None
    assert await two.write(record("b"), str(second))


async def test_of_many_at_once_exactly_one_wins(tmp_path: Path) -> None:
    leases = [FileLease(tmp_path / "lease") for _ in range(8)]
    won = await asyncio.gather(*(lease.write(record(str(n)), "") for n, lease in enumerate(leases)))
    assert sum(version is not None for version in won) == 1


@pytest.mark.parametrize("text", ["{", "[]", '{"holder": 5, "duration_ms": -1}', "\udcff", "x" * 9_000, "{" * 3_000])
async def test_what_cannot_be_read_counts_as_somebodys_and_can_be_replaced(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lease"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    lease = FileLease(path)
    seen = await lease.read()
    assert seen is not None
    assert (seen.record.holder, seen.record.duration_ms, seen.record.began_ms) == ("?", 0, 0)
    assert await lease.write(record("a"), seen.version)


async def test_a_lock_that_a_stopped_process_has_is_waited_for_so_long_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LOCK_WAIT_MS", 50)
    lease = FileLease(tmp_path / "lease")
    first = await lease.write(record("a"), "")
    assert first
    with (tmp_path / "lease.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(PersistenceTimeout, match=rf"process {os.getpid()} has had the lock .*lease.lock for 50 ms"):
            await lease.write(record("b"), first)
        assert await lease.read() is not None
    assert await lease.write(record("b"), first)


async def test_a_folder_in_the_way_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "lease").mkdir()
    with pytest.raises(PersistenceTimeout, match="lease"):
        await FileLease(tmp_path / "lease").read()
    with pytest.raises(PersistenceTimeout, match="lease"):
        await FileLease(tmp_path / "lease").write(record("a"), "")
