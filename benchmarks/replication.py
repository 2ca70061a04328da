"""`make bench-replication`: three copies of a broker compared with one copy with the same flush, in one run, in turn.

    python benchmarks/replication.py [--rounds 5] [--quick] [--only unary batch round latency memory catch-up pauses]
                                     [--modes sync memory]

Mode `sync` (a copy counts once it is on its disk) is compared with `flush=sync`, `memory` (once it is written) with
`flush=async`. Both sides run all the time and get the same load from `replay` in turn (A B B A ...); the idle one sends
only signs of life. Copies share the machine with their leader and the load, so three copies do three times the work on
the same cores: on separate machines they lose less. A full run takes about ten minutes and writes
results/<date>-replication.md. The lines are explained in benchmarks/README.md. It needs Go and Linux.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import load
import peers_report as report
import replay_requests as made
import servers
from peers import CONSOLE, QUEUES

import evenq
from evenq.errors import Error
from evenq.testing import LocalCluster
from evenq.testing.node import Node

COPIES = 3
FLUSH = {"sync": "sync", "memory": "async"}
"""Flush of the single copy that each mode is compared with."""
UNARY, BATCHED, BATCH = 24_000, 64_000, 32
"""Messages of a round."""
ALONE = 3_000
"""Messages of a round that are sent one after the other."""
IDLE_S = 3.0
"""Time for which the CPU of a side at rest is measured."""
RATE, LATENCY_S = 500, 10
BOUND = ("-timeout", "300s")
CATCH_UP_BYTES = 400_000_000
"""Log that an empty follower copies; it was just written, so the leader reads it from the page cache."""
LOOK_S = 0.1
"""Pause between two reads of a metrics page, which costs the broker some milliseconds."""
SENDS_S = 0.002
"""Pause between two sends while pauses are measured."""
WAIT_S = 180.0
ONLY = ("unary", "batch", "round", "latency", "memory", "catch-up", "pauses")


@dataclass
class Side:
    """One copy, or three."""

    name: str
    cluster: LocalCluster
    rows: dict[str, list[float]] = field(default_factory=dict)

    @property
    def leader(self) -> Node:
        """The leader, or the only broker."""
        return leader_of(self.cluster)

    @property
    def followers(self) -> list[Node]:
        """The other copies."""
        leader = self.leader
        return [node for node in self.cluster.brokers if node is not leader]

    def keep(self, what: str, value: float) -> None:
        self.rows.setdefault(what, []).append(value)

    def replayed(self, mode: str, requests: list[bytes], *flags: object) -> load.Replayed:
        """Runs `replay` on the leader."""
        return load.replayed(mode, self.leader.address, requests, *BOUND, *map(str, flags))


@dataclass(frozen=True, slots=True)
class Line:
    what: str
    unit: str
    one: list[float]
    three: list[float]
    goal: float | None = None
    more_is_better: bool = False
    by: str = "own"
    """Measure of the goal: `ratio` of three copies to one, `more` of three than of one, or their `own` figure."""

    @property
    def judged(self) -> list[float]:
        """Returns the measure of the goal, round by round."""
        if self.by == "own":
            return self.three
        pairs = zip(self.three, self.one, strict=True)
        return [three / one if self.by == "ratio" else three - one for three, one in pairs]

    @property
    def ok(self) -> bool:
        """True if the median meets the goal, or there is no goal."""
        if self.goal is None:
            return True
        seen = statistics.median(self.judged)
        return seen >= self.goal if self.more_is_better else seen <= self.goal

    def cells(self) -> tuple[str, ...]:
        unit = {"ratio": "x", "more": f"{self.unit} more", "own": self.unit}[self.by]
        goal = "-" if self.goal is None else f"{'>=' if self.more_is_better else '<='} {self.goal:g} {unit}"
        return (
            f"{self.what}, {self.unit}",
            report.spread(self.one) if self.one else "-",
            report.spread(self.three),
            report.spread(self.judged) if self.by != "own" else "-",
            goal,
            "-" if self.goal is None else "yes" if self.ok else "no",
        )


TITLES = ("what", "one copy", "three copies", "ratio, or more", "goal", "ok")


# -- the two sides ----------------------------------------------------------------------------------------------------


@contextmanager
def sides(mode: str) -> Iterator[tuple[Side, Side]]:
    """Runs both until the block ends."""
    with tempfile.TemporaryDirectory(prefix="evenq-bench-") as folder:
        common = {"DEFAULT_QUEUES": str(QUEUES), "DEFAULT_START_FROM": "FIRST", "ROUTE_SETTLE_MS": "0"}
        alone = LocalCluster(
            rebalancer=False,
            folder=Path(folder) / "one",
            ready_ms_max=int(WAIT_S * 1_000),
            broker_settings={**common, "STORE__FLUSH": FLUSH[mode]},
        )
        group = LocalCluster(
            replicas=COPIES,
            rebalancer=False,
            folder=Path(folder) / "three",
            ready_ms_max=int(WAIT_S * 1_000),
            broker_settings={**common, "REPLICATION__MODE": mode, "STORE__FLUSH": FLUSH[mode]},
        )
        with alone, group:
            in_sync(group)
            yield Side("one", alone), Side("three", group)


def figure(node: Node, name: str, mark: str = "") -> float:
    """Returns one series of a broker's page; -1: there is none."""
    with suppress(OSError):
        address = f"http://127.0.0.1:{node.metrics_port}/metrics"
        with urllib.request.urlopen(address, timeout=5) as response:
            for line in response.read().decode().splitlines():
                key, _, value = line.rpartition(" ")
                if key.startswith(f"{name}{{") and mark in key:
                    return float(value)
    return -1.0


