"""`make bench-connections`: 10,000 clients, each with a connection, an open Telemetry stream and a parked poll.

    python benchmarks/connections.py [--connections 10000] [--quick] [--groups 100]

One broker, as a pod runs it, on evenq's own gRPC front. Measured are, one after another:

- its memory before the clients connect, with all clients, and after all connections are closed at the same time;
- its CPU over 60 s in which clients send nothing but answers to keepalive pings, and over 30 s in which each client
  sends the heartbeat that SDKs send every ten seconds;
- the time from a send to the end of the poll's answer with the message: 100 messages a second for 20 s, spread over
  all groups; a client acknowledges its message and polls again. The time includes that of the clients, one process.

Polls wait for an hour and silence is allowed for as long, so that nothing happens at rest; all other settings of the
broker are defaults. Clients and broker are one process each, and each needs a file descriptor per connection: the limit
is raised as far as the system allows (`ulimit -Hn`). A full run takes about five minutes and writes
results/<date>-connections.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import resource
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import load
import peers_report as report
import servers
from parked_clients import Crowd
from rich.console import Console

import evenq
from evenq.serving.http2.limits import Http2Limits
from evenq.testing.free_ports import FreePorts

CONSOLE = Console(width=None if Console().is_terminal else 150)
SPARE_FILES = 300
"""Descriptors of a process besides its connections: files of the store, modules, pipes."""
CLIENTS_MAX = min(Http2Limits().calls_per_address_max // 2 - 10, Http2Limits().connections_per_address_max - 10)
"""One address may have this number of calls and connections by default; each client has two calls."""
HOUR_MS = 3_600_000
RATE = 100
BEAT_S = 10.0
PATIENCE_S = 300.0
TITLES = ("what", "seen", "goal", "ok")


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    seen: str
    goal: str = "-"
    ok: bool = True

    def cells(self) -> tuple[str, ...]:
        return self.what, self.seen, self.goal, "-" if self.goal == "-" else "yes" if self.ok else "no"


def raise_limit(connections: int) -> None:
    """File descriptors for this process and, because children inherit it, for the broker."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = connections + SPARE_FILES
    if hard != resource.RLIM_INFINITY and hard < files:
        raise SystemExit(
            f"{connections:,} connections need {files:,} open files in a process, and this system allows {hard:,} "
            f"(`ulimit -Hn`): raise it (limits.conf, LimitNOFILE, docker run --ulimit nofile={files}), or measure "
            f"fewer with --connections {max(1, hard - SPARE_FILES)}"
        )
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))


class Gauge:
    """Figures of the broker from its metrics page and /proc."""

    def __init__(self, broker: servers.Server, page: int) -> None:
        self.broker = broker
        self._url = f"http://127.0.0.1:{page}/metrics"

    def metric(self, name: str) -> float:
        """Summed over its labels."""
        with urllib.request.urlopen(self._url, timeout=60) as response:
            text = response.read().decode()
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE))

    @property
    def memory_mb(self) -> float:
        """Resident memory of the broker, MB (10^6 bytes)."""
        return servers.memory(self.broker.pid).rss

    @property
    def files(self) -> int:
        """Descriptors that it has open."""
        return len(os.listdir(f"/proc/{self.broker.pid}/fd"))

    async def until(self, state: Callable[[], float], goal: float, what: str) -> float:
        """Waits until `state` has the wanted value, and returns the seconds."""
        began = time.perf_counter()
        while (seen := await asyncio.to_thread(state)) != goal:
            if time.perf_counter() - began > PATIENCE_S:
                raise SystemExit(f"after {PATIENCE_S:.0f} s {what}: {seen:,.0f} instead of {goal:,.0f}")
            await asyncio.sleep(0.5)
        return time.perf_counter() - began

    async def calm(self) -> None:
        """Waits until the broker is at rest after the clients have connected, at most a minute."""
        CONSOLE.print("[dim]until the broker is calm, at most a minute ...[/dim]")
        for _ in range(60):
            before = servers.cpu_s(self.broker.pid)
            await asyncio.sleep(1)
            if servers.cpu_s(self.broker.pid) - before <= 0.05:
                return

    async def core(self, parts: int, seconds: float) -> list[float]:
        """CPU of the broker while time passes, percent of a core, in this number of parts."""
        seen = []
        for _ in range(parts):
            before, began = servers.cpu_s(self.broker.pid), time.perf_counter()
            await asyncio.sleep(seconds)
            seen.append((servers.cpu_s(self.broker.pid) - before) / (time.perf_counter() - began) * 100)
        return seen


