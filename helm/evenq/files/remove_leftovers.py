"""Removes leftovers of a release after `helm uninstall`: python remove_leftovers.py RELEASE

Helm removes the manifest of the newest revision. That may be an upgrade or a rollback that a hook refused or that
failed halfway; its manifest lacks objects of the running revision. Of the kinds that run or that block the next
installation, this deletes objects with the release's labels that Helm created, also as hooks. It never deletes volume
claims, Secrets, and objects that Helm must keep (Leases that belong to volumes).
"""

# ruff: noqa: INP001 - a program in a chart, not a package

from __future__ import annotations

import sys
from typing import Any

from evenq.errors import ConnectionFailed, NotFound, PreconditionFailed
from evenq.serving.kubernetes.api import KubernetesApi

KINDS = (
    ("apis/apps/v1", "statefulsets"),
    ("apis/apps/v1", "deployments"),
    ("apis/batch/v1", "cronjobs"),
    ("apis/batch/v1", "jobs"),
    ("api/v1", "pods"),
    ("api/v1", "services"),
    ("api/v1", "configmaps"),
    ("apis/policy/v1", "poddisruptionbudgets"),
    ("apis/networking.k8s.io/v1", "networkpolicies"),
    ("apis/coordination.k8s.io/v1", "leases"),
    ("apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    ("apis/rbac.authorization.k8s.io/v1", "roles"),
    ("api/v1", "serviceaccounts"),
)
OWN = "uninstall"
"""Component of the objects that this program runs with; Helm removes them itself."""


def is_left(metadata: dict[str, Any], release: str, namespace: str) -> bool:
    """Returns whether the uninstallation should have removed the object."""
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if labels.get("app.kubernetes.io/name") != "evenq" or labels.get("app.kubernetes.io/instance") != release:
        return False
    if notes.get("helm.sh/resource-policy") == "keep" or labels.get("app.kubernetes.io/component") == OWN:
        return False
    owner = (notes.get("meta.helm.sh/release-name"), notes.get("meta.helm.sh/release-namespace"))
    return owner == (release, namespace) or "helm.sh/hook" in notes


def remove(api: KubernetesApi, release: str) -> list[str]:
    """Removes the leftovers of the release in the pod's namespace; returns their kinds and names."""
    removed = []
    for group, kind in KINDS:
        path = f"/{group}/namespaces/{api.namespace}/{kind}"
        for one in api.listed(path)[0]:
            metadata = one["metadata"]
            if not is_left(metadata, release, api.namespace):
                continue
            # With the uid: never an object that was created under the same name since.
            body = {"propagationPolicy": "Background", "preconditions": {"uid": metadata["uid"]}}
            try:
                api.call("DELETE", f"{path}/{metadata['name']}", body)
            except (NotFound, PreconditionFailed):
                continue
            removed.append(f"{kind}/{metadata['name']}")
    return removed


def main() -> None:
    """Removes leftovers once. The Job retries; a retry finds only the rest."""
    try:
        for name in remove(KubernetesApi(), sys.argv[1]):
            print(f"removed {name}, which an earlier revision of release {sys.argv[1]} had left")
    except ConnectionFailed as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
