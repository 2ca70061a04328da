"""The lease of the setting `lease`: none, a file, or a Kubernetes object."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from evenq.errors import PersistenceTimeout, SettingsError
from evenq.model.route import WILDCARDS
from evenq.runtime.clock import Clock, SystemClock
from evenq.runtime.lock_file import HOW_TO_FREE, LockHeld, run_locked
from evenq.runtime.private_files import replace_file
from evenq.serving.kubernetes.api import KubernetesApi, Object
from evenq.serving.kubernetes.leases import LeaseObject, micro_time, version_of
from evenq_rebalancer.core.election import Record, SeenRecord
from evenq_rebalancer.loops.leading import Lease
from evenq_rebalancer.settings import RebalancerSettings

BYTES_MAX = 4_096
LOCK_WAIT_MS = 2_000


def lease_of(settings: RebalancerSettings) -> Lease | None:
    """Returns the lease of the settings; None: the only rebalancer. Raises SettingsError without a usable address."""
    kind, _, name = settings.lease.partition(":")
    if kind == "none":
        return None
    if not settings.advertise and settings.host in WILDCARDS:
        raise SettingsError(
            f"lease = {settings.lease!r} with host = {settings.host!r}: brokers need an address of "
            "this rebalancer; set advertise to its host:port"
        )
    if kind == "file":
        return FileLease(Path(name))
    return KubernetesLease(KubernetesApi(settings.kubernetes_namespace), name)


class FileLease:
    """A lease in a file, for several rebalancers on one machine (quick start, tests).

    The file holds one JSON object. A rename replaces it under an exclusive lock of the file beside it, so a
    compare-and-set is atomic for all processes. Its text is its version, because a counter in it grows with each write.
    Unreadable content counts as held by an unknown holder. Worker threads access the disk, and wait `LOCK_WAIT_MS` for
    the lock at most.
    """

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        self._path = path
        self._clock = clock or SystemClock()
        self._lock = path.with_name(path.name + ".lock")

    async def read(self) -> SeenRecord | None:
        """Returns the record in the file. Raises PersistenceTimeout if the file cannot be read."""
        return await asyncio.to_thread(self._read)

    async def write(self, record: Record, version: str) -> str | None:
        """Replaces the text if it is `version`. Raises PersistenceTimeout, also if a stopped process has the lock."""
        change = partial(self._write, record, version)
        try:
            return await run_locked(self._lock, change, clock=self._clock, wait_ms=LOCK_WAIT_MS)
        except LockHeld as held:
            raise PersistenceTimeout(
                f"the lease {self._path} cannot be written: {held} has had the lock {self._lock} for {LOCK_WAIT_MS} "
                f"ms; {HOW_TO_FREE}"
            ) from held
        except OSError as error:
            raise self._failed("written", error) from error

    def _read(self) -> SeenRecord | None:
        try:
            text = self._text()
        except OSError as error:
            raise self._failed("read", error) from error
        return SeenRecord(record=_record(text), version=text) if text else None

    def _write(self, record: Record, version: str) -> str | None:
        before = self._text()
        if before != version:
            return None
        text = _text(record, writes=_writes(before) + 1)
        replace_file(self._path, text, durable=False)  # a power loss leaves no holder
        return text

    def _text(self) -> str:
        try:
            with self._path.open("rb") as file:
                return file.read(BYTES_MAX).decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def _failed(self, done: str, error: OSError) -> PersistenceTimeout:
        return PersistenceTimeout(
            f"the lease {self._path} cannot be {done}: {error.strerror or error}; put it into a folder that all "
            "rebalancers of the machine may write"
        )


def _text(record: Record, *, writes: int) -> str:
    fields = {"holder": record.holder, "duration_ms": record.duration_ms, "began_ms": record.began_ms, "writes": writes}
    return json.dumps(fields) + "\n"


def _fields(text: str) -> dict[str, object]:
    try:
        fields = json.loads(text)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _writes(text: str) -> int:
    return _number(_fields(text).get("writes"))


def _record(text: str) -> Record:
    fields = _fields(text)
    holder = fields.get("holder")
    return Record(
        holder=holder if isinstance(holder, str) else "?",
        duration_ms=_number(fields.get("duration_ms")),
        began_ms=_number(fields.get("began_ms")),
    )


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else 0


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class KubernetesLease:
    """Compare-and-set record in a `coordination.k8s.io/v1` Lease object in the namespace of the pod.

    The compare-and-set compares `resourceVersion`; a conflict is a lost race. `acquireTime` holds the epoch of the
    holder, to the millisecond. Metadata written by others is kept (`evenq.serving.kubernetes.leases`). A worker thread
    makes the calls.
    """

    def __init__(self, api: KubernetesApi, name: str) -> None:
        self._object = LeaseObject(api, name)

    async def read(self) -> SeenRecord | None:
        """Returns the record in the Lease. Raises Forbidden, ConnectionFailed."""
        lease = await asyncio.to_thread(self._object.read)
        return None if lease is None else SeenRecord(record=record_of(lease), version=version_of(lease))

    async def write(self, record: Record, version: str) -> str | None:
        """Creates or updates the Lease. Raises Forbidden, ConnectionFailed."""
        lease = await asyncio.to_thread(self._object.write, lease_spec(record), version)
        return None if lease is None else version_of(lease)


def lease_spec(record: Record) -> Object:
    """Returns the `spec` of a record."""
    return {
        "holderIdentity": record.holder,
        "leaseDurationSeconds": max(1, -(-record.duration_ms // 1000)),
        "acquireTime": micro_time(_EPOCH + timedelta(milliseconds=record.began_ms)),
        "renewTime": micro_time(datetime.now(UTC)),  # for people only, never read
    }


def record_of(lease: Object) -> Record:
    """Returns the record in an API object; missing fields are 0 or empty."""
    spec: Any = lease.get("spec") or {}
    seconds = spec.get("leaseDurationSeconds")
    return Record(
        holder=str(spec.get("holderIdentity") or ""),
        duration_ms=1000 * seconds if isinstance(seconds, int) and 0 < seconds < 1 << 20 else 0,
        began_ms=_ms(spec.get("acquireTime")),
    )


def _ms(text: object) -> int:
    if not isinstance(text, str):
        return 0
    try:
        return max(0, (datetime.fromisoformat(text) - _EPOCH) // timedelta(milliseconds=1))
    except (ValueError, TypeError):
        return 0
