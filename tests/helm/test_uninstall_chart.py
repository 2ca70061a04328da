"""The Job after `helm uninstall`: what it may do, and what it removes."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from evenq_helm.chart import CHART, find, render, standing
from evenq_proofs.programs_by_path import load_program

from evenq.errors import NotFound

COPIES = ("--set", "broker.groups=2,broker.replicas=3,rebalancer.replicas=2")


@pytest.fixture(scope="module")
def program() -> ModuleType:
    return load_program(CHART / "files" / "remove_leftovers.py")


class FakeApi:
    """The objects of one namespace."""

    namespace = "shop"

    def __init__(self, objects: dict[str, list[dict[str, Any]]], gone: str = "") -> None:
        self.objects, self.gone = objects, gone
        self.deleted: dict[str, dict[str, Any]] = {}

    def listed(self, path: str) -> tuple[list[dict[str, Any]], str]:
        return self.objects.get(path.rpartition("/")[2], []), "1"

    def call(self, verb: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert verb == "DELETE"
        if path.endswith("/" + self.gone):
            raise NotFound(path)
        self.deleted[path] = body
        return {}


def entry(
    name: str, *, release: str = "mq", owned: bool = True, component: str = "broker", **notes: str
) -> dict[str, Any]:
    owner = {"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": "shop"}
    labels = {"app.kubernetes.io/name": "evenq", "app.kubernetes.io/instance": release}
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-of-{name}",
            "labels": {**labels, "app.kubernetes.io/component": component},
            "annotations": {**(owner if owned else {}), **notes},
        }
    }


def test_it_removes_what_helm_made_for_the_release_and_nothing_else(program: ModuleType) -> None:
    api = FakeApi(
        {
            "statefulsets": [entry("mq-broker-0"), entry("other-broker-0", release="other")],
            "deployments": [{"metadata": {"name": "bare", "uid": "1"}}],
            "leases": [
                entry("mq-broker-0", **{"helm.sh/resource-policy": "keep"}),
                entry("mq-rebalancer", component="rebalancer"),
                entry("made-by-hand", owned=False),
            ],
            "jobs": [entry("mq-scale-in", owned=False, component="scale-in", **{"helm.sh/hook": "pre-upgrade"})],
            "pods": [entry("mq-broker-0-0", owned=False)],
            "roles": [
                entry("mq-broker"),
                entry("mq-uninstall", owned=False, component="uninstall", **{"helm.sh/hook": "post-delete"}),
            ],
        },
        gone="mq-rebalancer",
    )
    removed = program.remove(api, "mq")
    assert removed == ["statefulsets/mq-broker-0", "jobs/mq-scale-in", "roles/mq-broker"]
    path = "/apis/apps/v1/namespaces/shop/statefulsets/mq-broker-0"
    assert api.deleted[path] == {"propagationPolicy": "Background", "preconditions": {"uid": "uid-of-mq-broker-0"}}


def test_its_role_allows_what_the_program_does_and_no_claims_and_no_secrets(helm: str, program: ModuleType) -> None:
    documents = render(helm, *COPIES)
    rules = find(documents, "Role", "evenq-uninstall")["rules"]
    allowed = {(group, kind) for rule in rules for group in rule["apiGroups"] for kind in rule["resources"]}
    assert allowed == {(path.split("/")[1] if path.startswith("apis/") else "", kind) for path, kind in program.KINDS}
    assert {verb for rule in rules for verb in rule["verbs"]} == {"list", "delete"}
    kept = {"ClusterRole", "ClusterRoleBinding", "Secret"}
    plural = {kind for _, kind in program.KINDS}
    for document in standing(documents):
        kind = document["kind"]
        assert kind in kept or f"{kind.lower().removesuffix('y')}{'ies' if kind.endswith('y') else 's'}" in plural, kind


def test_all_of_it_is_a_hook_that_goes_with_its_success(helm: str) -> None:
    documents = render(helm, *COPIES)
    own = [d for d in documents if d["metadata"]["name"] == "evenq-uninstall"]
    assert {d["kind"] for d in own} == {"Job", "ServiceAccount", "Role", "RoleBinding", "NetworkPolicy"}
    for document in own:
        notes = document["metadata"]["annotations"]
        assert notes["helm.sh/hook"] == "post-delete"
        assert notes["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
        assert int(notes.get("helm.sh/hook-weight", 0)) == {"Job": 0, "RoleBinding": -4}.get(document["kind"], -5)
    job = find(documents, "Job", "evenq-uninstall")["spec"]
    pod = job["template"]["spec"]
    assert pod["serviceAccountName"] == "evenq-uninstall"
    assert pod["automountServiceAccountToken"] is True
    assert pod["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["command"][2].strip() == (CHART / "files" / "remove_leftovers.py").read_text().strip()
    assert container["command"][3] == "evenq"
    policy = find(documents, "NetworkPolicy", "evenq-uninstall")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= job["template"]["metadata"]["labels"].items()
    assert {"ports": [{"port": 443}, {"port": 6443}]} in policy["egress"]


def test_who_may_not_create_roles_leaves_it_out(helm: str) -> None:
    documents = render(helm, "--set", "commands.removeLeftovers=false")
    assert "evenq-uninstall" not in {d["metadata"]["name"] for d in documents}
