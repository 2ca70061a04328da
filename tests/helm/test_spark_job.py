"""The Spark job of spark/examples/kubernetes: its objects fit each other, the chart's Secret, the image and the restricted standard.

That its program runs with these arguments and rights is shown in tests/spark/test_16_places.py.
"""

from __future__ import annotations

import base64
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "spark" / "examples" / "kubernetes"
SECRET, KEYS = "evenq-user-spark", "/etc/evenq/credentials.toml"
RESTRICTED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
pytestmark = pytest.mark.timeout(1_600)  # the first run on a new machine may build helm


@pytest.fixture(scope="module")
def objects() -> dict[tuple[str, str], Any]:
    documents = yaml.safe_load_all((FOLDER / "late_flights.yaml").read_text())
    return {(one["kind"], one["metadata"]["name"]): one for one in documents}


@pytest.fixture(scope="module")
def driver(objects: dict[tuple[str, str], Any]) -> Any:
    return objects["Job", "late-flights"]["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def settings(objects: dict[tuple[str, str], Any]) -> dict[str, str]:
    """Spark's, as its properties file has them."""
    lines = objects["ConfigMap", "late-flights-spark"]["data"]["spark.conf"].splitlines()
    return dict(line.split(maxsplit=1) for line in lines)


@pytest.fixture(scope="module")
def executor(objects: dict[tuple[str, str], Any], settings: dict[str, str]) -> Any:
    """The pod that Spark makes executors from."""
    name = Path(settings["spark.kubernetes.executor.podTemplateFile"]).name
    return yaml.safe_load(objects["ConfigMap", "late-flights-spark"]["data"][name])["spec"]


def test_driver_and_executors_keep_the_restricted_security_standard(driver: Any, executor: Any) -> None:
    for pod in (driver, executor):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert [container["securityContext"] for container in pod["containers"]] == [RESTRICTED]
        user = re.search(
            r"^USER (\d+):", (ROOT / "docker" / "Dockerfile").read_text().split(" AS spark\n")[1], re.MULTILINE
        )
        assert user is not None
        assert pod["securityContext"]["runAsUser"] == int(user[1])
    assert executor["automountServiceAccountToken"] is False, "only the driver asks Kubernetes for something"


def test_driver_and_executors_mount_the_secret_where_the_program_looks_for_its_keys(
    driver: Any, settings: dict[str, str]
) -> None:
    (container,) = driver["containers"]
    assert f"--credentials-file={KEYS}" in container["args"]
    assert settings[f"spark.kubernetes.executor.secrets.{SECRET}"] == str(Path(KEYS).parent)
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in driver["volumes"]}
    assert mounted.keys() == volumes.keys()
    assert volumes["keys"]["secret"]["secretName"] == SECRET
    assert mounted["keys"] == str(Path(KEYS).parent)


def test_every_object_that_the_job_names_is_there_or_made_by_the_command_of_its_header(
    objects: dict[tuple[str, str], Any], driver: Any, settings: dict[str, str]
) -> None:
    header = (FOLDER / "late_flights.yaml").read_text().partition("apiVersion")[0]
    made = re.search(r"kubectl create configmap (\S+) --from-file=(\S+)", header)
    assert made is not None
    assert (ROOT / made[2]).is_file()
    volumes = {volume["name"]: volume for volume in driver["volumes"]}
    assert volumes["job"]["configMap"]["name"] == made[1]
    assert ("ConfigMap", volumes["spark"]["configMap"]["name"]) in objects
    assert ("PersistentVolumeClaim", volumes["checkpoint"]["persistentVolumeClaim"]["claimName"]) in objects
    assert ("ServiceAccount", driver["serviceAccountName"]) in objects
    (container,) = driver["containers"]
    assert container["image"] == settings["spark.kubernetes.container.image"]
    files = {mount["mountPath"] for mount in container["volumeMounts"]}
    for argument in container["args"]:
        if "/opt/late-flights/" in argument:
            assert str(Path(argument.partition("=")[2] or argument).parent) in files, argument


def test_the_chart_makes_that_secret_and_grants_what_the_arguments_name(helm: str, driver: Any) -> None:
    command = [
        helm,
        "template",
        "evenq",
        str(ROOT / "helm" / "evenq"),
        "--kube-version",
        "1.34.0",
        "-f",
        str(FOLDER / "values.yaml"),
    ]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    secrets = {
        one["metadata"]["name"]: one["data"] for one in yaml.safe_load_all(output) if one and one["kind"] == "Secret"
    }
    keys = tomllib.loads(base64.b64decode(secrets[SECRET][Path(KEYS).name]).decode())
    users = tomllib.loads(base64.b64decode(secrets["evenq-auth"]["users.toml"]).decode())["users"]
    assert keys == {"access_key": "spark", "secret_key": users["spark"]["secret"]}
    arguments = driver["containers"][0]["args"]
    given = dict(one.removeprefix("--").split("=", 1) for one in arguments if one.startswith("--") and "=" in one)
    granted = {one["resource"]: one["actions"] for one in users["spark"]["allow"]}
    assert granted == {
        f"topic:{given['source']}": ["consume"], f"topic:{given['target']}": ["publish"], f"group:{given['group']}": ["consume"],
    }  # fmt: skip


def test_the_entry_point_runs_what_it_is_given_and_nothing_else() -> None:
    script = ROOT / "docker" / "spark.sh"
    subprocess.run(["bash", "-n", script], check=True, timeout=60)
    done = subprocess.run(
        [script, *shlex.split("printf '%s|' a 'b c'")], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "a|b c|"
    refused = subprocess.run(
        [script, "executor"], capture_output=True, text=True, check=False, timeout=60, env={"PATH": "/usr/bin:/bin"}
    )
    assert refused.returncode != 0, "without Spark's variables it is no executor"
