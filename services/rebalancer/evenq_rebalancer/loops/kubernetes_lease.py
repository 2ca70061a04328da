"""A lease that is a `coordination.k8s.io/v1` Lease in the namespace of the pod.

`resourceVersion` is what a compare-and-set compares; a conflict is a lost race. The holder's epoch stands in
`acquireTime`, to the millisecond. Labels, annotations and owners that others gave the object are kept: by them a chart
knows it for its own. Needs get, create and update of leases; the calls run in a worker thread.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from evenq.errors import NotFound, PreconditionFailed
from evenq_rebalancer.core.election import Record, Seen
from evenq_rebalancer.loops.kubernetes_api import KubernetesApi, Object

__all__ = ["KubernetesLease", "lease_object", "record_of"]

KEPT = ("labels", "annotations", "ownerReferences", "finalizers")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class KubernetesLease:
    """See the module."""

    def __init__(self, api: KubernetesApi, name: str) -> None:
        self._api = api
        self._name = name
        self._metadata: Object = {}
        """Of the object as it was seen last: what is not ours to change."""

    async def read(self) -> Seen | None:
        """What the Lease says. Raises Forbidden, ConnectionFailed."""
        return await asyncio.to_thread(self._read)

    async def write(self, record: Record, version: str) -> str | None:
        """Create or update it. Raises Forbidden, ConnectionFailed."""
        return await asyncio.to_thread(self._write, record, version)

    def _path(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self._api.namespace}/leases"

    def _read(self) -> Seen | None:
        try:
            told = self._api.call("GET", f"{self._path()}/{self._name}")
        except NotFound:
            return None
        return Seen(record=record_of(told), version=self._seen(told))

    def _write(self, record: Record, version: str) -> str | None:
        body = lease_object(self._name, self._api.namespace, record, version)
        try:
            if version:
                body["metadata"] = {**self._metadata, **body["metadata"]}
                return self._seen(self._api.call("PUT", f"{self._path()}/{self._name}", body))
            return self._seen(self._api.call("POST", self._path(), body))
        except (PreconditionFailed, NotFound):  # somebody was faster, or deleted it
            return None

    def _seen(self, told: Object) -> str:
        metadata = told.get("metadata") or {}
        self._metadata = {key: metadata[key] for key in KEPT if metadata.get(key)}
        return str(metadata.get("resourceVersion") or "")


def lease_object(name: str, namespace: str, record: Record, version: str) -> Object:
    """The API object of a record."""
    metadata = {"name": name, "namespace": namespace}
    if version:
        metadata["resourceVersion"] = version
    now = datetime.now(UTC)  # for people who look at it; nobody of us reads it
    spec = {
        "holderIdentity": record.holder,
        "leaseDurationSeconds": max(1, -(-record.duration_ms // 1000)),
        "acquireTime": _time(_EPOCH + timedelta(milliseconds=record.began_ms)),
        "renewTime": _time(now),
    }
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def record_of(told: Object) -> Record:
    """The record in an API object; what is missing is 0 or empty."""
    spec: Any = told.get("spec") or {}
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
