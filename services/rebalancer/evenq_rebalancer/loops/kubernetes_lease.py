"""A lease that is a `coordination.k8s.io/v1` Lease in the namespace of the pod.

`resourceVersion` is what a compare-and-set compares; a conflict is a lost race. The holder's epoch stands in
`acquireTime`, to the millisecond. What others wrote into the object's metadata is kept
(`evenq.serving.kubernetes.leases`). The calls run in a worker thread.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from evenq.serving.kubernetes.api import KubernetesApi, Object
from evenq.serving.kubernetes.leases import LeaseObject, version_of
from evenq_rebalancer.core.election import Record, SeenRecord

__all__ = ["KubernetesLease", "lease_spec", "record_of"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class KubernetesLease:
    """See the module."""

    def __init__(self, api: KubernetesApi, name: str) -> None:
        self._object = LeaseObject(api, name)

    async def read(self) -> SeenRecord | None:
        """What the Lease says. Raises Forbidden, ConnectionFailed."""
        lease = await asyncio.to_thread(self._object.read)
        return None if lease is None else SeenRecord(record=record_of(lease), version=version_of(lease))

    async def write(self, record: Record, version: str) -> str | None:
        """Create or update it. Raises Forbidden, ConnectionFailed."""
        lease = await asyncio.to_thread(self._object.write, lease_spec(record), version)
        return None if lease is None else version_of(lease)


def lease_spec(record: Record) -> Object:
    """The `spec` of a record."""
    now = datetime.now(UTC)  # for people who look at it; we do not read it
    return {
        "holderIdentity": record.holder,
        "leaseDurationSeconds": max(1, -(-record.duration_ms // 1000)),
        "acquireTime": _time(_EPOCH + timedelta(milliseconds=record.began_ms)),
        "renewTime": _time(now),
    }


def record_of(lease: Object) -> Record:
    """The record in an API object; what is missing is 0 or empty."""
    spec: Any = lease.get("spec") or {}
    seconds = spec.get("leaseDurationSeconds")
    return Record(
        holder=str(spec.get("holderIdentity") or ""),
        duration_ms=1000 * seconds if isinstance(seconds, int) and 0 < seconds < 1 << 20 else 0,
        began_ms=_ms(spec.get("acquireTime")),
    )


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _ms(text: object) -> int:
    if not isinstance(text, str):
        return 0
    try:
        return max(0, (datetime.fromisoformat(text) - _EPOCH) // timedelta(milliseconds=1))
    except (ValueError, TypeError):
        return 0
