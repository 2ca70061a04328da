"""The group record in a Lease of a real kube-apiserver on a real etcd, without the rest of a cluster: conflicts, the
rights that brokers are to have, a watch that is too old, and a server that is paused, killed and started again.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.waiting import until

pytest.importorskip("kubernetes")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from evenq_broker.core.replication.record import Pair, Seen, first_record
from evenq_broker.loops.coordinators.coordinator import CoordinatorUnknown, RecordWentBack
from evenq_broker.loops.coordinators.epoch_mark import EpochMark
from evenq_broker.loops.coordinators.lease import ANNOTATION, LeaseStore
from evenq_broker.loops.coordinators.remote import RemoteCoordinator, RemoteTiming
from evenq_proofs.cluster_binaries import BUILD_SECONDS, Program, program_path
from evenq_proofs.etcd import Etcd

from evenq.runtime.clock import SystemClock
from evenq.serving.kubernetes.api import Expired, KubernetesApi, Object, WatchStop
from evenq.testing.free_ports import FreePorts

# slow: a real API server that is killed and paused; the unit tests of leases play the same with one that answers as the test sets
pytestmark = [pytest.mark.slow, pytest.mark.timeout(BUILD_SECONDS + 300)]
FIRST = first_record(Pair(0, "0" * 32), members=(0, 1, 2), min_isr=2)
TIMING = RemoteTiming(total_ms=8_000, silence_ms=3_000, retry_ms_max=500)
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
USERS = "admin-token,admin,1,system:masters\nbroker-token,broker,2\n"


class ApiServer:
    """One kube-apiserver with its etcd."""

    def __init__(self, folder: Path, etcd: Etcd, port: int) -> None:
        key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
        (folder / "sa.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        (folder / "users.csv").write_text(USERS)
        self.url = f"https://127.0.0.1:{port}"
        self.folder = folder
        self.program = Program(
            [
                *(program_path("kube-apiserver"), "--etcd-servers", etcd.endpoints, "--secure-port", str(port)),
                *("--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1", "--cert-dir", str(folder)),
                *("--service-account-issuer", "https://here", "--service-account-key-file", str(folder / "sa.key")),
                *("--service-account-signing-key-file", str(folder / "sa.key")),
                *("--token-auth-file", str(folder / "users.csv"), "--authorization-mode", "RBAC"),
                *("--service-cluster-ip-range", "10.0.0.0/24", "--endpoint-reconciler-type", "none"),
            ],
            log_path=folder / "api.log",
            environment={"GOMAXPROCS": "2"},
        )

    def start(self) -> None:
        """Until it answers."""
        self.program.start()
        until(self._ready, f"the API server: {self.program.log_path}", seconds=240)

    def _ready(self) -> bool:
        assert self.program.running, self.program.log()
        try:
            self.call("GET", "/api/v1/namespaces/default")
        except OSError:
            return False
        return True

    def call(self, verb: str, path: str, body: Object | None = None) -> Any:
        """As the administrator."""
        context = ssl._create_unverified_context()
        headers = {"Authorization": "Bearer admin-token", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=verb)
        with urllib.request.urlopen(request, timeout=60, context=context) as response:
            return json.load(response)

    def kubeconfig(self, token: str) -> str:
        """A file for the user with the token; the server's certificate was made by itself at its start."""
        cluster = {"server": self.url, "certificate-authority": str(self.folder / "apiserver.crt")}
        path = self.folder / f"config-{token}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
        }
        path.write_text(json.dumps(config))
        return str(path)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    folder = tmp_path_factory.mktemp("api")
    with FreePorts() as ports, Etcd(folder / "etcd") as etcd:
        one = ApiServer(folder, etcd, ports.take())
        try:
            one.start()
            yield one
        finally:
            one.program.kill()