def leader_of(cluster: LocalCluster) -> Node:
    """Waits for the leader and returns it."""
    if len(cluster.brokers) == 1:
        return cluster.brokers[0]
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        for node in cluster.brokers:
            if node.alive and figure(node, "evenq_broker_replica_role", 'role="ready"') == 1:
                return node
        time.sleep(0.02)
    raise SystemExit(f"no broker of the group leads; logs are in {cluster.folder / 'logs'}")


def in_sync(cluster: LocalCluster) -> None:
    """Waits until all copies are in sync."""
    end = time.monotonic() + WAIT_S
    while figure(leader_of(cluster), "evenq_broker_replicas_in_sync") < len(cluster.brokers):
        if time.monotonic() > end:
            raise SystemExit(f"not all copies came in sync; logs are in {cluster.folder / 'logs'}")
        time.sleep(0.05)


def pid_of(node: Node) -> int:
    assert node.pid is not None, f"{node.name} {node.end_text}"
    return node.pid


def in_turn(both: tuple[Side, Side], number: int) -> tuple[Side, ...]:
    return both if number % 2 == 0 else both[::-1]


# -- what is measured -------------------------------------------------------------------------------------------------


def sends(both: tuple[Side, Side], name: str, count: int, batch: int, rounds: int) -> list[Line]:
    """Speed of SendMessage with 64 in flight, and the CPU of each process for a message."""
    for number in range(rounds + 1):
        for side in in_turn(both, number):
            requests = made.sends("normal", name, count, batch=batch, together=True)
            leader, followers = pid_of(side.leader), [pid_of(node) for node in side.followers]
            before = [servers.cpu_s(pid) for pid in (leader, *followers)]
            done = side.replayed("call", requests, "-c", 64, "-conns", 2)
            spent = [servers.cpu_s(pid) - was for pid, was in zip((leader, *followers), before, strict=True)]
            made.must_be_ok("SendMessage", done.answers())
            if not number:
                continue  # to warm up
            side.keep(name, count / done.secs)
            side.keep(f"{name} cpu", spent[0] / count * 1e6)
            if followers:
                side.keep(f"{name} follower", statistics.mean(spent[1:]) / count * 1e6)
                side.keep(f"{name} share", statistics.mean(spent[1:]) / max(spent[0], 0.01))
    one, three = both
    what = "send, 64 in flight" if batch == 1 else f"send, batches of {batch}"
    return [
        Line(what, "messages/s", one.rows[name], three.rows[name], 0.5 if batch == 1 else 0.4, True, "ratio"),
        Line(f"{what}: CPU of the leader", "us", one.rows[f"{name} cpu"], three.rows[f"{name} cpu"], by="ratio"),
        Line(f"{what}: CPU of a follower", "us", [], three.rows[f"{name} follower"]),
        Line(f"{what}: CPU, follower : leader", "x", [], three.rows[f"{name} share"], 0.5),
    ]


