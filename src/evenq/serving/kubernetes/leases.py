"""One Lease object of Kubernetes (`coordination.k8s.io/v1`) that several processes read and compare-and-set.

Under the rebalancer's leadership and the broker's group record, which decide what stands in it. `resourceVersion` is
what a compare-and-set compares. Labels, annotations, owners and finalizers that others gave the object are kept: by
them a chart knows it for its own. Needs get, create and update of leases, and watch for `watched`; without create the
object must be there already. Blocks: called from worker threads, by one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from evenq.errors import Forbidden, NotFound, PreconditionFailed
from evenq.serving.kubernetes.api import KubernetesApi, Object, WatchStop

__all__ = ["LeaseObject", "version_of"]

KEPT = ("labels", "annotations", "ownerReferences", "finalizers")


class LeaseObject:
    """See the module."""

    def __init__(self, api: KubernetesApi, name: str) -> None:
        self._api = api
        self._name = name
        self._metadata: Object = {}
        """Of the object as it was seen last: what is not ours to change."""

    @property
    def name(self) -> str:
        """As messages name it: `namespace/name`."""
        return f"{self._api.namespace}/{self._name}"

    def read(self) -> Object | None:
        """The object as the API has it now; None: there is none. Raises Forbidden, ConnectionFailed, SettingsError."""
        try:
            return self._seen(self._api.call("GET", f"{self._path()}/{self._name}"))
        except NotFound:
            return None

    def write(self, spec: Object, version: str, *, annotations: Mapping[str, str] | None = None) -> Object | None:
        """Update the object if it still has `version`, or create it (`version` empty) if there is none. The object as
        written; None: another candidate was faster, or deleted it. Raises as `read`.
        """
        metadata: Object = dict(self._metadata) if version else {}
        metadata |= {"name": self._name, "namespace": self._api.namespace}
        if annotations:
            metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        try:
            if version:
                # The API refuses the write if the object has another version by now: a compare-and-set without a lock.
                metadata["resourceVersion"] = version
                return self._seen(self._api.call("PUT", f"{self._path()}/{self._name}", body))
            return self._seen(self._api.call("POST", self._path(), body))
        except (PreconditionFailed, NotFound):
            return None
        except Forbidden:
            # Kubernetes asks who updates an object that is gone for the right to create it, which not all have.
            if version and self.read() is None:
                return None
            raise

    def watched(self, version: str, *, limit_s: int, stop: WatchStop) -> Iterator[tuple[str, Object]]:
        """As `KubernetesApi.watched`, of this object."""
        return self._api.watched(self._path(), version, name=self._name, limit_s=limit_s, stop=stop)

    def _path(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self._api.namespace}/leases"

    def _seen(self, lease: Object) -> Object:
        metadata = lease.get("metadata") or {}
        self._metadata = {key: metadata[key] for key in KEPT if metadata.get(key)}
        return lease


def version_of(lease: Object) -> str:
    """Its `resourceVersion`."""
    return str((lease.get("metadata") or {}).get("resourceVersion") or "")
