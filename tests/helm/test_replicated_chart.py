"""The chart with several copies of each broker group, as it renders."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from evenq_broker.settings import BrokerSettings
from evenq_helm.chart import CHART, environment, find, pods, refusal, render, standing
from evenq_proofs.programs_by_path import load_program

from evenq.cli.parser import make_parser
from evenq.serving.program.settings import load

pytestmark = pytest.mark.timeout(1_600)  # the first run on a new machine may build helm

COPIES = ["--set", "broker.groups=2,broker.replicas=3"]
DOMAIN = "evenq-broker.default.svc.cluster.local"
GROUP = "evenq.io/broker-group"


def broker(documents: list[dict[str, Any]], group: int = 0) -> dict[str, Any]:
    """The container of a group's copies."""
    (container,) = find(documents, "StatefulSet", f"evenq-broker-{group}")["spec"]["template"]["spec"]["containers"]
    return dict(container)


def test_each_group_is_a_set_of_its_own_whose_copies_know_each_other(helm: str) -> None:
    documents = render(helm, *COPIES)
    sets = {d["metadata"]["name"]: d["spec"] for d in documents if d["kind"] == "StatefulSet"}
    assert set(sets) == {"evenq-broker-0", "evenq-broker-1", "evenq-nameserver"}
    for index in range(2):
        name = f"evenq-broker-{index}"
        spec = sets[name]
        assert (spec["replicas"], spec["serviceName"]) == (3, "evenq-broker")
        assert spec["podManagementPolicy"] == "Parallel", "one alone is never in sync, so it is never ready"
        assert spec["selector"]["matchLabels"][GROUP] == name
        assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
        told = environment(broker(documents, index))
        assert told["EVENQ_BROKER_BROKER_NAME"] == name
        assert told["EVENQ_BROKER_REPLICATION__RECORD"] == f"lease:{name}"
        assert told["EVENQ_BROKER_REPLICATION__MEMBERS"] == ",".join(f"{n}={name}-{n}.{DOMAIN}:8084" for n in range(3))
        assert told["EVENQ_BROKER_ADVERTISE"] == (
            f"default=$(POD_NAME).{DOMAIN}:8081,any-copy=$(EVENQ_BROKER_BROKER_NAME).default.svc.cluster.local:8081"
        )
        assert told["EVENQ_ENDPOINT"] == "evenq.default.svc.cluster.local:8081", "a follower serves nobody"
        order = list(told)
        assert order.index("POD_NAME") < order.index("EVENQ_BROKER_ADVERTISE"), "only earlier ones are put in"


