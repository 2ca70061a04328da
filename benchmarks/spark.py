"""`make bench-spark`: Spark reads the same rows from evenq, from Kafka and from memory, in turn.

    python benchmarks/spark.py [--rows N] [--rounds N] [--only batch stream trigger idle sink]
                               [--formats auto message] [--no-kafka] [--no-save]

One Spark (`local[2]`), one broker of each kind, the same 1 KiB rows with a key, a tag and two properties in four queues
or partitions, all columns read into `noop`. The sources take turns round by round (A B C A B C ...), so other work on
the machine affects all of them; the results are the ratios of each round. The ceiling is a Python source that yields a
prebuilt Arrow batch: the cost of Spark itself for such rows. Kafka comes by Maven (`kafka_peer.py`).

One row: a query with a trigger each second, so that a row is there when it fires; `triggerExecution` is the time of the
trigger. In addition, the time from the send to the end of the batch for a query that triggers immediately: there
`latestOffset` of an idle query waits for rows, so its duration has no meaning.

The sink: one job writes the same rows (200,000 at most), made by Spark, into each broker in turn, into ours with each
delivery, from two partitions; a round ends with the job.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import servers
from kafka_peer import kafka, spark_jars
from rich.console import Console
from spark_report import Line, save, show, verdicts
from spark_rows import Ceiling
from spark_servers import DELIVERIES, ONE, QUEUES, SINK, TOPIC, Evenq, Peer

HERE = Path(__file__).resolve().parent
CONSOLE = Console(stderr=True)
PARTS = ("batch", "stream", "trigger", "idle", "sink")
TRIGGER_ROWS = 40_000
FIRST_TRIGGERS = 2  # workers start and import in them
TRIGGER_MS = 1_000
SINGLE_ROUNDS, SINGLE_ROWS, SINGLE_FIRST = 3, 9, 3
IDLE_S = 20.0
SINK_ROWS = 200_000
FIRST_CALLS = 12  # of a query that joins: route, offsets, session, locks, and the first look
WAIT_S = 120.0


class Bench:
    """One run: its options, the sources, and the lines so far."""

    def __init__(self, options: argparse.Namespace, spark: Any, evenq: Evenq, peer: Peer | None, scratch: Path) -> None:
        self.options, self.spark, self.evenq, self.peer = options, spark, evenq, peer
        self._scratch = scratch
        self._checkpoints = 0
        self.lines: list[Line] = []

    # ------------------------------------------------------------------------------------------------------- batch

    def batch(self) -> None:
        line, cpu = Line("batch, all columns"), Line("broker CPU in batch reads", unit="us/row")
        rows = self.options.rows
        ceiling = {"rows": str(rows), "partitions": str(QUEUES)}
        sources: dict[str, tuple[Callable[[], Any], int]] = {
            self._name(kind): (lambda kind=kind: self._load(kind), self.evenq.pid) for kind in self.options.formats
        }  # type: ignore[misc]  # mypy sees no default in a lambda
        if self.peer is not None:
            sources["kafka"] = (self._load_peer, self.peer.pid)
        sources["ceiling"] = (lambda: self.spark.read.format("ceiling").options(**ceiling).load(), 0)
        for name, (load, _) in sources.items():
            counted = load().count()
            if counted != rows:
                raise SystemExit(f"{name} has {counted} rows, not {rows}")
        for number in range(self.options.rounds + 1):
            for name, (load, pid) in sources.items():
                begun_cpu = servers.cpu_s(pid) if pid else 0.0
                begun = time.perf_counter()
                load().write.format("noop").mode("overwrite").save()
                took = time.perf_counter() - begun
                if number == 0:
                    continue  # it warms up
                line.add(name, rows / took)
                if pid:
                    cpu.add(name, (servers.cpu_s(pid) - begun_cpu) / rows * 1e6)
            CONSOLE.print(f"[dim]batch round {number} of {self.options.rounds}[/dim]")
        self.lines += [line, cpu]

    def _load(self, kind: str) -> Any:
        return self.spark.read.format("evenq").options(**self.evenq.options(TOPIC), format=kind).load()

    def _load_peer(self) -> Any:
        assert self.peer is not None
        return self.spark.read.format("kafka").options(**self.peer.options(TOPIC)).load()

    # ------------------------------------------------------------------------------------------------------ stream

    def stream(self) -> None:
        line = Line(f"stream, triggers of {TRIGGER_ROWS:,} rows")
        for number in range(max(3, self.options.rounds // 2 + 1)):
            for name, options in self._streams(TOPIC, {"startingOffsets": "earliest"}).items():
                query = self._start(name, options | {"maxOffsetsPerTrigger": str(TRIGGER_ROWS)}, availableNow=True)
                query.awaitTermination()
                full = [one for one in query.recentProgress if one.numInputRows >= TRIGGER_ROWS][FIRST_TRIGGERS:]
                took = [one.durationMs["triggerExecution"] for one in full]
                if took:
                    line.add(name, TRIGGER_ROWS * 1000 / statistics.median(took))
            CONSOLE.print(f"[dim]stream round {number + 1}[/dim]")
        self.lines.append(line)

    # ----------------------------------------------------------------------------------------------------- trigger

    def trigger(self) -> None:
        self.evenq.create(ONE, 1)
        execution = Line("one row, trigger each second: triggerExecution", unit="ms")
        offset = Line("one row, trigger each second: of that latestOffset", unit="ms")
        latency = Line("one row, immediate triggers: from send to the end of its batch", unit="ms")
        senders: dict[str, Callable[[], float]] = {"evenq": self.evenq.send_one}
        if self.peer is not None:
            senders["kafka"] = self.peer.send_one
        for send in senders.values():
            send()
        each_second = {"processingTime": f"{TRIGGER_MS} milliseconds"}
        for number in range(SINGLE_ROUNDS):
            for name, options in self._streams(ONE, {"startingOffsets": "earliest"}).items():
                query = self._start(name, options, **each_second)
                for _, progress in self._singles(query, senders[name]):
                    execution.add(name, progress.durationMs["triggerExecution"])
                    offset.add(name, progress.durationMs["latestOffset"])
                query.stop()
                query = self._start(name, options)
                for sent, progress in self._singles(query, senders[name]):
                    latency.add(name, (_ended(progress) - sent) * 1000)
                query.stop()
            query = self._start("rate-micro-batch", {"rowsPerBatch": "10", "numPartitions": "1"}, **each_second)
            _until(lambda query=query: len(query.recentProgress) > SINGLE_ROWS)  # type: ignore[misc]  # its default
            for one in query.recentProgress[SINGLE_FIRST:]:
                execution.add("rate-micro-batch", one.durationMs["triggerExecution"])
            query.stop()
            CONSOLE.print(f"[dim]one row, round {number + 1} of {SINGLE_ROUNDS}[/dim]")
        self.lines += [execution, offset, latency]

    def _singles(self, query: Any, send: Callable[[], float]) -> Iterator[tuple[float, Any]]:
        """Sends rows one by one, each after the batch of the previous one. Yields time and progress of each batch,
        without the first ones.
        """
        _until(lambda: any(one.numInputRows for one in query.recentProgress))
        for number in range(SINGLE_ROWS):
            before = len(query.recentProgress)
            sent = send()
            _until(lambda before=before: any(one.numInputRows for one in query.recentProgress[before:]))  # type: ignore[misc]
            if number >= SINGLE_FIRST:
                yield sent, next(one for one in query.recentProgress[before:] if one.numInputRows)

    # -------------------------------------------------------------------------------------------------------- sink

    def sink(self) -> None:
        """Measures rows by one job of Spark into each broker."""
        self.evenq.create(SINK, QUEUES)
        rows = min(self.options.rows, SINK_ROWS)
        line = Line(f"sink, {rows:,} rows in one job")
        cpu = Line("broker CPU of the sink", unit="us/row")
        workers, jvm = Line("CPU of the sink's workers", unit="us/row"), Line("CPU of Spark's JVM", unit="us/row")
        writers: dict[str, tuple[Callable[[], Any], int]] = {
            delivery: (lambda delivery=delivery: self.evenq.sink(self.spark, rows, delivery), self.evenq.pid)
            for delivery in DELIVERIES
        }  # type: ignore[misc]  # mypy sees no default in a lambda
        if self.peer is not None:
            peer = self.peer
            writers["kafka"] = (lambda: peer.sink(rows), peer.pid)
        for number in range(self.options.rounds + 1):
            for name, (write, pid) in writers.items():
                begun_cpu, spark_cpu, begun = servers.cpu_s(pid), self._spark_cpu(), time.perf_counter()
                write()
                took = time.perf_counter() - begun
                if number == 0:
                    continue  # it warms up
                line.add(name, rows / took)
                cpu.add(name, (servers.cpu_s(pid) - begun_cpu) / rows * 1e6)
                for used, before, now in zip((workers, jvm), spark_cpu, self._spark_cpu(), strict=True):
                    used.add(name, (now - before) / rows * 1e6)
            CONSOLE.print(f"[dim]sink round {number} of {self.options.rounds}[/dim]")
        written = self.spark.read.format("evenq").options(**self.evenq.options(SINK)).load().count()
        expected = rows * (self.options.rounds + 1) * len(DELIVERIES)
        if written != expected:
            raise SystemExit(f"the sink wrote {written} rows, not {expected}")
        self.lines += [line, cpu, workers, jvm]

    def _spark_cpu(self) -> tuple[float, float]:
        """Returns the CPU of Spark's Python processes and of its JVM so far, seconds."""
        pids = _python_children(os.getpid())
        servers_of_ours = {self.evenq.pid} | ({self.peer.pid} if self.peer is not None else set())
        java = [pid for pid in pids if b"java" in _command(pid).partition(b"\0")[0] and pid not in servers_of_ours]
        return sum(_cpu(pid) for pid in pids if pid not in java and pid not in servers_of_ours), sum(map(_cpu, java))

    # -------------------------------------------------------------------------------------------------------- idle

    def idle(self) -> None:
        """Measures the cost of a query without data: its runner, and the broker."""
        runner, broker = (
            Line("idle query: CPU of its runner", unit="% of a core"),
            Line("idle query: CPU of the broker", unit="% of a core"),
        )
        calls = Line("idle query: calls to the broker", unit="calls/s")
        options = self._streams(TOPIC, {"startingOffsets": "latest"})["evenq"]
        before = set(_python_children(os.getpid()))
        query = self._start("evenq", options)
        joined = self.evenq.calls() + FIRST_CALLS
        _until(lambda: self.evenq.calls() >= joined)
        time.sleep(3.0)  # the rest of its imports
        ours = [pid for pid in _python_children(os.getpid()) if pid not in before]
        called = self.evenq.calls()
        start = sum(map(_cpu, ours)), servers.cpu_s(self.evenq.pid), time.perf_counter()
        time.sleep(IDLE_S)
        took = time.perf_counter() - start[2]
        runner.add("evenq", (sum(map(_cpu, ours)) - start[0]) / took * 100)
        broker.add("evenq", (servers.cpu_s(self.evenq.pid) - start[1]) / took * 100)
        calls.add("evenq", (self.evenq.calls() - called) / took)
        query.stop()
        self.lines += [runner, broker, calls]

    # ------------------------------------------------------------------------------------------------------ shared

    def _streams(self, topic: str, more: dict[str, str]) -> dict[str, dict[str, str]]:
        self._checkpoints += 1
        tried = dict(one.split("=", 1) for one in self.options.option)
        found = {"evenq": {**self.evenq.options(topic), "group": f"bench-{self._checkpoints}", **more, **tried}}
        if self.peer is not None:
            found["kafka"] = self.peer.options(topic) | more
        return found

    def _start(self, name: str, options: dict[str, str], **trigger: Any) -> Any:
        self._checkpoints += 1
        frame = self.spark.readStream.format(name).options(**options).load()
        writer = frame.writeStream.format("noop")
        writer = writer.option("checkpointLocation", str(self._scratch / f"checkpoint-{self._checkpoints}"))
        return (writer.trigger(**trigger) if trigger else writer).start()

    @staticmethod
    def _name(kind: str) -> str:
        return "evenq" if kind == "auto" else f"evenq {kind}"


