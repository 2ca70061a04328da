"""Between a record and the Lease object of Kubernetes, and what each answer of the API means."""

from __future__ import annotations

from typing import Any

import pytest
from evenq_rebalancer.core.election import Record
from evenq_rebalancer.loops.kubernetes_lease import KubernetesLease, lease_spec, record_of

from evenq.errors import ConnectionFailed, NotFound, PreconditionFailed

RECORD = Record(holder="10.0.0.5:8083_ab", duration_ms=6_500, began_ms=1_795_289_759_000)


def lease_of(version: str) -> dict[str, Any]:
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
    given = lease_of("18")
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
    api.answer = lease_of("1")
    await lease.write(RECORD, "")  # made anew after a client deleted it
    await lease.write(RECORD, "1")
    assert "labels" not in api.bodies[-1]["metadata"]


async def test_conflicts_are_lost_races_and_other_trouble_is_raised() -> None:
    api: Any = FakeApi(lease_of("18"))
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
