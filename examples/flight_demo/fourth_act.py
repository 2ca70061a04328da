"""The fourth act of the demo: the leader of three copies dies with its disk while flights arrive.

The first flights of the year go to a broker group of three copies while two members count them. Halfway the leader is
killed with SIGKILL and its folder is deleted. Another copy must continue from the same log; the killed one returns with
an empty folder and is filled. Then every queue is read at the new leader. Each acknowledged flight must be at its
offset, each duplicate acknowledged only once, and no committed flight redelivered.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich.progress import Progress, TaskID

import evenq
from evenq.client.options import PullOptions
from evenq.errors import Error, InternalError
from evenq.runtime.clock import Clock
from evenq.testing import LocalCluster
from evenq.testing.checker import AnomalyKind, Report, check
from evenq.testing.history import Delivery, EntryKind, Event, HistoryAction, Op, Recorder, merge_histories, read_history
from evenq.testing.node import Node
from flight_demo.flights import Delay, delays_by_carrier, flights
from flight_demo.members import MemberProcess
from flight_demo.publishing import Published, publish, queue_text

COPIES = 3
FLIGHTS_MAX = 40_000
"""Enough flights for some seconds of publishing before and after the kill."""
TOPIC, GROUP = "departures", "tower-desk"
READER = "tower-archive"
"""Group of the reader that scans the queues at the end."""
QUEUES = 4
MEMBERS = ("gil", "hal")
BROKER = "broker-a"
WAIT_SECONDS = 120
LOOK_SECONDS = 0.02


@dataclass(slots=True)
class StoredFlights:
    """The messages in the leader's queues at the end."""

    places: dict[tuple[str, int], int] = field(default_factory=dict)
    """Flight by queue and offset."""
    delays: dict[str, Delay] = field(default_factory=dict)
    """By carrier; each flight counted once."""
    _seen: set[int] = field(default_factory=set)

    def add(self, queue: str, offset: int, flight: int, body: bytes) -> None:
        self.places[queue, offset] = flight
        if flight not in self._seen:
            self._seen.add(flight)
            row = json.loads(body)
            self.delays.setdefault(row["carrier"], Delay()).add(row["dep_delay"])

    @property
    def twice(self) -> int:
        """Messages beyond the first of each flight."""
        return len(self.places) - len(self._seen)