def commit_rounds(both: tuple[Side, Side], count: int, rounds: int) -> list[Line]:
    """Sends with nothing else in flight: with three copies each send is a commit round of its own. The CPU without load
    is subtracted, so other work on the machine hardly changes the figures.
    """
    for number in range(rounds + 1):
        for side in in_turn(both, number):
            pids = [pid_of(side.leader), *(pid_of(node) for node in side.followers)]
            before = [servers.cpu_s(pid) for pid in pids]
            time.sleep(IDLE_S)
            idle = [(servers.cpu_s(pid) - was) / IDLE_S for pid, was in zip(pids, before, strict=True)]
            requests, before = made.sends("normal", "round", count), [servers.cpu_s(pid) for pid in pids]
            done = side.replayed("call", requests, "-c", 1, "-conns", 1)
            spent = [
                (servers.cpu_s(pid) - was - of_idle * done.secs) / count * 1e6
                for pid, was, of_idle in zip(pids, before, idle, strict=True)
            ]
            made.must_be_ok("SendMessage", done.answers())
            if not number:
                continue  # to warm up
            side.keep("round", done.secs / count * 1e3)
            side.keep("round cpu", spent[0])
            if len(spent) > 1:
                side.keep("round follower", statistics.mean(spent[1:]))
    one, three = both
    return [
        Line("send, 1 in flight", "ms", one.rows["round"], three.rows["round"], by="more"),
        Line("send, 1 in flight: CPU of the leader", "us", one.rows["round cpu"], three.rows["round cpu"], by="more"),
        Line("send, 1 in flight: CPU of a follower", "us", [], three.rows["round follower"]),
    ]


