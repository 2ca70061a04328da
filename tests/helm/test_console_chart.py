"""The console of the chart as it renders."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from evenq_helm.chart import CHART, environment, find, refusal, render

import evenq
from evenq.cli.console import settings_of
from evenq.cli.parser import make_parser
from evenq.console.settings import ConsoleSettings

ON = ("--set", "console.enabled=true")
TLS = ("--set", "tls.enabled=true,tls.existingSecret=pair")
HOST = "evenq.default.svc.cluster.local"
pytestmark = pytest.mark.timeout(1_600)  # the first run on a new machine may build helm


def pod_of(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the specification of the console's pod."""
    return dict(find(documents, "Deployment", "evenq-console")["spec"]["template"]["spec"])


def options_of(documents: list[dict[str, Any]]) -> ConsoleSettings:
    """Returns the settings that the program makes of the container's arguments."""
    (container,) = pod_of(documents)["containers"]
    options = make_parser().parse_args(["console", *container["args"]])
    assert isinstance(options, argparse.Namespace)
    return settings_of(options)


def test_a_release_has_no_console_unless_it_is_enabled(helm: str) -> None:
    assert "console" not in {d["metadata"]["labels"]["app.kubernetes.io/component"] for d in render(helm)}


def test_the_console_is_one_pod_without_keys_that_users_reach_by_a_service(helm: str) -> None:
    documents = render(helm, *ON)
    deployment = find(documents, "Deployment", "evenq-console")["spec"]
    assert deployment["replicas"] == 1
    assert deployment["strategy"] == {"type": "Recreate"}, "sessions are in the memory of one pod"
    pod = pod_of(documents)
    (container,) = pod["containers"]
    assert container["image"] == f"evenq/console:{evenq.__version__}"
    assert environment(container) == {"EVENQ_ENDPOINT": f"{HOST}:8081"}
    assert {volume["name"] for volume in pod["volumes"]} == {"tmp"}, "the operator's keys are not there"
    assert container["volumeMounts"] == [{"name": "tmp", "mountPath": "/tmp"}]
    assert pod["automountServiceAccountToken"] is False
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": "http"}
    service = find(documents, "Service", "evenq-console")["spec"]
    assert service["type"] == "ClusterIP"
    assert service["selector"].items() <= deployment["template"]["metadata"]["labels"].items()
    assert service["ports"] == [{"name": "http", "port": 8080, "targetPort": "http", "appProtocol": "http"}]
    assert {"name": "http", "containerPort": options_of(documents).port} in container["ports"]
    annotations = deployment["template"]["metadata"]["annotations"]
    assert "prometheus.io/scrape" not in annotations, "it has no metrics"
    assert "metrics" not in {port["name"] for port in container["ports"]}


def test_values_reach_the_program_as_its_options(helm: str, tmp_path: Path) -> None:
    own = options_of(render(helm, *ON))
    assert (own.host, own.prefix, own.https, own.allow_changes) == ("0.0.0.0", "", False, False)
    assert own.names == tuple(f"evenq-console{suffix}" for suffix in ("", ".default.svc", ".default.svc.cluster.local"))
    wish = {"enabled": True, "allowChanges": True, "names": ["queue.example.com"], "prefix": "/evenq"}
    scheduling = {"nodeSelector": {"pool": "tools"}, "priorityClassName": "low"}
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({"console": {**wish, "behindHttps": True, **scheduling}}))
    documents = render(helm, "-f", str(file), "--set", f"image.digests.console=sha256:{'ab' * 32}")
    given = options_of(documents)
    assert (given.names[-1], given.prefix, given.https, given.allow_changes) == (
        "queue.example.com",
        "/evenq",
        True,
        True,
    )
    pod = pod_of(documents)
    assert pod["containers"][0]["image"] == f"evenq/console@sha256:{'ab' * 32}"
    assert scheduling.items() <= pod.items()


