"""The chart as it renders: defaults and every file of examples/."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from evenq_broker.core.cluster.listeners import advertised, parse_listeners
from evenq_helm.chart import CHART, environment, find, pods, refusal, render, standing
from evenq_nameserver.core.allowed_addresses import AllowedAddresses

import evenq
from evenq.model import PLAIN_LISTENER, TLS_LISTENER
from evenq.serving.auth.users import UserResource, Users
from evenq.serving.fields import write_bytes
from evenq.serving.front.health import LIVENESS, READINESS, SERVING, Health
from evenq.serving.program.settings import settings_of
from evenq.serving.rpc import Action, RpcContext, Unary
from evenq.wire.credentials import Credentials

EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
OPTIONAL = {
    "global",
    "broker.nodePort",
    *(f"image.digests.{name}" for name in ("nameserver", "broker", "rebalancer", "console", "tables")),
} | {f"tls.certManager.issuerRef.{name}" for name in ("name", "kind", "group")}
SMALL = ["-f", str(CHART / "examples" / "single.yaml")]
COPIES = ["--set", "broker.groups=2,broker.replicas=3"]
TLS = ["--set", "tls.enabled=true,tls.existingSecret=pair"]
EXTERNAL = ["--set", "external.enabled=true,external.host=mq.example.org"]
OPERATOR = ["-a", "monitoring.coreos.com/v1/PodMonitor", "-a", "monitoring.coreos.com/v1/PrometheusRule"]
pytestmark = pytest.mark.timeout(1_600)  # the first run on a new machine may build helm


def test_the_chart_passes_lint(helm: str) -> None:
    subprocess.run([helm, "lint", "--strict", str(CHART)], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_renders(helm: str, example: Path) -> None:
    brokers = [pod for pod in pods(render(helm, "-f", str(example))) if pod["containers"][0]["name"] == "broker"]
    assert brokers


def test_every_pod_keeps_the_restricted_security_standard(helm: str) -> None:
    for pod in pods(render(helm, "--set", "rebalancer.replicas=2,console.enabled=true")):
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


@pytest.mark.parametrize(
    "values", [[], ["--set", "auth.enabled=false"], ["--set", "rebalancer.replicas=2"], SMALL, TLS, COPIES]
)
def test_every_environment_variable_is_a_setting_of_its_program(helm: str, values: list[str]) -> None:
    """A renamed setting would stop the pods at start; here it stops the build."""
    for pod in pods(render(helm, *values)):
        for container in pod["containers"]:
            assert not unknown(container)
            names = [entry["name"] for entry in container["env"]]
            assert len(names) == len(set(names)), "a name twice"


def unknown(container: dict[str, Any]) -> list[str]:
    """Variables of the program's prefix that name no setting of it."""
    from evenq_broker.settings import BrokerSettings
    from evenq_nameserver.settings import NameserverSettings
    from evenq_rebalancer.settings import RebalancerSettings

    program = container["name"]
    kind = {"broker": BrokerSettings, "nameserver": NameserverSettings, "rebalancer": RebalancerSettings}[program]
    prefix = f"EVENQ_{program.upper()}_"
    known = {setting.variable(program) for setting in settings_of(kind)}
    return [e["name"] for e in container["env"] if e["name"].startswith(prefix) and e["name"] not in known]


def front_limits(pod: dict[str, Any]) -> dict[str, str]:
    """Variables of a server's front, without their prefix."""
    (container,) = pod["containers"]
    prefix = f"EVENQ_{container['name'].upper()}_FRONT_LIMITS__"
    return {e["name"].removeprefix(prefix): e["value"] for e in container["env"] if e["name"].startswith(prefix)}


def test_bounds_of_the_front_reach_each_server_and_settings_go_before_them(helm: str) -> None:
    result = ["broker.frontLimits.connectionsPerAddressMax=20", "broker.frontLimits.requestBytesMax=4294967296",
            "nameserver.frontLimits.idleMs=5000", "nameserver.settings.EVENQ_NAMESERVER_FRONT_LIMITS__IDLE_MS=7000",
            "rebalancer.frontLimits.headerListBytesMax=8192", "front=http2"]  # fmt: skip
    found = {}
    for pod in pods(render(helm, *(word for one in result for word in ("--set", one)), "--set-string", result[3])):
        (container,) = pod["containers"]
        name = container["name"]
        if name in {"broker", "nameserver", "rebalancer"}:
            found[name] = front_limits(pod)
            fronts = [e["value"] for e in container["env"] if e["name"] == f"EVENQ_{name.upper()}_FRONT"]
            assert fronts == ["http2"]
    assert found["broker"]["CONNECTIONS_PER_ADDRESS_MAX"] == "20"
    assert found["broker"]["REQUEST_BYTES_MAX"] == "4294967296"
    assert found["nameserver"]["IDLE_MS"] == "7000"
    assert found["rebalancer"]["HEADER_LIST_BYTES_MAX"] == "8192"


