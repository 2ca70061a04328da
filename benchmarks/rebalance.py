"""`make bench-rebalance`: pauses of queues while members join and leave (100 members, 1,000 queues, 3 brokers).

    python benchmarks/rebalance.py [--quick] [--members N] [--queues N] [--trials N] [--crashes N] [--no-save]

Real servers and real push consumers, each with its own connections. In turn a member joins, leaves, and sometimes the
topic grows. Measured is the time from the call that begins the change until the last moved queue has its new reader,
and for each moved queue the time between the last sign of its old reader and the first of its new one. Then members are
killed with SIGKILL: their queues must be read again within the grace of the session and the same time more. Messages
flow meanwhile, and in the end every offset must have been delivered, exactly once where no member was killed.
RocketMQ's clients look for changes every 20 s, which is the figure to compare with.

A quarter of the members shares one process here, where normally each would have its own. Once all read, their objects
are excluded from garbage collection (`calm`), because a collection over 25 members pauses for 100 ms and more.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import queue
import random
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.table import Table
from run import machine

import evenq
from evenq.testing import LocalCluster

HERE = Path(__file__).resolve().parent
CONSOLE = Console(stderr=True)
TOPIC, GROUP, STRATEGY = "crowd", "crowd-readers", "STICKY"
BROKERS, WORKERS = 3, 4
GOAL_MS = 250.0
GRACE_MS = 1_000  # the brokers' session_grace_ms
QUIET_S = 0.7  # nothing moves for this time: the change has ended
SETTLE_S = 120.0
RATE = 300  # messages a second
PEER_MS = 20_000  # the interval of RocketMQ's clients


class Worker:
    """One process with members in it."""

    def __init__(self, name: str, endpoint: str, events: queue.Queue[tuple[str, dict[str, Any]]]) -> None:
        command = [sys.executable, str(HERE / "rebalance_members.py")]
        command += ["--endpoint", endpoint, "--topic", TOPIC, "--group", GROUP, "--name", name]
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._events = events
        threading.Thread(target=self._read, daemon=True).start()

    def say(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Sends `end`, then kills the process."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._events.put((self.name, json.loads(line)))


@dataclass
class Change:
    """One trial: its change, and the pauses of its queues."""

    what: str
    begun_s: float
    moved: int = 0
    over_ms: float = 0.0
    """Time from the start to the last queue that got a reader."""
    rests_ms: list[float] = field(default_factory=list)
    """Time of each moved queue from the last sign of its old reader to the first of its new one."""


class Group:
    """Readers of queues, from the events of the members."""

    def __init__(self, queues: int) -> None:
        self.events: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
        self.owner: dict[str, str] = {}
        self.expected = queues
        self.offsets: Counter[str] = Counter()
        self._lost_at: dict[str, float] = {}
        self._last_s = 0.0
        self._early: dict[tuple[str, str], tuple[float, Change | None]] = {}
        """Gain of a queue (time and change) whose loss by the previous owner has not arrived yet."""
        self.twice: list[str] = []
        """Queues that were gained while another member had them."""

    def run_until_quiet(self, change: Change | None, *, least: int = 1, limit_s: float = SETTLE_S) -> None:
        """Handles events until every queue has a reader, `least` have moved, and nothing moved for a while."""
        deadline_s = time.monotonic() + limit_s
        self._last_s = time.monotonic()
        while time.monotonic() < deadline_s:
            try:
                _, event = self.events.get(timeout=0.05)
                self._take(event, change)
            except queue.Empty:
                pass
            enough = change is None or change.moved >= least
            if enough and len(self.owner) == self.expected and time.monotonic() - self._last_s > QUIET_S:
                return
        raise SystemExit(f"after {limit_s:.0f} s {len(self.owner)} of {self.expected} queues have a reader")

    def until(self, name: str, what: str, *, limit_s: float = SETTLE_S) -> dict[str, Any]:
        """Handles events until this process sends this one."""
        deadline_s = time.monotonic() + limit_s
        while time.monotonic() < deadline_s:
            try:
                sender, event = self.events.get(timeout=0.05)
            except queue.Empty:
                continue
            if sender == name and event["event"] == what:
                return event
            self._take(event, None)
        raise SystemExit(f"{name} did not say {what} within {limit_s:.0f} s")

    def died(self, member_prefix: str, at_s: float) -> int:
        """Removes the queues of a process from the readers. Returns their number."""
        gone = [name for name, owner in self.owner.items() if owner.startswith(member_prefix)]
        self._early = {key: change for key, change in self._early.items() if not key[1].startswith(member_prefix)}
        for name in gone:
            del self.owner[name]
            self._lost_at[name] = at_s
        return len(gone)

    @property
    def never_lost(self) -> list[str]:
        """Queues that a member gained although the previous owner lives and has not released them."""
        return [name for name, _ in self._early]

    def _take(self, event: dict[str, Any], change: Change | None) -> None:
        if event["event"] != "moved":
            return
        at_s, member = event["at"], event["member"]
        self._last_s = time.monotonic()
        for name in event["lost"]:
            if self.owner.get(name) == member:
                del self.owner[name]
                self._lost_at[name] = at_s
            elif (name, member) in self._early:
                self._rested(name, at_s, *self._early.pop((name, member)))
        for name in event["gained"]:
            owner = self.owner.get(name, member)
            if owner != member:
                self._early[name, owner] = (at_s, change)
            self.owner[name] = member
            if change is not None:
                change.moved += 1
                change.over_ms = max(change.over_ms, (at_s - change.begun_s) * 1e3)
            if name in self._lost_at:
                self._rested(name, self._lost_at.pop(name), at_s, change)

    def _rested(self, name: str, lost_s: float, gained_s: float, change: Change | None) -> None:
        if gained_s < lost_s:
            self.twice.append(name)
        if change is not None:
            change.rests_ms.append((gained_s - lost_s) * 1e3)


class Traffic:
    """A producer at a steady rate, in a thread."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._ending = threading.Event()
        self.sent = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Stops; all sent messages are acknowledged."""
        self._ending.set()
        self._thread.join(30)

    def _run(self) -> None:
        with evenq.Producer(endpoint=self._endpoint) as producer:
            begun_s = time.monotonic()
            while not self._ending.wait(0.01):
                while self.sent < (time.monotonic() - begun_s) * RATE and not self._ending.is_set():
                    producer.send(evenq.Message(topic=TOPIC, body=b"x" * 128))
                    self.sent += 1


def steps(trials: int) -> list[str]:
    """Returns the changes in order: joins and leaves in turn; each tenth time the topic grows."""
    kinds = ("join", "leave")
    return ["grow" if number % 10 == 9 else kinds[number % 2] for number in range(trials)]


@dataclass
class Found:
    """All trials, and the check of the offsets."""

    changes: list[Change] = field(default_factory=list)
    crashes: list[Change] = field(default_factory=list)
    sent: int = 0
    missing: int = 0
    repeated: int = 0
    twice: int = 0


def measured(options: argparse.Namespace) -> Found:
    found, rng = Found(), random.Random(1)
    per_broker = -(-options.queues // BROKERS)
    group = Group(per_broker * BROKERS)
    settings = {"SESSION_GRACE_MS": str(GRACE_MS)}
    with (
        LocalCluster(brokers=BROKERS, broker_settings=settings) as cluster,
        evenq.Admin(endpoint=cluster.endpoint) as admin,
    ):
        admin.create_topic(TOPIC, queues=per_broker)
        admin.create_group(GROUP, strategy=STRATEGY)
        workers = [Worker(f"w{number}", cluster.endpoints, group.events) for number in range(WORKERS)]
        guest: Worker | None = None
        try:
            for worker in workers:
                worker.say(f"join {options.members // WORKERS}")
            group.run_until_quiet(None)
            for worker in workers:
                worker.say("calm")
                group.until(worker.name, "calm")
            CONSOLE.print(f"[dim]{options.members} members read {group.expected} queues[/dim]")
            with Traffic(cluster.endpoint) as traffic:
                for what in steps(options.trials):
                    change = _change(what, group, workers[rng.randrange(WORKERS)], admin, per_broker)
                    per_broker += what == "grow"
                    found.changes.append(change)
                    CONSOLE.print(f"[dim]{what}: {change.moved} queues in {change.over_ms:.0f} ms[/dim]")
            found.sent = traffic.sent
            seen = _all_offsets(group, workers, found.sent)
            found.missing = found.sent - len(seen)
            found.repeated = seen.total() - len(seen)
            with Traffic(cluster.endpoint):
                for number in range(options.crashes):
                    guest = Worker(f"guest{number}", cluster.endpoints, group.events)
                    group.until(guest.name, "ready")
                    joined = Change("join", time.monotonic())
                    guest.say("join 1")
                    group.run_until_quiet(joined)
                    found.crashes.append(_crash(group, guest))
                    CONSOLE.print(f"[dim]kill -9: {found.crashes[-1].over_ms:.0f} ms[/dim]")
            found.twice = len(group.twice) + len(group.never_lost)
        finally:
            for worker in [*workers, *([guest] if guest else [])]:
                worker.end()
    return found


def _change(what: str, group: Group, worker: Worker, admin: evenq.Admin, per_broker: int) -> Change:
    change = Change(what, time.monotonic())
    match what:
        case "grow":
            group.expected += BROKERS
            admin.create_topic(TOPIC, queues=per_broker + 1)
        case _:
            worker.say(f"{what} 1")
    group.run_until_quiet(change)
    return change


def _crash(group: Group, guest: Worker) -> Change:
    change = Change("kill -9", time.monotonic())
    guest.process.kill()
    group.run_until_quiet(change, least=group.died(guest.name, change.begun_s))
    return change


def _all_offsets(group: Group, workers: list[Worker], sent: int) -> Counter[tuple[str, int]]:
    """Returns the delivered offsets, once all are delivered, or after some seconds."""
    for _ in range(20):
        seen = _offsets(group, workers)
        if len(seen) >= sent:
            break
        time.sleep(0.5)
    return seen


def _offsets(group: Group, workers: list[Worker]) -> Counter[tuple[str, int]]:
    seen: Counter[tuple[str, int]] = Counter()
    for worker in workers:
        worker.say("seen")
        for name, offsets in group.until(worker.name, "seen")["offsets"].items():
            seen.update((name, offset) for offset in offsets)
    return seen


def rows(figures: Found) -> list[tuple[str, str, str, bool]]:
    """Returns name, figure, goal and result of each line."""
    lines = []
    within = f"p99 <= {GOAL_MS:.0f} ms"
    for what in ("join", "leave", "grow"):
        times = [change.over_ms for change in figures.changes if change.what == what]
        if times:
            title = f"{what}, until all new readers read ({len(times)} trials)"
            lines.append((title, spread(times), within, at99(times) <= GOAL_MS))
    rests = [rest for change in figures.changes for rest in change.rests_ms]
    lines.append((f"a queue without a reader ({len(rests)} moves)", spread(rests), within, at99(rests) <= GOAL_MS))
    if figures.crashes:
        times = [change.over_ms for change in figures.crashes]
        limit = GRACE_MS + GOAL_MS
        title = f"kill -9 ({len(times)} trials), grace {GRACE_MS} ms"
        lines.append((title, spread(times), f"<= {limit:.0f} ms", max(times) <= limit))
    for what, count in (
        (f"never delivered, of {figures.sent:,}", figures.missing),
        ("delivered twice by graceful changes", figures.repeated),
        ("queues with two readers at a time", figures.twice),
    ):
        lines.append((what, f"{count}", "0", count == 0))
    lines.append(("the peer: RocketMQ's clients look every", f"{PEER_MS:,} ms", "-", True))
    return lines


def at99(times: list[float]) -> float:
    """Returns the 99th percentile; the maximum of few values."""
    return sorted(times)[min(len(times) - 1, int(len(times) * 0.99))] if times else 0.0


def spread(times: list[float]) -> str:
    """p50, p99, longest."""
    if not times:
        return "-"
    return f"p50 {statistics.median(times):.0f}, p99 {at99(times):.0f}, longest {max(times):.0f} ms"


def save(lines: list[tuple[str, str, str, bool]], options: argparse.Namespace) -> Path:
    """Saves the table as Markdown; a later run of the day replaces it."""
    now = dt.datetime.now(dt.UTC)
    facts = machine()
    facts.pop("packages")
    machine_facts = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items())
    text = [
        f"# The benchmarks of rebalancing, {now:%Y-%m-%d %H:%M} UTC",
        "",
        f"Machine: {machine_facts}.",
        f"{options.members} members, {options.queues} queues, {BROKERS} brokers, {STRATEGY}, {RATE} messages/s.",
        "",
        "| what | seen | goal | ok |",
        "|---|---|---|---|",
    ]
    text += [f"| {what} | {seen} | {goal} | {'yes' if ok else '**no**'} |" for what, seen, goal, ok in lines]
    path = HERE / "results" / f"{now:%Y-%m-%d}-rebalance.md"
    path.write_text("\n".join(text) + "\n")
    return path


def main() -> int:
    """Measures, shows and saves. Returns 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 members, 60 queues, 10 trials, 1 crash, nothing saved")
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--queues", type=int, default=1_000)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--crashes", type=int, default=5)
    parser.add_argument("--no-save", action="store_true", help="write no file into benchmarks/results")
    options = parser.parse_args()
    if options.quick:
        options.members, options.queues, options.trials, options.crashes = 20, 60, 10, 1
    figures = measured(options)
    table = Table(title=f"rebalancing: {options.members} members, {options.queues} queues, {BROKERS} brokers")
    for title in ("what", "seen", "goal", "ok"):
        table.add_column(title)
    lines = rows(figures)
    for what, seen, goal, ok in lines:
        table.add_row(what, seen, goal, "yes" if ok else "no")
    Console().print(table)
    if not options.quick and not options.no_save:
        CONSOLE.print(f"saved in benchmarks/results/{save(lines, options).name}")
    return 0 if all(ok for _, _, _, ok in lines) else 1


if __name__ == "__main__":
    raise SystemExit(main())
