"""`make bench`: evenq compared with its floor, in one run, in turn (A B A B A B).

    python benchmarks/run.py [--quick] [--rounds N] [--only send|batch|receive|each|latency|up|idle ...] [--no-save]

Every speed is a ratio to the floor: the same gRPC server and loop with handlers that do not parse (floor.py), under the
same load, seconds apart. Explanation: benchmarks/README.md. Results go to benchmarks/results/<date>.json.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import load
import servers
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).resolve().parent / "results"
CONSOLE = Console(width=None if Console().is_terminal else 150)


@dataclass
class Row:
    what: str
    unit: str
    goal: str
    ours: list[float] = field(default_factory=list)
    floor: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    """Ours to floor, round by round."""
    cpu_ours_us: list[float] = field(default_factory=list)
    """CPU of our server per message, microseconds."""
    cpu_floor_us: list[float] = field(default_factory=list)
    ok: bool | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    what: str
    goal: float
    mode: str
    flags: dict[str, object]
    big: bool
    """Answers of the floor have 32 entries, not one."""


def cases(*, quick: bool) -> list[Case]:
    """The loads. Bodies of 1 KiB, two connections."""
    part = 4 if quick else 1
    return [
        Case("send", "send, 64 in flight", 0.7, "send", {"n": 24_000 // part, "c": 64}, big=False),
        Case("batch", "send, batches of 32", 0.6, "send", {"n": 200_000 // part, "c": 64, "batch": 32}, big=True),
        Case("receive", "receive 32 + one ack", 0.6, "recv", {"n": 20_000 // part, "c": 8}, big=True),
        Case("each", "receive 32 + 32 acks", 0.6, "recv", {"n": 20_000 // part // 2, "c": 8, "ack": "each"}, big=False),
    ]


def compare(case: Case, program: Path, broker: servers.Server, floor: servers.Server, rounds: int) -> Row:
    row = Row(case.what, "messages/s", f">= {case.goal} x floor")
    for number in range(rounds):
        flags = dict(case.flags)
        pairs = [(floor, row.floor, row.cpu_floor_us), (broker, row.ours, row.cpu_ours_us)]
        for server, speeds, costs in pairs if number % 2 == 0 else pairs[::-1]:
            topic = f"{case.name}-{number}" if case.mode == "recv" else case.name
            if case.mode == "recv" and server is broker:
                # Some more than are read, so that the last polls do not wait for each other.
                load.run(program, "send", server.address, topic=topic, n=int(str(flags["n"])) + 2_000, c=16, batch=16)
            before = servers.cpu_s(server.pid)
            figures = load.run(program, case.mode, server.address, topic=topic, group=f"g-{topic}", **flags)
            costs.append((servers.cpu_s(server.pid) - before) / figures["msgs"] * 1e6)
            speeds.append(figures["msgs_per_s"])
        row.ratios.append(row.ours[-1] / row.floor[-1])
    row.ok = statistics.median(row.ratios) >= case.goal
    return row


def latency(program: Path, broker: servers.Server, *, quick: bool) -> Row:
    """Measures the time from birth to receipt, one message at a time."""
    row = Row("send to receive, 500/s, p50", "ms", "-")
    for number in range(1 if quick else 3):
        load.run(program, "send", broker.address, topic=f"e2e-{number}", n=1, c=1)  # makes the topic
        figures = load.run(
            program, "e2e", broker.address, topic=f"e2e-{number}", group=f"e2e-{number}", rate=500, secs=3
        )
        row.ours.append(figures["p50_ms"])
        row.note = f"p99 {figures['p99_ms']:.1f} ms"
    return row


def start_up(*, quick: bool) -> list[Row]:
    """Measures `evenq up`: time until clients are served, and memory at rest."""
    ready, held = Row("evenq up: ready", "s", "<= 2 s"), Row("evenq up: idle memory", "MB RSS", "<= 150 MB")
    for _ in range(2 if quick else 5):
        with servers.quick_start() as server:
            ready.ours.append(server.ready_s)
            time.sleep(2)
            memory = servers.memory(server.pid)
            held.ours.append(memory.rss)
            held.note = f"PSS {memory.pss:.0f} MB, {memory.processes} process{'es' * (memory.processes != 1)}"
    ready.ok = statistics.median(ready.ours) <= 2
    held.ok = statistics.median(held.ours) <= 150
    return [ready, held]


POLLS = 200


def idle(broker: servers.Server) -> Row:
    """Measures the CPU of a broker with 200 parked polls and no other load."""
    import grpc.aio

    from evenq.wire.convert import set_duration_ms
    from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2

    row = Row(f"CPU with {POLLS} parked polls", "% of a core", "<= 1 %")

    async def measure() -> None:
        receive = service_pb2.ReceiveMessageRequest(batch_size=32)
        receive.group.name, receive.message_queue.topic.name, receive.filter_expression.expression = "idle", "idle", "*"
        set_duration_ms(receive.long_polling_timeout, 20_000)
        set_duration_ms(receive.invisible_duration, 30_000)
        request = receive.SerializeToString()
        async with grpc.aio.insecure_channel(broker.address) as channel:
            call_receive = channel.unary_stream("/apache.rocketmq.v2.MessagingService/ReceiveMessage")
            calls = [
                asyncio.ensure_future(
                    call_receive(request, timeout=30, metadata=(("x-mq-client-id", f"c{number}"),)).read()
                )
                for number in range(POLLS)
            ]
            await asyncio.sleep(2)
            for _ in range(3):
                before = servers.cpu_s(broker.pid)
                await asyncio.sleep(2)
                row.ours.append((servers.cpu_s(broker.pid) - before) / 2 * 100)
            parked = sum(not call.done() for call in calls)
            row.note = f"{parked} polls waited"
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    asyncio.run(measure())
    row.ok = statistics.median(row.ours) <= 1
    return row


def measured(options: argparse.Namespace) -> list[Row]:
    is_chosen: Callable[[str], bool] = lambda name: not options.only or name in options.only  # noqa: E731
    rounds = options.rounds or (3 if options.quick else 5)
    rows: list[Row] = []
    loads = [case for case in cases(quick=options.quick) if is_chosen(case.name)]
    if loads or is_chosen("latency") or is_chosen("idle"):
        program = load.built()
        with (
            tempfile.TemporaryDirectory(prefix="evenq-bench-") as folder,
            servers.broker(Path(folder)) as broker,
            servers.floor("--ack-entries", "1") as small,
            servers.floor("--send-entries", "32") as big,
        ):
            for case in loads:
                CONSOLE.print(f"[dim]{case.what} ...[/dim]")
                rows.append(compare(case, program, broker, big if case.big else small, rounds))
            if is_chosen("latency"):
                rows.append(latency(program, broker, quick=options.quick))
            if is_chosen("idle"):
                rows.append(idle(broker))
    if is_chosen("up"):
        CONSOLE.print("[dim]evenq up ...[/dim]")
        rows += start_up(quick=options.quick)
    return rows


def show(rows: list[Row]) -> None:
    table = Table(title=f"evenq {version('evenq')}: medians, 1 KiB bodies, {os.cpu_count()} cores")
    for name in ("what", "ours", "floor", "ratio (lowest to highest)", "server CPU ours / floor", "goal", "ok"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for row in rows:
        table.add_row(
            row.what,
            f"{_number(row.ours)} {row.unit}",
            _number(row.floor) if row.floor else "-",
            f"{statistics.median(row.ratios):.2f} ({min(row.ratios):.2f} to {max(row.ratios):.2f})"
            if row.ratios
            else row.note or "-",
            f"{_number(row.cpu_ours_us)} / {_number(row.cpu_floor_us)} us" if row.cpu_ours_us else "-",
            row.goal,
            "-" if row.ok is None else "[green]yes[/green]" if row.ok else "[red]no[/red]",
        )
    CONSOLE.print(table)


def _number(values: list[float]) -> str:
    middle = statistics.median(values)
    return f"{middle:,.0f}" if middle >= 100 else f"{middle:.2f}"


def machine() -> dict[str, Any]:
    """Returns the facts that the figures depend on, without the name of the machine."""
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(memory_kb / 1e6, 1),
        "load_1min_at_end": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in ("evenq", "grpcio", "protobuf", "uvloop", "crc32c")},
    }


def save(rows: list[Row], *, quick: bool) -> Path:
    """Saves one file per day and kind; a later run of the day replaces it."""
    RESULTS.mkdir(exist_ok=True)
    now = dt.datetime.now(dt.UTC)
    path = RESULTS / f"{now:%Y-%m-%d}{'-quick' if quick else ''}.json"
    document = {
        "when": f"{now:%Y-%m-%dT%H:%MZ}",
        "quick": quick,
        "machine": machine(),
        "rows": [asdict(r) for r in rows],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def main() -> int:
    """Measures, shows and saves. Returns 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description="evenq compared with its floor, in one run.")
    parser.add_argument("--quick", action="store_true", help="a quarter of the messages, three rounds")
    parser.add_argument("--rounds", type=int, default=0, help="how often each load is run (default 5)")
    parser.add_argument("--only", nargs="+", choices=["send", "batch", "receive", "each", "latency", "idle", "up"])
    parser.add_argument("--no-save", action="store_true", help="write no file into benchmarks/results")
    options = parser.parse_args()
    rows = measured(options)
    show(rows)
    if not options.no_save and not options.only:
        CONSOLE.print(f"saved in benchmarks/results/{save(rows, quick=options.quick).name}")
    return 0 if all(row.ok is not False for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
