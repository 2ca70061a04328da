"""The Kubernetes watch: passes pods of the namespace and nodes to `core/topology.py`.

Two daemon threads, for pods and for nodes, list and then watch; they list again when the watch is too far behind (410).
Each event goes to the loop, which alone owns the `Topology`. Without permission (RBAC) or Kubernetes one warning of
each kind is logged, zones stay as they are, and the threads try again every `FORBIDDEN_RETRY_S` or `RETRY_S`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

from evenq.errors import Error, Forbidden
from evenq.runtime.clock import Clock
from evenq.serving.kubernetes.api import Expired, KubernetesApi, Object
from evenq_rebalancer.core.places import MemberPlace
from evenq_rebalancer.core.topology import Topology, node_of, pod_of
from evenq_rebalancer.settings import RebalancerSettings

log = logging.getLogger(__name__)

RETRY_S = 2.0
FORBIDDEN_RETRY_S = 60.0
Changed = Callable[[frozenset[str] | None], None]
"""Called on the loop with the addresses whose zone or place may have changed; None: any."""


def topology_of(settings: RebalancerSettings, *, clock: Clock, changed: Changed) -> TopologyWatch | None:
    """Returns the watch of the setting `topology`; None: no watch."""
    if settings.topology == "none":
        return None
    return TopologyWatch(KubernetesApi(settings.kubernetes_namespace), clock=clock, changed=changed)


class TopologyWatch:
    """Watch of pods and nodes. Only `_follow` and the methods below it run in threads."""

    def __init__(self, api: KubernetesApi, *, clock: Clock, changed: Changed) -> None:
        self._api = api
        self._clock = clock
        self._changed = changed
        self._topology = Topology()
        self._stopped = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.zone_of: Callable[[str], str] = self._topology.zone_of
        """Returns the zone of an address; empty: unknown."""
        self.place_of: Callable[[str], MemberPlace | None] = self._topology.place_of
        """Returns the place of an address; None: unknown."""

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        for kind in ("pods", "nodes"):
            # Daemons: a watch may block in a read for minutes, and the process must end without waiting for it.
            threading.Thread(target=self._follow, args=(kind,), name=f"watch {kind}", daemon=True).start()

    def stop(self) -> None:
        """Stops passing events."""
        self._stopped.set()

    # --- in the threads

    def _follow(self, kind: str) -> None:
        logged: set[type[Error]] = set()  # failures since the last list, each once
        while not self._stopped.is_set():
            try:
                objects, version = self._api.listed(self._path(kind))
                self._hand_over(self._listed, kind, objects)
                if logged:
                    log.info("watching %s in Kubernetes again", kind, extra={"watched": kind})
                logged.clear()
                while not self._stopped.is_set():
                    version = self._watch(kind, version)
            except Expired:
                continue
            except Error as error:
                if type(error) not in logged:
                    logged.add(type(error))
                    log.warning(
                        "%s in Kubernetes cannot be watched, zones and places of members stay as they are: %s",
                        kind,
                        error.message,
                        extra={"watched": kind, "error": error.message},
                    )
                self._stopped.wait(FORBIDDEN_RETRY_S if isinstance(error, Forbidden) else RETRY_S)

    def _watch(self, kind: str, version: str) -> str:
        for change, entry in self._api.watched(self._path(kind), version):
            version = str((entry.get("metadata") or {}).get("resourceVersion") or version)
            if self._stopped.is_set():
                break
            if change != "BOOKMARK":
                self._hand_over(self._apply, kind, change, entry)
        return version

    def _path(self, kind: str) -> str:
        return "/api/v1/nodes" if kind == "nodes" else f"/api/v1/namespaces/{self._api.namespace}/pods"

    def _hand_over(self, callback: Callable[..., None], *arguments: Any) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop is closed: the process ends
            self._stopped.set()

    # --- on the loop

    def _listed(self, kind: str, objects: list[Object]) -> None:
        if self._stopped.is_set():
            return
        now_ms = self._clock.monotonic_ms()
        if kind == "nodes":
            changed = self._topology.nodes_listed(dict(node_of(entry) for entry in objects))
        else:
            pods = [pod for entry in objects if (pod := pod_of(entry)) is not None]
            changed = self._topology.pods_listed(pods, now_ms)
        log.info("watching %d %s in Kubernetes", len(objects), kind, extra={"watched": kind, "count": len(objects)})
        self._tell(changed, now_ms)

    def _apply(self, kind: str, change: str, entry: Object) -> None:
        if self._stopped.is_set():
            return
        now_ms = self._clock.monotonic_ms()
        if kind == "nodes":
            name, zone = node_of(entry)
            gone = change == "DELETED"
            changed = self._topology.node_gone(name) if gone else self._topology.node_seen(name, zone)
        else:
            pod = pod_of(entry)
            if pod is None or change == "DELETED":
                changed = self._topology.pod_gone(str((entry.get("metadata") or {}).get("uid") or ""), now_ms)
            else:
                changed = self._topology.pod_seen(pod, now_ms)
        self._tell(changed, now_ms)

    def _tell(self, changed: frozenset[str], now_ms: int) -> None:
        self._topology.tick(now_ms)
        if changed:
            self._changed(changed)
