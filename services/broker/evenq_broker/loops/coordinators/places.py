"""Coordinators for the place of the group record in the settings."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

from evenq.errors import SettingsError
from evenq.runtime.clock import Clock
from evenq.runtime.net import Net
from evenq.runtime.private_files import read_secret
from evenq.serving.kubernetes.api import KubernetesApi
from evenq.wire.tls import Tls
from evenq_broker.loops.coordinators.coordinator import Coordinator
from evenq_broker.loops.coordinators.epoch_mark import EpochMark
from evenq_broker.loops.coordinators.etcd import EtcdStore, EtcdUser, endpoints_of, etcd_net
from evenq_broker.loops.coordinators.file import FileCoordinator
from evenq_broker.loops.coordinators.lease import LeaseStore
from evenq_broker.loops.coordinators.remote import RemoteCoordinator, RemoteTiming
from evenq_broker.settings import ReplicationSettings

SECRET_BYTES_MAX = 4 << 10

ETCD = re.compile(r"(?P<endpoints>(?:https?://)?[^/,]+(?:,(?:https?://)?[^/,]+)*)/(?P<key>.+)")
MARK = "group-record"
"""File in the data folder with the highest epoch that this broker saw in the record."""


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """A coordinator and the connection to close with it."""

    coordinator: Coordinator
    net: Net | None = None

    async def close(self) -> None:
        """Idempotent."""
        if self.net is not None:
            await self.net.close()


def record_place(settings: ReplicationSettings, folder: Path, *, clock: Clock, rng: random.Random) -> RecordPlace:
    """Returns the coordinator that the settings name; `folder`: this broker's data. Raises SettingsError."""
    kind, _, place = settings.record.partition(":")
    if not place:
        raise SettingsError(f"replication.record = {settings.record!r} has no place: write {kind}: and the place")
    mark = folder / MARK
    if kind == "file":
        return RecordPlace(FileCoordinator(Path(place), mark_path=mark, clock=clock))
    if kind == "lease":
        store = LeaseStore(KubernetesApi(), place, clock=clock)
        return RecordPlace(RemoteCoordinator(store, mark=EpochMark(mark), clock=clock, rng=rng, timing=RemoteTiming()))
    parts = ETCD.fullmatch(place)
    if parts is None:
        raise SettingsError(
            f"replication.record = {settings.record!r} has no key: write etcd:host:port/KEY, as in "
            "etcd:127.0.0.1:2379/evenq/broker-a"
        )
    net = etcd_net(tls=None if settings.etcd_ca is None else Tls(ca=settings.etcd_ca))
    etcd = EtcdStore(net, endpoints_of(parts["endpoints"]), parts["key"], user=_user(settings))
    remote = RemoteCoordinator(etcd, mark=EpochMark(mark), clock=clock, rng=rng, timing=RemoteTiming())
    return RecordPlace(remote, net)


def forget_record(folder: Path) -> None:
    """Removes the mark of data that belongs to no group: it is not valid for the next record. Raises OSError."""
    (folder / MARK).unlink(missing_ok=True)


def _user(settings: ReplicationSettings) -> EtcdUser | None:
    if not settings.etcd_user:
        return None
    path = settings.etcd_password
    try:
        password = "" if path is None else read_secret(path, bytes_max=SECRET_BYTES_MAX).decode().strip()
    except OSError as error:
        raise SettingsError(f"replication.etcd_password: {path} cannot be read ({error.strerror})") from error
    return EtcdUser(settings.etcd_user, password)
