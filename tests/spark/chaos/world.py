"""What a kill loop runs on: two brokers, a topic that is written all the time, a driver with its queries, and a judge.

Points at which a process shall end are armed as files (see `hooks/sitecustomize.py`). The truth is the first topic
itself: each of its messages, known by broker, queue and offset, must be one row of the table and one message of the second
topic. Both are looked through as they grow, so a round of kills knows what was lost or repeated by it.
"""

from __future__ import annotations

import collections
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq
from evenq_proofs.peer import Peer
from evenq_proofs.quick_spark import spark_home
from pyspark_evenq.brokers import cluster as calls

import evenq
from evenq.client.options import ProducerOptions
from evenq.model.queue import MessageQueue
from evenq.testing.local_cluster import LocalCluster
from tests.spark.chaos.processes import Part, Process, end, left_by, parts
from tests.spark.waiting import seconds_until

HOOKS = Path(__file__).resolve().parent / "hooks"
JOBS = ("rows", "copy")
"""The two queries: into a table of files, and into the second topic."""
READY_S, DONE_S = 300.0, 300.0
SPARK_RACE = "IllegalStateException: Illegal size"
"""Said when Spark serializes a collection of its own that another of its threads adds to: seen once, as two queries began
at once, and neither went on when it was started again.
"""
TELLING = r'^"(stream execution|dag-scheduler|task-result|dispatcher-Coarse|main)'
TICK_S = 0.02
Place = tuple[str, int, int]
"""Broker name, queue id and offset: one message of the first topic."""
Ends = Mapping[MessageQueue, int]


def until(seconds: float, condition: Callable[[], Any], what: str) -> float:
    """Wait until it holds, and return how many seconds that took. Raises AssertionError."""
    took = seconds_until(condition, within_s=seconds)
    assert took is not None, f"{what}: not within {seconds:.0f} s"
    return took


class Writer:
    """`with Writer(...)`: numbered messages, every third with a message group, until the block ends and all are safe."""

    def __init__(self, endpoint: str, topic: str, *, rate: int) -> None:
        self.sent = 0
        self.acknowledged: set[int] = set()
        self._endpoint, self._topic, self._rate = endpoint, topic, rate
        self._again: collections.deque[int] = collections.deque()
        self._ending = threading.Event()
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(90)
        assert self._problem is None, self._problem
        missing = self.sent - len(self.acknowledged)
        assert missing == 0, f"{missing} of {self.sent} messages have no acknowledgement"

    def _run(self) -> None:
        options = ProducerOptions(max_attempts=10, timeout_ms=5_000, pending_messages=20_000)
        try:
            with evenq.Producer(endpoint=self._endpoint, options=options) as producer:
                began = time.monotonic()
                while not self._ending.wait(TICK_S):
                    while self.sent < (time.monotonic() - began) * self._rate and not self._ending.is_set():
                        self._send(producer, self.sent)
                        self.sent += 1
                    self._repeat(producer)
                give_up = time.monotonic() + 60
                producer.flush()
                while self._repeat(producer) and time.monotonic() < give_up:
                    producer.flush()
        except BaseException as problem:
            self._problem = problem
            raise

    def _send(self, producer: evenq.Producer, number: int) -> None:
        group = f"group {number % 11}" if number % 3 == 0 else None
        message = evenq.Message(topic=self._topic, body=b"%d" % number, message_group=group)

        def answered(future: Future[evenq.SendResult]) -> None:
            if future.exception() is None:
                self.acknowledged.add(number)
            else:  # its outcome is not known: if it is there after all, both copies count as messages
                self._again.append(number)

        producer.send_async(message).add_done_callback(answered)

    def _repeat(self, producer: evenq.Producer) -> bool:
        again = [self._again.popleft() for _ in range(len(self._again))]
        for number in again:
            self._send(producer, number)
        return bool(again)


