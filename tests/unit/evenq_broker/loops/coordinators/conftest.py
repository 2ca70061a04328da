"""A real etcd and an API server of Kubernetes for the coordinators that use them, and coordinators on them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from evenq_broker.loops.coordinators.epoch_mark import EpochMark
from evenq_broker.loops.coordinators.etcd import EtcdStore, EtcdUser, endpoints_of, etcd_net
from evenq_broker.loops.coordinators.lease import LeaseStore
from evenq_broker.loops.coordinators.remote import RemoteCoordinator, RemoteTiming
from evenq_proofs.etcd import Etcd
from evenq_proofs.lease_api import LeaseApi

from evenq.runtime.clock import SystemClock
from evenq.serving.kubernetes.api import KubernetesApi
from evenq.wire.net import GrpcNet
from evenq.wire.tls import Tls

QUICK = RemoteTiming(total_ms=30_000, tries=100, silence_ms=60_000, retry_ms_max=200)
"""Patient with a busy machine."""


class Coordinators:
    """Makes the coordinator of one more broker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = f"evenq/groups/{uuid4().hex}"
        self._nets: list[GrpcNet] = []
        self._made = 0

    def on_etcd(
        self,
        endpoints: str,
        *,
        tls: Tls | None = None,
        user: EtcdUser | None = None,
        timing: RemoteTiming = QUICK,
        broker: str = "",
        wrapped: Callable[[GrpcNet], Any] = lambda net: net,
    ) -> RemoteCoordinator:
        """On a real etcd."""
        net = etcd_net(tls=tls)
        self._nets.append(net)
        return self._on(EtcdStore(wrapped(net), endpoints_of(endpoints), self.key, user=user), timing, broker)

    def on_lease(self, api: KubernetesApi, *, timing: RemoteTiming = QUICK, broker: str = "") -> RemoteCoordinator:
        """On a Lease."""
        return self._on(LeaseStore(api, self.key.rpartition("/")[2], clock=SystemClock()), timing, broker)

    def _on(self, store: EtcdStore | LeaseStore, timing: RemoteTiming, broker: str) -> RemoteCoordinator:
        self._made += 1
        mark = EpochMark(self.folder / f"mark-{broker or self._made}")
        return RemoteCoordinator(store, mark=mark, clock=SystemClock(), rng=random.Random(self._made), timing=timing)


@pytest.fixture
def coordinators(tmp_path: Path) -> Coordinators:
    return Coordinators(tmp_path)


@pytest.fixture(autouse=True)
async def _nets_are_closed(coordinators: Coordinators) -> AsyncIterator[None]:
    yield
    for net in coordinators._nets:
        await net.close()


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One member, for all tests that do it no harm; each has a key of its own."""
    with Etcd(tmp_path_factory.mktemp("etcd")) as one:
        yield one


@pytest.fixture
def lease_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LeaseApi]:
    pytest.importorskip("kubernetes")
    with LeaseApi() as api:
        config = str(api.kubeconfig(tmp_path))
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", config)
        yield api