@pytest.fixture
def as_broker(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """KubernetesApi() is the broker, who has rights for one Lease that a chart made."""
    config = server.kubeconfig("broker-token")
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", config)


def given(server: ApiServer, name: str) -> str:
    """The Lease as a chart makes it, and the rights that brokers need for it."""
    roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
    rule = {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": [name],
        "verbs": ["get", "watch", "update"],
    }
    subject = {"kind": "User", "name": "broker", "apiGroup": "rbac.authorization.k8s.io"}
    role = {"kind": "Role", "name": name, "apiGroup": "rbac.authorization.k8s.io"}
    server.call("POST", f"{roles}/roles", {"metadata": {"name": name}, "rules": [rule]})
    binding = {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
    server.call("POST", f"{roles}/rolebindings", binding)
    server.call("POST", LEASES, {"metadata": {"name": name, "labels": {"made-by": "chart"}}, "spec": {}})
    return name


def on(name: str, folder: Path, *, broker: str = "a") -> RemoteCoordinator:
    store = LeaseStore(KubernetesApi("default"), name, clock=SystemClock())
    mark = EpochMark(folder / f"mark-{broker}")
    return RemoteCoordinator(store, mark=mark, clock=SystemClock(), rng=random.Random(broker), timing=TIMING)


async def reached(coordinator: RemoteCoordinator) -> Seen | None:
    """A read, once the server answers (again)."""
    end = time.monotonic() + 120
    while True:
        try:
            return await coordinator.read()
        except CoordinatorUnknown:
            if time.monotonic() >= end:
                raise
            await asyncio.sleep(0.2)


@pytest.mark.usefixtures("as_broker")
async def test_brokers_share_a_record_with_rights_for_one_lease(server: ApiServer, tmp_path: Path) -> None:
    name = given(server, "shared")
    a, b = on(name, tmp_path), on(name, tmp_path, broker="b")
    assert await reached(a) is None
    seen = await a.compare_and_set(None, FIRST)
    assert seen is not None
    assert await b.compare_and_set(None, FIRST) is None
    watch = b.watch()
    assert await anext(watch) == seen
    again = await b.compare_and_set(seen, FIRST)
    assert again is not None
    assert again.token != seen.token, "the same record once more is another version of the object"
    won = await a.compare_and_set(seen, FIRST.elected(0))
    assert won is not None, "and still the record that was expected"
    assert await b.compare_and_set(again, FIRST.elected(0)) is None
    while (response := await asyncio.wait_for(anext(watch), 60)) != won:
        assert response == again
    await watch.aclose()
    lease = await asyncio.to_thread(server.call, "GET", f"{LEASES}/{name}")
    assert lease["metadata"]["labels"] == {"made-by": "chart"}
    assert lease["spec"]["holderIdentity"] == "broker 0"
    with pytest.raises(CoordinatorUnknown, match=r"Kubernetes forbids .* give the service account a role"):
        await on("another", tmp_path, broker="c").read()


@pytest.mark.usefixtures("as_broker")
async def test_a_place_that_is_too_old_is_told_apart_and_a_watch_begins_again(
    server: ApiServer, tmp_path: Path
) -> None:
    name = given(server, "old")
    a = on(name, tmp_path)
    await reached(a)
    await asyncio.to_thread(server.program.kill)
    await asyncio.to_thread(server.start)  # what was before its start it cannot tell in a watch
    await reached(a)
    api, stop = KubernetesApi("default"), WatchStop()
    with pytest.raises(Expired):
        await asyncio.to_thread(lambda: list(api.watched(LEASES, "1", name=name, limit_s=5, stop=stop)))
    seen = await a.compare_and_set(None, FIRST)
    changes = LeaseStore(api, name, clock=SystemClock()).changes("1")
    stored = await asyncio.wait_for(anext(changes), 60)
    assert stored is not None
    assert stored.seen == seen
    await changes.aclose()


@pytest.mark.usefixtures("as_broker")
@pytest.mark.parametrize("how", ["paused", "killed"])
async def test_a_watch_and_writes_go_on_after_the_server_was_away(server: ApiServer, tmp_path: Path, how: str) -> None:
    name = given(server, f"away-{how}")
    a, b = on(name, tmp_path), on(name, tmp_path, broker="b")
    await reached(a)
    seen = await a.compare_and_set(None, FIRST)
    assert seen is not None
    watch = b.watch()
    assert await anext(watch) == seen
    server.program.pause() if how == "paused" else server.program.kill()
    try:
        began = time.monotonic()
        said = f"the group record Lease default/{name} cannot be"
        with pytest.raises(CoordinatorUnknown, match=f"{said} written"):
            await a.compare_and_set(seen, FIRST.elected(0))
        with pytest.raises(CoordinatorUnknown, match=f"{said} read"):
            await a.read()
        assert time.monotonic() - began < 60, "each call is bounded"
    finally:
        if how == "paused":
            server.program.resume()
        else:
            await asyncio.to_thread(server.start)
    last: Seen | None = None
    tries = 0
    while last is None:  # the write that was not known may land behind the read
        now = await reached(a)
        assert now is not None
        assert now.record in {FIRST, FIRST.elected(0)}, "unknown means either"
        last = await a.compare_and_set(now, now.record.renewed())
        tries += 1
        assert tries <= 10, "it was written a few times at most"
    end = time.monotonic() + 60
    response: Seen | None = None
    while response != last:
        assert time.monotonic() < end
        try:
            response = await asyncio.wait_for(anext(watch), 60)
        except (CoordinatorUnknown, StopAsyncIteration):
            watch = b.watch()  # as its callers do
    await watch.aclose()


@pytest.mark.usefixtures("as_broker")
async def test_a_lease_that_was_restored_from_a_backup_is_refused(server: ApiServer, tmp_path: Path) -> None:
    name = given(server, "backup")
    a = on(name, tmp_path)
    await reached(a)
    first = await a.compare_and_set(None, FIRST)
    backup = await asyncio.to_thread(server.call, "GET", f"{LEASES}/{name}")
    await a.compare_and_set(first, FIRST.elected(0))
    now = await asyncio.to_thread(server.call, "GET", f"{LEASES}/{name}")
    now["metadata"]["annotations"][ANNOTATION] = backup["metadata"]["annotations"][ANNOTATION]
    await asyncio.to_thread(server.call, "PUT", f"{LEASES}/{name}", now)
    for one in (a, on(name, tmp_path)):
        with pytest.raises(RecordWentBack, match="epochs never decrease"):
            await one.read()