class Topics:
    """The two topics and the groups, as brokers tell of them."""

    def __init__(self, cluster: LocalCluster, name: str, *, queues: int = 2) -> None:
        self.cluster = cluster
        self.source, self.target = f"{name}-source", f"{name}-target"
        self.groups = {job: f"{name}-{job}" for job in JOBS}
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            for topic in (self.source, self.target):
                admin.create_topic(topic, queues=queues, message_type="MIXED")
        self._queues = {
            broker.name: [MessageQueue(self.source, broker.name, queue_id) for queue_id in range(queues)]
            for broker in cluster.brokers
        }

    def ends(self) -> dict[MessageQueue, int]:
        """One past the last message of each queue, of all brokers: waits for those that are away."""
        return {queue: state.bounds.high for queue, state in self._states("").items()}

    def progress(self, group: str) -> dict[MessageQueue, int]:
        return {queue: state.committed for queue, state in self._states(group).items()}

    def _states(self, group: str) -> dict[MessageQueue, Any]:
        found: dict[MessageQueue, Any] = {}
        for broker in self.cluster.brokers:
            give_up = time.monotonic() + 60
            while True:
                try:
                    found |= calls.query(broker.address, self._queues[broker.name], group=group)
                    break
                except evenq.errors.Error:
                    assert time.monotonic() < give_up, f"{broker.name} does not answer"
                    time.sleep(TICK_S)
        return found


class Follower:
    """Reads a topic with the SDK from its first message, without a group, while brokers come and go."""

    def __init__(self, endpoint: str, topic: str) -> None:
        self.messages: dict[tuple[MessageQueue, int], Any] = {}
        self._consumer = evenq.PullConsumer(group=f"{topic}-judge", endpoint=endpoint)
        self._consumer.start()
        queues = self._consumer.queues_of(topic)
        self._consumer.assign(queues)
        for queue in queues:
            self._consumer.seek_to_begin(queue)

    def read(self, *, wait_ms: int) -> int:
        """All that is there, at least one answer. Returns how many there were."""
        count = 0
        while messages := self._consumer.poll(1_000, wait_ms=wait_ms if not count else 0):
            count += len(messages)
            self.messages.update({(message.queue, int(message.queue_offset)): message for message in messages})
        return count

    def close(self) -> None:
        self._consumer.close()


@dataclass
class Judge:
    """The rows of the table and the messages of the second topic, counted as they come."""

    topics: Topics
    folder: Path
    rows: collections.Counter[Place] = field(default_factory=collections.Counter)
    copies: collections.Counter[Place] = field(default_factory=collections.Counter)
    _files: set[str] = field(default_factory=set)
    _seen: int = 0

    def __post_init__(self) -> None:
        self.follower = Follower(self.topics.cluster.endpoints, self.topics.target)

    def look(self, *, wait_ms: int = 100) -> None:
        """Count what came since the last look."""
        for path in self._new_files():
            table = pq.ParquetFile(path).read(["brokerName", "queueId", "queueOffset"]).to_pydict()
            self.rows.update(zip(table["brokerName"], table["queueId"], table["queueOffset"], strict=True))
        self.follower.read(wait_ms=wait_ms)
        for message in itertools.islice(self.follower.messages.values(), self._seen, None):
            broker, queue_id, offset = message.properties["origin"].split("/")
            self.copies[broker, int(queue_id), int(offset)] += 1
        self._seen = len(self.follower.messages)

    def faults(self, ends: Ends, *, job: str) -> tuple[set[Place], dict[Place, int]]:
        """What of the first topic, up to these ends, is missing in the output of a query, and what is there more than
        once; anything that is no message of it counts as well.
        """
        found = self.rows if job == "rows" else self.copies
        wanted = {(queue.broker_name, queue.queue_id, at) for queue, high in ends.items() for at in range(high)}
        return wanted - found.keys(), {place: count for place, count in found.items() if count > 1}

    def complete(self, ends: Ends) -> bool:
        """Look, and tell whether nothing is missing any more. One look need not reach the end of the second topic."""
        self.look()
        return not any(self.faults(ends, job=job)[0] for job in JOBS)

    def out_of_order(self) -> list[str]:
        """Message groups whose messages stand in another order in the second topic than in the first."""
        wrong = []
        by_group: dict[str, list[Any]] = collections.defaultdict(list)
        for _, message in sorted(self.follower.messages.items()):
            if message.message_group:
                by_group[message.message_group].append(message)
        for name, messages in sorted(by_group.items()):
            queues = {message.queue for message in messages}
            origins = [message.properties["origin"].rpartition("/") for message in messages]
            sources = {queue for queue, _, _ in origins}
            offsets = [int(offset) for _, _, offset in origins]
            if len(queues) > 1 or len(sources) > 1 or offsets != sorted(offsets):
                wrong.append(f"{name}: {len(queues)} queues, {len(sources)} sources, {offsets[:40]}")
        return wrong

    def _new_files(self) -> Iterator[Path]:
        """The files that the table's own log names: others, of attempts that failed, are none of it."""
        log = self.folder / "table" / "_spark_metadata"
        for entry in log.iterdir() if log.is_dir() else []:
            if entry.name[0].isdigit() and entry.name not in self._files:
                self._files.add(entry.name)
                for line in entry.read_text().splitlines()[1:]:
                    path = unquote(urlparse(json.loads(line)["path"]).path)
                    if path not in self._files:
                        self._files.add(path)
                        yield Path(path)


