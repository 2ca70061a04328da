"""Kafka for comparison: its jars by Maven, once, into ~/.cache/evenq-bench, and one broker in KRaft mode on loopback.

One folder has the jars of the broker, the other those that Spark needs to read Kafka. Both are requested from Maven by
name and version.
"""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("EVENQ_BENCH_CACHE", Path.home() / ".cache" / "evenq-bench"))
KAFKA = "4.1.0"
SPARK_SOURCE = "4.2.0"
TOKENS = "4.0.0"
POOL = "2.12.0"
BROKER_JARS = (("org.apache.kafka", "kafka_2.13", KAFKA),)
SPARK_JARS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK_SOURCE),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", TOKENS),
    ("org.apache.kafka", "kafka-clients", KAFKA),
    ("org.apache.commons", "commons-pool2", POOL),
)
READY_S = 60.0
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>evenq.benchmarks</groupId><artifactId>{name}</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>{dependencies}</dependencies></project>
"""
DEPENDENCY = "<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>{3}</dependency>"
ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/log
num.partitions={partitions}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


@dataclass(frozen=True, slots=True)
class Kafka:
    pid: int
    address: str


def broker_jars() -> Path:
    """Returns the folder with the broker and its dependencies."""
    return _fetched(f"kafka-{KAFKA}", BROKER_JARS, alone=False)


def spark_jars() -> list[Path]:
    """Returns the folder with jars that Spark lacks to read Kafka; Spark has their other dependencies."""
    return sorted(_fetched(f"spark-kafka-{SPARK_SOURCE}-{KAFKA}", SPARK_JARS, alone=True).glob("*.jar"))


def _fetched(name: str, archives: tuple[tuple[str, str, str], ...], *, alone: bool) -> Path:
    folder = CACHE / name
    if (folder / "whole").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    pom = folder / "pom.xml"
    listed = "".join(DEPENDENCY.format(*one, ALONE if alone else "") for one in archives)
    pom.write_text(POM.format(name=name, dependencies=listed))
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"]
    try:
        subprocess.run([*command, f"-DoutputDirectory={folder}"], check=True)
    except FileNotFoundError:
        raise SystemExit("Maven is missing: apt-get install maven, or leave Kafka out with --no-kafka") from None
    (folder / "whole").touch()
    return folder


@contextmanager
def kafka(java_home: str, folder: Path, *, partitions: int) -> Iterator[Kafka]:
    """Runs one broker that is its own controller. Topics are created by the first write."""
    java = str(Path(java_home, "bin", "java"))
    classes = f"{broker_jars()}/*"
    port, controller = _free_port(), _free_port()
    settings = folder / "server.properties"
    settings.write_text(SETTINGS.format(port=port, controller=controller, folder=folder, partitions=partitions))
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    tool = [java, "-cp", classes, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
    subprocess.run(tool, check=True, **quiet)  # type: ignore[call-overload]  # of keyword arguments
    command = [java, "-Xms512m", "-Xmx1g", "-cp", classes, "kafka.Kafka", str(settings)]
    with open(folder / "kafka.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, start_new_session=True)
    try:
        _until_open(process, port, folder)
        yield Kafka(process.pid, f"127.0.0.1:{port}")
    finally:
        process.terminate()
        try:
            process.wait(READY_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until_open(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            probe.settimeout(0.2)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit(f"Kafka did not start: {(folder / 'kafka.log').read_text()[-2_000:]}")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
