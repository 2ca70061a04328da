"""The chart as it renders: defaults and every file of examples/."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from evenq.serving.fields import write_bytes
from evenq.serving.health import LIVENESS, READINESS, SERVING, Health
from evenq.serving.rpc import RpcContext, Unary

CHART = Path(__file__).resolve().parents[2] / "helm" / "evenq"
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
pytestmark = pytest.mark.timeout(1_600)  # the first run on a new machine may build helm


def render(helm: str, *arguments: str, release: str = "evenq") -> list[dict[str, Any]]:
    command = [helm, "template", release, str(CHART), "--kube-version", "1.34.0", *arguments]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    return [document for document in yaml.safe_load_all(output) if document]


def find(documents: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    return next(d for d in documents if d["kind"] == kind and d["metadata"]["name"] == name)


def pods(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [d["spec"]["template"]["spec"] for d in documents if d["kind"] in {"StatefulSet", "Deployment"}]


def test_the_chart_passes_lint(helm: str) -> None:
    subprocess.run([helm, "lint", "--strict", str(CHART)], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_renders(helm: str, example: Path) -> None:
    assert find(render(helm, "-f", str(example)), "StatefulSet", "evenq-broker")


def test_every_pod_keeps_the_restricted_security_standard(helm: str) -> None:
    for pod in pods(render(helm, "--set", "rebalancer.replicas=2")):
        assert pod["automountServiceAccountToken"] is ("rebalancer" in pod.get("serviceAccountName", "")), "who asks"
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)


def test_every_probe_asks_for_a_name_that_the_servers_know(helm: str) -> None:
    """The kubelet takes NOT_FOUND for a failure: after three of them it kills the pod."""

    async def answers(name: str) -> bytes:
        check = cast("Unary", Health().rpcs()[0].handler)
        return await check(write_bytes(1, name.encode()), RpcContext("Check", [], "127.0.0.1:1", None))

    asked = {
        (kind, container[kind]["grpc"].get("service", ""))
        for pod in pods(render(helm))
        for container in pod["containers"]
        for kind in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert asked == {("startupProbe", LIVENESS), ("readinessProbe", READINESS), ("livenessProbe", LIVENESS)}
    for _, name in asked:
        assert asyncio.run(answers(name)) == SERVING


def test_a_broker_is_named_by_its_pod_and_finds_every_nameserver(helm: str) -> None:
    broker = find(render(helm, "--set", "nameserver.replicas=3"), "StatefulSet", "evenq-broker")
    environment = {e["name"]: e for e in broker["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert environment["EVENQ_BROKER_BROKER_NAME"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    assert environment["EVENQ_BROKER_NAMESERVERS"]["value"].split(",") == [
        f"evenq-nameserver-{n}.evenq-nameserver.default.svc.cluster.local:9876" for n in range(3)
    ]


def test_every_environment_variable_is_a_setting_of_its_program(helm: str) -> None:
    """A renamed setting would stop the pods at start; here it stops the build."""
    from evenq_broker.settings import Settings as BrokerSettings
    from evenq_nameserver.settings import Settings as NameserverSettings
    from evenq_rebalancer.settings import Settings as RebalancerSettings

    classes = {"broker": BrokerSettings, "nameserver": NameserverSettings, "rebalancer": RebalancerSettings}
    for pod in pods(render(helm, "--set", "auth.enabled=true,auth.existingSecret=mine")):
        for container in pod["containers"]:
            prefix = f"EVENQ_{container['name'].upper()}_"
            for entry in container["env"]:
                name = entry["name"].removeprefix(prefix).lower()
                fields = classes[container["name"]].model_fields
                for part in name.split("__"):
                    assert part in fields, f"{entry['name']} names no setting of the {container['name']}"
                    fields = getattr(fields[part].annotation, "model_fields", {})


def test_one_rebalancer_without_a_watch_asks_kubernetes_nothing(helm: str) -> None:
    documents = render(helm, "--set", "rebalancer.topology=false")
    assert not {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"} & {
        document["kind"] for document in documents
    }
    assert find(documents, "Deployment", "evenq-rebalancer")["spec"]["strategy"] == {"type": "Recreate"}
    assert all(pod["automountServiceAccountToken"] is False for pod in pods(documents))


@pytest.mark.parametrize("topology", ["true", "false"])
def test_several_rebalancers_share_a_lease_that_only_they_may_write(helm: str, topology: str) -> None:
    documents = render(
        helm, "--set", "rebalancer.replicas=3", "--set", f"rebalancer.topology={topology}", "--namespace", "shop"
    )
    deployment = find(documents, "Deployment", "evenq-rebalancer")
    assert deployment["spec"]["replicas"] == 3
    environment = {e["name"]: e for e in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert environment["EVENQ_REBALANCER_LEASE"]["value"] == "kubernetes:evenq-rebalancer"
    assert environment["EVENQ_REBALANCER_ADVERTISE"]["value"] == "$(POD_IP):8083"
    assert list(environment).index("POD_IP") < list(environment).index("EVENQ_REBALANCER_ADVERTISE")
    rules = find(documents, "Role", "evenq-rebalancer")["rules"]
    assert {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]} in rules
    named = next(rule for rule in rules if "resourceNames" in rule)
    assert (named["resourceNames"], named["verbs"]) == (["evenq-rebalancer"], ["get", "update"])
    watched = [rule["resources"] for rule in rules if "watch" in rule["verbs"]]
    clustered = [document for document in documents if document["kind"] == "ClusterRole"]
    assert watched == ([["pods"]] if topology == "true" else [])
    assert [role["rules"][0]["resources"] for role in clustered] == ([["nodes"]] if topology == "true" else [])


def test_without_a_rebalancer_brokers_are_not_told_of_one(helm: str) -> None:
    documents = render(helm, "--set", "rebalancer.enabled=false")
    assert "EVENQ_BROKER_REBALANCER" not in yaml.safe_dump(documents)
    assert not [d for d in documents if d["metadata"]["name"].endswith("rebalancer")]


def test_with_auth_every_pod_reads_the_users_file_of_the_secret(helm: str) -> None:
    assert "AUTH__" not in yaml.safe_dump(render(helm))
    documents = render(helm, "--set", "auth.enabled=true,auth.existingSecret=mine")
    assert len(pods(documents)) == 3
    for pod in pods(documents):
        container = pod["containers"][0]
        environment = {e["name"]: e.get("value") for e in container["env"]}
        prefix = f"EVENQ_{container['name'].upper()}_AUTH__"
        assert environment[prefix + "ENABLED"] == "true"
        folder, _, file = str(environment[prefix + "USERS"]).rpartition("/")
        assert file == "users.toml"
        mount = next(mount for mount in container["volumeMounts"] if mount["mountPath"] == folder)
        assert mount["readOnly"] is True
        assert "subPath" not in mount  # else changes of the Secret would not arrive
        volume = next(volume for volume in pod["volumes"] if volume["name"] == mount["name"])
        assert volume["secret"] == {"secretName": "mine", "defaultMode": 0o440}


def test_auth_without_a_secret_is_refused(helm: str) -> None:
    command = [helm, "template", "evenq", str(CHART), "--kube-version", "1.34.0", "--set", "auth.enabled=true"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode != 0
    assert "auth.existingSecret must name a Secret" in refused.stderr


@pytest.mark.parametrize(
    "bad",
    [
        "broker.replicaCount=3",
        "broker.replicas=0",
        "broker.flush=sometimes",
        "broker.storage.size=ten",
        "metrics.port=0",
        "auth.secret=mine",
    ],
)
def test_a_typo_or_a_value_out_of_bounds_is_refused(helm: str, bad: str) -> None:
    command = [helm, "template", "evenq", str(CHART), "--kube-version", "1.34.0", "--set", bad]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode != 0
    assert bad.split("=", maxsplit=1)[0].rsplit(".", maxsplit=1)[-1] in refused.stderr
