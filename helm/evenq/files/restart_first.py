"""Restarts brokers of one copy as the first copies of their groups: python restart_first.py STATEFULSET GROUP...

They are the pods of STATEFULSET, which the upgrade has changed and holds back (`partition`). Each is the only copy of
its data, so clients wait while it restarts, and another pod must hold their calls. First the other copies run and
forward calls, then the Service of each group leads to them, and then the pods are replaced. All steps are idempotent:
a failed Job starts again.
"""

# ruff: noqa: INP001 - a program in a chart, not a package

from __future__ import annotations

import sys
from threading import Event

from evenq.errors import ConnectionFailed
from evenq.runtime.clock import SystemClock
from evenq.serving.kubernetes.api import KubernetesApi, Object

LOOK_S = 1.0
COPIES_S, RESTART_S = 1_200.0, 3_600.0
"""Maximum waits: for new pods of empty copies, and for brokers that recover their logs one after the other."""
ROUTED_S = 5.0
"""Time until every node uses the new endpoints of a Service."""


class NotReady(Exception):
    """A set was not ready in time."""


def is_ready(found: Object) -> bool:
    """Returns whether all pods of a StatefulSet are ready and updated."""
    spec, status = found["spec"], found.get("status") or {}
    wanted = spec["replicas"]
    held = ((spec.get("updateStrategy") or {}).get("rollingUpdate") or {}).get("partition") or 0
    seen = status.get("observedGeneration", 0) >= found["metadata"]["generation"]
    new = status.get("updatedReplicas", 0) >= wanted - held
    return seen and new and status.get("readyReplicas", 0) >= wanted


def wait_ready(api: KubernetesApi, name: str, limit_s: float) -> None:
    """Waits until a StatefulSet is ready. Raises NotReady after `limit_s`."""
    clock, waiting = SystemClock(), Event()
    end_ms = clock.monotonic_ms() + limit_s * 1_000
    path = f"/apis/apps/v1/namespaces/{api.namespace}/statefulsets/{name}"
    while True:
        try:
            if is_ready(api.call("GET", path)):
                return
        except ConnectionFailed as error:
            print(error)
        if clock.monotonic_ms() > end_ms:
            raise NotReady(f"StatefulSet {name} was not ready within {limit_s:.0f} s; `kubectl describe` its pods")
        waiting.wait(LOOK_S)


def restart(api: KubernetesApi, first: str, groups: list[str]) -> None:
    """Restarts the pods of `first` when the other copies of all groups are ready."""
    for group in groups:
        wait_ready(api, group, COPIES_S)
    for group in groups:
        selector = {"evenq.io/broker-group": group, "statefulset.kubernetes.io/pod-name": None}
        path = f"/api/v1/namespaces/{api.namespace}/services/{group}"
        api.call("PATCH", path, {"spec": {"selector": selector}})
    print(f"clients reach {', '.join(groups)} through the new copies; the brokers restart now")
    Event().wait(ROUTED_S)
    strategy = {"rollingUpdate": {"partition": 0}}
    path = f"/apis/apps/v1/namespaces/{api.namespace}/statefulsets/{first}"
    api.call("PATCH", path, {"spec": {"updateStrategy": strategy}})
    wait_ready(api, first, RESTART_S)


def main() -> None:
    """Restarts the pods. The Job retries."""
    try:
        restart(KubernetesApi(), sys.argv[1], sys.argv[2:])
    except (ConnectionFailed, NotReady) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