def _ended(progress: Any) -> float:
    """Returns the end of the trigger, seconds since the epoch."""
    begun = dt.datetime.fromisoformat(progress.timestamp).timestamp()
    return begun + float(progress.durationMs["triggerExecution"]) / 1000


def _until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not ready():
        if time.monotonic() > deadline:
            raise SystemExit(f"nothing for {WAIT_S:.0f} s")
        time.sleep(0.01)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def _python_children(pid: int) -> list[int]:
    """Returns the Python processes under a process, through Spark's JVM."""
    pids = [pid]
    for one in pids:
        try:
            for task in Path(f"/proc/{one}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
        except OSError:  # it has ended meanwhile
            continue
    return [one for one in pids[1:] if b"pyspark" in _command(one)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _cpu(pid: int) -> float:
    try:
        return servers.cpu_s(pid)
    except OSError:
        return 0.0


# ------------------------------------------------------------------------------------------------------------ running


@contextmanager
def session(jars: list[Path], scratch: Path) -> Iterator[Any]:
    """Returns a local Spark with two cores whose workers can import the ceiling."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .appName("evenq-bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.extraClassPath", os.pathsep.join(map(str, jars)))
        .config("spark.local.dir", str(scratch))
        .config("spark.sql.streaming.numRecentProgressUpdates", "200")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(Ceiling)
    try:
        yield spark
    finally:
        spark.stop()


def main() -> int:
    """Measures, shows and saves. Returns 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description="The Spark source compared with Kafka's and with its ceiling.")
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[])
    parser.add_argument("--formats", nargs="+", choices=["auto", "log", "message"], default=["auto"])
    parser.add_argument("--option", nargs="+", default=[], help="options of our source, NAME=VALUE, to try them")
    parser.add_argument("--no-kafka", action="store_true", help="without Maven and the peer")
    parser.add_argument("--no-save", action="store_true", help="write no file into benchmarks/results")
    options = parser.parse_args()
    if not os.environ.get("JAVA_HOME"):
        tool = [sys.executable, HERE.parent / "tools" / "java_home.py"]
        shown = subprocess.run(tool, capture_output=True, text=True, check=True)
        os.environ["JAVA_HOME"] = shown.stdout.strip()
    load = [os.getloadavg()[0]]
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="evenq-bench-")))
        jars = [] if options.no_kafka else spark_jars()
        spark = stack.enter_context(session(jars, scratch))
        (scratch / "evenq").mkdir()
        port = _free_port()
        settings = {"EVENQ_BROKER_BROKER_NAME": "bench", "EVENQ_BROKER_METRICS_PORT": str(port)}
        server = stack.enter_context(servers.broker(scratch / "evenq", **settings))
        evenq = Evenq(server, port)
        evenq.create(TOPIC, QUEUES)
        evenq.fill(options.rows)
        peer = None
        if not options.no_kafka:
            (scratch / "kafka").mkdir()
            running = stack.enter_context(kafka(os.environ["JAVA_HOME"], scratch / "kafka", partitions=QUEUES))
            peer = Peer(spark, running.pid, running.address)
            peer.fill(options.rows)
        CONSOLE.print(f"[dim]{options.rows:,} rows are in[/dim]")
        bench = Bench(options, spark, evenq, peer, scratch)
        for part in PARTS:
            if not options.only or part in options.only:
                getattr(bench, part)()
                load.append(os.getloadavg()[0])
        lines = bench.lines
    show(lines, load)
    if not options.no_save and not options.only:
        CONSOLE.print(f"saved in benchmarks/results/{save(lines, options, load).name}")
    return 0 if all(ok is not False for *_, ok in verdicts(lines)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
