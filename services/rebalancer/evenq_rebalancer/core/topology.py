"""Zones and places of addresses, from the pods and nodes of Kubernetes.

`loops/topology.py` passes the objects of lists and watches, as parsed JSON; `core/places.py` looks addresses up. Memory
is bounded by `pods_max` and `nodes_max`. A removed pod is remembered for `gone_ms`, because the rebalancer looks its
place up after the member left. Each event returns the addresses whose zone or place may have changed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from evenq_rebalancer.core.places import MemberPlace

ZONE_LABEL = "topology.kubernetes.io/zone"
_OLD_ZONE_LABEL = "failure-domain.beta.kubernetes.io/zone"
Object: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """The relevant fields of a pod."""

    uid: str
    addresses: tuple[str, ...] = ()
    node: str = ""
    place: str = ""
    """`namespace/kind/name` of the controller that starts its successor; empty: none, or the pod has no own address."""
    leaving: bool = False


def pod_of(pod_entry: Object) -> Pod | None:
    """Returns the pod of an API object; None if the object is not a pod, or the pod has ended for good."""
    metadata, spec, status = _map(pod_entry, "metadata"), _map(pod_entry, "spec"), _map(pod_entry, "status")
    uid = _text(metadata, "uid")
    if not uid or _text(status, "phase") in {"Succeeded", "Failed"}:
        return None
    addresses = [_text(status, "podIP"), *(_text(entry, "ip") for entry in _list(status, "podIPs"))]
    return Pod(
        uid=uid,
        addresses=tuple(dict.fromkeys(address for address in addresses if address)),
        node=_text(spec, "nodeName"),
        place="" if spec.get("hostNetwork") is True else _place(metadata),
        leaving=bool(_text(metadata, "deletionTimestamp")),
    )


def node_of(entry: Object) -> tuple[str, str]:
    """Returns the name and zone of a node; the zone is empty without a label."""
    metadata = _map(entry, "metadata")
    labels = _map(metadata, "labels")
    return _text(metadata, "name"), _text(labels, ZONE_LABEL) or _text(labels, _OLD_ZONE_LABEL)


def _place(metadata: Object) -> str:
    owner = next((entry for entry in _list(metadata, "ownerReferences") if entry.get("controller") is True), None)
    if owner is None:
        return ""
    kind, name = _text(owner, "kind"), _text(owner, "name")
    if kind == "ReplicaSet":  # a rollout makes another ReplicaSet of the same Deployment
        name = name.removesuffix(f"-{_text(_map(metadata, 'labels'), 'pod-template-hash')}")
    elif kind == "StatefulSet":  # a successor has the same name
        name = _text(metadata, "name")
    return f"{_text(metadata, 'namespace')}/{kind}/{name}"


class Topology:
    """Table of pods and nodes. Times are monotonic ms."""

    def __init__(self, *, pods_max: int = 20_000, nodes_max: int = 10_000, gone_ms: int = 60_000) -> None:
        self._pods_max = pods_max
        self._nodes_max = nodes_max
        self._gone_ms = gone_ms
        self._pods: dict[str, Pod] = {}
        self._nodes: dict[str, str] = {}
        self._at: dict[str, Pod] = {}
        """The present or last pod of each address."""
        self._gone: OrderedDict[str, int] = OrderedDict()
        """Addresses of removed pods with the time to forget them, oldest first."""
        self.left_out = 0
        """Objects above `pods_max` or `nodes_max`, ignored."""

    # --- events

    def pods_listed(self, pods: Iterable[Pod], now_ms: int) -> frozenset[str]:
        """Handles a list of all pods; others are removed."""
        changed: set[str] = set()
        listed = {pod.uid: pod for pod in pods}
        for uid in [uid for uid in self._pods if uid not in listed]:
            changed |= self.pod_gone(uid, now_ms)
        for pod in listed.values():
            changed |= self.pod_seen(pod, now_ms)
        return frozenset(changed)

    def pod_seen(self, pod: Pod, now_ms: int) -> frozenset[str]:
        known = self._pods.get(pod.uid)
        if known == pod:
            return frozenset()
        if known is None and len(self._pods) >= self._pods_max:
            self.left_out += 1
            return frozenset()
        self._pods[pod.uid] = pod
        lost = {address for address in (known.addresses if known else ()) if address not in pod.addresses}
        for address in lost:
            self._forget_later(address, pod.uid, now_ms)
        for address in pod.addresses:
            self._at[address] = pod
            self._gone.pop(address, None)
        return frozenset({*lost, *pod.addresses})

    def pod_gone(self, uid: str, now_ms: int) -> frozenset[str]:
        pod = self._pods.pop(uid, None)
        if pod is None:
            return frozenset()
        for address in pod.addresses:
            self._forget_later(address, uid, now_ms)
        return frozenset(pod.addresses)

    def nodes_listed(self, zones: Mapping[str, str]) -> frozenset[str]:
        """Handles a list of all nodes, with their zones."""
        changed: set[str] = set()
        for name in [name for name in self._nodes if name not in zones]:
            changed |= self.node_gone(name)
        for name, zone in zones.items():
            changed |= self.node_seen(name, zone)
        return frozenset(changed)

    def node_seen(self, name: str, zone: str) -> frozenset[str]:
        if not name or self._nodes.get(name) == zone:
            return frozenset()
        if name not in self._nodes and len(self._nodes) >= self._nodes_max:
            self.left_out += 1
            return frozenset()
        self._nodes[name] = zone
        return self._on(name)

    def node_gone(self, name: str) -> frozenset[str]:
        return self._on(name) if self._nodes.pop(name, None) is not None else frozenset()

    def tick(self, now_ms: int) -> None:
        """Forgets pods that were removed `gone_ms` ago or earlier."""
        while self._gone and next(iter(self._gone.values())) <= now_ms:
            address, _ = self._gone.popitem(last=False)
            self._at.pop(address, None)

    # --- views

    def zone_of(self, address: str) -> str:
        """Returns the zone of the node of the pod with this address; empty: unknown."""
        pod = self._at.get(address)
        return "" if pod is None else self._nodes.get(pod.node, "")

    def place_of(self, address: str) -> MemberPlace | None:
        """Returns the place of the pod with this address; None: unknown, or it would have no successor."""
        pod = self._at.get(address)
        return MemberPlace(pod.place, leaving=pod.leaving) if pod is not None and pod.place else None

    def __len__(self) -> int:
        return len(self._pods)

    def check(self) -> None:
        """Recomputes every invariant; tests call it after each event."""
        assert len(self._pods) <= self._pods_max
        assert len(self._nodes) <= self._nodes_max
        assert len(self._gone) <= self._pods_max
        assert self._gone.keys() <= self._at.keys()
        for address, pod in self._at.items():
            assert (address in self._gone) == (self._pods.get(pod.uid) != pod or address not in pod.addresses)

    # --- inside

    def _forget_later(self, address: str, uid: str, now_ms: int) -> None:
        held = self._at.get(address)
        if held is None or held.uid != uid:
            return  # another pod has the address by now
        self._at[address] = replace(held, uid="", leaving=True)
        self._gone.pop(address, None)
        self._gone[address] = now_ms + self._gone_ms
        if len(self._gone) > self._pods_max:
            oldest, _ = self._gone.popitem(last=False)
            self._at.pop(oldest, None)

    def _on(self, node: str) -> frozenset[str]:
        return frozenset(address for address, pod in self._at.items() if pod.node == node)


def _map(entry: Object, key: str) -> Object:
    value = entry.get(key)
    return value if isinstance(value, Mapping) else {}


def _list(parent: Object, key: str) -> list[Object]:
    value = parent.get(key)
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def _text(entry: Object, key: str) -> str:
    value = entry.get(key)
    return value if isinstance(value, str) else ""