def test_each_group_has_an_address_that_outlives_its_leader_where_no_certificate_would_lack_its_name(helm: str) -> None:
    documents = render(helm, *COPIES)
    for index in range(2):
        name = f"evenq-broker-{index}"
        spec = find(documents, "Service", name)["spec"]
        assert "clusterIP" not in spec, "names of pods change with them, and clients keep what they resolved"
        assert "publishNotReadyAddresses" not in spec
        assert spec["selector"][GROUP] == name
        assert [(port["port"], port["targetPort"]) for port in spec["ports"]] == [(8081, "grpc")]
    secure = ["--set", "tls.enabled=true,tls.existingSecret=pair"]
    documents = render(helm, *COPIES, *secure)
    assert "evenq-broker-0" not in {d["metadata"]["name"] for d in documents if d["kind"] == "Service"}
    assert "any-copy" not in environment(broker(documents))["EVENQ_BROKER_ADVERTISE"]
    documents = render(helm, *COPIES, *secure, "--set", "tls.keepPlain=true")
    (port,) = find(documents, "Service", "evenq-broker-0")["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (8081, "plain")


def test_every_revision_asks_before_a_rollback_to_it(helm: str) -> None:
    """`helm rollback` renders nothing: it runs the hooks that the revision was made with."""
    for values, of_copies in (([], True), (COPIES, False)):
        job = find(render(helm, *values), "Job", "evenq-rollback")
        assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-rollback"
        (container,) = job["spec"]["template"]["spec"]["containers"]
        script = container["command"][-1]
        assert ("several copies by now" in script) is of_copies
        assert "No broker answers, so nothing is checked" in script, "a rollback may be the cure"
        assert script.count(" pending\n") == (3 if of_copies else 2), "each refusal says how helm goes on"
        assert 'int(row["broker"].rpartition("-")[2]) >= 2' in script
    unchecked = render(helm, "--set", "broker.scaleIn=unchecked")
    assert "evenq-rollback" not in {d["metadata"]["name"] for d in unchecked if d["kind"] == "Job"}


def test_the_program_takes_what_the_chart_tells_a_copy(helm: str) -> None:
    """Every copy's variables, with what Kubernetes puts in, read by the program's own code."""
    for index in range(2):
        for copy in range(3):
            variables = {
                name: value for name, value in environment(broker(render(helm, *COPIES), index)).items() if value
            }
            variables["EVENQ_BROKER_REPLICATION__BROKER_ID"] = str(copy)
            settings = load(BrokerSettings, "broker", [], variables)
            assert settings.replication.addresses[copy] == f"evenq-broker-{index}-{copy}.{DOMAIN}:8084"
            assert (settings.replication.mode, settings.replication.min_in_sync) == ("sync", 2)


def test_a_copys_number_is_that_of_its_pod(helm: str) -> None:
    entries = {e["name"]: e for e in broker(render(helm, *COPIES))["env"]}
    path = entries["EVENQ_BROKER_REPLICATION__BROKER_ID"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.labels['apps.kubernetes.io/pod-index']"
    assert entries["POD_NAME"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    assert "needs Kubernetes 1.28" in refusal(helm, "broker.groups=1", "broker.replicas=3", version="1.27.0")


def test_a_drain_takes_one_copy_of_a_group_at_a_time(helm: str) -> None:
    documents = render(helm, *COPIES)
    budgets = {d["metadata"]["name"]: d["spec"] for d in documents if d["kind"] == "PodDisruptionBudget"}
    assert set(budgets) == {"evenq-broker-0", "evenq-broker-1", "evenq-nameserver"}
    for index in range(2):
        name = f"evenq-broker-{index}"
        assert budgets[name]["maxUnavailable"] == 1
        assert (
            budgets[name]["selector"]["matchLabels"]
            == (find(documents, "StatefulSet", name)["spec"]["selector"]["matchLabels"])
        ), "as many pods as the set has, or maxUnavailable would count others"
    assert "for each group" in refusal(helm, "broker.groups=1", "broker.replicas=3", "broker.maxUnavailable=2")


def test_another_version_of_the_chart_does_not_write_to_the_leases(helm: str, tmp_path: Path) -> None:
    """They hold the record of who leads: a write that its leader has not made changes what it compares."""
    newer = shutil.copytree(CHART, tmp_path / "evenq")
    text = (newer / "Chart.yaml").read_text()
    (newer / "Chart.yaml").write_text(re.sub(r"(?m)^(version|appVersion): .*$", r"\1: 9.9.9", text))
    leases = []
    for chart in (CHART, newer):
        command = [helm, "template", "evenq", str(chart), "--kube-version", "1.34.0", *COPIES]
        shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
        documents = [d for d in yaml.safe_load_all(shown) if d]
        leases.append([d for d in documents if d["kind"] == "Lease"])
        assert find(documents, "StatefulSet", "evenq-broker-0")["metadata"]["labels"]["helm.sh/chart"]
    assert leases[0] == leases[1]
    assert [lease["metadata"]["labels"]["app.kubernetes.io/component"] for lease in leases[0]] == ["broker", "broker"]


def spread_of(helm: str, *values: str) -> dict[str, Any]:
    template = find(render(helm, *COPIES, *values), "StatefulSet", "evenq-broker-1")["spec"]["template"]["spec"]
    apart = template.get("affinity", {}).get("podAntiAffinity", {})
    terms = apart.get("requiredDuringSchedulingIgnoredDuringExecution", [])
    selectors = [one["labelSelector"] for one in (*template.get("topologySpreadConstraints", []), *terms)]
    assert all(one["matchLabels"][GROUP] == "evenq-broker-1" for one in selectors), "copies of other groups may be near"
    result = {one["topologyKey"]: one["whenUnsatisfiable"] for one in template.get("topologySpreadConstraints", [])}
    return {**result, "apart": [term["topologyKey"] for term in terms]}


def test_copies_of_a_group_never_share_a_node_unless_that_is_asked_for(helm: str) -> None:
    zone, host = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
    assert spread_of(helm) == {zone: "ScheduleAnyway", host: "DoNotSchedule", "apart": [host]}
    assert spread_of(helm, "--set", "broker.spread=host") == spread_of(helm)
    hard = spread_of(helm, "--set", "broker.spread=hard")
    assert hard == {zone: "DoNotSchedule", host: "DoNotSchedule", "apart": [host]}
    soft = spread_of(helm, "--set", "broker.spread=soft")
    assert soft == {zone: "ScheduleAnyway", host: "ScheduleAnyway", "apart": []}
    assert spread_of(helm, "--set", "broker.spread=none") == {"apart": []}


def test_only_brokers_may_write_their_groups_leases_and_no_other(helm: str) -> None:
    documents = render(helm, *COPIES, "--set", "rebalancer.enabled=false")
    names = ["evenq-broker-0", "evenq-broker-1"]
    assert [d["metadata"]["name"] for d in documents if d["kind"] == "Lease"] == names
    for name in names:
        assert find(documents, "Lease", name)["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    (rule,) = find(documents, "Role", "evenq-broker")["rules"]
    assert rule == {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": names,
        "verbs": ["get", "watch", "update"],
    }
    assert find(documents, "RoleBinding", "evenq-broker")["subjects"][0]["name"] == "evenq-broker"
    assert not [d for d in documents if d["kind"].startswith("ClusterRole")]
    for pod in pods(documents):
        copy = pod["containers"][0]["name"] == "broker"
        assert pod["automountServiceAccountToken"] is copy
        assert pod.get("serviceAccountName") == ("evenq-broker" if copy else None)


def test_brokers_of_one_copy_have_no_rights_at_all(helm: str) -> None:
    documents = render(helm, "--set", "rebalancer.enabled=false,broker.groups=3")
    assert not {"Role", "ServiceAccount", "Lease"} & {d["kind"] for d in standing(documents)}
    assert find(documents, "StatefulSet", "evenq-broker")["spec"]["replicas"] == 3
    assert "REPLICATION" not in yaml.safe_dump(documents)
    assert "clusterIP" not in find(documents, "Service", "evenq")["spec"]


@pytest.mark.parametrize("tls", [False, True])
def test_probes_ask_the_page_because_a_follower_has_no_grpc_port(helm: str, tls: bool) -> None:
    container = broker(render(helm, *COPIES, *(["--set", "tls.enabled=true,tls.existingSecret=pair"] if tls else [])))
    for probe, path in (("startupProbe", "/healthz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")):
        assert container[probe]["httpGet"] == {"port": "metrics", "path": path}
        assert "grpc" not in container[probe]
    assert {"name": "replication", "containerPort": 8084} in container["ports"]


def test_the_access_point_leads_past_followers(helm: str) -> None:
    documents = render(helm, *COPIES)
    access = find(documents, "Service", "evenq")["spec"]
    assert access["clusterIP"] == "None", "its name has every copy's address; a client tries the next"
    assert access["ports"][0]["port"] == 8081
    assert {"name": "grpc", "containerPort": 8081} in broker(documents)["ports"], "a headless Service changes no port"
    own = find(documents, "Service", "evenq-broker")["spec"]
    assert own["publishNotReadyAddresses"] is True, "copies find each other before they are in sync"
    assert {"name": "replication", "port": 8084, "targetPort": "replication"} in own["ports"]


def test_with_tls_copies_speak_it_to_each_other_by_names_of_the_certificate(helm: str) -> None:
    issuer = "tls.enabled=true,tls.certManager.issuerRef.name=ca"
    documents = render(helm, *COPIES, "--set", issuer)
    variables = environment(broker(documents))
    assert variables["EVENQ_BROKER_TLS__PEERS"] == "true"
    assert variables["EVENQ_BROKER_TLS__PEER_SERVER_NAME"] == "evenq.default.svc.cluster.local"
    assert variables["EVENQ_BROKER_ADVERTISE"].startswith(f"tls=$(POD_NAME).{DOMAIN}:8443")
    assert f"*.{DOMAIN}" in find(documents, "Certificate", "evenq")["spec"]["dnsNames"]


def test_links_and_the_kubernetes_api_are_open_to_copies_only(helm: str) -> None:
    def rules(documents: list[dict[str, Any]], way: str) -> list[dict[str, Any]]:
        return list(find(documents, "NetworkPolicy", "evenq-broker")["spec"][way])

    copies, alone = render(helm, *COPIES, "--set", "networkPolicy.followerReads=false"), render(helm)
    (entry,) = [rule for rule in rules(copies, "ingress") if {"port": 8084} in rule["ports"]]
    (peer,) = entry["from"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "broker"
    (exit_,) = [rule for rule in rules(copies, "egress") if {"port": 8084} in rule["ports"]]
    assert exit_["to"] == [peer]
    assert {"ports": [{"port": 443}, {"port": 6443}]} in rules(copies, "egress")
    assert "8084" not in yaml.safe_dump(rules(alone, "ingress") + rules(alone, "egress"))
    assert {"ports": [{"port": 443}, {"port": 6443}]} not in rules(alone, "egress")


@pytest.mark.spec("HA-9")
@pytest.mark.parametrize(
    ("values", "reach"),
    [
        ([], True),
        (["auth.enabled=false"], False),
        (["networkPolicy.followerReads=false"], False),
        (["broker.settings.EVENQ_BROKER_REPLICATION__FOLLOWER_READS=false"], False),
        (["networkPolicy.followerReads=true"], True),
    ],
    ids=["default", "unsigned", "off", "brokers refuse", "on"],
)
def test_readers_reach_followers_where_calls_are_signed(helm: str, values: list[str], reach: bool) -> None:
    """The same peers as at the brokers' own port. Without signed calls the port is for copies alone: a program that
    reaches it could speak for one.
    """
    shown = [part for value in values for part in ("--set-string" if "settings" in value else "--set", value)]
    documents = render(helm, *COPIES, *shown, "--set", "networkPolicy.clientNamespaces={shop}")
    rules = find(documents, "NetworkPolicy", "evenq-broker")["spec"]["ingress"]
    (clients,) = [rule for rule in rules if {"port": 8081} in rule["ports"]]
    assert ({"port": 8084} in clients["ports"]) is reach
    assert any("namespaceSelector" in peer for peer in clients["from"])
    assert len([rule for rule in rules if {"port": 8084} in rule["ports"]]) == 1 + reach, "copies in any case"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["broker.replicas=3"], "broker.groups=3,broker.replicas=1 keeps 3 broker(s)"),
        (["broker.replicas=1"], "broker.groups=1,broker.replicas=1 keeps 1 broker(s)"),
        (["broker.groups=1", "broker.replicas=4"], "1, 2 or 3 copies"),
        (
            ["broker.groups=1", "broker.replicas=3", "networkPolicy.followerReads=true", "auth.enabled=false"],
            "any program that reaches broker.replication.port could act as a copy",
        ),
        (["broker.groups=1", "broker.replicas=2", "broker.replication.minInSync=3"], "at most 2 can be in sync"),
        (["broker.groups=1", "broker.replicas=3", "broker.replication.port=8081"], "another port of the broker"),
        (
            [
                "broker.groups=1",
                "broker.replicas=3",
                "external.enabled=true",
                "external.host=h",
                "external.doorPort=8084",
            ],
            "external.doorPort 8084 is also broker.replication.port",
        ),
        (["broker.replication.fromOneCopy=true"], "it needs broker.replicas 2 or 3"),
        (
            ["broker.groups=1", "broker.replicas=3", "broker.replication.fromOneCopy=true"],
            "-n default exec evenq-broker-0 -- cat /data/store/identity",
        ),
        (
            ["broker.groups=1", "broker.replicas=3", "broker.settings.EVENQ_BROKER_REPLICATION__MODE=memory"],
            "the chart sets it",
        ),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_what_cannot_be_is_refused_in_words(helm: str, values: list[str], words: str) -> None:
    assert words in refusal(helm, *values)


SEGMENT = "broker.settings.EVENQ_BROKER_STORE__SEGMENT_BYTES=536870912"
GROWN = [*COPIES, "--set", "broker.replication.fromOneCopy=true", "--set-string", SEGMENT]


def test_brokers_of_one_copy_that_grow_keep_their_statefulset_with_its_pods_and_volumes(helm: str) -> None:
    """Of a StatefulSet and of a Service these fields cannot be changed, and a pod finds its volume by name."""
    before, after = render(helm, "--set", "broker.groups=2"), render(helm, *GROWN)
    old, new = (find(documents, "StatefulSet", "evenq-broker") for documents in (before, after))
    for field in ("selector", "serviceName", "podManagementPolicy", "volumeClaimTemplates", "replicas"):
        assert old["spec"][field] == new["spec"][field], field
    assert "clusterIP" not in find(after, "Service", "evenq")["spec"]
    assert set(new["spec"]["selector"]["matchLabels"].items()) <= set(
        new["spec"]["template"]["metadata"]["labels"].items()
    )


def test_the_program_takes_what_the_chart_tells_copies_that_join_one(helm: str) -> None:
    documents = render(helm, *GROWN)
    for index in range(2):
        name = f"evenq-broker-{index}"
        first_at = f"{name}-first.default.svc.cluster.local"
        members = {0: f"{first_at}:8084", 1: f"{name}-1.{DOMAIN}:8084", 2: f"{name}-2.{DOMAIN}:8084"}
        (first,) = find(documents, "StatefulSet", "evenq-broker")["spec"]["template"]["spec"]["containers"]
        variables = {**environment(first), "EVENQ_BROKER_BROKER_NAME": name, "POD_NAME": name}
        order = list(variables)
        assert order.index("EVENQ_BROKER_BROKER_NAME") < order.index("EVENQ_BROKER_REPLICATION__MEMBERS")
        expanded = {
            key: value.replace("$(EVENQ_BROKER_BROKER_NAME)", name).replace("$(POD_NAME)", name)
            for key, value in variables.items() if value is not None
        }  # fmt: skip
        settings = load(BrokerSettings, "broker", [], expanded)
        assert settings.replication.addresses == members
        assert (settings.replication.broker_id, settings.replication.from_one_copy) == (0, True)
        assert settings.replication.record == f"lease:{name}"
        assert settings.store.segment_bytes == 536870912
        spec = find(documents, "StatefulSet", name)["spec"]
        assert (spec["replicas"], spec["ordinals"]) == (2, {"start": 1})
        other = {key: value for key, value in environment(broker(documents, index)).items() if value is not None}
        settings = load(BrokerSettings, "broker", [], {**other, "EVENQ_BROKER_REPLICATION__BROKER_ID": "2"})
        assert settings.replication.addresses == members
        assert (settings.replication.from_one_copy, settings.replication.forward_clients) == (True, True)
        assert settings.store.segment_bytes == 536870912


def test_copies_that_join_one_are_kept_apart_and_drained_one_by_one(helm: str) -> None:
    documents = render(helm, *GROWN)
    pods_of_group = ["evenq-broker-1", "evenq-broker-1-1", "evenq-broker-1-2"]
    own = {"key": "statefulset.kubernetes.io/pod-name", "operator": "In", "values": pods_of_group}
    budget = find(documents, "PodDisruptionBudget", "evenq-broker-1")["spec"]
    assert budget == {"minAvailable": 2, "selector": {"matchExpressions": [own]}}
    template = find(documents, "StatefulSet", "evenq-broker-1")["spec"]["template"]["spec"]
    (term,) = template["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"] == {"matchExpressions": [own]}
    first = find(documents, "StatefulSet", "evenq-broker")["spec"]["template"]["spec"]
    assert "requiredDuringSchedulingIgnoredDuringExecution" not in first["affinity"]["podAntiAffinity"]
    alone = find(render(helm, *GROWN, "--set", "broker.spread=none"), "StatefulSet", "evenq-broker")["spec"]
    assert "affinity" not in alone["template"]["spec"]


def test_an_address_outlives_the_only_pod_of_a_broker_and_leads_to_the_other_copies_once_it_has_some(helm: str) -> None:
    """Clients keep that address; copies reach copy 0 by one that is there before its pod is ready."""
    pod = "statefulset.kubernetes.io/pod-name"
    for values, one, grown in (
        (["--set", "broker.groups=2"], True, False),
        (GROWN, False, True),
        (COPIES, False, False),
    ):
        documents = render(helm, *values)
        for index in range(2):
            name = f"evenq-broker-{index}"
            selector = find(documents, "Service", name)["spec"]["selector"]
            assert (selector.get(pod), selector.get(GROUP)) == ((name, None) if one else (None, name))
            services = {one["metadata"]["name"]: one["spec"] for one in documents if one["kind"] == "Service"}
            assert (f"{name}-first" in services) == grown
            if grown:
                first = services[f"{name}-first"]
                assert first["publishNotReadyAddresses"]
                assert "clusterIP" not in first, (
                    "a name that leads to a pod is known for seconds after the pod has gone"
                )
                assert first["selector"][pod] == name
                assert {port["port"] for port in first["ports"]} == {8081, 8084}
    (container,) = find(render(helm), "StatefulSet", "evenq-broker")["spec"]["template"]["spec"]["containers"]
    advertised = environment(container)["EVENQ_BROKER_ADVERTISE"]
    assert "any-copy=$(EVENQ_BROKER_BROKER_NAME).default.svc.cluster.local:8081" in advertised
    secure = render(helm, *GROWN, "--set", "tls.enabled=true,tls.existingSecret=x")
    assert not [one for one in secure if one["metadata"]["name"].endswith("-first")], "a certificate lacks that name"


class FakeApi:
    """A StatefulSet of copies that is ready when it is looked at twice, and one that is held back."""

    namespace = "shop"

    def __init__(self) -> None:
        self.looks = 0
        self.calls: list[tuple[str, str]] = []
        self.first = {"metadata": {"generation": 2}, "spec": {"replicas": 1, "updateStrategy": {"rollingUpdate": {"partition": 1}}},
                      "status": {"observedGeneration": 2, "readyReplicas": 1}}  # fmt: skip
        self.selector: dict[str, Any] = {}

    def call(self, verb: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        kind, name = path.split("/")[-2:]
        self.calls.append((verb, f"{kind}/{name}"))
        if verb == "GET" and name == "mq-broker-0":
            self.looks += 1
            status = {"observedGeneration": 1, "updatedReplicas": 2, "readyReplicas": self.looks}
            return {"metadata": {"generation": 1}, "spec": {"replicas": 2}, "status": status}
        if verb == "PATCH" and kind == "services":
            assert body is not None
            assert self.looks == 2, "the other copies are ready"
            self.selector = body["spec"]["selector"]
        elif verb == "PATCH":
            assert self.selector == {GROUP: "mq-broker-0", "statefulset.kubernetes.io/pod-name": None}
            self.first["spec"].update(body["spec"])  # type: ignore[index,attr-defined]
            self.first["status"].update(updatedReplicas=1)  # type: ignore[attr-defined]
        return self.first


def test_brokers_restart_once_the_service_leads_to_copies_that_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    program = load_program(CHART / "files" / "restart_first.py")
    monkeypatch.setattr(program, "LOOK_S", 0)
    monkeypatch.setattr(program, "ROUTED_S", 0)
    api = FakeApi()
    program.restart(api, "mq-broker", ["mq-broker-0"])
    first, group, service = "statefulsets/mq-broker", "statefulsets/mq-broker-0", "services/mq-broker-0"
    assert api.calls == [("GET", group)] * 2 + [("PATCH", service), ("PATCH", first), ("GET", first)]
    api.first["status"].update(updatedReplicas=0)  # type: ignore[attr-defined]
    with pytest.raises(program.NotReady, match="StatefulSet mq-broker was not ready within 0 s"):
        program.wait_ready(api, "mq-broker", 0)


def test_a_job_adds_the_copies_of_each_group_and_has_no_rights_of_its_own(helm: str) -> None:
    (job,) = [one for one in render(helm, *GROWN) if one["kind"] == "Job" and "hook" not in str(one["metadata"])]
    spec = job["spec"]["template"]["spec"]
    command = spec["containers"][0]["command"]
    assert command[4::2] == ["evenq-broker-0", "evenq-broker-1"]
    assert command[5].split(",")[1] == f"1=evenq-broker-0-1.{DOMAIN}:8084"
    assert "--min-in-sync 2" in command[2]
    assert spec["automountServiceAccountToken"] is False
    parsed = make_parser().parse_args(["broker", "grow", command[4], "--members", command[5], "--wait", "1"])
    assert parsed.members[2] == f"evenq-broker-0-2.{DOMAIN}:8084"
    other = render(helm, *GROWN, "--set", "image.tag=new")
    assert job["metadata"]["name"] not in {one["metadata"]["name"] for one in other}, "a Job cannot be changed"
    assert not [one for one in render(helm, *COPIES) if one["kind"] == "Job" and "grow" in one["metadata"]["name"]]


OUTSIDE = "external.enabled=true,external.host=mq.example.org"


def test_clients_outside_come_in_through_any_copy(helm: str) -> None:
    documents = render(helm, *COPIES, "--set", OUTSIDE)
    service = find(documents, "Service", "evenq-external")["spec"]
    assert "evenq.io/broker-group" not in service["selector"], "of any group, too: the address is shared"
    assert "publishNotReadyAddresses" not in service
    variables = environment(broker(documents))
    assert variables["EVENQ_BROKER_REPLICATION__FORWARD_CLIENTS"] == "true"
    assert "external=mq.example.org:30081" in variables["EVENQ_BROKER_ADVERTISE"]
    policy = find(documents, "NetworkPolicy", "evenq-broker")["spec"]
    (entry,) = [rule for rule in policy["ingress"] if {"port": "external"} in rule["ports"]]
    assert any("podSelector" in peer for peer in entry["from"]), "copies that follow"
    assert [rule for rule in policy["egress"] if {"port": 8091} in rule["ports"]]


@pytest.mark.parametrize("values", [COPIES, GROWN], ids=["installed", "grown"])
def test_each_group_may_have_an_address_of_its_own_outside(helm: str, values: list[str]) -> None:
    documents = render(helm, *values, "--set", f"{OUTSIDE},external.ports={{30091,30092}}")
    for index in range(2):
        service = find(documents, "Service", f"evenq-external-{index}")["spec"]
        assert service["selector"][GROUP] == f"evenq-broker-{index}"
        assert "statefulset.kubernetes.io/pod-name" not in service["selector"]
        assert "publishNotReadyAddresses" not in service, "a copy that is behind knows no leader, perhaps"
        labels = find(documents, "StatefulSet", f"evenq-broker-{index}")["spec"]["template"]["metadata"]["labels"]
        assert service["selector"].items() <= labels.items()


def test_values_of_an_earlier_chart_are_never_taken_for_copies() -> None:
    """Users that had said how many brokers there are said `replicas`; a default would complete that silently."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())["broker"]
    assert (values["groups"], values["replicas"]) == (None, None)


def test_one_door_for_each_of_several_groups_without_copies(helm: str) -> None:
    outside = "external.enabled=true,external.host=mq.example.org,external.ports={30091,30092,30093},broker.groups=3"
    documents = render(helm, "--set", outside)
    assert len([d for d in documents if d["metadata"]["name"].startswith("evenq-external-")]) == 3