class FourthAct:
    """One run of the act: `run` plays it, `verdict` compares the figures."""

    def __init__(self, *, folder: Path, total: int, clock: Clock) -> None:
        """`total`: flights of the year; at most FLIGHTS_MAX are published."""
        self.total = min(total, FLIGHTS_MAX)
        self._folder, self._clock = folder, clock
        self._published = Published()
        self._members: list[MemberProcess] = []
        self._stored = StoredFlights()
        self._broken = ""
        """The failure that ends the act; empty: none."""

    def run(self, bars: Progress) -> None:
        """Plays the act. Raises InternalError if a part fails or a step takes longer than WAIT_SECONDS."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with LocalCluster(replicas=COPIES, folder=self._folder / "cluster") as cluster:
            with evenq.Admin(endpoint=cluster.endpoints) as admin:
                self._until(lambda: _record(cluster).in_sync == COPIES, "all copies are in sync")
                admin.create_topic(TOPIC, queues=QUEUES)
                admin.create_group(GROUP, strategy="AVG")
                self._say(bars, f"[bold]Three copies of one broker[/]: {_state(cluster)}")
                try:
                    self._play(cluster, admin, bars)
                finally:
                    self._let_members_go()
            with Recorder(self._folder / "act.history.jsonl", clock=self._clock) as recorder:
                recorder.ok(
                    recorder.invoke(Op.ADMIN, process="demo", group=GROUP, topic=TOPIC, action=HistoryAction.DRAIN)
                )
                self._scan(_leader(cluster).address, recorder)

    def verdict(self) -> Iterator[tuple[str, str, bool]]:
        """Yields the lines for `show_verdict`."""
        histories = [read_history(path) for path in sorted(self._folder.glob("*.history.jsonl"))]
        report = check(merge_histories(list(histories)))
        acknowledged = acknowledged_places(read_history(self._folder / "producer.history.jsonl"))
        yield from compared(self._stored, acknowledged, delays_by_carrier(self.total), self.total)
        yield from judged(report)

    def _play(self, cluster: LocalCluster, admin: evenq.Admin, bars: Progress) -> None:
        out = bars.add_task("published to three copies", total=self.total)
        back = bars.add_task(f"counted by {len(MEMBERS)} members", total=self.total)
        at = {"endpoint": cluster.endpoints, "topic": TOPIC, "group": GROUP, "folder": self._folder}
        self._members += [MemberProcess(name, **at) for name in MEMBERS]  # type: ignore[arg-type]
        self._until(lambda: all(member.queues for member in self._members), "each member owns queues")
        producer = threading.Thread(target=self._produce, args=(cluster.endpoints,), name="demo-producer", daemon=True)
        producer.start()
        shown = (out, back)
        self._until(lambda: self._published.acknowledged >= self.total // 2, "half of the flights", bars, shown)
        with Recorder(self._folder / "kill.history.jsonl", clock=self._clock) as recorder:
            victim, dead_ms = self._kill(cluster, admin, recorder, bars)
        before = self._published.acknowledged
        epoch = _record(cluster).epoch
        self._until(lambda: _record(cluster).epoch > epoch, "another copy leads", bars, shown)
        led_ms = self._clock.monotonic_ms()
        self._until(lambda: self._published.acknowledged > before, "flights are acknowledged again", bars, shown)
        gone_ms = self._clock.monotonic_ms()
        leads = f"{_leader(cluster).name} leads {(led_ms - dead_ms) / 1_000:.1f} s after the kill"
        self._say(bars, f"{leads}, flights are acknowledged again after {(gone_ms - dead_ms) / 1_000:.1f} s")
        victim.start()
        began_ms = self._clock.monotonic_ms()
        self._until(lambda: _record(cluster).in_sync == COPIES, f"{victim.name} is in sync again", bars, shown)
        took_s = (self._clock.monotonic_ms() - began_ms) / 1_000
        self._say(bars, f"{victim.name}, with an empty disk, is in sync after {took_s:.1f} s: {_state(cluster)}")
        self._until(lambda: not producer.is_alive(), "all flights are acknowledged", bars, shown)
        self._until(lambda: _lag(admin) == 0, "the group has committed everything", bars, shown)
        bars.update(back, completed=self.total)

    def _produce(self, endpoints: str) -> None:
        try:
            publish(
                flights(self.total),
                endpoint=endpoints,
                topic=TOPIC,
                history=self._folder / "producer.history.jsonl",
                clock=self._clock,
                published=self._published,
            )
        except Error as error:
            self._broken = f"publishing to three copies failed: {error}"

    def _kill(self, cluster: LocalCluster, admin: evenq.Admin, recorder: Recorder, bars: Progress) -> tuple[Node, int]:
        """Kills the leader and deletes its folder; the offsets committed before are in the history."""
        leader = _leader(cluster)
        for queue in admin.group_offsets(GROUP, topic=TOPIC):
            if queue.committed > 0:
                name = queue_text(queue.queue)
                operation = recorder.invoke(
                    Op.OFFSET,
                    process="demo",
                    action=HistoryAction.COMMIT,
                    group=GROUP,
                    queue=name,
                    offset=queue.committed,
                )
                recorder.ok(operation)
        recorder.fault("kill -9, disk deleted", target=BROKER)
        leader.kill()
        dead_ms = self._clock.monotonic_ms()
        shutil.rmtree(self._folder / "cluster" / leader.name)
        done = f"{self._published.acknowledged:,} of {self.total:,} flights acknowledged"
        self._say(bars, f"[bold red]kill -9[/] of {leader.name}, which leads, and its disk is deleted: {done}")
        return leader, dead_ms

    def _until(
        self,
        done: Callable[[], bool],
        what: str,
        bars: Progress | None = None,
        shown: tuple[TaskID, TaskID] | None = None,
    ) -> None:
        """Waits until `done` and updates the bars. Raises InternalError."""
        pause, until_ms = threading.Event(), self._clock.monotonic_ms() + WAIT_SECONDS * 1_000
        while not done():
            if bars is not None and shown is not None:
                bars.update(shown[0], completed=self._published.acknowledged)
                bars.update(shown[1], completed=min(self.total, sum(member.count for member in self._members)))
            for member in self._members:
                if (code := member.process.poll()) is not None:
                    self._broken = self._broken or f"member {member.name} ended with {code}"
            if self._broken:
                raise InternalError(f"{self._broken}; see {self._folder}")
            if self._clock.monotonic_ms() > until_ms:
                raise InternalError(f"waited {WAIT_SECONDS} s until {what}; see {self._folder}")
            pause.wait(LOOK_SECONDS)

    def _scan(self, endpoint: str, recorder: Recorder) -> None:
        """Reads every queue from its first to its last offset into the history."""
        with evenq.PullConsumer(
            group=READER, endpoint=endpoint, options=PullOptions(auto_commit=False, pull_batch=2_000)
        ) as reader:
            for queue in reader.queues_of(TOPIC):
                name = queue_text(queue)
                operation = recorder.invoke(Op.ADMIN, process="demo", action=HistoryAction.SCAN, queue=name, offset=0)
                reader.assign([queue])
                reader.seek_to_end(queue)
                end = reader.position(queue)
                reader.seek_to_begin(queue)
                deliveries: list[Delivery] = []
                while reader.position(queue) < end:
                    messages = reader.poll(1_000, wait_ms=WAIT_SECONDS * 1_000)
                    if not messages:
                        raise InternalError(f"no message of {name} after offset {reader.position(queue)} of {end}")
                    for message in messages:
                        flight = message.properties["flight"]
                        self._stored.add(name, message.queue_offset, int(flight), message.body)
                        deliveries.append(Delivery(name, message.queue_offset, flight))
                recorder.ok(operation, messages=deliveries, offset=0)

    def _let_members_go(self) -> None:
        failed = ""
        for member in self._members:
            try:
                member.leave()
            except InternalError as error:
                failed = str(error)
        if failed and not self._broken:
            raise InternalError(failed)

    @staticmethod
    def _say(bars: Progress, text: str) -> None:
        bars.console.print(text, highlight=False)


@dataclass(frozen=True, slots=True)
class _Record:
    leader: int
    epoch: int
    in_sync: int


def _record(cluster: LocalCluster) -> _Record:
    """Returns leader, epoch and copies in sync from the group record; leader -1 if it cannot be read."""
    with suppress(OSError):
        record = json.loads((cluster.folder / f"{BROKER}.group").read_bytes())
        return _Record(record["leader"], record["epoch"], len(record["isr"]))
    return _Record(-1, 0, 0)


def _leader(cluster: LocalCluster) -> Node:
    return cluster.brokers[_record(cluster).leader]


def _state(cluster: LocalCluster) -> str:
    record = _record(cluster)
    leader = cluster.brokers[record.leader].name
    return f"{leader} leads (epoch {record.epoch}), {record.in_sync} of {COPIES} copies in sync"


def _lag(admin: evenq.Admin) -> int:
    """Returns the number of messages that the group has not committed; 1 while no broker answers."""
    with suppress(Error):
        queues = admin.group_offsets(GROUP, topic=TOPIC)
        return sum(queue.max_offset - max(0, queue.committed) for queue in queues) if len(queues) == QUEUES else 1
    return 1


def acknowledged_places(history: Iterable[Event]) -> dict[tuple[str, int], int]:
    """Returns the flight of each queue and offset that the producer got acknowledged."""
    flights_of: dict[int, int] = {}
    places: dict[tuple[str, int], int] = {}
    for event in history:
        if event.kind == EntryKind.INVOKE:
            flights_of[event.id] = int(event.body)
        elif event.kind == EntryKind.OK:
            places[event.queue, event.offset] = flights_of[event.id]
    return places


def compared(
    stored: StoredFlights, acknowledged: Mapping[tuple[str, int], int], truth: Mapping[str, Delay], total: int
) -> Iterator[tuple[str, str, bool]]:
    """Compares stored flights with acknowledged ones and with the file."""
    flights_there = Counter(stored.places.values())
    lost = sum(stored.places.get(place) != flight for place, flight in acknowledged.items())
    said = Counter(acknowledged.values())
    same = set(said) == set(flights_there) == set(range(total))
    counts = f"{total:,} = {len(said):,} = {len(flights_there):,}"
    yield "three copies, leader killed, disk deleted: flights = acknowledged = stored", counts, same
    yield "acknowledged and lost with the leader's disk", str(lost), lost == 0
    again = sum(times - 1 for times in said.values())
    yield "stored twice, acknowledged twice", f"{stored.twice} (the leader died before its answer), {again}", again == 0
    yield "delays of stored flights = delays of the file", f"{len(truth)} carriers", stored.delays == dict(truth)


def judged(report: Report) -> Iterator[tuple[str, str, bool]]:
    """Yields the results of the history checker for producer, members and queues."""
    after_ack = report.counts.get(AnomalyKind.DUPLICATE_AFTER_ACK, 0)
    said = f"{after_ack} of {report.repeats} counted again (not committed at the kill)"
    yield "committed by the group before the kill and counted again", said, after_ack == 0
    anomalies = sum(report.counts.values())
    yield "history checker of the fourth act", f"{report.events:,} events, {anomalies} anomalies", report.ok
