"""The exporter of tables in the chart as it renders."""

from __future__ import annotations

import argparse
import base64
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from evenq_helm.chart import environment, find, refusal, render

import evenq
from evenq.cli.parser import make_parser

ON = ("--set", "tables.enabled=true")
URL = ("--set", "tables.enabled=true,tables.url=s3://lake/evenq,tables.image=registry.example.com/tables:1")
TLS = ("--set", "tls.enabled=true,tls.existingSecret=pair")
HOST = "evenq.default.svc.cluster.local"
pytestmark = pytest.mark.timeout(1_600)  # the first run on a new machine may build helm


def pod_of(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the specification of the exporter's pod."""
    return dict(find(documents, "Deployment", "evenq-tables")["spec"]["template"]["spec"])


def options_of(documents: list[dict[str, Any]]) -> argparse.Namespace:
    """Returns the options that the program makes of the container's command."""
    (container,) = pod_of(documents)["containers"]
    assert container["command"][0] == "evenq"
    options = make_parser().parse_args(container["command"][1:])
    assert isinstance(options, argparse.Namespace)
    return options


def kinds(documents: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(d["kind"], d["metadata"]["name"]) for d in documents if "tables" in d["metadata"]["name"]}


def users_of(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the users of the file that the servers read."""
    text = base64.b64decode(find(documents, "Secret", "evenq-auth")["data"]["users.toml"]).decode()
    return dict(tomllib.loads(text)["users"])


def test_a_release_exports_no_tables_unless_it_is_enabled(helm: str) -> None:
    documents = render(helm)
    assert not kinds(documents)
    assert "evenq-tables" not in users_of(documents)


def test_one_pod_follows_all_tables_into_a_claim_that_outlives_the_release(helm: str) -> None:
    documents = render(helm, *ON)
    deployment = find(documents, "Deployment", "evenq-tables")["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    options = options_of(documents)
    assert (options.topic, options.to) == (None, "/tables/evenq"), "not the root of a volume, which has lost+found"
    pod = pod_of(documents)
    (container,) = pod["containers"]
    assert container["image"] == f"evenq/tables:{evenq.__version__}"
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["tables"]["persistentVolumeClaim"] == {"claimName": "evenq-tables"}
    assert volumes["tmp"] == {"name": "tmp", "emptyDir": {}}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"tables": "/tables", "tmp": "/tmp", "auth": "/etc/evenq/auth"}
    claim = find(documents, "PersistentVolumeClaim", "evenq-tables")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert claim["spec"] == {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}}
    annotations = deployment["template"]["metadata"]["annotations"]
    assert "prometheus.io/scrape" not in annotations, "it has no metrics"
    assert "ports" not in container


def test_the_exporter_keeps_the_restricted_security_standard(helm: str) -> None:
    pod = pod_of(render(helm, *ON))
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["fsGroup"] == 10001, "it writes to the claim"
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_a_claim_of_ones_own_is_not_created(helm: str) -> None:
    documents = render(helm, *ON, "--set", "tables.claim.existingClaim=lake")
    assert {"name": "tables", "persistentVolumeClaim": {"claimName": "lake"}} in pod_of(documents)["volumes"]
    assert ("PersistentVolumeClaim", "evenq-tables") not in kinds(documents)


def test_the_exporter_signs_as_a_user_with_the_rights_that_it_needs_and_no_others(helm: str) -> None:
    documents = render(helm, *ON, "--set", "tables.namespaces={shop},auth.users.clerk.admin=true")
    assert set(users_of(documents)) == {"evenq-internal", "operator", "evenq-tables", "clerk"}
    pod = pod_of(documents)
    assert environment(pod["containers"][0]) == {
        "EVENQ_ENDPOINT": f"{HOST}:8081",
        "EVENQ_CREDENTIALS": "/etc/evenq/auth/credentials.toml",
    }
    secret = next(volume for volume in pod["volumes"] if volume["name"] == "auth")["secret"]
    assert secret["secretName"] == "evenq-user-evenq-tables", "not that of the operator"
    assert secret["items"] == [{"key": "credentials.toml", "path": "credentials.toml"}]
    keys = base64.b64decode(find(documents, "Secret", secret["secretName"])["data"]["credentials.toml"]).decode()
    own = users_of(documents)["evenq-tables"]
    assert tomllib.loads(keys) == {"access_key": "evenq-tables", "secret_key": own["secret"]}
    assert own["allow"] == [
        {"resource": "cluster", "actions": ["describe"]},
        {"resource": "topic:*", "actions": ["consume"]},
        {"resource": "group:evenq-table-*", "actions": ["consume"]},
        {"resource": "group:shop%evenq-table-*", "actions": ["consume"]},
    ]


def test_keys_of_another_user_replace_the_charts(helm: str) -> None:
    given = ("--set", "tables.credentialsSecret=exporter")
    documents = render(helm, *ON, *given)
    assert "evenq-tables" not in users_of(documents)
    (secret,) = [volume["secret"] for volume in pod_of(documents)["volumes"] if volume["name"] == "auth"]
    assert secret["secretName"] == "exporter"
    own = ("--set", "auth.existingSecret=users")
    assert pod_of(render(helm, *ON, *given, *own))
    assert "needs tables.credentialsSecret" in refusal(helm, "tables.enabled=true", "auth.existingSecret=users")
    unsigned = pod_of(render(helm, *ON, "--set", "auth.enabled=false"))
    assert environment(unsigned["containers"][0]) == {"EVENQ_ENDPOINT": f"{HOST}:8081"}
    assert "evenq-tables" in refusal(helm, "auth.users.evenq-tables.admin=true")


@pytest.mark.parametrize("certificates", ["servers", "all"])
def test_with_tls_the_exporter_has_the_key_only_if_clients_need_one(helm: str, certificates: str) -> None:
    pod = pod_of(render(helm, *ON, *TLS, "--set", f"tls.clientCertificates={certificates}"))
    variables = environment(pod["containers"][0])
    assert variables["EVENQ_ENDPOINT"] == f"evenqs://{HOST}:8443"
    assert variables["EVENQ_TLS_CA"] == "/etc/evenq/tls/ca.crt"
    assert ("EVENQ_TLS_KEY" in variables) is (certificates == "all")
    secret = next(volume for volume in pod["volumes"] if volume["name"] == "tls")["secret"]
    expected = None if certificates == "all" else [{"key": "ca.crt", "path": "ca.crt"}]
    assert (secret["secretName"], secret.get("items")) == ("pair", expected)


def test_a_url_needs_no_claim_and_gets_the_keys_of_its_object_store(helm: str, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    keys = [{"secretRef": {"name": "lake"}}]
    extra = [{"name": "AWS_ENDPOINT_URL", "value": "https://minio.example.com"}]
    wish = {
        "envFrom": keys,
        "extraEnv": extra,
        "serviceAccountName": "lake",
        "closeAfter": "1m",
        "rowsPerFile": 2_000_000,
    }
    file.write_text(yaml.safe_dump({"tables": wish}))
    documents = render(helm, *URL, "-f", str(file))
    options = options_of(documents)
    assert (options.to, options.close_after, options.rows_per_file) == ("s3://lake/evenq", 60_000, 2_000_000)
    pod = pod_of(documents)
    (container,) = pod["containers"]
    assert container["image"] == "registry.example.com/tables:1"
    assert (container["envFrom"], pod["serviceAccountName"]) == (keys, "lake")
    assert environment(container)["AWS_ENDPOINT_URL"] == "https://minio.example.com"
    assert {volume["name"] for volume in pod["volumes"]} == {"tmp", "auth"}
    assert not [d for d in documents if d["kind"] == "PersistentVolumeClaim"]
    policy = find(documents, "NetworkPolicy", "evenq-tables")["spec"]
    assert policy["egress"] == [{"ports": [{"port": 443}]}]
    assert ("NetworkPolicy", "evenq-tables") not in kinds(render(helm, *ON)), "a claim needs no other connections"


def test_the_exporter_may_call_brokers(helm: str) -> None:
    documents = render(helm, *ON)
    policy = find(documents, "NetworkPolicy", "evenq-commands")["spec"]["podSelector"]
    labels = find(documents, "Deployment", "evenq-tables")["spec"]["template"]["metadata"]["labels"]
    (expression,) = policy["matchExpressions"]
    assert labels[expression["key"]] in expression["values"]
    assert policy["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ("tables.url=s3://lake/evenq", "tables.url=s3://lake/evenq needs tables.image"),
        ("tables.url=lake", "url"),
        ("tables.closeAfter=soon", "closeAfter"),
        ("tables.rowsPerFile=0", "rowsPerFile"),
        ("tables.claim.size=10", "size"),
        ("tables.claim.accessModes={ReadOnlyMany}", "accessModes"),
        ("tables.namespaces={a b}", "namespaces"),
        ("tables.replicas=2", "replicas"),
    ],
)
def test_a_value_that_cannot_work_is_refused(helm: str, bad: str, text: str) -> None:
    assert text in refusal(helm, "tables.enabled=true", bad)


def test_files_have_one_place(helm: str) -> None:
    both = (
        "tables.url=s3://lake/evenq",
        "tables.image=registry.example.com/tables:1",
        "tables.claim.existingClaim=lake",
    )
    assert "files have one place" in refusal(helm, "tables.enabled=true", *both)