@pytest.mark.parametrize("certificates", ["servers", "all"])
def test_with_tls_the_console_calls_brokers_with_it_and_has_the_key_only_if_clients_need_one(
    helm: str, certificates: str
) -> None:
    pod = pod_of(render(helm, *ON, *TLS, "--set", f"tls.clientCertificates={certificates}"))
    variables = environment(pod["containers"][0])
    assert variables["EVENQ_ENDPOINT"] == f"evenqs://{HOST}:8443"
    assert variables["EVENQ_TLS_CA"] == "/etc/evenq/tls/ca.crt"
    assert variables["EVENQ_TLS_SERVER_NAME"] == HOST
    assert ("EVENQ_TLS_KEY" in variables) is (certificates == "all")
    assert {"name": "tls", "mountPath": "/etc/evenq/tls", "readOnly": True} in pod["containers"][0]["volumeMounts"]
    secret = next(volume for volume in pod["volumes"] if volume["name"] == "tls")["secret"]
    expected = None if certificates == "all" else [{"key": "ca.crt", "path": "ca.crt"}]
    assert (secret["secretName"], secret.get("items")) == ("pair", expected)


def test_two_pods_are_refused_because_sessions_are_in_memory(helm: str) -> None:
    assert "sessions are in the memory of one pod" in refusal(helm, "console.enabled=true", "console.replicas=2")


@pytest.mark.parametrize("kind", ["NodePort", "LoadBalancer"])
def test_a_service_for_others_needs_users_and_https(helm: str, kind: str) -> None:
    wish = ("console.enabled=true", f"console.service.type={kind}", "console.behindHttps=true")
    text = refusal(helm, *wish, "auth.enabled=false")
    assert f"console.service.type={kind} with auth.enabled=false: without users there is no sign-in" in text
    assert "delete topics" not in text
    assert "delete topics" in refusal(helm, *wish, "auth.enabled=false", "console.allowChanges=true")
    assert "secret keys in plain text" in refusal(helm, *wish[:2])
    service = find(render(helm, *(part for one in wish for part in ("--set", one))), "Service", "evenq-console")
    assert service["spec"]["type"] == kind
    assert render(helm, "--set", "console.enabled=true,auth.enabled=false,console.allowChanges=true")


@pytest.mark.parametrize(
    "bad",
    [
        "console.replicas=0",
        "console.names={https://queue.example.com}",
        "console.names={queue.example.com:8080}",
        "console.prefix=evenq",
        "console.prefix=/evenq/",
        "console.service.type=ExternalName",
        "console.service.port=0",
        "console.ingress.host=queue.example.com",
    ],
)
def test_a_value_that_cannot_work_is_refused(helm: str, bad: str) -> None:
    name = bad.partition("=")[0].split(".")[1]
    assert name in refusal(helm, "console.enabled=true", bad)


@pytest.mark.parametrize(("values", "path"), [((), "/"), (("--set", "console.prefix=/evenq"), "/evenq/")])
def test_the_notes_name_the_way_to_the_console(helm: str, values: tuple[str, ...], path: str, tmp_path: Path) -> None:
    way = "kubectl -n default port-forward service/evenq-console 8080:8080"
    assert f"Console at http://127.0.0.1:8080{path} with: {way}\n\n" in notes(helm, tmp_path / "on", *ON, *values)
    assert "Console" not in notes(helm, tmp_path / "off")


def notes(helm: str, folder: Path, *values: str) -> str:
    """Returns the notes of a release. Helm renders them only beside a cluster, so a copy of the chart has them as a
    value of an object.
    """
    shutil.copytree(CHART, folder)
    (folder / "templates" / "NOTES.txt").rename(folder / "notes.txt")
    (folder / "templates" / "notes.yaml").write_text('notes: {{ tpl (.Files.Get "notes.txt") . | toJson }}\n')
    command = [helm, "template", "evenq", str(folder), "--kube-version", "1.34.0", "-s", "templates/notes.yaml"]
    shown = subprocess.run([*command, *values], check=True, capture_output=True, text=True, timeout=60).stdout
    return str(yaml.safe_load(shown)["notes"])
