"""Where a job may run: behind Spark Connect, in SQL alone, in a declarative pipeline, before state that Spark keeps. Test 16.

One server of Spark Connect serves them all; each client is a process of its own, as users start it. The programs are
those of spark/examples.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark_evenq.arrow_schema import Column
from pyspark_evenq.options import ReadOptions
from pyspark_evenq.reader import BatchReader

pytestmark = pytest.mark.timeout(240)
HOME = Path(pyspark.__file__).parent
EXAMPLES = Path(__file__).parents[2] / "spark" / "examples"
FLIGHTS = [("UA", 20), ("UA", 2), ("AA", 15), ("B6", None), ("UA", 180), ("AA", 14)]
LATE = [("UA", 20.0), ("AA", 15.0), ("UA", 180.0)]


@pytest.fixture(scope="module")
def server(spark_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of Spark Connect, and the address of it. Clients try until it answers."""
    folder = tmp_path_factory.mktemp("connect")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.warehouse.dir": folder / "warehouse",
    }
    command = [HOME / "bin" / "spark-submit", "--master", "local[2,3]", "--driver-memory", "1g"]
    command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, env={**os.environ, "SPARK_HOME": str(HOME)}
        )
    try:
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def client(server: str) -> Callable[..., str]:
    """Runs a program as a client of the server, and gives what it prints."""

    def run(*command: str | Path) -> str:
        environment = {**os.environ, "SPARK_REMOTE": server, "SPARK_HOME": str(HOME)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout[-4_000:]}{done.stderr[-6_000:]}"
        return done.stdout

    return run


@pytest.fixture
def flights(topic: Any) -> Any:
    send(topic, FLIGHTS)
    return topic


def send(topic: Any, flights: list[tuple[str, int | None]]) -> None:
    """All on one queue, in this order."""
    bodies = {}
    for number, (carrier, delay) in enumerate(flights):
        body = {"number": number} | ({} if delay is None else {"dep_delay": delay})
        bodies[json.dumps(body)] = carrier
    topic.send({0: list(bodies)}, tags=bodies)


def read(topic: Any) -> list[Any]:
    """tag and body of every message, without a Spark."""
    options = ReadOptions.parse({"endpoints": topic.endpoints, "subscribe": topic.name}, streaming=False)
    reader = BatchReader(options, (Column("tag", nullable=True), Column("body", nullable=True)))
    batches: list[Any] = [batch for task in reader.partitions() for batch in reader.read(task)]
    return [(row["tag"], row["body"].decode()) for batch in batches for row in batch.to_pylist()]


def late_in(topic: Any) -> Counter[tuple[str, float]]:
    bodies = [json.loads(body) for _, body in read(topic)]
    return Counter((body["carrier"], body["delay"]) for body in bodies)


def names(topic: Any, target: Any, folder: Path) -> list[str]:
    """The arguments that the streaming examples share."""
    return [
        "--endpoints", topic.endpoints, "--source", topic.name, "--target", target.name, "--group", topic.name,
        "--checkpoint", str(folder / "checkpoint"), "--once",
    ]  # fmt: skip


def test_a_client_of_spark_connect_reads_a_batch(client: Callable[..., str], flights: Any, tmp_path: Path) -> None:
    out = tmp_path / "delays.json"
    job = EXAMPLES / "delay_by_carrier.py"
    client(sys.executable, job, "--endpoint", flights.broker.address, "--topic", flights.name, "--out", out)
    found = {row["carrier"]: (row["flights"], row["mean_delay"]) for row in json.loads(out.read_text())}
    assert found == {"UA": (3, 202 / 3), "AA": (2, 14.5), "B6": (1, 0.0)}


def test_a_client_of_spark_connect_streams_from_topic_to_topic_and_goes_on_where_it_was(
    client: Callable[..., str], flights: Any, make_topic: Callable[[], Any], tmp_path: Path
) -> None:
    late = make_topic()
    job = (sys.executable, EXAMPLES / "late_flights.py", *names(flights, late, tmp_path))
    client(*job)
    assert late_in(late) == Counter(LATE)
    send(flights, [("B6", 16)])
    client(*job)
    assert late_in(late) == Counter([*LATE, ("B6", 16.0)])
    assert sum(flights.progress(flights.name)) == len(FLIGHTS) + 1


