"""The commands and programs of docs/guides/spark_places.md and spark_from_kafka.md run as they stand, but for addresses."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from evenq_proofs.make_targets import make_targets
from evenq_proofs.quick_spark import quick_spark

import evenq

ROOT = Path(__file__).resolve().parents[2]
PAGE = "docs/guides/spark_places.md"
FLIGHTS = [("UA", 20), ("UA", 2), ("AA", 15), ("UA", 180), ("UA", 16), ("UA", 17)]
RUN = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
exec(compile(sys.stdin.read(), "the page", "exec"))
"""
FIRST = evenq.StartFrom.FIRST
pytestmark = pytest.mark.timeout(600)


def place(text: str, endpoint: str) -> str:
    return text.replace("127.0.0.1:8081", endpoint)


@pytest.fixture
def folder(endpoint: str, tmp_path: Path) -> Path:
    """A clone's examples, in which the addresses are those of this test, and flights in the topic."""
    shutil.copytree(ROOT / "spark" / "examples", tmp_path / "spark" / "examples")
    spec = tmp_path / "spark/examples/pipeline/spark-pipeline.yml"
    spec.write_text(place(spec.read_text(), endpoint).replace("/var/tmp/late-flights-pipeline", f"{tmp_path}/storage"))
    with evenq.Admin(endpoint=endpoint) as admin:
        admin.create_topic("flights", queues=1)
    with evenq.Producer(endpoint=endpoint) as producer:
        for carrier, delay in FLIGHTS:
            producer.send(evenq.Message(topic="flights", body=json.dumps({"dep_delay": delay}).encode(), tag=carrier))
    return tmp_path


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    java = subprocess.run([sys.executable, ROOT / "tools/java_home.py"], capture_output=True, text=True, check=True)
    return {
        **os.environ, **quick_spark(java.stdout.strip(), tmp_path / "quick"), "JAVA_HOME": java.stdout.strip(),
        "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOG_DIR": str(tmp_path),
        "PYSPARK_PYTHON": sys.executable, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip


@pytest.fixture
def bash(folder: Path, environment: dict[str, str], endpoint: str) -> Callable[..., str]:
    """Types a command of the page in the clone."""

    def run(line: str, **more: str) -> str:
        done = subprocess.run(
            ["bash", "-c", place(line, endpoint)], capture_output=True, text=True, timeout=400, cwd=folder,
            env=environment | more, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout[-3_000:]}{done.stderr[-5_000:]}"
        return done.stdout

    return run


@pytest.fixture
def remote(blocks: Any, folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """The server of the page's own command, on a free port."""
    (command,) = (block.text for block in blocks(PAGE, "") if "start-connect-server" in block.text)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", f"{command.rstrip()} --conf spark.connect.grpc.binding.port={port}"],
            cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        give_up = time.monotonic() + 120
        while not listens(port):
            said = (folder / "server.log").read_text()
            assert process.poll() is None, f"the server ended: {said}"
            assert time.monotonic() < give_up, f"the server does not listen: {said[-5_000:]}"
            time.sleep(0.5)
        yield f"sc://127.0.0.1:{port}"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def late(endpoint: str, topic: str = "late") -> list[dict[str, Any]]:
    """What a consumer of the topic gets."""
    found: dict[str, dict[str, Any]] = {}
    with evenq.SimpleConsumer(
        group="reader", subscriptions={topic: "*"}, endpoint=endpoint, start_from=FIRST
    ) as consumer:
        while messages := consumer.receive(wait_ms=2_000):
            found |= {message.message_id: json.loads(message.body) for message in messages}
    return list(found.values())


def test_clients_of_spark_connect_and_sql_do_what_the_pages_say(
    blocks: Any, bash: Callable[..., str], remote: str, endpoint: str, folder: Path
) -> None:
    lines = [line for block in blocks(PAGE, "") for line in block.text.splitlines() if line.startswith("SPARK_REMOTE=")]
    assert len(lines) == 2
    for line in lines:
        bash(line.replace("sc://127.0.0.1:15002", remote))
    result = {row["carrier"]: row["flights"] for row in json.loads((folder / "delays.json").read_text())}
    assert result == {"UA": 5, "AA": 1}
    assert sorted(row["delay"] for row in late(endpoint)) == [15, 16, 17, 20, 180]

    (statements,) = blocks(PAGE, "sql")
    program = "".join(f"spark.sql({one.strip()!r}).show()\n" for one in statements.text.split(";") if one.strip())
    (moved,) = blocks("docs/guides/spark_from_kafka.md", "python")
    for text in (program, moved.text):
        done = subprocess.run(
            [sys.executable, "-c", RUN], input=place(text, endpoint), capture_output=True, text=True, timeout=300,
            env={**os.environ, "SPARK_REMOTE": remote}, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr[-5_000:]}"
    with evenq.Admin(endpoint=endpoint) as admin:
        assert {"late", "delays"} <= {one.topic for one in admin.list_topics()}


def test_the_pipeline_and_the_job_with_state_do_what_the_page_says(
    blocks: Any, bash: Callable[..., str], endpoint: str
) -> None:
    lines = [line for block in blocks(PAGE, "") for line in block.text.splitlines()]
    (pipeline,) = (line for line in lines if line.startswith("spark-pipelines "))
    (state,) = (line for line in lines if line.startswith("spark-submit "))
    bash(pipeline)
    assert sorted(row["delay"] for row in late(endpoint)) == [15, 16, 17, 20, 180]
    bash(state)
    with evenq.SimpleConsumer(
        group="reader", subscriptions={"alarms": "*"}, endpoint=endpoint, start_from=FIRST
    ) as consumer:
        assert [message.body for message in consumer.receive(wait_ms=5_000)] == [b"UA: 3 late flights in a row"]


def test_what_the_page_says_is_tested_is_a_target_of_make() -> None:
    targets = make_targets()
    page = (ROOT / PAGE).read_text()
    named = set(re.findall(r"`make ([a-z-]+)`", page))
    assert named > {"spark", "spark-oldest"}
    assert named <= targets
    major, minor = pyspark.__version__.split(".")[:2]
    assert f"{major}.{minor}" in page
