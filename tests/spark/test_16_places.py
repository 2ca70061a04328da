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
import yaml
from pyspark_evenq.options.source import ReadOptions
from pyspark_evenq.source.reader import BatchReader

import evenq
from evenq.columns.arrow_schema import OutputColumn
from evenq.testing.local_cluster import LocalCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]  # a busy machine starts many processes slowly
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
        "spark.python.authenticate.socketTimeout": "120s",  # until a Python process that was started calls back
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.warehouse.dir": folder / "warehouse",
    }
    command = [HOME / "bin" / "spark-submit", "--master", "local[2,3]", "--driver-memory", "1g"]
    command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()
            process.wait(60)


@pytest.fixture
def client(server: str) -> Callable[..., str]:
    """Runs a program as a client of the server, and gives what it prints."""

    def run(*command: str | Path) -> str:
        environment = {**os.environ, "SPARK_REMOTE": server}
        for _ in range(4):
            done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=environment, check=False)
            # Spark waits 10 s, whatever is set, for a Python process that it started. On a busy machine that may be too
            # short; the job is run again then, as Kubernetes and every scheduler do.
            if done.returncode == 0 or "Python worker failed to connect back" not in done.stderr:
                break
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
    reader = BatchReader(options, (OutputColumn("tag", nullable=True), OutputColumn("body", nullable=True)))
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
    result = {row["carrier"]: (row["flights"], row["mean_delay"]) for row in json.loads(out.read_text())}
    assert result == {"UA": (3, 202 / 3), "AA": (2, 14.5), "B6": (1, 0.0)}


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


LISTENING = textwrap.dedent(
    """
    import json, sys, time, urllib.request
    from pyspark.sql import SparkSession
    from pyspark_evenq import EvenqProgressListener
    endpoints, topic, checkpoint = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    listener = EvenqProgressListener(port=0)
    spark.streams.addListener(listener)

    def run(name, **options):
        frame = spark.readStream.format("evenq").option("endpoints", endpoints).option("subscribe", topic)
        frame = frame.option("startingOffsets", "earliest").options(**options).load().select("queueOffset")
        writer = frame.writeStream.format("noop").queryName(name).option("checkpointLocation", f"{checkpoint}/{name}")
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except Exception as error:
            assert "no topic" in str(error), error

    def figures(name):
        return next((one for one in listener.queries() if one.name == name), None)

    run("far", group=topic, maxOffsetsPerTrigger=4)
    run("lost", group=topic + "-2", subscribe=topic + "-that-is-not-there")
    give_up = time.monotonic() + 100
    while time.monotonic() < give_up:
        far, lost = figures("far"), figures("lost")
        if far and not far.active and lost and lost.failures:
            break
        time.sleep(0.1)
    page = urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/metrics").read().decode()
    shown = [line for line in page.splitlines() if line.startswith("evenq_spark_rows_total")]
    spark.streams.removeListener(listener)
    listener.close()
    failures = [str(why) for why in lost.failures]
    print(json.dumps({"rows": far.rows, "batch": far.batch, "failures": failures, "shown": shown}))
    """
)


def test_the_listener_runs_and_serves_in_a_client_of_spark_connect(
    client: Callable[..., str], flights: Any, tmp_path: Path
) -> None:
    printed = client(sys.executable, "-c", LISTENING, flights.endpoints, flights.name, str(tmp_path))
    assert json.loads(printed.splitlines()[-1]) == {
        "rows": 6,
        "batch": 1,
        "failures": ["other"],
        "shown": ['evenq_spark_rows_total{query="far"} 6.0', 'evenq_spark_rows_total{query="lost"} 0.0'],
    }


LETTERS = textwrap.dedent(
    """
    import sys
    from pyspark.sql import SparkSession
    from pyspark_evenq import to_dlq
    spark = SparkSession.builder.getOrCreate()
    endpoints, topic, group = sys.argv[1:]
    flights = spark.read.format("evenq").option("endpoints", endpoints).option("subscribe", topic).load()
    print(to_dlq(flights.where("tag = 'B6'"), group=group, endpoints=endpoints))
    """
)