async def _measured(gauge: Gauge, options: argparse.Namespace) -> list[Row]:
    count, part = options.connections, 6 if options.quick else 1
    address = gauge.broker.address
    crowd = Crowd(groups=options.groups, poll_ms=HOUR_MS)
    polls: Callable[[], float] = lambda: gauge.metric("evenq_broker_polls_parked")  # noqa: E731
    await gauge.calm()
    before_mb, files = gauge.memory_mb, gauge.files

    CONSOLE.print(f"[dim]{count:,} clients come ...[/dim]")
    began = time.perf_counter()
    await crowd.come(address, count)
    await gauge.until(polls, count, "polls are parked")
    arrival_s = time.perf_counter() - began
    members = gauge.metric("rocketmq_consumer_connections")
    await gauge.calm()
    there_mb = gauge.memory_mb

    seconds = 60 / part
    CONSOLE.print(f"[dim]{seconds:.0f} s at rest ...[/dim]")
    rest = await gauge.core(3, seconds / 3)
    beats_s = 30 / part
    CONSOLE.print(f"[dim]{beats_s:.0f} s with heartbeats ...[/dim]")
    beating = asyncio.ensure_future(crowd.beat(beats_s, BEAT_S))
    busy = (await gauge.core(1, beats_s))[0]
    beats = await beating
    await gauge.calm()

    wake_s = 20 / part
    CONSOLE.print(f"[dim]{wake_s:.0f} s with {RATE} messages/s ...[/dim]")
    sent = await crowd.send(address, wake_s, RATE)
    await gauge.until(polls, count, "polls are parked again")
    waits, missing, empty = sorted(crowd.waits_ms), len(crowd.sent), crowd.empty
    lost = crowd.lost()
    woken_mb = gauge.memory_mb

    CONSOLE.print("[dim]clients disconnect ...[/dim]")
    await crowd.leave()
    gone_s = await gauge.until(polls, 0, "polls are left")
    gone_s += await gauge.until(lambda: gauge.metric("rocketmq_consumer_connections"), 0, "clients are remembered")
    gone_s += await gauge.until(lambda: float(max(gauge.files, files + 5)), files + 5, "descriptors are open")
    await gauge.calm()
    after_mb = gauge.memory_mb
    if lost:
        CONSOLE.print(f"[red]{len(lost)} clients fell out, the first because {lost[0]}[/red]")
    at: Callable[[float], float] = lambda quantile: waits[int(quantile * (len(waits) - 1))] if waits else 0.0  # noqa: E731
    return [
        Row("clients: Telemetry streams and parked polls", f"{members:,.0f} and {count:,} after {arrival_s:.1f} s"),
        Row("CPU at rest, % of a core", f"{report.spread(rest)} over {seconds:.0f} s"),
        Row(f"CPU with a heartbeat of each every {BEAT_S:.0f} s", f"{busy:.1f} % of a core, {beats / beats_s:,.0f}/s"),
        Row(
            f"wake-up at {RATE}/s over {options.groups} groups, ms",
            f"p50 {at(0.5):.2f}, p99 {at(0.99):.2f}, longest {at(1):.2f}, {len(waits):,} messages",
        ),
        Row("memory before, MB", f"{before_mb:.0f}"),
        Row(f"memory with {count:,}, MB", f"{there_mb:.0f}, {(there_mb - before_mb) * 1000 / count:.1f} KB for each"),
        Row("memory after the wake-ups, MB", f"{woken_mb:.0f}"),
        Row("memory after all disconnected, MB", f"{after_mb:.0f}, all gone after {gone_s:.1f} s"),
        Row("lost clients", f"{len(lost)}", "0", not lost),
        Row("lost messages", f"{missing} of {sent:,}", "0", not missing),
        Row("polls that ended empty", f"{empty}", "0", not empty),
    ]


def measured(options: argparse.Namespace) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="evenq-bench-") as folder, FreePorts() as ports:
        page = ports.take()
        settings = {
            "EVENQ_BROKER_FRONT": "http2",
            "EVENQ_BROKER_METRICS_PORT": str(page),
            "EVENQ_BROKER_POLL_MAX_MS": str(HOUR_MS),
            "EVENQ_BROKER_CLIENT_SILENCE_MS": str(HOUR_MS),
        }
        with servers.broker(Path(folder), **settings) as broker:
            CONSOLE.print(f"[dim]{options.groups} topics ...[/dim]")
            with evenq.Admin(endpoint=broker.address) as admin:
                for number in range(options.groups):
                    admin.create_topic(f"t-{number}", queues=8)
            return _run(_measured(Gauge(broker, page), options))


def _run(measuring: object) -> list[Row]:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(measuring)  # type: ignore[arg-type]  # a coroutine
    return uvloop.run(measuring)  # type: ignore[no-any-return]


def main() -> int:
    """Measures, shows and saves. Returns 1 if a client or a message was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--connections",
        type=int,
        default=10_000,
        metavar="N",
        help=f"how many clients, at most {CLIENTS_MAX:,}: the defaults for one address (default 10000)",
    )
    parser.add_argument(
        "--groups",
        type=int,
        default=100,
        metavar="N",
        help="consumer groups they are spread over, each with a topic of eight queues (default 100)",
    )
    parser.add_argument("--quick", action="store_true", help="a sixth of the times; nothing is saved")
    parser.add_argument("--no-save", action="store_true", help="write no file into benchmarks/results")
    options = parser.parse_args()
    if sys.platform != "linux":
        parser.error("figures come from /proc, so it runs on Linux only")
    if not 1 <= options.connections <= CLIENTS_MAX:
        parser.error(
            f"--connections {options.connections}: give 1 to {CLIENTS_MAX:,}; all come from one address, which may "
            f"have {Http2Limits().calls_per_address_max:,} calls by default (front_limits.calls_per_address_max)"
        )
    if not 1 <= options.groups <= options.connections:
        parser.error(f"--groups {options.groups}: give 1 to {options.connections:,}, one client each or more")
    raise_limit(options.connections)
    before = os.getloadavg()[0]
    rows = measured(options)
    lines = [row.cells() for row in rows]
    title = f"{options.connections:,} connections with a Telemetry stream and a parked poll each"
    CONSOLE.print(report.drawn(f"{title}, {os.cpu_count()} cores", TITLES, lines))
    if not (options.quick or options.no_save):
        about = (
            f"{options.groups} groups, a topic of eight queues each; all clients in one process on the same machine."
        )
        path = report.written("connections", title, about, TITLES, lines, front="http2", load_before=before)
        CONSOLE.print(f"saved in {path.relative_to(load.PROJECT)}")
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
