"""Spark jobs and consumers share a group: each message once over graceful changes, but for the last batch of a job that
is stopped before Spark came back for the next one; and who is killed repeats no more than its last batch.

`make spark-group` is the full size: EVENQ_TEST_SECONDS of joins and leaves, one each second, under EVENQ_TEST_RATE
messages/s; its figures are printed. Here, beside all other tests, the same with less.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import evenq
from evenq.testing.history import Kind, Op, read_history
from evenq.testing.local_cluster import LocalCluster
from tests.spark.members import members, within

PEERS, ROOT = Path(__file__).resolve().parent, Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "live"))
from evenq_live.process import Process  # noqa: E402
from evenq_live.sending import Stream  # noqa: E402

SECONDS = int(os.environ.get("EVENQ_TEST_SECONDS", "15"))
RATE = int(os.environ.get("EVENQ_TEST_RATE", "100"))
TOPIC, GROUP = "shared", "mixed"
WAIT_S = 240.0
HAND_OVER_MS = 3_000
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def start(spark: Any, topic: Any, tmp_path: Path) -> Any:
    queries: list[Any] = []

    def start(name: str, **options: Any) -> Any:
        given = {"group": topic.name, "startingOffsets": "earliest", "assignment": "shared"} | options
        frame = spark.readStream.format("evenq").schema("brokerName string, queueId int, queueOffset long")
        frame = frame.option("endpoints", topic.endpoints).option("subscribe", topic.name).options(**given).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / name / "checkpoint"))
        queries.append(writer.option("path", str(tmp_path / name / "rows")).start())
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


def read(spark: Any, folder: Path) -> list[tuple[str, int, int]]:
    rows = spark.read.schema("brokerName string, queueId int, queueOffset long").parquet(str(folder / "rows"))
    return sorted((row.brokerName, row.queueId, row.queueOffset) for row in rows.collect())


def test_two_queries_divide_the_queues_and_one_goes_on_with_all_of_them(
    spark: Any, cluster: LocalCluster, topic: Any, start: Any, tmp_path: Path
) -> None:
    topic.send_each(10)
    one = start("one")
    assert within(60, lambda: topic.progress(topic.name) == [10] * 4) is not None, one.exception()
    two = start("two")
    assert within(60, lambda: len(members(cluster, topic.name)) == 2) is not None, two.exception()
    assert within(60, lambda: bool(two.lastProgress)) is not None

    def both_read() -> bool:
        topic.send_each(1)
        return any(progress.numInputRows for progress in two.recentProgress)

    assert within(60, both_read) is not None, (one.exception(), two.exception())
    ends = topic.ends()
    assert within(60, lambda: topic.progress(topic.name) == ends) is not None
    two.stop()
    assert within(5, lambda: len(members(cluster, topic.name)) == 1) is not None
    topic.send_each(5)
    ends = topic.ends()
    assert within(60, lambda: topic.progress(topic.name) == ends) is not None, one.exception()
    assert sorted(read(spark, tmp_path / "one") + read(spark, tmp_path / "two")) == topic.every(ends)


# ---------------------------------------------------------------------------------------------- who comes and goes


class Member:
    """One member in a process, which comes and goes on the word of the test. Commands are given by its own thread."""

    def __init__(self, name: str, command: list[str], *, folder: Path, stays: bool) -> None:
        self.name, self.joined, self.batch_ms = name, False, 0
        self.changes = 0
        self._stays = stays
        """True: the process outlives its membership, as a driver does."""
        self._command, self._folder = command, folder
        self._said: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._process: Process | None = None
        self._changing: threading.Thread | None = None
        self.problem = ""

    def prepare(self) -> None:
        self._process = Process(self.name, self._command, folder=self._folder, heard=self._hear)
        self._until("ready")

    def toggle(self) -> bool:
        """Join or leave, in the background; False: it is at it already."""
        if self.busy:
            return False
        self._changing = threading.Thread(target=self._leave if self.joined else self._join, daemon=True)
        self._changing.start()
        return True

    @property
    def busy(self) -> bool:
        return self._changing is not None and self._changing.is_alive()

    def settle(self, *, joined: bool) -> None:
        if self._changing is not None:
            self._changing.join(WAIT_S)
        assert not self.problem, f"{self.name}: {self.problem}"
        if self.joined is not joined:
            assert self.toggle()
            self.settle(joined=joined)

    def kill(self) -> None:
        """SIGKILL, with everything that it started."""
        assert self._process is not None
        for pid in descendants(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process, self.joined = None, False

    def end(self) -> None:
        if self._process is not None:
            self.kill()

    def _join(self) -> None:
        if self._process is None:
            self.prepare()
        if self._stays:
            self._say("start", "started")
        self.joined = True
        self.changes += 1

    def _leave(self) -> None:
        assert self._process is not None
        told = self._say("stop", "stopped", "done")
        self.problem = told.get("failed", "")
        self.batch_ms = max(self.batch_ms, told.get("batch_ms", 0))
        if not self._stays:
            self._process.wait(WAIT_S)
            self._process = None
        self.joined = False
        self.changes += 1

    def _say(self, line: str, *answers: str) -> dict[str, Any]:
        assert self._process is not None
        with self._changed:
            self._said.clear()
        self._process.say(line)
        return self._until(*answers)

    def _until(self, *answers: str) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            return next((told for told in self._said if any(word in told for word in answers)), None)

        with self._changed:
            if not self._changed.wait_for(found, WAIT_S):
                self.problem = f"did not say {answers} within {WAIT_S:.0f} s, see {self.name}.log"
            return found() or {}

    def _hear(self, _name: str, told: dict[str, Any]) -> None:
        with self._changed:
            if "got" not in told:
                self._said.append(told)
            self._changed.notify_all()


class Reader(Member):
    """A member, and the chunks that it read: numbers of messages, and when (monotonic ms)."""

    def chunks(self) -> list[list[tuple[int, int]]]:
        raise NotImplementedError

    def last_batch(self) -> Callable[[], set[int]]:
        """What may come again when it is killed now; asked when it has come back and worked that off."""
        raise NotImplementedError

    def unreported(self) -> set[int]:
        """What it may have read without a report when it was stopped; a consumer reports everything."""
        return set()


class SparkJob(Reader):
    def __init__(self, name: str, options: dict[str, str], *, folder: Path) -> None:
        self._out = folder / name
        self.stopped_in: list[int] = []
        """The last batch of each run: Spark does not tell its source that it is done before it makes the next one, so a
        stop in between leaves it unreported."""
        command = [str(PEERS / "group_members.py"), "spark", json.dumps(options), str(self._out)]
        super().__init__(name, command, folder=folder, stays=True)

    def chunks(self) -> list[list[tuple[int, int]]]:
        done = {int(file.stem): int(file.read_text()) for file in (self._out / "rows").glob("*.done")}
        return [[(number, done[batch]) for number in sorted(self._rows(batch))] for batch in sorted(done)]

    def unreported(self) -> set[int]:
        return {number for batch in self.stopped_in for number in self._rows(batch)}

    def last_batch(self) -> Callable[[], set[int]]:
        last = self._newest("offsets")
        return lambda: self._rows(last)

    def _leave(self) -> None:
        super()._leave()
        self.stopped_in.append(self._newest("offsets"))

    def _rows(self, batch: int) -> set[int]:
        """Of a batch that is done. A later run of it writes the same."""
        if not (self._out / "rows" / f"{batch}.done").exists():
            return set()
        files = (self._out / "rows" / str(batch)).glob("part-*")
        return {int(line) for file in files for line in file.read_text().splitlines()}

    def _newest(self, kind: str) -> int:
        return max((int(one.name) for one in (self._out / "checkpoint" / kind).glob("[0-9]*")), default=-1)


class Consumer(Reader):
    def __init__(self, name: str, endpoint: str, topic: str, group: str, *, folder: Path) -> None:
        self._file = folder / f"{name}.rows"
        self._file.touch()
        command = [str(PEERS / "group_members.py"), "consumer", endpoint, topic, group, str(self._file)]
        super().__init__(name, command, folder=folder, stays=False)

    def chunks(self) -> list[list[tuple[int, int]]]:
        return [[(number, at_ms) for number, at_ms in json.loads(line)] for line in self._file.read_text().splitlines()]

    def last_batch(self) -> Callable[[], set[int]]:
        last = {number for number, _ in self.chunks()[-1]} if self.chunks() else set()
        return lambda: last


class OfficialSdk(Reader):
    def __init__(self, name: str, endpoint: str, topic: str, group: str, *, folder: Path) -> None:
        command = [str(ROOT / "tests" / "compat" / "python_sdk_peer.py"), "work", endpoint, topic, group, "0"]
        super().__init__(name, command, folder=folder, stays=False)
        self._got: list[tuple[int, int]] = []
        self._file = folder / f"{name}.rows"
        """For people; one line per message."""

    def chunks(self) -> list[list[tuple[int, int]]]:
        with self._changed:
            return [[one] for one in self._got]

    def last_batch(self) -> Callable[[], set[int]]:
        """It says each message before it acknowledges it, and takes up to 16 at once."""
        with self._changed:
            last = {number for number, _ in self._got[-16:]}
        return lambda: last

    def _hear(self, name: str, told: dict[str, Any]) -> None:
        with self._changed:
            if "got" in told:
                self._got.append((told["got"], time.monotonic_ns() // 1_000_000))
                with self._file.open("a", encoding="ascii") as file:
                    file.write(json.dumps([self._got[-1]]) + "\n")
        super()._hear(name, told)


def descendants(pid: int) -> list[int]:
    found, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        found.append(one)
        with suppress(FileNotFoundError, ProcessLookupError):
            for task in Path(f"/proc/{one}/task").iterdir():
                waiting += [int(child) for child in (task / "children").read_text().split()]
    return found


@pytest.fixture
def crew(tmp_path: Path, spark_environment: None) -> Iterator[tuple[LocalCluster, list[Reader]]]:
    with LocalCluster(
        brokers=2, folder=tmp_path / "cluster", broker_settings={"AUTO_CREATE_TOPICS": "false"}
    ) as cluster:
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            admin.create_topic(TOPIC, queues=4)
            admin.create_group(GROUP, strategy="STICKY", start_from="FIRST")
        endpoints = ",".join(broker.address for broker in cluster.brokers)
        options = {
            "endpoints": endpoints, "subscribe": TOPIC, "group": GROUP, "assignment": "shared",
            "startingOffsets": "earliest",
        }  # fmt: skip
        readers: list[Reader] = [
            SparkJob("spark-a", options | {"queryName": "spark-a"}, folder=tmp_path),
            Consumer("consumer", cluster.endpoint, TOPIC, GROUP, folder=tmp_path),
            SparkJob("spark-b", options | {"queryName": "spark-b"}, folder=tmp_path),
            OfficialSdk("official", cluster.endpoint, TOPIC, GROUP, folder=tmp_path),
        ]
        try:
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(Reader.prepare, readers[::2]))
            yield cluster, readers
        finally:
            for reader in readers:
                reader.end()


def counts(readers: list[Reader]) -> Counter[int]:
    return Counter(number for reader in readers for chunk in reader.chunks() for number, _ in chunk)


def until_all_read(readers: list[Reader], sent: int) -> None:
    def missing() -> int:
        return sent - sum(number < sent for number in counts(readers))

    assert within(WAIT_S, lambda: not missing()) is not None, f"{missing()} of {sent} messages were not read"


def shown(cluster: LocalCluster) -> str:
    environment = os.environ | {"EVENQ_ENDPOINT": cluster.endpoint}
    command = [str(Path(sys.executable).with_name("evenq")), "group", "show", GROUP]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.stdout + done.stderr


def sent_ms(history: Path) -> dict[int, int]:
    """When each message was sent, by its number."""
    return {
        int(event.body): event.at_ms
        for event in read_history(history)
        if event.kind == Kind.INVOKE and event.op == Op.SEND
    }


def waits_ms(readers: list[Reader], sent: dict[int, int], below: int) -> list[int]:
    """From each message's send to its first read, ascending."""
    first: dict[int, int] = {}
    for reader in readers:
        for number, at_ms in (one for chunk in reader.chunks() for one in chunk):
            first[number] = min(at_ms, first.get(number, at_ms))
    return sorted(max(0, at_ms - sent[number]) for number, at_ms in first.items() if number < below)


