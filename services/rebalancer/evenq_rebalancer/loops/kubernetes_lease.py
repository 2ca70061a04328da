"""A lease in a `coordination.k8s.io/v1` Lease object in the namespace of the pod.

The compare-and-set compares `resourceVersion`; a conflict is a lost race. `acquireTime` holds the epoch of the holder,
to the millisecond. Metadata written by others is kept (`evenq.serving.kubernetes.leases`). A worker thread makes the
calls.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from evenq.serving.kubernetes.api import KubernetesApi, Object
from evenq.serving.kubernetes.leases import LeaseObject, micro_time, version_of
from evenq_rebalancer.core.election import Record, SeenRecord

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class KubernetesLease:
    """Compare-and-set record in a Lease object."""

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