SQL = textwrap.dedent(
    """
    import json, sys
    from pyspark.sql import SparkSession
    spark = SparkSession.builder.getOrCreate()
    for statement in sys.argv[1:-1]:
        spark.sql(statement)
    print(json.dumps([list(row) for row in spark.sql(sys.argv[-1]).collect()]))
    """
)


def test_sql_alone_reads_a_topic_as_a_view_or_a_table_and_writes_to_one(
    client: Callable[..., str], flights: Any, make_topic: Callable[[], Any]
) -> None:
    target = make_topic()
    reading = f"OPTIONS (endpoints '{flights.endpoints}', subscribe '{flights.name}')"
    printed = client(
        sys.executable, "-c", SQL,
        f"CREATE TEMPORARY VIEW flights USING evenq {reading}",
        f"CREATE TEMPORARY VIEW bodies (body BINARY, tag STRING) USING evenq {reading}",
        "SELECT (SELECT count(*) FROM flights) AS n, (SELECT count(DISTINCT tag) FROM bodies) AS carriers",
    )  # fmt: skip
    assert json.loads(printed.splitlines()[-1]) == [[6, 3]]
    client(
        sys.executable, "-c", SQL,
        f"CREATE TEMPORARY VIEW flights USING evenq {reading}",
        f"CREATE TEMPORARY VIEW target (body STRING, tag STRING) USING evenq "
        f"OPTIONS (endpoints '{target.endpoints}', topic '{target.name}')",
        "INSERT INTO target SELECT upper(cast(body AS STRING)), tag FROM flights WHERE tag = 'AA'",
        "SELECT 1",
    )  # fmt: skip
    assert sorted(read(target)) == [("AA", '{"NUMBER": 2, "DEP_DELAY": 15}'), ("AA", '{"NUMBER": 5, "DEP_DELAY": 14}')]


def test_state_that_spark_keeps_goes_on_over_restarts(
    client: Callable[..., str], topic: Any, make_topic: Callable[[], Any], tmp_path: Path
) -> None:
    alarms = make_topic()
    job = (sys.executable, EXAMPLES / "late_in_a_row.py", *names(topic, alarms, tmp_path))
    send(topic, [("UA", 20), ("AA", 20), ("AA", 1), ("UA", 30), ("AA", 40)])
    client(*job)
    assert read(alarms) == []
    send(topic, [("AA", 20), ("UA", 15), ("UA", 90)])
    client(*job)
    assert read(alarms) == [("UA", "UA: 3 late flights in a row")]


def test_a_declarative_pipeline_reads_a_topic_into_tables_and_writes_another_topic(
    client: Callable[..., str], server: str, flights: Any, make_topic: Callable[[], Any], tmp_path: Path
) -> None:
    late, folder = make_topic(), tmp_path / "pipeline"
    shutil.copytree(EXAMPLES / "pipeline", folder)
    spec = folder / "spark-pipeline.yml"
    text = spec.read_text()
    for mine, here in (
        ("flights.endpoints: 127.0.0.1:8081", f"flights.endpoints: {flights.endpoints}"),
        ("flights.source: flights", f"flights.source: {flights.name}"),
        ("flights.target: late", f"flights.target: {late.name}"),
        ("flights.group: late-pipeline", f"flights.group: {flights.name}"),
        ("file:///var/tmp/late-flights-pipeline", f"file://{tmp_path}/storage"),
    ):
        assert mine in text
        text = text.replace(mine, here)
    spec.write_text(text)
    run = (HOME / "bin" / "spark-pipelines", "--remote", server, "run", "--spec", spec)
    client(*run)
    send(flights, [("B6", 16)])
    client(*run)
    means = "SELECT carrier, flights, mean_delay FROM delay_by_carrier ORDER BY carrier"
    printed = client(sys.executable, "-c", SQL, means)
    assert json.loads(printed.splitlines()[-1]) == [["AA", 2, 14.5], ["B6", 2, 16.0], ["UA", 3, 202 / 3]]
    assert late_in(late) == Counter([*LATE, ("B6", 16.0)])
    assert sum(flights.progress(flights.name)) == len(FLIGHTS) + 1
