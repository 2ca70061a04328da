"""`make bench-peers`: evenq compared with Apache RocketMQ on RocketMQ's protocol, in one run, in turn (A B B A ...).

    python benchmarks/peers.py [--rounds 5] [--quick] [--only unary single batch receive latency start] [--front http2]

Both get the same load from the same Go program with stubs of the official client: data on disk, asynchronous flush,
eight queues, bodies of 1 KiB. RocketMQ is warmed up with 200,000 messages first. Each line shows medians over the
rounds, the ratio round by round, and the CPU of the server per message. A full run takes about ten minutes and writes
results/<date>-peers.md and a picture. Explanation: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import load
import peers_report as report
import servers
from peers_report import Row
from rich.console import Console
from rocketmq_peer import RocketMQ, rocketmq

CONSOLE = Console(width=None if Console().is_terminal else 150)
QUEUES = 8
WARM_UP = 200_000
MORE = 2_000
"""Messages beyond those that are read, so that the last polls do not wait for each other."""


@dataclass(frozen=True, slots=True)
class Load:
    name: str
    what: str
    goal: float
    """Least ratio of speeds."""
    mode: str
    flags: dict[str, object]


LOADS = (
    Load("unary", "send, 64 in flight", 2.0, "send", {"n": 60_000, "c": 64}),
    Load("single", "send, one at a time", 1.0, "send", {"n": 8_000, "c": 1, "conns": 1}),
    Load("batch", "send, batches of 32", 1.5, "send", {"n": 400_000, "c": 64, "batch": 32}),
    Load("receive", "receive 32 + one ack", 2.0, "recv", {"n": 60_000, "c": 8}),
)
LATENCY_GOALS = {"p50": 0.5, "p99": 0.7}
UNARY_CPU_US = 50.0


@dataclass
class Side:
    name: str
    server: servers.Server
    rows: dict[str, list[float]] = field(default_factory=dict)

    def keep(self, what: str, value: float) -> None:
        self.rows.setdefault(what, []).append(value)


def in_turn(sides: tuple[Side, Side], number: int) -> tuple[Side, ...]:
    return sides if number % 2 == 0 else sides[::-1]


def topic(name: str, number: int) -> str:
    """Returns the topics: one per round for readers, one for all senders."""
    return f"{name}-{number}"


def compare(case: Load, program: Path, sides: tuple[Side, Side], rounds: int, part: int) -> Row:
    speed, cost = f"{case.name} speed", f"{case.name} cpu"
    for number in range(rounds):
        for side in in_turn(sides, number):
            flags = {**case.flags, "n": int(str(case.flags["n"])) // part}
            name = topic(case.name, number if case.mode == "recv" else 0)
            if case.mode == "recv":
                load.run(program, "send", side.server.address, topic=name, n=flags["n"] + MORE, c=16, batch=16)
            before = servers.cpu_s(side.server.pid)
            figures = load.run(program, case.mode, side.server.address, topic=name, group=f"g-{name}", **flags)
            side.keep(cost, (servers.cpu_s(side.server.pid) - before) / figures["msgs"] * 1e6)
            side.keep(speed, figures["msgs_per_s"])
    ours, theirs = sides
    row = Row(case.what, "messages/s", ours.rows[speed], theirs.rows[speed], case.goal, more_is_better=True)
    row.cpu_us = (ours.rows[cost], theirs.rows[cost])
    return row


def latencies(program: Path, sides: tuple[Side, Side], rounds: int, part: int) -> list[Row]:
    """Measures the time from the birth of a message to its arrival at the receiver, 500 a second."""
    for number in range(rounds):
        for side in in_turn(sides, number):
            name = topic("latency", number)
            load.run(program, "send", side.server.address, topic=name, n=1, c=1)  # makes the topic
            figures = load.run(
                program, "e2e", side.server.address, topic=name, group=f"g-{name}", rate=500, secs=10 / part
            )
            if figures["received"] < figures["sent"]:
                raise SystemExit(f"{side.name}: {figures['received']} of {figures['sent']} messages arrived")
            for quantile in LATENCY_GOALS:
                side.keep(f"latency {quantile}", figures[f"{quantile}_ms"])
    ours, theirs = sides
    return [
        Row(
            f"send to receive, 500/s, {quantile}",
            "ms",
            ours.rows[f"latency {quantile}"],
            theirs.rows[f"latency {quantile}"],
            goal,
            more_is_better=False,
        )
        for quantile, goal in LATENCY_GOALS.items()
    ]


def starts(program: Path, peer: RocketMQ, idle_mb: float, rounds: int, front: dict[str, str]) -> list[Row]:
    """Measures the start of `evenq up` and its memory at rest and under load; the peer was started once."""
    ready, idle, loaded = [], [], []
    os.environ.update(front)
    for _ in range(rounds):
        with servers.quick_start() as server:
            ready.append(server.ready_s)
            time.sleep(2)
            idle.append(servers.memory(server.pid).rss)
            load.run(program, "send", server.address, topic="loaded", n=30_000, c=64)
            loaded.append(servers.memory(server.pid).rss)
    return [
        Row("ready after", "s", ready, [peer.server.ready_s], 1.0, more_is_better=False, absolute=True),
        Row("memory at rest", "MB", idle, [idle_mb], 70.0, more_is_better=False, absolute=True),
        Row("memory after 30,000 sends", "MB", loaded, [peer.memory_mb()], 150.0, more_is_better=False, absolute=True),
    ]


def measured(options: argparse.Namespace) -> list[Row]:
    is_chosen: Callable[[str], bool] = lambda name: not options.only or name in options.only  # noqa: E731
    rounds, part = (2, 6) if options.quick else (options.rounds, 1)
    program = load.built()
    front = dict.fromkeys(("EVENQ_BROKER_FRONT", "EVENQ_NAMESERVER_FRONT", "EVENQ_REBALANCER_FRONT"), options.front)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="evenq-bench-") as folder, rocketmq() as peer:
        time.sleep(2)
        idle_mb = peer.memory_mb()
        names = ["warm", *(topic(name, 0) for name in ("unary", "single", "batch"))]
        names += [topic(name, number) for name in ("receive", "latency") for number in range(rounds)]
        CONSOLE.print(f"[dim]{len(names)} topics at RocketMQ ...[/dim]")
        peer.make(names, QUEUES)
        with servers.broker(Path(folder), **front, EVENQ_BROKER_DEFAULT_QUEUES=str(QUEUES)) as broker:
            sides = (Side("evenq", broker), Side("RocketMQ", peer.server))
            warm_up(program, sides, WARM_UP // part)
            for case in LOADS:
                if is_chosen(case.name):
                    CONSOLE.print(f"[dim]{case.what} ...[/dim]")
                    rows.append(compare(case, program, sides, rounds, part))
                    if case.name == "unary":
                        rows.append(
                            Row(
                                "CPU of the server for a send, 64 in flight",
                                "us",
                                *rows[-1].cpu_us,
                                UNARY_CPU_US,
                                more_is_better=False,
                                absolute=True,
                            )
                        )
            if is_chosen("latency"):
                CONSOLE.print("[dim]send to receive ...[/dim]")
                rows += latencies(program, sides, rounds, part)
        if is_chosen("start"):
            CONSOLE.print("[dim]evenq up ...[/dim]")
            rows += starts(program, peer, idle_mb, rounds, front)
    return rows


def warm_up(program: Path, sides: tuple[Side, Side], messages: int) -> None:
    """Warms up Java, which compiles code that runs often; ours gets the same load."""
    for side in sides:
        CONSOLE.print(f"[dim]warming {side.name} ...[/dim]")
        for flags in ({"n": messages // 4, "c": 64}, {"n": messages * 3 // 4, "c": 64, "batch": 32}):
            load.run(program, "send", side.server.address, topic="warm", **flags)
        load.run(program, "recv", side.server.address, topic="warm", group="g-warm", n=messages // 4, c=8)


def main() -> int:
    """Measures, shows and saves. Returns 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each load is run on each side")
    parser.add_argument("--quick", action="store_true", help="two rounds, a sixth of the messages; nothing is saved")
    parser.add_argument("--only", nargs="+", choices=[*(one.name for one in LOADS), "latency", "start"])
    parser.add_argument("--front", default="http2", choices=["http2", "grpcio"], help="evenq's gRPC front")
    parser.add_argument("--no-save", action="store_true", help="write no file into benchmarks/results")
    options = parser.parse_args()
    before = os.getloadavg()[0]
    rows = measured(options)
    CONSOLE.print(report.table(rows))
    if not (options.quick or options.only or options.no_save):
        for path in report.save(rows, front=options.front, rounds=options.rounds, load_before=before):
            CONSOLE.print(f"saved in {path.relative_to(load.PROJECT)}")
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