def come_and_go(readers: list[Reader]) -> None:
    """One joins or leaves each second; two are there at least."""
    begun, turn = time.monotonic(), 0
    while (passed := time.monotonic() - begun) < SECONDS:
        for _ in readers:
            turn += 1
            reader = readers[turn % len(readers)]
            others = [other for other in readers if other is not reader and other.joined and not other.busy]
            if len(others) >= 2 and reader.toggle():
                break
        time.sleep(max(0.0, 1.0 - (time.monotonic() - begun - passed)))
    for reader in readers:
        reader.settle(joined=True)


@pytest.mark.timeout(1_800)
def test_jobs_and_consumers_come_and_go_and_are_killed(crew: tuple[LocalCluster, list[Reader]], tmp_path: Path) -> None:
    cluster, readers = crew
    history = tmp_path / "sender.history.jsonl"
    told, killed = list[str](), dict[str, Callable[[], set[int]]]()
    with Stream(cluster.endpoint, TOPIC, rate=RATE, history=history) as stream:
        for reader in readers:
            reader.toggle()
        for reader in readers:
            reader.settle(joined=True)
        come_and_go(readers)
        assert within(30, lambda: len(members(cluster, GROUP)) == len(readers)) is not None
        page = shown(cluster)
        for words in (*members(cluster, GROUP), TOPIC):
            assert words in page, page
        mark = stream.sent
        until_all_read(readers, mark)
        changes = sum(reader.changes for reader in readers)
        for victim in (readers[0], readers[1], readers[3]):
            before = stream.sent
            killed[victim.name] = victim.last_batch()
            victim.kill()
            until_all_read(readers, before)
            victim.settle(joined=True)
    until_all_read(readers, stream.sent)
    for reader in readers:
        reader.settle(joined=False)
    found = counts(readers)
    batch_ms = max(reader.batch_ms for reader in readers)
    waits = waits_ms(readers, sent_ms(history), mark)
    stopped = set[int]().union(*(reader.unreported() for reader in readers))
    repeats = {number for number, times in found.items() if times > 1}
    graceful = {number for number in repeats if number < mark}
    in_hand = {name: last() for name, last in killed.items()}
    told.append(f"{stream.sent:,} sent at {RATE}/s, read {len(found):,}; by "
                + ", ".join(f"{reader.name} {sum(map(len, reader.chunks())):,}" for reader in readers))  # fmt: skip
    told.append(f"{changes} joins and leaves in {SECONDS} s: {len(graceful - stopped)} repeats; "
                f"{len(graceful & stopped)} of {len(stopped)} in the last batches of jobs that were stopped")  # fmt: skip
    told.append(f"from sent to read: p50 {waits[len(waits) // 2]}, p99 {waits[len(waits) * 99 // 100]}, longest "
                f"{waits[-1]} ms; longest batch of Spark {batch_ms} ms")  # fmt: skip
    told += [
        f"kill -9 of {name}: {len(repeats & last)} repeats, its last batch had {len(last)}"
        for name, last in in_hand.items()
    ]
    print("\n" + "\n".join(told))
    assert sorted(found) == list(range(stream.sent))
    assert not graceful - stopped, sorted(graceful - stopped)[:20]
    assert not repeats - graceful - set[int]().union(*in_hand.values()), (
        "only what a dead member had in hand comes again"
    )
    assert waits[-1] <= HAND_OVER_MS + 2 * batch_ms
