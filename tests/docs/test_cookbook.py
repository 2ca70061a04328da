"""The programs of examples/cookbook run, print what docs/cookbook.md shows, and the page is generated from them.

The Spark job runs in tests/spark/test_cookbook.py.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from evenq_proofs.waiting import until
from kubernetes import client as kubernetes

import evenq
from evenq.testing import LocalCluster
from tests.unit.tools.conftest import load_tool

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "cookbook"
gen_cookbook = load_tool("gen_cookbook")
RECIPES = {recipe.name: recipe for recipe in gen_cookbook.recipes()}
LIMIT_S = 180


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(folder=tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def run(cluster: LocalCluster) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python with `EVENQ_ENDPOINT` of the cluster."""
    started: list[subprocess.Popen[str]] = []
    environment = {**os.environ, "EVENQ_ENDPOINT": cluster.endpoint}

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-u", "-W", "error", *arguments]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=FOLDER
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_the_page_is_the_one_of_the_programs(capsys):
    assert gen_cookbook.main(["--check"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if recipe.prints])
def test_a_program_prints_what_the_page_shows(name, run):
    process = run(name)
    output, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output + errors
    assert output.strip() == RECIPES[name].prints.strip()


def test_a_worker_finishes_and_commits_on_sigterm(cluster, run):
    with evenq.Producer(endpoint=cluster.endpoint) as producer:
        producer.send(evenq.Message(topic="mails", body=b"ann@example.com"))
    process = run("worker.py")
    assert [process.stdout.readline() for _ in range(2)] == ["worker started\n", "mail to ann@example.com\n"]
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, output) == (0, "worker stopped, progress is committed\n")
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        assert sum(queue.lag for queue in admin.describe_group("mailer").queues) == 0


def test_an_order_that_is_posted_is_a_message(cluster, run):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = run("-W", "default", "-m", "uvicorn", "--port", str(port), "publish_from_fastapi:app")
    for line in server.stderr:
        if "Uvicorn running" in line:
            break
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT_S) as client:
        placed = client.post("/orders", json={"id": "order-1", "amount": 30})
        refused = client.post("/orders", json={"id": "order-2"})
        too_long = client.post("/orders", json={"id": "x" * 70_000, "amount": 1})
    assert (placed.status_code, refused.status_code) == (201, 422)
    assert too_long.status_code == 500, "an error that a retry cannot solve"
    with evenq.SimpleConsumer(
        group="orders-test", endpoint=cluster.endpoint, subscriptions={"web-orders": "*"}, start_from="FIRST"
    ) as consumer:
        [message] = until(lambda: consumer.receive(wait_ms=1_000))
        consumer.ack(message)
    assert (message.message_id, message.keys) == (placed.json()["message_id"], ("order-1",))
    server.send_signal(signal.SIGTERM)
    server.communicate(timeout=LIMIT_S)


def test_the_deployment_is_valid_for_kubernetes():
    deployment = yaml.safe_load((FOLDER / "deployment.yaml").read_text(encoding="utf-8"))
    check_type(deployment, "V1Deployment", "deployment")
    pod = deployment["spec"]["template"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    [container] = pod["spec"]["containers"]
    assert container["command"] == ["python", "worker.py"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > 3, "shorter than drain_ms"


def test_the_check_of_manifests_finds_mistakes():
    good = yaml.safe_load((FOLDER / "deployment.yaml").read_text(encoding="utf-8"))
    check_type(good, "V1Deployment", "deployment")
    for path, value in (("replica", 4), ("replicas", "four"), ("selector", None)):
        with pytest.raises(AssertionError, match=path):
            check_type({**good, "spec": {**good["spec"], path: value}}, "V1Deployment", "deployment")


def check_type(value: Any, kind: str, where: str) -> None:
    """Compares a part of a manifest with the Kubernetes API's type of it: names, kinds of values, required fields."""
    if match := re.fullmatch(r"list\[(.+)\]", kind):
        assert isinstance(value, list), f"{where} is not a list"
        for number, item in enumerate(value):
            check_type(item, match[1], f"{where}[{number}]")
    elif match := re.fullmatch(r"dict\(str, (.+)\)|dict\[str, (.+)\]", kind):
        assert isinstance(value, dict), f"{where} is not a map"
        for key, item in value.items():
            check_type(item, match[1] or match[2], f"{where}.{key}")
    elif kind in {"str", "int", "bool", "float"}:
        assert type(value) is getattr(types.SimpleNamespace(str=str, int=int, bool=bool, float=float), kind), (
            f"{where} is {value!r}, not of type {kind}"
        )
    elif isinstance(model := getattr(kubernetes, kind, None), type):
        names = {json_name: name for name, json_name in model.attribute_map.items()}
        assert isinstance(value, dict), f"{where} is not a map"
        for key, item in value.items():
            assert key in names, f"{where} has no field {key}"
            if item is not None:
                check_type(item, model.openapi_types[names[key]], f"{where}.{key}")
        try:
            model(**{names[key]: item for key, item in value.items()})
        except ValueError as error:  # a required field is missing
            raise AssertionError(f"{where}: {error}") from error