def test_rows_that_a_client_of_spark_connect_cannot_handle_become_dead_letters(
    client: Callable[..., str], cluster: LocalCluster, flights: Any
) -> None:
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_group("desk")
    printed = client(sys.executable, "-c", LETTERS, flights.endpoints, flights.name, "desk")
    assert printed.splitlines()[-1] == "1"
    letters = {"endpoints": flights.endpoints, "subscribe": "%DLQ%desk"}
    reader = BatchReader(ReadOptions.parse(letters, streaming=False), (OutputColumn("body", nullable=True),))
    bodies: list[Any] = [
        row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()
    ]
    assert [json.loads(row["body"])["number"] for row in bodies] == [FLIGHTS.index(("B6", None))]


def test_the_job_of_the_kubernetes_example_runs_with_the_rights_that_its_values_give(
    client: Callable[..., str], tmp_path: Path
) -> None:
    """The arguments of the Job, the grants of the values for the chart, and keys in a file as a Secret is mounted."""
    manifests = list(yaml.safe_load_all((EXAMPLES / "kubernetes" / "late_flights.yaml").read_text()))
    (job,) = (one for one in manifests if one["kind"] == "Job")
    given: list[str] = job["spec"]["template"]["spec"]["containers"][0]["args"]
    values = yaml.safe_load((EXAMPLES / "kubernetes" / "values.yaml").read_text())
    grants = ", ".join(
        f"{{resource = {json.dumps(one['resource'])}, actions = {json.dumps(one['actions'])}}}"
        for one in values["auth"]["users"]["spark"]["allow"]
    )
    users, keys = tmp_path / "users.toml", tmp_path / "credentials.toml"
    users.write_text(
        '[users.evenq-internal]\nsecret = "canary-internal-1"\ninternal = true\n'
        '[users.root]\nsecret = "canary-root-1"\nadmin = true\n'
        f'[users.spark]\nsecret = "canary-spark-1"\nallow = [{grants}]\n'
    )
    keys.write_text('access_key = "spark"\nsecret_key = "canary-spark-1"\n')
    on = {"AUTH__ENABLED": "true", "AUTH__USERS": str(users)}
    root = evenq.Credentials(access_key="root", secret_key="canary-root-1")
    with LocalCluster(
        brokers=2, rebalancer=False, folder=tmp_path / "cluster", broker_settings=on, nameserver_settings=on
    ) as cluster:
        with evenq.Admin(endpoint=cluster.endpoint, credentials=root) as admin:
            for topic in ("flights", "late"):
                admin.create_topic(topic, queues=2)
            admin.create_group("late-desk")
        with evenq.Producer(endpoint=cluster.endpoint, credentials=root) as producer:
            for carrier, delay in FLIGHTS:
                producer.send(
                    evenq.Message(topic="flights", body=json.dumps({"dep_delay": delay}).encode(), tag=carrier)
                )
        here = {
            "/opt/late-flights/job/late_flights.py": str(EXAMPLES / "late_flights.py"),
            "evenq.default.svc.cluster.local:8081": cluster.endpoints,
            "file:///checkpoint": f"file://{tmp_path}/checkpoint",
            "/etc/evenq/credentials.toml": str(keys),
        }
        arguments = given[next(at for at, one in enumerate(given) if one.endswith(".py")) :]
        for place, mine in here.items():
            assert any(place in one for one in arguments)
            arguments = [one.replace(place, mine) for one in arguments]
        for _ in range(2):
            client(sys.executable, *arguments)
        options = {
            "endpoints": cluster.endpoints,
            "subscribe": "late",
            "accessKey": "root",
            "secretKey": "canary-root-1",
        }
        reader = BatchReader(ReadOptions.parse(options, streaming=False), (OutputColumn("body", nullable=True),))
        late = [
            json.loads(row["body"]) for task in reader.partitions() for b in reader.read(task) for row in b.to_pylist()
        ]
    assert Counter((row["carrier"], row["delay"]) for row in late) == Counter(LATE)
