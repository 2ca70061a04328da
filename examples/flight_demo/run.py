"""The whole demo on one machine: a cluster of two brokers and a year of flights, in four acts.

1. A group whose members change reads the flights while they arrive. 2. Two Spark jobs read them. 3. A Spark stream and
two consumers read them together (`third_act`). 4. Copies of a broker lose their leader and its disk (`fourth_act`).

All servers and clients are real processes on loopback. Every figure is compared with the CSV, and
`evenq.testing.checker` checks the merged history of producer and members. The exit code is 0 only if nothing differs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from evenq.errors import Error, InternalError
from evenq.runtime.clock import SystemClock
from evenq.testing import LocalCluster
from evenq.testing.checker import AnomalyKind, Report, check
from evenq.testing.history import HistoryAction, Op, Recorder, merge_histories, read_history
from flight_demo import third_act
from flight_demo.flights import FLIGHTS_TOTAL, Delay, delays_by_carrier, flights
from flight_demo.fourth_act import FourthAct
from flight_demo.members import MemberProcess
from flight_demo.publishing import Published, publish
from flight_demo.report import OwnershipSpan, show_delays, show_owners, show_verdict
from flight_demo.spark_jobs import SparkJobs
from flight_demo.third_act import ThirdAct

TOPIC = "flights"
GROUP = "delay-desk"
SPARK_GROUP = "delay-desk-spark"
QUEUES = 8
DRAIN_SECONDS = 120
SPARK_SECONDS = 240


class Demo:
    """One run. `folder`: for logs and data (default: a temporary one); `shared`: one group in the third act."""

    def __init__(
        self, *, limit: int | None = None, spark: bool = True, shared: bool = False, folder: Path | None = None
    ) -> None:
        self.total = min(limit or FLIGHTS_TOTAL, FLIGHTS_TOTAL)
        self.with_spark = spark
        self.shared = shared
        self.keep = folder is not None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="evenq-demo-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.console = Console()
        self.clock = SystemClock()
        self.members: list[MemberProcess] = []
        self.ownerships: list[OwnershipSpan] = []

    def run(self) -> bool:
        """Runs all acts and returns whether every figure agrees."""
        started = self.clock.monotonic_ms()
        with ThreadPoolExecutor(1) as pool:
            truth_later = pool.submit(delays_by_carrier, self.total)
            jobs: dict[str, dict[str, tuple[int, float]]] = {}
            third: ThirdAct | None = None
            with LocalCluster(brokers=2, folder=self.folder / "cluster") as cluster:
                self.console.print(f"[bold]Two brokers, a nameserver and a rebalancer[/] at {cluster.endpoint}")
                self._create(cluster.endpoint)
                published = self._publish_and_consume(cluster.endpoint)
                if self.with_spark:
                    with closing(SparkJobs(self.folder / "spark.log")) as spark:
                        with self.console.status("two Spark jobs read the topic"):
                            jobs = self._spark(cluster.endpoint, spark)
                        third = self._third_act(cluster.endpoint, spark)
            fourth = self._fourth_act()
            truth = truth_later.result()
        right = self._judge(truth, jobs, published, third, fourth)
        seconds = (self.clock.monotonic_ms() - started) / 1000
        self.console.print(
            f"{'[green]All figures agree[/]' if right else '[bold red]Something differs[/]'} after {seconds:.0f} s."
        )
        if right and not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            self.console.print(f"Logs and histories: {self.folder}")
        return right

    def _create(self, endpoint: str) -> None:
        run_cli("topic", "create", TOPIC, "--queues", str(QUEUES), "--endpoint", endpoint)
        run_cli("group", "create", GROUP, "--strategy", "AVG", "--endpoint", endpoint)

    def _join(self, endpoint: str, name: str) -> MemberProcess:
        member = MemberProcess(name, endpoint=endpoint, topic=TOPIC, group=GROUP, folder=self.folder)
        self.members.append(member)
        return member

    def _publish_and_consume(self, endpoint: str) -> Published:
        """Publishes while three members read. A fourth joins after 1/3 of the flights, and one leaves after 2/3."""
        for name in ("ada", "bea", "cem"):
            self._join(endpoint, name)
        published = Published()
        turns = {
            self.total // 3: lambda: self._join(endpoint, "dov"),
            2 * self.total // 3: self.members[1].leave,
        }
        turned: list[threading.Thread] = []

        def turn(number: int) -> None:
            if number in turns:
                turned.append(threading.Thread(target=turns[number]))
                turned[-1].start()

        def produce() -> None:
            history = self._history("producer")
            source = flights(self.total)
            publish(
                source,
                endpoint=endpoint,
                topic=TOPIC,
                history=history,
                clock=self.clock,
                published=published,
                pause=turn,
            )

        producer = threading.Thread(target=self._guarded, args=(produce,), name="demo-producer")
        producer.start()
        self._show_progress(published, producer)
        for thread in turned:
            thread.join()
        for member in self.members:
            if member.process.poll() is None:
                member.leave()
        with Recorder(self._history("demo"), clock=self.clock) as recorder:
            recorder.ok(recorder.invoke(Op.ADMIN, process="demo", group=GROUP, topic=TOPIC, action=HistoryAction.DRAIN))
        return published

    def _show_progress(self, published: Published, producer: threading.Thread) -> None:
        """Shows two bars until all flights are consumed, or DRAIN_SECONDS after the producer's end."""
        patience_ms = None
        with self._bars() as bars:
            out = bars.add_task("published", total=self.total)
            back = bars.add_task("consumed", total=self.total)
            while self._consumed() < self.total or producer.is_alive():
                members = sum(member.queues > 0 for member in self.members)
                bars.update(out, completed=published.acknowledged)
                bars.update(back, completed=self._consumed(), description=f"consumed by {members}")
                producer.join(0.1)
                if not producer.is_alive():
                    threading.Event().wait(0.05)
                    patience_ms = patience_ms or self.clock.monotonic_ms() + DRAIN_SECONDS * 1000
                    if self.clock.monotonic_ms() > patience_ms:
                        break
            bars.update(out, completed=published.acknowledged)
            bars.update(back, completed=self._consumed())

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Error as error:
            self.console.print(f"[bold red]publishing failed:[/] {escape(str(error))}")

    def _consumed(self) -> int:
        return sum(member.count for member in self.members)

    def _history(self, name: str) -> Path:
        return self.folder / f"{name}.history.jsonl"

    @contextmanager
    def _bars(self) -> Iterator[Progress]:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console) as bars:
            yield bars

    def _spark(self, endpoint: str, spark: SparkJobs) -> dict[str, dict[str, tuple[int, float]]]:
        """Runs a batch job, then a streaming job; both at the same time are not faster on two cores."""
        jobs = {}
        for name, module, more in (
            ("batch", "delay_by_carrier", []),
            (
                "stream",
                "delay_by_carrier_stream",
                ["--group", SPARK_GROUP, "--checkpoint", str(self.folder / "checkpoint")],
            ),
        ):
            out = self.folder / f"{module}.json"
            arguments = ("--endpoint", endpoint, "--topic", TOPIC, "--out", str(out), *more)
            spark.run(module, *arguments, seconds=SPARK_SECONDS)
            rows = json.loads(out.read_text())
            jobs[name] = {row["carrier"]: (row["flights"], row["mean_delay"]) for row in rows}
        return jobs

    def _third_act(self, endpoint: str, spark: SparkJobs) -> ThirdAct:
        folder, total, clock = self.folder / "third-act", self.total, self.clock
        act = ThirdAct(
            spark, endpoint=endpoint, topic=TOPIC, folder=folder, total=total, clock=clock, shared=self.shared
        )
        run_cli("group", "create", third_act.GROUP, "--strategy", "AVG", "--endpoint", endpoint)
        with self._bars() as bars:
            act.run(bars)
        return act

    def _fourth_act(self) -> FourthAct:
        act = FourthAct(folder=self.folder / "fourth-act", total=self.total, clock=self.clock)
        with self._bars() as bars:
            act.run(bars)
        return act

    def _judge(
        self,
        truth: dict[str, Delay],
        jobs: dict[str, dict[str, tuple[int, float]]],
        published: Published,
        third: ThirdAct | None,
        fourth: FourthAct,
    ) -> bool:
        consumed: dict[str, Delay] = {}
        read = 0
        for member in self.members:
            messages, sums = member.sums()
            read += messages
            self.ownerships += member.ownerships
            for carrier, delay in sums.items():
                consumed.setdefault(carrier, Delay()).include(delay)
        report = self._check()
        self.console.print()
        show_delays(self.console, truth, consumed, jobs)
        show_owners(self.console, self.ownerships, [member.name for member in self.members])
        lost = report.counts.get(AnomalyKind.LOST, 0) + report.counts.get(AnomalyKind.UNSEEN, 0)
        repeated = report.counts.get(AnomalyKind.DUPLICATE_GRACEFUL, 0) + report.counts.get(
            AnomalyKind.DUPLICATE_AFTER_ACK, 0
        )
        rows = [
            (
                "flights in the file = acknowledged",
                f"{self.total:,} = {published.acknowledged:,}",
                published.acknowledged == self.total,
            ),
            (
                "acknowledged = consumed by the group",
                f"{published.acknowledged:,} = {read:,}",
                read == published.acknowledged,
            ),
            ("lost", str(lost), lost == 0),
            ("repeated", str(repeated), repeated == 0),
            ("history checker", f"{report.events:,} events, {sum(report.counts.values())} anomalies", report.ok),
            (
                "delays of the group = delays of the file",
                "each of 16 carriers" if len(truth) == 16 else "each carrier",
                consumed == truth,
            ),
        ]
        for name, job in jobs.items():
            same = {carrier: (d.flights, round(d.mean, 6)) for carrier, d in truth.items()} == {
                carrier: (count, round(mean, 6)) for carrier, (count, mean) in job.items()
            }
            rows.append((f"Spark {name} = file", f"{sum(count for count, _ in job.values()):,} flights", same))
        if third is not None:
            with self.console.status("comparing each flight of the third act"):
                rows += third.verdict(truth)
        with self.console.status("comparing each flight of the fourth act"):
            rows += fourth.verdict()
        for anomaly in report.anomalies[:5]:
            self.console.print(f"[red]{anomaly.kind}[/]: {escape(anomaly.text)}")
        return show_verdict(self.console, rows)

    def _check(self) -> Report:
        with self.console.status("checking the history of producer and members"):
            histories = [read_history(path) for path in sorted(self.folder.glob("*.history.jsonl"))]
            return check(merge_histories(list(histories)))


def run_cli(*arguments: str) -> None:
    """Runs one `evenq` command in its own process. Raises InternalError."""
    done = subprocess.run(
        [sys.executable, "-m", "evenq.cli", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode != 0:
        raise InternalError(f"evenq {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}")
