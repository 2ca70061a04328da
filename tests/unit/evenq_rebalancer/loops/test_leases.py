"""From the setting to the lease, and the lease in Kubernetes."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest
from evenq_rebalancer.core.election import Record
from evenq_rebalancer.loops import leases
from evenq_rebalancer.loops.leases import FileLease, KubernetesLease, lease_of, lease_spec, record_of
from evenq_rebalancer.settings import RebalancerSettings
from pydantic import ValidationError

from evenq.errors import ConnectionFailed, NotFound, PersistenceTimeout, PreconditionFailed, SettingsError


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


RECORD = Record(holder="10.0.0.5:8083_ab", duration_ms=6_500, began_ms=1_795_289_759_000)


def lease_object(version: str) -> dict[str, Any]:
    """As the API gives it."""
    return {"metadata": {"name": "evenq", "namespace": "shop", "resourceVersion": version}, "spec": lease_spec(RECORD)}


def test_a_record_travels_whole_but_for_the_duration_that_is_rounded_up_to_seconds() -> None:
    spec = lease_spec(RECORD)
    assert spec["acquireTime"] == "2026-11-21T19:35:59.000000Z", "six digits, or the API refuses it"
    assert record_of({"spec": spec}) == Record(holder=RECORD.holder, duration_ms=7_000, began_ms=RECORD.began_ms)


@pytest.mark.parametrize(
    "spec", [None, {}, {"holderIdentity": None, "leaseDurationSeconds": "x", "acquireTime": "yesterday"}]
)
def test_what_is_missing_or_nonsense_is_nothing(spec: Any) -> None:
    assert record_of({"spec": spec}) == Record(holder="", duration_ms=0, began_ms=0)


class FakeApi:
    """The edge."""

    namespace = "shop"

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.calls: list[tuple[str, str]] = []
        self.bodies: list[Any] = []

    def call(self, verb: str, path: str, body: Any = None) -> Any:
        self.calls.append((verb, path.rpartition("/")[2]))
        self.bodies.append(body)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def test_labels_annotations_and_owners_of_others_outlive_a_change_of_leader() -> None:
    """A chart knows its Lease by them; without them an upgrade took it for another client's and deleted it."""
    given = lease_object("18")
    others: dict[str, Any] = {
        "labels": {"app.kubernetes.io/managed-by": "Helm"},
        "annotations": {"meta.helm.sh/release-name": "evenq"},
        "ownerReferences": [{"kind": "Deployment", "name": "evenq", "uid": "u", "apiVersion": "apps/v1"}],
    }
    given["metadata"] |= {**others, "managedFields": [{}], "uid": "x"}
    api: Any = FakeApi(given)
    lease = KubernetesLease(api, "evenq")
    await lease.read()
    await lease.write(RECORD, "18")
    assert api.bodies[-1]["metadata"] == {**others, "name": "evenq", "namespace": "shop", "resourceVersion": "18"}
    await lease.write(RECORD, "19")  # a renewal, without another look
    assert api.bodies[-1]["metadata"]["labels"] == others["labels"]
    api.answer = lease_object("1")
    await lease.write(RECORD, "")  # made anew after a client deleted it
    await lease.write(RECORD, "1")
    assert "labels" not in api.bodies[-1]["metadata"]


async def test_conflicts_are_lost_races_and_other_trouble_is_raised() -> None:
    api: Any = FakeApi(lease_object("18"))
    lease = KubernetesLease(api, "evenq")
    assert await lease.write(RECORD, "") == "18"
    assert await lease.write(RECORD, "17") == "18"
    seen = await lease.read()
    assert seen is not None
    assert seen.version == "18"
    assert api.calls == [("POST", "leases"), ("PUT", "evenq"), ("GET", "evenq")]
    api.answer = NotFound("no")
    assert await lease.read() is None
    for error in (PreconditionFailed("409"), NotFound("404")):
        api.answer = error
        assert await lease.write(RECORD, "17") is None
    api.answer = ConnectionFailed("x")
    with pytest.raises(ConnectionFailed):
        await lease.read()
    with pytest.raises(ConnectionFailed):
        await lease.write(RECORD, "17")
