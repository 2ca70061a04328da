"""One Lease object of Kubernetes (`coordination.k8s.io/v1`) that several processes read and compare-and-set.

Used for the rebalancer's leadership and the broker's group record, which define its content. A compare-and-set compares
`resourceVersion`. Foreign labels, annotations, owners and finalizers are kept, because a chart recognizes its object by
them. Needs get, create and update of leases, and watch for `watched`; without create the object must exist. Blocks:
called from worker threads, by one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from evenq.errors import Forbidden, NotFound, PreconditionFailed
from evenq.serving.kubernetes.api import KubernetesApi, Object, WatchStop

KEPT = ("labels", "annotations", "ownerReferences", "finalizers")


class LeaseObject:
    def __init__(self, api: KubernetesApi, name: str) -> None:
        self._api = api
        self._name = name
        self._metadata: Object = {}  # foreign metadata of the object as last seen

    @property
    def name(self) -> str:
        """Name in messages: `namespace/name`."""
        return f"{self._api.namespace}/{self._name}"

    def read(self) -> Object | None:
        """Returns the object; None: it does not exist. Raises Forbidden, ConnectionFailed, SettingsError."""
        try:
            return self._seen(self._api.call("GET", f"{self._path()}/{self._name}"))
        except NotFound:
            return None

    def write(self, spec: Object, version: str, *, annotations: Mapping[str, str] | None = None) -> Object | None:
        """Updates the object if it still has `version`, or creates it (`version` empty) if it does not exist. Returns
        the written object; None: another process was faster, or deleted it. Raises as `read`.
        """
        metadata: Object = dict(self._metadata) if version else {}
        metadata |= {"name": self._name, "namespace": self._api.namespace}
        if annotations:
            metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        try:
            if version:
                # The API rejects the write if the object has another version by now: a compare-and-set without a lock.
                metadata["resourceVersion"] = version
                return self._seen(self._api.call("PUT", f"{self._path()}/{self._name}", body))
            return self._seen(self._api.call("POST", self._path(), body))
        except (PreconditionFailed, NotFound):
            return None
        except Forbidden:
            # For an update of a deleted object Kubernetes requires the right to create it, which may be missing.
            if version and self.read() is None:
                return None
            raise

    def watched(self, version: str, *, limit_s: int, stop: WatchStop) -> Iterator[tuple[str, Object]]:
        """Works as `KubernetesApi.watched`, for this object."""
        return self._api.watched(self._path(), version, name=self._name, limit_s=limit_s, stop=stop)

    def _path(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self._api.namespace}/leases"

    def _seen(self, lease: Object) -> Object:
        metadata = lease.get("metadata") or {}
        self._metadata = {key: metadata[key] for key in KEPT if metadata.get(key)}
        return lease


def micro_time(moment: datetime) -> str:
    """Returns a time of the spec: UTC with six digits; the API rejects others."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def version_of(lease: Object) -> str:
    return str((lease.get("metadata") or {}).get("resourceVersion") or "")