class Driver:
    """A driver process and what it runs, until it is killed or done."""

    def __init__(self, settings: Mapping[str, Any], log_path: Path, environment: Mapping[str, str]) -> None:
        self.peer = Peer(
            [sys.executable, str(HOOKS.parent / "driver.py"), json.dumps(settings)],
            log_path=log_path,
            environment=environment,
        )

    def parts(self, part: Part) -> list[Process]:
        """Its processes of a kind that run now."""
        return [process for process in parts(self.peer.process.pid) if process.part is part]

    def wait_ready(self) -> None:
        self.peer.wait(lambda said: any("ready" in one for one in said), seconds=READY_S)

    @property
    def jvm(self) -> int:
        """Its JVM, as soon as there is one."""
        until(READY_S, lambda: self.parts(Part.DRIVER) or not self.alive, "the driver has no JVM")
        return self.parts(Part.DRIVER)[0].pid

    @property
    def alive(self) -> bool:
        return self.peer.process.poll() is None

    @property
    def done(self) -> bool:
        """Whether it said that it is at its end."""
        return bool(self.peer.of("done"))

    @property
    def jvm_lives(self) -> bool:
        """Whether its JVM runs."""
        return bool(self.parts(Part.DRIVER))

    def rest(self) -> None:
        """Stop its queries; itself it stays."""
        self.peer.write("rest")
        self.peer.wait(lambda said: any("resting" in one for one in said), seconds=DONE_S)

    def diagnosis(self) -> str:
        """What runs of it, the threads of its JVM as far as they are about queries and jobs, and the end of its log."""
        running = collections.Counter(str(process.part) for process in parts(self.peer.process.pid))
        jstack, threads = shutil.which("jstack"), ""
        for process in self.parts(Part.DRIVER) if jstack is not None else []:
            output = subprocess.run(
                [str(jstack), str(process.pid)], capture_output=True, text=True, timeout=60, check=False
            )
            threads += "\n\n".join(one for one in output.stdout.split("\n\n") if re.search(TELLING, one))
        log = "\n".join(self.peer.log_path.read_text(errors="replace").splitlines()[-60:])
        return f"running: {dict(running)}\n\n{threads}\n\nlog:\n{log}"

    def end(self) -> None:
        """End its Python half. If its JVM was killed, all else is left to find out by itself."""
        self.peer.end()


