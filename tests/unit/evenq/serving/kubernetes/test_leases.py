"""A Lease object that is compared and set, against an API server of our own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("kubernetes")

from evenq_proofs.lease_api import LeaseApi

from evenq.errors import ConnectionFailed, Forbidden
from evenq.serving.kubernetes.api import KubernetesApi, WatchStop
from evenq.serving.kubernetes.leases import LeaseObject, version_of


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LeaseApi]:
    with LeaseApi() as api:
        config = str(api.kubeconfig(tmp_path))
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", config)
        yield api


def test_of_two_writers_one_wins_and_what_is_deleted_is_lost(api: LeaseApi) -> None:
    a, b = LeaseObject(KubernetesApi(), "l"), LeaseObject(KubernetesApi(), "l")
    assert a.name == "default/l"
    assert a.read() is None
    made = a.write({"n": 1}, "")
    assert made is not None
    assert b.write({"n": 2}, "") is None
    changed = b.write({"n": 2}, version_of(made), annotations={"k": "v"})
    assert changed is not None
    assert a.write({"n": 3}, version_of(made)) is None
    api.put("/apis/coordination.k8s.io/v1/namespaces/default/leases/l", changed, "DELETED")
    assert a.write({"n": 3}, version_of(changed)) is None


def test_what_others_wrote_into_the_metadata_is_kept(api: LeaseApi) -> None:
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l"
    owners = [{"kind": "StatefulSet", "name": "b"}]
    given = {"name": "l", "labels": {"a": "b"}, "annotations": {"theirs": "1"}, "ownerReferences": owners, "uid": "u"}
    api.put(path, {"metadata": given}, "ADDED")
    lease = LeaseObject(KubernetesApi(), "l")
    seen = lease.read()
    assert seen is not None
    lease.write({}, version_of(seen), annotations={"ours": "2"})
    metadata = api.leases[path]["metadata"]
    assert metadata["labels"] == {"a": "b"}
    assert metadata["annotations"] == {"theirs": "1", "ours": "2"}
    assert metadata["ownerReferences"] == owners
    assert "uid" not in metadata


def test_an_object_that_is_gone_is_lost_also_to_who_may_not_create_it(api: LeaseApi) -> None:
    """Kubernetes answers an update of it with 403 then, as if a right were missing."""
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l"
    lease = LeaseObject(KubernetesApi(), "l")
    made = lease.write({"n": 1}, "")
    assert made is not None
    api.status_of["PUT"] = 403
    with pytest.raises(Forbidden):
        lease.write({"n": 2}, version_of(made))
    api.put(path, made, "DELETED")
    assert lease.write({"n": 2}, version_of(made)) is None


def test_a_stop_ends_a_watch_that_waits(api: LeaseApi) -> None:
    lease, stop = LeaseObject(KubernetesApi(), "l"), WatchStop()
    made = lease.write({}, "")
    assert made is not None
    watch = lease.watched("", limit_s=60, stop=stop)
    kind, entry = next(watch)
    assert (kind, version_of(entry)) == ("ADDED", version_of(made))
    stop.set()
    try:
        assert list(watch) == []
    except ConnectionFailed as error:
        assert "broke" in error.message  # noqa: PT017 - either is an end