def latencies(both: tuple[Side, Side], rounds: int, part: int) -> list[Line]:
    """Measures from just before the send to the end of the answer with the message, 500 a second."""
    for number in range(rounds):
        for side in in_turn(both, number):
            name = f"latency-{number}"
            side.replayed("call", made.sends("normal", name, 1), "-c", 1)
            requests = [made.receive(name, f"g-{name}", "*", is_sql=False)]
            done = side.replayed(
                "latency",
                [*requests, *made.sends("normal", name, RATE * LATENCY_S // part)],
                "-c",
                QUEUES,
                "-rate",
                RATE,
            )
            for quantile in ("p50", "p99"):
                side.keep(quantile, done.figures[f"{quantile}_ms"])
    one, three = both
    return [
        Line(f"send to receive, {RATE}/s, p50", "ms", one.rows["p50"], three.rows["p50"], 2.0, by="more"),
        Line(f"send to receive, {RATE}/s, p99", "ms", one.rows["p99"], three.rows["p99"], by="more"),
    ]


def memory(both: tuple[Side, Side]) -> list[Line]:
    """Measures memory after all loads: the cost of two followers for their leader, and of each follower."""
    one, three = both
    alone = servers.memory(pid_of(one.leader)).rss
    leader = servers.memory(pid_of(three.leader)).rss
    followers = [servers.memory(pid_of(node)).rss for node in three.followers]
    return [
        Line("memory of the leader", "MB", [alone], [leader], by="more"),
        Line("memory of a leader for each follower", "MB", [], [(leader - alone) / len(followers)], 40.0),
        Line("memory of a follower", "MB", [alone], [statistics.mean(followers)], 40.0, by="more"),
    ]


def catch_up(three: Side, part: int) -> list[Line]:
    """A follower with an empty disk copies the log, most of which was written while it was away."""
    victim, missed_bytes = three.followers[0], CATCH_UP_BYTES // part
    victim.kill()
    shutil.rmtree(three.cluster.folder / victim.name)
    goal = figure(three.leader, "evenq_broker_replica_log_end") + missed_bytes
    while figure(three.leader, "evenq_broker_replica_log_end") < goal:
        three.replayed("call", made.sends("normal", "batch", BATCHED // 2, batch=BATCH, together=True), "-c", 64)
    end = figure(three.leader, "evenq_broker_replica_log_end")
    leader = pid_of(three.leader)
    victim.start()
    until = time.monotonic() + WAIT_S
    while figure(victim, "evenq_broker_replica_log_end") <= 0:
        if time.monotonic() > until:
            raise SystemExit(f"{victim.name} copies nothing; its log is {victim.log_path}")
        time.sleep(0.01)
    begin, began, had = figure(victim, "evenq_broker_replica_log_end"), time.monotonic(), servers.cpu_s(leader)
    own = servers.cpu_s(pid_of(victim))
    while (copied := figure(victim, "evenq_broker_replica_log_end")) < end and time.monotonic() < until:
        time.sleep(LOOK_S)
    took = time.monotonic() - began
    spent = servers.cpu_s(pid_of(victim)) - own
    read = servers.cpu_s(leader) - had
    in_sync(three.cluster)
    mb = (copied - begin) / 1e6
    return [
        Line("empty follower catches up", "MB/s", [], [mb / took], 200.0, more_is_better=True),
        Line("the same by the follower's CPU", "MB/s", [], [mb / max(spent, 0.01)], 200.0, more_is_better=True),
        Line("the same by the leader's CPU", "MB/s", [], [mb / max(read, 0.01)]),
    ]


class Sender(threading.Thread):
    """Sender that sends one by one and records the times of the answers."""

    def __init__(self, endpoints: str) -> None:
        super().__init__(name="sender", daemon=True)
        self.times: list[float] = []
        self._endpoints = endpoints
        self._ended = threading.Event()

    def run(self) -> None:
        with evenq.Producer(endpoint=self._endpoints) as producer:
            while not self._ended.wait(SENDS_S):
                with suppress(Error):
                    producer.send(evenq.Message(topic="pauses", body=bytes(1_024)))
                    self.times.append(time.monotonic())

    def wait_for(self, count: int) -> None:
        """Waits until this number of further sends were answered."""
        goal, end = len(self.times) + count, time.monotonic() + WAIT_S
        while len(self.times) < goal:
            if time.monotonic() > end:
                raise SystemExit(f"the group does not answer any more: {len(self.times)} of {goal} sends answered")
            time.sleep(0.02)

    def stop(self) -> None:
        self._ended.set()
        self.join(60)


def pauses(three: Side, rounds: int) -> list[Line]:
    """Measures the longest time without an answer around SIGKILL and SIGTERM of the leader, default settings."""
    for _ in range(rounds):
        for name in ("kill", "hand-over"):
            in_sync(three.cluster)
            leader, sender = three.leader, Sender(three.cluster.endpoints)
            sender.start()
            sender.wait_for(100)
            from_ = len(sender.times) - 1
            leader.kill() if name == "kill" else leader.stop(timeout_ms=60_000)
            sender.wait_for(100)
            sender.stop()
            times = sender.times[from_:]
            three.keep(name, max(after - before for before, after in itertools.pairwise(times)))
            leader.start()
    in_sync(three.cluster)
    return [
        Line("pause of senders, leader killed", "s", [], three.rows["kill"], 10.0),
        Line("pause of senders, planned hand-over", "s", [], three.rows["hand-over"], 1.0),
    ]


# -- all of it --------------------------------------------------------------------------------------------------------


def measured(mode: str, options: argparse.Namespace) -> list[Line]:
    rounds, part = (2, 6) if options.quick else (options.rounds, 1)
    lines: list[Line] = []
    works = {
        "unary": lambda: sends(both, "unary", UNARY // part, 1, rounds),
        "batch": lambda: sends(both, "batch", BATCHED // part // BATCH * BATCH, BATCH, rounds),
        "round": lambda: commit_rounds(both, ALONE // part, rounds),
        "latency": lambda: latencies(both, rounds, part),
        "memory": lambda: memory(both),
        "catch-up": lambda: catch_up(both[1], part),
        "pauses": lambda: pauses(both[1], rounds),
    }
    with sides(mode) as both:
        for name in ONLY:
            if name in options.only:
                CONSOLE.print(f"[dim]{mode}: {name} ...[/dim]")
                lines += works[name]()
    return lines


def main() -> int:
    """Measures, shows and saves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each load is run on each side")
    parser.add_argument("--quick", action="store_true", help="two rounds, a sixth of the messages; nothing is saved")
    parser.add_argument("--only", nargs="+", choices=ONLY, default=ONLY)
    parser.add_argument("--modes", nargs="+", choices=[*FLUSH], default=[*FLUSH])
    parser.add_argument("--json", type=Path, help="keep all rounds here")
    parser.add_argument("--no-save", action="store_true", help="write no file into benchmarks/results")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: give 1 or more")
    before = os.getloadavg()[0]
    load.replay()
    measured_by_mode = {mode: measured(mode, options) for mode in options.modes}
    cells = [
        (f"{mode}: {first}", *rest)
        for mode, lines in measured_by_mode.items()
        for first, *rest in (line.cells() for line in lines)
    ]
    CONSOLE.print(report.drawn(f"three copies beside one: medians, {os.cpu_count()} cores", TITLES, cells))
    if options.json is not None:
        kept = {
            mode: [{"what": one.what, "one": one.one, "three": one.three} for one in lines]
            for mode, lines in measured_by_mode.items()
        }
        options.json.write_text(json.dumps(kept, indent=1))
    if not (options.quick or options.no_save or options.only != ONLY):
        about = (
            f"{options.rounds} rounds in turn, bodies of 1 KiB, data on one disk, eight queues, all processes on "
            "this machine; median (least to most)."
        )
        title = "Three copies of a broker beside one"
        path = report.written("replication", title, about, TITLES, cells, front="http2", load_before=before)
        CONSOLE.print(f"saved in {path.relative_to(load.PROJECT)}")
    return 0 if all(line.ok for lines in measured_by_mode.values() for line in lines) else 1


if __name__ == "__main__":
    raise SystemExit(main())