class World:
    """All of it, with one driver at a time."""

    def __init__(self, cluster: LocalCluster, name: str, folder: Path, **settings: Any) -> None:
        self.cluster = cluster
        self.folder = folder
        self.hooks = Path(os.environ["CHAOS_HOOKS"])
        self.topics = Topics(cluster, name)
        self.judge = Judge(self.topics, folder)
        self.settings = {
            "endpoints": ",".join(broker.address for broker in cluster.brokers),
            "source": self.topics.source, "target": self.topics.target, "groups": self.topics.groups,
            "folder": str(folder), "hooks": str(self.hooks), "jobs": JOBS, "now": False,
            "master": "local-cluster[2,1,600]", "trigger": "500 milliseconds", "sink": {"blockRows": "50"},
            "options": {"startingOffsets": "earliest", "commitIntervalMs": "50", "maxOffsetsPerTrigger": "2000",
                        "minRecordsPerPartition": "50"},
        } | settings  # fmt: skip
        self.drivers: list[Driver] = []
        self.reached: dict[str, dict[MessageQueue, int]] = {job: {} for job in JOBS}
        self.backward: list[str] = []
        """Moves of a group's progress in the wrong direction."""
        self._home = spark_home(folder / "spark")

    @property
    def driver(self) -> Driver:
        return self.drivers[-1]

    def start(self, **settings: Any) -> Driver:
        environment = os.environ | {
            "SPARK_HOME": str(self._home), "CHAOS_DRIVER": str(len(self.drivers) + 1),
            "SPARK_DIST_CLASSPATH": str(self.hooks / "classes"),
        }  # fmt: skip
        self.drivers.append(
            Driver(self.settings | settings, self.folder / f"driver-{len(self.drivers)}.log", environment)
        )
        return self.driver

    def arm(self, point: str, *victims: int) -> None:
        """Let who passes the point next end, or these processes. Only brokers and processes of the driver pass it that
        is or, before there is one, will be the first.
        """
        beside, number = self.hooks / f"{point}.new", max(len(self.drivers), 1)
        of = "*" if point.startswith("broker.") else str(number)
        beside.write_text(" ".join(map(str, (of, *victims))))
        beside.rename(self.hooks / point)

    def armed(self, point: str) -> bool:
        return (self.hooks / point).exists()

    def hits(self, point: str) -> int:
        """How often who passed it, or others there, ended."""
        return sum(entry.name.rpartition(".")[0] == point for entry in (self.hooks / "hit").iterdir())

    def caught_up(self, ends: Ends, *, jobs: tuple[str, ...] = JOBS) -> bool:
        """Whether the progress of the queries, at the brokers, is at these ends. Raises AssertionError if there is no
        driver any more.
        """
        assert self.driver.alive or self.driver.done, f"the driver ended: see {self.driver.peer.log_path}"
        for job in jobs:
            now, before = self.topics.progress(self.topics.groups[job]), self.reached[job]
            for queue, committed in now.items():
                if committed < before.get(queue, -1):
                    self.backward.append(f"{job} {queue}: {before[queue]} to {committed}")
            self.reached[job] = now
            if any(now[queue] < high for queue, high in ends.items()):
                return False
        return True

    def source(self) -> dict[tuple[MessageQueue, int], Any]:
        """The whole first topic, by queue and offset."""
        follower = Follower(self.cluster.endpoints, self.topics.source)
        count = sum(self.topics.ends().values())
        until(60, lambda: follower.read(wait_ms=200) >= 0 and len(follower.messages) >= count, "the first topic")
        follower.close()
        return follower.messages

    def triggers_until_no_lag(self, *, seconds: float) -> dict[str, int]:
        """Triggers of each query, from the first one after the last batch, until brokers had taken progress without any
        lag. Waits until they have.
        """
        ends = self.topics.ends()
        until(seconds, lambda: self.caught_up(ends, jobs=tuple(self.settings["jobs"])), "a group has lag")
        final = {f"{queue.broker_name}/{queue.queue_id}": high for queue, high in ends.items()}
        return {job: self._triggers(job, final) for job in self.settings["jobs"]}

    def _triggers(self, job: str, final: dict[str, int]) -> int:
        """What the runner noted, in its order."""
        committed: dict[str, int] = {}
        count = 0
        for line in (self.hooks / "notes" / self.topics.groups[job]).read_text().splitlines():
            noted = json.loads(line)
            count += noted.get("ends") == final
            committed |= noted.get("committed", {})
            if committed == final:
                break
        return count

    def available_now(self) -> None:
        """The queries of the driver, which rest, once from their checkpoints to what is there now. Raises AssertionError if
        a lag is left.

        A driver that does not end is killed and started again, as its supervisor would, but only if Spark itself lost
        one of its races as it began.
        """
        ends = self.topics.ends()
        driver = self.driver
        driver.peer.write("now")
        try:
            driver.peer.wait_done(seconds=DONE_S)
        except AssertionError as error:
            error.add_note(driver.diagnosis())
            if not any(SPARK_RACE in failure["error"] for failure in driver.peer.of("failed")):
                raise
            print(f"\nSpark failed by itself ({SPARK_RACE}) and does not go on; its driver is started again: {error}")
            print(*error.__notes__, sep="\n")
            driver.end()
            until(60, lambda: not left_by(self.hooks), "processes of a driver that was ended go on")
            driver = self.start(now=True)
            driver.peer.wait_done(seconds=DONE_S)
        assert self.caught_up(ends, jobs=tuple(self.settings["jobs"])), (
            f"lag after availableNow: {self.reached}, {ends}"
        )
        driver.end()

    def close(self) -> None:
        for driver in self.drivers:
            driver.end()
        end(left_by(self.hooks))
        self.judge.follower.close()


@contextmanager
def hooked(folder: Path) -> Iterator[Path]:
    """Processes that are started in here pass points; the folder is where they are armed."""
    for name in ("hit", "notes", "classes"):
        (folder / name).mkdir(parents=True)
    before = {name: os.environ.get(name) for name in ("CHAOS_HOOKS", "PYTHONPATH")}
    os.environ["CHAOS_HOOKS"] = str(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HOOKS), before["PYTHONPATH"])))
    try:
        yield folder
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        shutil.rmtree(folder, ignore_errors=True)