@pytest.mark.parametrize("copies", ["1", "3"])
def test_each_variable_stands_once_and_settings_go_before_those_of_the_chart(
    helm: str, copies: str, tmp_path: Path
) -> None:
    """Of two variables with one name Kubernetes takes the last, until an upgrade takes one away: then both are gone, and a
    server has the default of the program. So `broker.flush: sync` would be async.
    """
    file = tmp_path / "values.yaml"
    given = {
        "broker": {
            "groups": 1,
            "replicas": int(copies),
            "settings": {"EVENQ_BROKER_STORE__FLUSH": "async", "EVENQ_BROKER_DEFAULT_QUEUES": "7"},
            "extraEnv": [
                {"name": "EVENQ_BROKER_DEFAULT_QUEUES", "value": "9"},
                {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            ],
        },
        "nameserver": {"settings": {"EVENQ_NAMESERVER_CLUSTER": "other"}},
        "rebalancer": {"replicas": 2, "settings": {"EVENQ_REBALANCER_CLUSTER": "other"}},
    }
    file.write_text(yaml.safe_dump(given))
    found = {}
    for pod in pods(render(helm, "-f", str(file))):
        (container,) = pod["containers"]
        names = [e["name"] for e in container["env"]]
        assert sorted(names) == sorted(set(names)), container["name"]
        found[container["name"]] = environment(container)
    assert found["broker"]["EVENQ_BROKER_STORE__FLUSH"] == "async"
    assert found["broker"]["EVENQ_BROKER_DEFAULT_QUEUES"] == "9"
    assert found["nameserver"]["EVENQ_NAMESERVER_CLUSTER"] == found["rebalancer"]["EVENQ_REBALANCER_CLUSTER"] == "other"
    if copies == "3":
        order = list(found["broker"])
        assert order.index("POD_NAME") < order.index("EVENQ_BROKER_ADVERTISE"), "only earlier ones are put in"


def test_a_name_that_all_brokers_would_have_is_refused(helm: str) -> None:
    assert "two brokers cannot have the same one" in refusal(helm, "broker.settings.EVENQ_BROKER_BROKER_NAME=shop")
    more = "broker.extraEnv[0].name=EVENQ_BROKER_BROKER_NAME,broker.extraEnv[0].value=shop"
    assert "two brokers cannot have the same one" in refusal(helm, more)


def test_the_fronts_bounds_are_taken_by_the_servers_and_leave_room_in_their_memory(helm: str) -> None:
    from evenq.serving.front_limits import FrontLimits

    for pod in pods(render(helm)):
        (container,) = pod["containers"]
        if container["name"] in {"broker", "nameserver", "rebalancer"}:
            limits = FrontLimits(**{name.lower(): int(value) for name, value in front_limits(pod).items()})
            memory = {"Mi": 1 << 20, "Gi": 1 << 30}
            text = container["resources"]["limits"]["memory"]
            assert limits.request_bytes_max + limits.unread_bytes <= int(text[:-2]) * memory[text[-2:]] / 2


def test_the_schema_has_every_bound_of_the_front_with_its_range() -> None:
    from evenq.serving.front_limits import FrontLimits

    rules = json.loads((CHART / "values.schema.json").read_text())["definitions"]["frontLimits"]["properties"]
    expected = {}
    for setting in settings_of(FrontLimits):
        first, *more = setting.path[-1].split("_")
        low, high = map(int, setting.bounds.split(" .. "))
        expected[first + "".join(map(str.capitalize, more))] = {"type": "integer", "minimum": low, "maximum": high}
    assert rules == expected


def test_one_rebalancer_without_a_watch_asks_kubernetes_nothing(helm: str) -> None:
    documents = render(helm, "--set", "rebalancer.topology=false")
    assert not {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"} & {
        document["kind"] for document in standing(documents)
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


def test_calls_are_signed_by_default_with_secrets_that_the_chart_makes(helm: str, tmp_path: Path) -> None:
    grants = {"shop": {"allow": [{"resource": "topic:orders", "actions": ["publish"]}]}, "root": {"admin": True}}
    documents = render(helm, "--set-json", f"auth.users={json.dumps(grants)}")
    secret = find(documents, "Secret", "evenq-auth")
    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    data = {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
    users = Users.parse(data["users.toml"].encode())
    shop, root, operator = users.get("shop"), users.get("root"), users.get("operator")
    assert shop is not None
    assert shop.may(UserResource.TOPIC, Action.PUBLISH, "orders")
    assert not shop.may(UserResource.TOPIC, Action.CONSUME, "orders")
    assert root is not None
    assert root.admin
    assert operator is not None
    assert operator.admin
    assert len({data[f"secret.{name}"] for name in ("evenq-internal", "operator", "shop", "root")}) == 4
    for name, content in (
        ("operator", data["operator.toml"]),
        ("shop", base64.b64decode(find(documents, "Secret", "evenq-user-shop")["data"]["credentials.toml"]).decode()),
    ):
        file = tmp_path / name
        file.write_text(content)
        keys = Credentials.of_file(file)
        assert (keys.access_key, keys.secret_key) == (name, data[f"secret.{name}"])
    assert len(data["secret.operator"]) == 40
    again = find(render(helm), "Secret", "evenq-auth")["data"]["secret.operator"]
    assert base64.b64decode(again).decode() != data["secret.operator"], "not the same everywhere"


@pytest.mark.parametrize(("values", "name"), [([], "evenq-auth"), (["--set", "auth.existingSecret=mine"], "mine")])
def test_with_auth_every_pod_reads_the_users_file_of_the_secret(helm: str, values: list[str], name: str) -> None:
    documents = render(helm, *values)
    assert [d for d in documents if d["kind"] == "Secret"] == [] or not values
    assert len(pods(documents)) == 3
    for pod in [*pods(documents), find(documents, "Pod", "evenq-test")["spec"]]:
        container = pod["containers"][0]
        variables = environment(container)
        prefix = f"EVENQ_{container['name'].upper()}_AUTH__"
        files = [variables.get("EVENQ_CREDENTIALS")] if container["name"] in {"broker", "verify"} else []
        if container["name"] != "verify":
            assert variables[prefix + "ENABLED"] == "true"
            files.append(variables[prefix + "USERS"])
        assert files
        for path in files:
            folder, _, file = str(path).rpartition("/")
            assert file in {"users.toml", "operator.toml"}
            mount = next(mount for mount in container["volumeMounts"] if mount["mountPath"] == folder)
            assert mount["readOnly"] is True
            assert "subPath" not in mount  # else changes of the Secret would not arrive
            volume = next(volume for volume in pod["volumes"] if volume["name"] == mount["name"])
            assert volume["secret"] == {"secretName": name, "defaultMode": 0o440}


def test_without_auth_pods_hold_no_keys_and_brokers_register_from_pod_networks_only(helm: str) -> None:
    documents = render(helm, "--set", "auth.enabled=false")
    text = yaml.safe_dump(documents)
    assert "AUTH__" not in text
    assert "EVENQ_CREDENTIALS" not in text
    assert not [d for d in documents if d["kind"] == "Secret"]
    nameserver = find(documents, "StatefulSet", "evenq-nameserver")["spec"]["template"]["spec"]["containers"][0]
    allowed = AllowedAddresses(environment(nameserver)["EVENQ_NAMESERVER_REGISTER_FROM"])
    assert allowed.hold("10.244.0.7")
    assert not allowed.hold("203.0.113.9")


# --------------------------------------------------------------------------------------------------------- who talks to whom

PEERS = ("broker", "nameserver", "rebalancer", "client", "other namespace", "prometheus", "outside")
"""Sources of calls; `client` is a pod of the release's namespace, `prometheus` one of the namespace monitoring."""


def lets_in(documents: list[dict[str, Any]], service: str, port: int | str, source: str) -> bool:
    """What a network that enforces policies does with a call to a pod of the service."""
    rules = find(documents, "NetworkPolicy", f"evenq-{service}")["spec"]["ingress"]
    return any(
        {"port": port} in rule["ports"] and any(is_from(peer, source) for peer in rule["from"]) for rule in rules
    )


def lets_out(documents: list[dict[str, Any]], service: str, port: int, target: str) -> bool:
    rules = find(documents, "NetworkPolicy", f"evenq-{service}")["spec"]["egress"]
    return any(
        any(one["port"] == port for one in rule["ports"])
        and any(is_from(peer, target) for peer in rule.get("to", [{}]))
        for rule in rules
    )


def is_from(peer: dict[str, Any], source: str) -> bool:
    if "ipBlock" in peer:
        return source == "outside" and peer["ipBlock"]["cidr"] == "0.0.0.0/0"
    if "namespaceSelector" in peer:
        wanted = peer["namespaceSelector"].get("matchExpressions", [{}])[0].get("values")
        own = {"prometheus": "monitoring", "other namespace": "shop"}.get(source, "default")
        return source != "outside" and (wanted is None or own in wanted)
    if "podSelector" not in peer:
        return True
    if source in {"other namespace", "prometheus", "outside"}:
        return False
    component = peer["podSelector"].get("matchLabels", {}).get("app.kubernetes.io/component")
    return component is None or component == source


@pytest.mark.parametrize(
    ("values", "clients"),
    [
        ([], {"broker", "nameserver", "rebalancer", "client"}),
        (
            ["--set", "networkPolicy.clientNamespaces={shop}"],
            {"broker", "nameserver", "rebalancer", "client", "other namespace"},
        ),
        (["--set", "networkPolicy.clientNamespaces={*}"], set(PEERS) - {"outside"}),
        (EXTERNAL, {"broker", "nameserver", "rebalancer", "client"}),
    ],
    ids=["default", "one namespace more", "all namespaces", "external"],
)
def test_pods_talk_to_those_they_need_and_to_nobody_else(helm: str, values: list[str], clients: set[str]) -> None:
    documents = render(helm, *values)
    policies = [d for d in standing(documents) if d["kind"] == "NetworkPolicy"]
    assert len(policies) == 4
    for policy in policies:
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        assert policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "evenq"
    assert {source for source in PEERS if lets_in(documents, "broker", 8081, source)} == clients
    for service, port in (("nameserver", 9876), ("rebalancer", 8083)):
        assert {source for source in PEERS if lets_in(documents, service, port, source)} == {"broker"}
        assert lets_out(documents, "broker", port, service)
        assert not lets_out(documents, "broker", port, "client")
    assert {source for source in PEERS if lets_in(documents, "nameserver", "metrics", source)} == set(PEERS) - {
        "outside"
    }
    assert lets_out(documents, "broker", 8081, "broker")
    assert not lets_out(documents, "broker", 443, "outside")
    assert find(documents, "NetworkPolicy", "evenq-nameserver")["spec"]["egress"] == []
    assert lets_out(documents, "rebalancer", 6443, "outside")
    assert not lets_out(documents, "rebalancer", 8081, "broker")


def test_policies_and_metrics_can_be_narrowed_and_switched_off(helm: str) -> None:
    narrow = render(helm, "--set", "networkPolicy.metricsNamespaces={monitoring}")
    assert {source for source in PEERS if lets_in(narrow, "broker", "metrics", source)} == {"prometheus"}
    assert not [d for d in render(helm, "--set", "networkPolicy.enabled=false") if d["kind"] == "NetworkPolicy"]
    alone = render(helm, "--set", "rebalancer.enabled=false")
    assert len([d for d in standing(alone) if d["kind"] == "NetworkPolicy"]) == 3
    closed = render(helm, "--set", "rebalancer.topology=false")
    assert find(closed, "NetworkPolicy", "evenq-rebalancer")["spec"]["egress"] == []
    assert "dns" in refusal(helm, "networkPolicy.dns=[]", flag="--set-json"), "no peer means every peer to Kubernetes"


def test_the_console_reaches_brokers_only_and_is_reached_by_those_who_are_let_in(helm: str) -> None:
    on = ("--set", "console.enabled=true")
    near = {"broker", "nameserver", "rebalancer", "client"}
    policies = [
        (on, near),
        ((*on, "--set", "networkPolicy.consoleNamespaces={shop}"), {*near, "other namespace"}),
        ((*on, "--set", "networkPolicy.clientNamespaces={shop}"), near),
        ((*on, "--set", "console.service.type=NodePort,console.behindHttps=true"), {*near, "outside"}),
    ]
    for values, sources in policies:
        documents = render(helm, *values)
        assert {source for source in PEERS if lets_in(documents, "console", "http", source)} == sources
    assert lets_out(documents, "console", 8081, "broker")
    assert lets_out(documents, "console", 53, "other namespace")
    assert not lets_out(documents, "console", 9876, "nameserver")
    assert not lets_out(documents, "console", 443, "outside")
    assert lets_in(documents, "broker", 8081, "console")
    assert not lets_in(documents, "nameserver", 9876, "console")
    assert lets_out(render(helm, *on, *TLS), "console", 8443, "broker")


COMMANDS = ("--set", "broker.groups=1,broker.replicas=3,broker.replication.fromOneCopy=true", "--set-string")
COMMANDS += ("broker.settings.EVENQ_BROKER_STORE__SEGMENT_BYTES=536870912",)


def commands(documents: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Metadata and specification of the pods that run one command and end."""
    jobs = [d["spec"]["template"] for d in documents if d["kind"] == "Job"]
    shown = [(t["metadata"], t["spec"]) for t in (*jobs, *(d for d in documents if d["kind"] == "Pod"))]
    assert {m["labels"]["app.kubernetes.io/component"] for m, _ in shown} == {"test", "rollback", "grow", "uninstall"}
    return shown


@pytest.mark.parametrize("door", [8081, 8443])
def test_pods_of_one_command_reach_brokers_in_a_namespace_that_refuses_all_by_default(helm: str, door: int) -> None:
    tls = ["--set", "tls.enabled=true,tls.existingSecret=pair"] if door == 8443 else []
    documents = render(helm, *COMMANDS, *tls)
    selector = find(documents, "NetworkPolicy", "evenq-commands")["spec"]["podSelector"]
    (expression,) = selector["matchExpressions"]
    for metadata, _ in commands(documents):
        labels = metadata["labels"]
        if labels[expression["key"]] == "uninstall":
            continue  # its policy is a hook, too: those of the release are gone when it runs
        assert selector["matchLabels"].items() <= labels.items()
        assert labels[expression["key"]] in expression["values"]
    assert "scale-in" in expression["values"], "rendered only beside a release that runs"
    assert lets_out(documents, "commands", door, "broker")
    assert lets_out(documents, "commands", 53, "other namespace")
    assert not lets_out(documents, "commands", 8084, "broker")
    assert not any(lets_in(documents, "commands", door, source) for source in PEERS)


def test_pods_of_one_command_fit_a_quota_and_stand_where_brokers_may(helm: str, tmp_path: Path) -> None:
    """A namespace with a quota refuses pods that do not say what they need; a taint keeps away those that do not bear it."""
    toleration = {"key": "queues", "operator": "Exists"}
    file = tmp_path / "values.yaml"
    file.write_text(
        yaml.safe_dump(
            {"broker": {"tolerations": [toleration]}, "nodeSelector": {"pool": "all"}, "priorityClassName": "vital"}
        )
    )
    for _, pod in commands(render(helm, *COMMANDS, "-f", str(file))):
        (container,) = pod["containers"]
        assert set(container["resources"]) == {"requests", "limits"}
        assert pod["tolerations"] == [toleration]
        assert pod["nodeSelector"] == {"pool": "all"}
        assert pod["priorityClassName"] == "vital"


# ------------------------------------------------------------------------------------------------------------------ placement


@pytest.mark.parametrize("service", ["broker", "nameserver", "rebalancer"])
def test_pods_of_a_service_stand_apart_where_they_can_and_one_node_is_enough(helm: str, service: str) -> None:
    documents = render(helm, "--set", "rebalancer.replicas=2")
    pod = next(p for p in pods(documents) if p["containers"][0]["name"] == service)
    spread = pod["topologySpreadConstraints"]
    assert {(one["topologyKey"], one["whenUnsatisfiable"], one["maxSkew"]) for one in spread} == {
        ("topology.kubernetes.io/zone", "ScheduleAnyway", 1),
        ("kubernetes.io/hostname", "ScheduleAnyway", 1),
    }
    soft = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0]
    assert soft["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    selectors = [one["labelSelector"]["matchLabels"] for one in (*spread, soft["podAffinityTerm"])]
    assert {selector["app.kubernetes.io/component"] for selector in selectors} == {service}
    hard = render(helm, "--set", f"{service}.spread=hard")
    pod = next(p for p in pods(hard) if p["containers"][0]["name"] == service)
    assert {one["whenUnsatisfiable"] for one in pod["topologySpreadConstraints"]} == {"DoNotSchedule"}
    assert "requiredDuringSchedulingIgnoredDuringExecution" in pod["affinity"]["podAntiAffinity"]
    none = render(helm, "--set", f"{service}.spread=none")
    pod = next(p for p in pods(none) if p["containers"][0]["name"] == service)
    assert not {"topologySpreadConstraints", "affinity"} & set(pod)


@pytest.mark.parametrize("service", ["broker", "nameserver", "rebalancer"])
def test_each_service_has_placement_environment_and_volumes_of_its_own(helm: str, service: str, tmp_path: Path) -> None:
    term = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    constraint = {"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
    toleration = {"key": "queues", "operator": "Exists"}
    own = {
        "affinity": term,
        "topologySpreadConstraints": [constraint],
        "tolerations": [toleration],
        "nodeSelector": {"disk": "fast"},
        "priorityClassName": "vital",
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
        "extraVolumes": [{"name": "more", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
    }
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({service: own, "nodeSelector": {"pool": "all"}, "priorityClassName": "usual"}))
    for auth in ("true", "false"):
        for pod in pods(render(helm, "-f", str(file), "--set", f"auth.enabled={auth}")):
            container, mine = pod["containers"][0], pod["containers"][0]["name"] == service
            assert pod["nodeSelector"] == ({"disk": "fast"} if mine else {"pool": "all"})
            assert pod["priorityClassName"] == ("vital" if mine else "usual")
            assert (pod["affinity"] == term) is mine
            assert (pod["topologySpreadConstraints"] == [constraint]) is mine
            assert (pod.get("tolerations") == [toleration]) is mine
            assert ({"name": "TZ", "value": "UTC"} in container["env"]) is mine
            assert ({"name": "more", "emptyDir": {}} in pod.get("volumes", [])) is mine
            assert ({"name": "more", "mountPath": "/more"} in container.get("volumeMounts", [])) is mine


def test_each_service_of_several_has_a_disruption_budget(helm: str) -> None:
    def budgets(*values: str) -> set[str]:
        return {d["metadata"]["name"] for d in render(helm, *values) if d["kind"] == "PodDisruptionBudget"}

    assert budgets() == {"evenq-broker", "evenq-nameserver"}
    assert budgets("--set", "rebalancer.replicas=2") == {"evenq-broker", "evenq-nameserver", "evenq-rebalancer"}
    assert budgets("--set", "nameserver.replicas=1") == {"evenq-broker"}  # one that may not go would hold up a node


def test_an_image_can_be_named_by_its_digest_and_a_start_may_take_its_time(helm: str) -> None:
    digest = "sha256:" + "ab" * 32
    documents = render(helm, "--set", f"image.digests.broker={digest}", "--set", "broker.startupSeconds=900")
    images = {pod["containers"][0]["name"]: pod["containers"][0]["image"] for pod in pods(documents)}
    assert images["broker"] == f"evenq/broker@{digest}"
    assert images["nameserver"] == f"evenq/nameserver:{evenq.__version__}"
    broker = find(documents, "StatefulSet", "evenq-broker")["spec"]["template"]["spec"]["containers"][0]
    probe = broker["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 900


# ----------------------------------------------------------------------------------------------------------------- monitoring


def test_objects_of_the_prometheus_operator_come_where_the_cluster_knows_them(helm: str) -> None:
    kinds = {"PodMonitor", "PrometheusRule", "ConfigMap"}
    assert not kinds & {d["kind"] for d in render(helm)}
    assert kinds <= {d["kind"] for d in render(helm, *OPERATOR)}
    switched = [f"metrics.{part}.enabled=false" for part in ("podMonitor", "rules", "dashboard")]
    assert not kinds & {d["kind"] for d in render(helm, *OPERATOR, "--set", ",".join(switched))}
    assert "ConfigMap" in {d["kind"] for d in render(helm, "--set", "metrics.dashboard.enabled=true")}


def test_each_alert_leads_to_its_page_where_pages_are_served(helm: str) -> None:
    given = render(helm, *OPERATOR, "--set", "metrics.rules.runbookUrl=https://wiki.example.org/evenq/")
    groups = find(given, "PrometheusRule", "evenq")["spec"]["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    assert len(alerts) > 10
    pages = CHART.parents[1] / "docs" / "operating" / "runbooks"
    for alert in alerts:
        url = alert["annotations"]["runbook_url"]
        assert url == f"https://wiki.example.org/evenq/{alert['alert']}.md"
        assert (pages / url.rpartition("/")[2]).is_file()
    assert "runbook_url" not in yaml.safe_dump(render(helm, *OPERATOR)), "a link that leads nowhere"
    assert "runbookUrl" in refusal(helm, "metrics.rules.runbookUrl=wiki")


@pytest.mark.parametrize(
    ("values", "value", "kind"),
    [
        ("metrics.podMonitor.enabled=true", "metrics.podMonitor.enabled", "monitoring.coreos.com/v1/PodMonitor"),
        ("metrics.rules.enabled=true", "metrics.rules.enabled", "monitoring.coreos.com/v1/PrometheusRule"),
        (
            "tls.enabled=true,tls.certManager.issuerRef.name=ca",
            "tls.certManager.issuerRef.name",
            "cert-manager.io/v1/Certificate",
        ),
    ],
)
def test_a_kind_that_the_cluster_does_not_know_is_refused_in_words(
    helm: str, values: str, value: str, kind: str
) -> None:
    assert render(helm, "--set", values), "without a cluster kinds are not known"
    cluster = ["--set", values, "-a", "apps/v1/StatefulSet"]
    with pytest.raises(subprocess.CalledProcessError) as refused:
        render(helm, *cluster)
    assert f"{value} needs the kind {kind}, which this cluster does not have" in refused.value.stderr
    assert render(helm, *cluster, "-a", kind)


def test_two_sources_of_keys_or_of_certificates_are_refused(helm: str) -> None:
    said = refusal(helm, "auth.existingSecret=mine", "auth.users.shop.admin=true")
    assert "auth.users (shop) beside auth.existingSecret=mine" in said
    said = refusal(helm, "tls.enabled=true", "tls.existingSecret=pair", "tls.certManager.issuerRef.name=ca")
    assert "tls.certManager.issuerRef.name=ca beside tls.existingSecret=pair" in said


def test_hooks_leave_nothing_for_long_and_the_test_keeps_its_log(helm: str) -> None:
    documents = render(helm)
    jobs = [d for d in documents if d["kind"] == "Job"]
    assert {job["spec"]["ttlSecondsAfterFinished"] for job in jobs} == {600}
    policy = find(documents, "Pod", "evenq-test")["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
    assert policy == "before-hook-creation", "`helm test --logs` reads it afterwards"


def test_all_alerts_all_dashboards_and_all_pods_are_in_them(helm: str) -> None:
    labels = "metrics.rules.labels.release=prometheus,metrics.podMonitor.labels.release=prometheus,cluster=east"
    documents = render(helm, *OPERATOR, "--set", labels)
    rule = find(documents, "PrometheusRule", "evenq")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    shown = [alert["alert"] for group in rule["spec"]["groups"] for alert in group["rules"] if "alert" in alert]
    files = sorted((CHART / "alerts").glob("*.yaml"))
    written = [group for file in files for group in yaml.safe_load(file.read_text())["groups"]]
    assert rule["spec"]["groups"] == written, "as they are, `{{ $value }}` included"
    assert len(shown) == len(set(shown)) > 10
    dashboard = find(documents, "ConfigMap", "evenq-dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {name: json.loads(text)["title"] for name, text in dashboard["data"].items()} == {"evenq.json": "evenq"}
    monitor = find(documents, "PodMonitor", "evenq")
    expected = monitor["spec"]["selector"]["matchLabels"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True
    assert {one["targetLabel"]: one.get("replacement") for one in endpoint["relabelings"]} == {
        "evenq_service": None,
        "cluster": "east",
    }
    for document in documents:
        if document["kind"] in {"StatefulSet", "Deployment"}:
            template = document["spec"]["template"]
            assert expected.items() <= template["metadata"]["labels"].items()
            assert endpoint["port"] in {port["name"] for port in template["spec"]["containers"][0]["ports"]}


def test_every_service_says_the_same_name_of_the_cluster(helm: str) -> None:
    for values, name in (([], "shop-queues"), (["--set", "cluster=east"], "east")):
        for pod in pods(render(helm, *values, release="shop-queues")):
            container = pod["containers"][0]
            assert environment(container)[f"EVENQ_{container['name'].upper()}_CLUSTER"] == name


# ----------------------------------------------------------------------------------------------------------------------- TLS

TLS_SETTINGS = {"PORT", "CERTIFICATE", "KEY", "CLIENT_CA", "PEERS", "PEER_CA", "PEER_SERVER_NAME"}


def test_with_tls_no_server_has_a_plain_port_and_all_talk_tls_to_each_other(helm: str) -> None:
    documents = render(helm, *TLS)
    host = "evenq.default.svc.cluster.local"
    for pod in pods(documents):
        container = pod["containers"][0]
        variables, prefix = environment(container), f"EVENQ_{container['name'].upper()}_"
        assert {
            name.removeprefix(prefix + "TLS__") for name in variables if name.startswith(prefix + "TLS")
        } <= TLS_SETTINGS
        assert variables[prefix + "PORT"] == "-1"
        port = {"broker": "8443", "nameserver": "9876", "rebalancer": "8083"}[container["name"]]
        assert variables[prefix + "TLS__PORT"] == port
        assert (variables[prefix + "TLS__PEERS"], variables[prefix + "TLS__PEER_SERVER_NAME"]) == ("true", host)
        assert (prefix + "TLS__CLIENT_CA" in variables) is (container["name"] != "broker"), (
            "clients need no certificate"
        )
        assert {"name": "grpc", "containerPort": int(port)} in container["ports"]
        assert "plain" not in {one["name"] for one in container["ports"]}
        for probe, path in (("startupProbe", "/healthz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")):
            assert container[probe]["httpGet"] == {"port": "metrics", "path": path}, "gRPC probes speak no TLS"
        mount = next(mount for mount in container["volumeMounts"] if mount["name"] == "tls")
        assert mount == {"name": "tls", "mountPath": "/etc/evenq/tls", "readOnly": True}
        volume = next(volume for volume in pod["volumes"] if volume["name"] == "tls")
        assert volume["secret"] == {"secretName": "pair", "defaultMode": 0o440}
    broker = environment(find(documents, "StatefulSet", "evenq-broker")["spec"]["template"]["spec"]["containers"][0])
    own = "$(EVENQ_BROKER_BROKER_NAME).evenq-broker.default.svc.cluster.local:8443"
    assert broker["EVENQ_BROKER_ADVERTISE"] == f"tls={own},internal={own}"
    assert (broker["EVENQ_ENDPOINT"], broker["EVENQ_TLS_SERVER_NAME"]) == ("evenqs://127.0.0.1:8443", host)
    assert broker["EVENQ_TLS_CA"] == "/etc/evenq/tls/ca.crt"
    assert find(documents, "Service", "evenq")["spec"]["ports"][0]["port"] == 8443
    assert lets_in(documents, "broker", 8443, "client")
    assert not lets_in(documents, "broker", 8081, "client")
    assert lets_out(documents, "broker", 8443, "broker")


def test_with_tls_plain_text_may_stay_and_clients_may_have_to_show_certificates(helm: str) -> None:
    documents = render(helm, *TLS, "--set", "tls.keepPlain=true,tls.clientCertificates=all")
    broker = find(documents, "StatefulSet", "evenq-broker")["spec"]["template"]["spec"]["containers"][0]
    variables = environment(broker)
    assert (variables["EVENQ_BROKER_PORT"], variables["EVENQ_BROKER_TLS__PORT"]) == ("8081", "8443")
    assert variables["EVENQ_BROKER_TLS__CLIENT_CA"] == "/etc/evenq/tls/ca.crt"
    assert variables["EVENQ_TLS_CERTIFICATE"] == "/etc/evenq/tls/tls.crt"
    assert variables["EVENQ_BROKER_ADVERTISE"].startswith("default=$(EVENQ_BROKER_BROKER_NAME).")
    assert {port["name"]: port["port"] for port in find(documents, "Service", "evenq")["spec"]["ports"]} == {
        "grpc": 8443,
        "plain": 8081,
    }
    assert lets_in(documents, "broker", 8081, "client")
    none = render(helm, *TLS, "--set", "tls.clientCertificates=none")
    assert "CLIENT_CA" not in yaml.safe_dump(none)


def test_cert_manager_makes_a_certificate_with_every_name_that_is_dialled(helm: str) -> None:
    issuer = "tls.enabled=true,tls.certManager.issuerRef.name=ca,tls.certManager.dnsNames={queues.example.org}"
    documents = render(helm, "--set", issuer)
    certificate = find(documents, "Certificate", "evenq")["spec"]
    assert certificate["issuerRef"] == {"name": "ca"}
    assert {"server auth", "client auth"} <= set(certificate["usages"])
    names = set(certificate["dnsNames"])
    dialled = {"evenq.default.svc.cluster.local", "evenq-rebalancer.default.svc.cluster.local", "queues.example.org"}
    assert dialled <= names
    for service in ("broker", "nameserver"):
        assert f"*.evenq-{service}.default.svc.cluster.local" in names
    volumes = [volume for pod in pods(documents) for volume in pod["volumes"] if volume["name"] == "tls"]
    assert {volume["secret"]["secretName"] for volume in volumes} == {certificate["secretName"]} == {"evenq-tls"}


def test_tls_without_a_certificate_or_with_one_port_for_two_is_refused(helm: str) -> None:
    both = ("tls.enabled=true", "tls.existingSecret=pair", "tls.keepPlain=true", "tls.port=8081")
    assert "tls.port and broker.port are the same" in refusal(helm, *both)
    assert "name a Secret with tls.crt, tls.key and ca.crt in tls.existingSecret" in refusal(helm, "tls.enabled=true")


# ------------------------------------------------------------------------------------------------------- clients outside


def environment_of(documents: list[dict[str, Any]]) -> dict[str, str]:
    (broker,) = find(documents, "StatefulSet", "evenq-broker")["spec"]["template"]["spec"]["containers"]
    return {entry["name"]: entry.get("value", "") for entry in broker["env"]}


def told_outside(documents: list[dict[str, Any]], index: int) -> tuple[str, bool]:
    """What broker `index` tells those who come through its door for them, read by the broker's own code."""
    name = f"evenq-broker-{index}"
    environment = environment_of(documents)
    advertise = environment["EVENQ_BROKER_ADVERTISE"].replace("$(EVENQ_BROKER_BROKER_NAME)", name)
    (spot,) = parse_listeners(environment["EVENQ_BROKER_LISTENERS"])
    usual = TLS_LISTENER if spot.listener.tls else PLAIN_LISTENER
    doors = {usual: 8443, spot.listener: spot.port}
    hosts = {usual.name: "0.0.0.0", spot.listener.name: spot.host}
    result = advertised(advertise, doors, hosts=hosts, broker_name=name)
    address = next(one for one in result if one.listener == "external")
    return address.address, "external" in environment.get("EVENQ_BROKER_SHARED_LISTENERS", "").split(",")


def test_one_address_outside_leads_to_any_broker_through_a_door_of_its_own(helm: str) -> None:
    documents = render(helm, *EXTERNAL)
    service = find(documents, "Service", "evenq-external")["spec"]
    assert service["type"] == "NodePort"
    assert "statefulset.kubernetes.io/pod-name" not in service["selector"]
    (port,) = service["ports"]
    assert (port["nodePort"], port["targetPort"]) == (30_081, "external")
    ports = find(documents, "StatefulSet", "evenq-broker")["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert {one["name"]: one["containerPort"] for one in ports} == {"grpc": 8081, "metrics": 5557, "external": 8091}
    assert {told_outside(documents, index) for index in range(2)} == {("mq.example.org:30081", True)}
    assert lets_in(documents, "broker", "external", "outside")
    assert not lets_in(documents, "broker", 8081, "outside"), "the other doors stay closed"


def test_with_a_port_for_each_broker_clients_outside_call_each_directly(helm: str) -> None:
    documents = render(helm, *EXTERNAL, *TLS, "--set", "external.ports={30091,30092},external.type=LoadBalancer")
    for index, port in enumerate((30_091, 30_092)):
        service = find(documents, "Service", f"evenq-external-{index}")["spec"]
        assert service["selector"]["statefulset.kubernetes.io/pod-name"] == f"evenq-broker-{index}"
        assert service["ports"][0]["port"] == port
        assert "nodePort" not in service["ports"][0]
        assert told_outside(documents, index) == (f"evenqs://mq.example.org:{port}", False)
    own = "external.host=$(EVENQ_BROKER_BROKER_NAME).mq.example.org,external.ports={30091,30092}"
    assert told_outside(render(helm, *EXTERNAL, "--set", own), 1)[0] == "evenq-broker-1.mq.example.org:30092"


def test_a_door_for_nobody_or_for_some_brokers_only_is_refused(helm: str) -> None:
    assert "external.enabled needs external.host" in refusal(helm, "external.enabled=true")
    some = "external.ports={30091,30092,30093}"
    assert "3 ports for 2 brokers" in refusal(helm, "external.enabled=true", "external.host=mq.example.org", some)
    same = "external.doorPort=8081"
    assert "doorPort is another" in refusal(helm, "external.enabled=true", "external.host=mq.example.org", same)


def test_the_old_node_port_is_refused_with_what_to_use_instead(helm: str) -> None:
    sentence = refusal(helm, "broker.nodePort=30081")
    assert "external.enabled=true,external.host=NODE,external.ports={30081}" in sentence
    assert "broker.nodePort=null" in sentence
    instead = ["broker.nodePort=null", "external.enabled=true", "external.host=NODE", "external.ports={30081}"]
    documents = render(helm, *(part for value in instead for part in ("--set", value)))
    assert find(documents, "Service", "evenq-external")["spec"]["ports"][0]["nodePort"] == 30_081
    assert find(documents, "Service", "evenq")["spec"].get("type") is None
    assert render(helm, "--set", "broker.nodePort=0"), "an upgrade with --reuse-values brings the old default"


@pytest.mark.parametrize(
    ("values", "service"),
    [
        (["metrics.port=8081"], "broker"),
        (["nameserver.port=5557"], "nameserver"),
        (["rebalancer.port=5557"], "rebalancer"),
        (["tls.enabled=true", "tls.existingSecret=pair", "tls.port=5557"], "broker"),
        (["tls.enabled=true", "tls.existingSecret=pair", "tls.keepPlain=true", "broker.port=5557"], "broker"),
    ],
)
def test_a_port_that_metrics_have_as_well_is_refused(helm: str, values: list[str], service: str) -> None:
    assert f"metrics.port {8081 if 'metrics.port=8081' in values else 5557} is a port of the {service}" in refusal(
        helm, *values
    )


# -------------------------------------------------------------------------------------------------------------------- schema


@pytest.mark.parametrize(
    "bad",
    [
        "broker.replicaCount=3",
        "broker.groups=0",
        "broker.replicas=0",
        "broker.replication.mode=async",
        "broker.replication.minInSync=4",
        "broker.flush=sometimes",
        "broker.storage.size=ten",
        "broker.storage.size=0Gi",
        "broker.storage.size=511Mi",
        "broker.storage.size=99Mi",
        "broker.storage.size=10G",
        "broker.scaleIn=maybe",
        "broker.startupSeconds=0",
        "broker.spread=far",
        "broker.settings.EVENQ_NAMESERVER_EXPIRY_MS=10000",
        "external.ports={80}",
        "external.ports={30091,30091}",
        "external.ports={}",
        "external.type=ClusterIP",
        "external.host=evenq://mq.example.org",
        "broker.extraEnv[0].value=nameless",
        "nameserver.registerFrom={pods}",
        "metrics.port=0",
        "metrics.rules.enabled=sometimes",
        "metrics.podMonitor.interval=often",
        "auth.secret=mine",
        "auth.users.operator.admin=true",
        "auth.users.Shop.admin=true",
        "auth.users.shop.admin=false",
        "auth.users.shop.allow[0].resource=orders",
        "tls.clientCertificates=some",
        "tls.certManager.issuer=ca",
        "networkPolicy.clientNamespaces={Shop}",
        "image.digests.broker=latest",
        "front=nginx",
        "broker.frontLimits.connectionMax=5",
        "broker.frontLimits.connectionWindowBytes=1000",
    ],
)
def test_a_typo_or_a_value_out_of_bounds_is_refused(helm: str, bad: str) -> None:
    path = re.sub(r"\[.*", "", bad.split("=", maxsplit=1)[0])
    parts = path.split(".")
    assert any(part in refusal(helm, bad) for part in parts[-2:]), "the sentence names it"


@pytest.mark.parametrize("size", ["512Mi", "999Mi", "1024Mi", "1Gi", "10Gi", "2Ti"])
def test_sizes_that_work_are_taken(helm: str, size: str) -> None:
    assert render(helm, "--set", f"broker.storage.size={size}")


@pytest.mark.parametrize(
    "bad",
    [
        "broker.settings.EVENQ_BROKER_STORE__FLSUH=async",
        "broker.settings.EVENQ_BROKER_FRONT_LIMITS__IDLE=5",
        "nameserver.settings.EVENQ_NAMESERVER_EXPIRY=5",
        "rebalancer.settings.EVENQ_REBALANCER_LEASE_MS=soon",
        "broker.settings.EVENQ_BROKER_STORE__SEGMENT_BYTES=512Mi",
    ],
)
def test_a_setting_that_the_program_does_not_have_or_take_is_refused(helm: str, bad: str) -> None:
    """The program would refuse it as well: in every restart of its pod."""
    assert bad.partition("=")[0].rpartition(".")[2] in refusal(helm, bad, flag="--set-string")


@pytest.mark.parametrize("size", ["", "100", "65535", "2147483649", "99999999999999999999"])
def test_a_size_of_log_files_that_brokers_refuse_is_refused(helm: str, size: str) -> None:
    from evenq_broker.settings import BrokerSettings

    (bounds,) = [one.bounds for one in settings_of(BrokerSettings) if one.name == "store.segment_bytes"]
    grown = "broker.groups=1,broker.replicas=3,broker.replication.fromOneCopy=true"
    given = f"broker.settings.EVENQ_BROKER_STORE__SEGMENT_BYTES={size}"
    command = ["--set", grown, "--set-string", given]
    with pytest.raises(subprocess.CalledProcessError) as refused:
        render(helm, *command)
    assert bounds.replace(" .. ", " to ") in refused.value.stderr
    assert f'"{size}"' in refused.value.stderr
    assert "cat /data/store/identity" in refused.value.stderr
    if not size:
        assert render(helm, "--set-string", given), "empty is the default of brokers with one copy"


@pytest.mark.parametrize("name", ["mq.shop", "7days", "1"])
def test_a_name_that_services_cannot_have_is_refused(helm: str, name: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        render(helm, release=name)
    assert f'release name "{name}": Services are named after it' in refused.value.stderr


@pytest.mark.parametrize("name", ["Shop", "a" * 54, "shop-"])
def test_other_names_that_kubernetes_refuses_are_refused_by_helm(helm: str, name: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        render(helm, release=name)
    assert "invalid release name" in refused.value.stderr


def test_every_value_is_known_to_the_schema_and_the_other_way_round() -> None:
    """Strict, and complete: a new value without its row in the schema is a typo to helm."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def differences(rule: dict[str, Any], value: Any, path: str) -> list[str]:
        known = rule.get("properties")
        if known is None or not isinstance(value, dict):
            return []
        assert rule["additionalProperties"] is False, f"{path or 'the top'} takes anything"
        result = set(known) ^ set(value)
        return [
            *(f"{path}{name}" for name in sorted(result) if f"{path}{name}" not in OPTIONAL),
            *(
                found
                for name in known.keys() & value.keys()
                for found in differences(known[name], value[name], f"{path}{name}.")
            ),
        ]

    assert differences(schema, values, "") == []
