"""`make bench-attacks`: a good client beside attackers, at grpcio's server ("before") and at our own front ("after").

    python benchmarks/attacks.py [--seconds 10] [--only NAME ...] [--fronts grpcio http2] [--share 0.25]

A broker with default settings is started for each attack and front, in turn. Measured while one process of attackers
(attackers.py) runs:

- the good client: SendMessage with 100 bytes, one after the other, 5 ms apart, on its own connection by gRPC's C core,
  each with a deadline of 5 s. A failed call counts as infinite latency;
- the largest growth of the broker's resident memory; at +1.5 GB the attack is stopped and marked;
- how many connections of attackers the broker ended, and the CPU of both;
- whether the broker answers a new connection afterwards.

The attackers use at most `--share` of a core, so that the good client waits for the broker and not for a processor.
A run takes about eight minutes and writes results/<date>-attacks.md. Exit code 1: our own front missed a goal.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import attackers
import connections
import grpc
import load
import peers_report as report
import servers
from rich.console import Console

import evenq
from evenq.wire.convert import set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2

CONSOLE = Console(width=None if Console().is_terminal else 170)
FRONTS = ("grpcio", "http2")
NOTHING = "nothing (baseline)"
NAMES = (NOTHING, *attackers.ATTACKS)
P99_MS, MEMORY_MB = 100.0, 64.0
"""The goals beside an attack."""
MEMORY_MAX_MB = 1_500.0
"""Growth at which an attack is stopped."""
REST_S, DEADLINE_S, AFTER_S, LOOK_S = 0.005, 5.0, 10.0, 0.05
BUSY_LOAD = 0.3
"""Load before a run above which the machine had other work."""
WARM_CALLS = 50
SECONDS_MIN = {"10,000 connections that say nothing": 16.0}
"""A connection without a preface may last 10 s, and the last ones are opened late."""
TITLES = (
    "attack",
    "front",
    "good client: p50 / p99 / longest, ms",
    "broker's CPU meanwhile, ms",
    "calls, failed",
    "memory, MB",
    "connections ended",
    "CPU of attackers, broker",
    "answers afterwards",
    "goal",
    "ok",
)


@dataclass(slots=True, kw_only=True)
class Row:
    """Result of one attack at one front."""

    attack: str
    front: str
    times_ms: list[float] = field(default_factory=list)
    """Latency of each answered call."""
    waits_ms: list[float] = field(default_factory=list)
    """CPU that the broker's process used while each call waited, failed ones too."""
    failed: int = 0
    why: str = ""
    """Reason of the first failed call."""
    grown_mb: float = 0.0
    opened: int = 0
    ended: int = 0
    unmade: int = 0
    """Connections that the attackers could not open."""
    attackers_cpu: float = 0.0
    """Percent of a core, as `broker_cpu`."""
    broker_cpu: float = 0.0
    stopped_after_s: float | None = None
    """Time at which the attack was stopped, because the broker's memory had grown by MEMORY_MAX_MB."""
    last_answer_s: float = 0.0
    """Time of the last answer to the good client, since the start of the attack."""
    again_ms: float | None = None
    """Time from a new connection afterwards to its first answer; None: no answer."""
    alive: bool = True

    def at(self, quantile: float) -> float:
        """Returns a quantile of all calls, ms; infinite if that part of them failed."""
        return quantile_of(self.times_ms + [math.inf] * self.failed, quantile)

    @property
    def ok(self) -> bool:
        """True if all goals are met."""
        served = self.alive and self.again_ms is not None and not self.failed
        return served and self.at(0.99) <= P99_MS and self.grown_mb <= MEMORY_MB

    @property
    def afterwards(self) -> str:
        """Returns in words whether the broker still serves."""
        if not self.alive:
            return f"no: it died after {self.last_answer_s:.1f} s"
        if self.again_ms is None:
            return f"no: last answer after {self.last_answer_s:.1f} s"
        return f"yes, in {self.again_ms:.0f} ms"

    def cells(self) -> tuple[str, ...]:
        times = " / ".join(duration(self.at(quantile)) for quantile in (0.5, 0.99, 1))
        waits = " / ".join(duration(quantile_of(self.waits_ms, quantile)) for quantile in (0.5, 0.99, 1))
        grown = f"{self.grown_mb:+.0f}"
        if self.stopped_after_s is not None:
            grown += f" (stopped after {self.stopped_after_s:.1f} s)"
        ended = f"{self.ended:,} of {self.opened:,}" if self.opened else "-"
        if self.unmade:
            ended += f", {self.unmade:,} never made"
        ours, calls = self.front == "http2", len(self.times_ms) + self.failed
        return (
            self.attack,
            self.front,
            times,
            waits,
            f"{calls:,}, {self.failed:,}",
            grown,
            ended,
            f"{self.attackers_cpu:.0f} %, {self.broker_cpu:.0f} %",
            self.afterwards,
            f"p99 <= {P99_MS:.0f}, <= +{MEMORY_MB:.0f} MB, none failed" if ours else "-",
            ("yes" if self.ok else "no") if ours else "-",
        )


def quantile_of(values: list[float], quantile: float) -> float:
    """Returns the quantile; infinite if there are no values."""
    return sorted(values)[max(0, math.ceil(len(values) * quantile) - 1)] if values else math.inf


def duration(ms: float) -> str:
    """Returns three digits; a failed call has infinite latency."""
    return "never" if ms == math.inf else report.number(ms)


class Good:
    """The client without an attack."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(
            address,
            options=[
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.enable_retries", 0),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 1_000),
                ("grpc.max_reconnect_backoff_ms", 1_000),
            ],
        )
        self._send = self.channel.unary_unary(attackers.SEND)
        self._number = int(time.time() * 1000) << 20

    def call(self, deadline_s: float = DEADLINE_S, *, wait: bool = False) -> str:
        """Makes one SendMessage with 100 bytes. Returns the reason of a failure, otherwise empty."""
        self._number += 1
        request = service_pb2.SendMessageRequest()
        message = request.messages.add(body=bytes(100))
        message.topic.name = attackers.TOPIC
        system = message.system_properties
        system.message_id, system.message_type = f"01{self._number:032X}", definition_pb2.NORMAL
        system.body_encoding, system.born_host = definition_pb2.IDENTITY, "localhost"
        set_ms(system.born_timestamp, int(time.time() * 1000))
        try:
            response = self._send(request.SerializeToString(), timeout=deadline_s, wait_for_ready=wait)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"  # type: ignore[attr-defined]  # it is a call as well
        status = service_pb2.SendMessageResponse.FromString(response).status
        return "" if status.code == definition_pb2.OK else f"{status.code}: {status.message}"

    def work(self, row: Row, pid: int, over: threading.Event) -> None:
        """Calls until `over` and records the results; `pid`: of the broker."""
        began = time.perf_counter()
        while not over.is_set():
            start, used = time.perf_counter(), process_ms(pid)
            failure = self.call()
            now = time.perf_counter()
            row.waits_ms.append(process_ms(pid) - used)
            if failure:
                row.failed += 1
                row.why = row.why or failure
                over.wait(20 * REST_S)
            else:
                row.times_ms.append((now - start) * 1000)
                row.last_answer_s = now - began
                over.wait(REST_S)


def process_ms(pid: int) -> float:
    """Returns the CPU time of another process so far, all threads, ms; 0: it has ended."""
    try:
        # The kernel's number of that clock, as from clock_getcpuclockid(3).
        return time.clock_gettime(~pid << 3 | 2) * 1000
    except OSError:
        return 0.0


def resident_mb(pid: int) -> float:
    """Returns the present memory of a process, MB (10^6 bytes); 0: it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def alive(pid: int) -> bool:
    """True if the process runs; a child that ended without a wait is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Attackers:
    """The process of the attackers, which waits for the line to begin."""

    def __init__(self, name: str, address: str, seconds: float, share: float) -> None:
        command = [sys.executable, str(attackers.__file__), name, address, str(seconds), str(share)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "ready\n":
            raise SystemExit(f"the attackers failed before they began ({name}); see above")

    def begin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self, row: Row) -> None:
        """Reads their report, and ends them immediately if they still run."""
        self.process.terminate()
        try:
            output, _ = self.process.communicate(timeout=AFTER_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            output, _ = self.process.communicate()
        if not output:
            raise SystemExit(f"the attackers failed ({row.attack}, {row.front}); see above")
        done = attackers.Report(**json.loads(output))
        row.opened, row.ended, row.unmade = done.opened, done.ended, done.failed
        row.attackers_cpu = done.cpu_s / done.secs * 100


def measured(attack: str, front: str, options: argparse.Namespace) -> Row:
    row, seconds = Row(attack=attack, front=front), max(options.seconds, SECONDS_MIN.get(attack, 0.0))
    with (
        tempfile.TemporaryDirectory(prefix="evenq-bench-") as folder,
        servers.broker(Path(folder), EVENQ_BROKER_FRONT=front) as broker,
    ):
        try:
            with evenq.Admin(endpoint=broker.address) as admin:
                for topic in (attackers.TOPIC, attackers.WAITED):
                    admin.create_topic(topic, queues=8)
            good = Good(broker.address)
            for _ in range(WARM_CALLS):
                if failure := good.call(wait=True):
                    raise SystemExit(f"the broker (front={front}) fails without any attack: {failure}")
            crowd = None if attack == NOTHING else Attackers(attack, broker.address, seconds, options.share)
            try:
                _watch(row, broker.pid, good, crowd, seconds)
            finally:
                if crowd is not None:
                    crowd.end(row)
            good.channel.close()
            _look_afterwards(row, broker)
        finally:
            # Kill: no data is kept, and a front that does not answer may not end by itself.
            with contextlib.suppress(ProcessLookupError):
                os.kill(broker.pid, signal.SIGKILL)
    return row


def _watch(row: Row, pid: int, good: Good, crowd: Attackers | None, seconds: float) -> None:
    over = threading.Event()
    client = threading.Thread(target=good.work, args=(row, pid, over))
    before_mb, before_s, began = resident_mb(pid), servers.cpu_s(pid), time.perf_counter()
    client.start()
    try:
        if crowd is not None:
            crowd.begin()
        while (now_s := time.perf_counter() - began) < seconds and alive(pid):
            row.grown_mb = max(row.grown_mb, resident_mb(pid) - before_mb)
            row.broker_cpu = (servers.cpu_s(pid) - before_s) / max(now_s, LOOK_S) * 100
            if row.grown_mb > MEMORY_MAX_MB:
                row.stopped_after_s = now_s
                break
            time.sleep(LOOK_S)
    finally:
        over.set()
        client.join()


def _look_afterwards(row: Row, broker: servers.Server) -> None:
    began = time.perf_counter()
    good = Good(broker.address)
    failure = good.call(AFTER_S, wait=True)
    good.channel.close()
    if not failure:
        row.again_ms = (time.perf_counter() - began) * 1000
    row.alive = alive(broker.pid)


def main() -> int:
    """Measures, shows and saves. Returns 1 if our own front misses a goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="of an attack (default 10)")
    names = ", ".join(NAMES)
    parser.add_argument("--only", nargs="+", default=NAMES, choices=NAMES, metavar="NAME", help=f"of {names}")
    parser.add_argument("--fronts", nargs="+", default=FRONTS, choices=FRONTS, help="default: both, in turn")
    parser.add_argument("--share", type=float, default=0.25, metavar="S", help="of a core, for attackers (0.25)")
    parser.add_argument("--no-save", action="store_true", help="write no file into benchmarks/results")
    options = parser.parse_args()
    if sys.platform != "linux":
        parser.error("figures come from /proc, so it runs on Linux only")
    if not (0 < options.seconds <= 600 and 0 < options.share <= 1):
        parser.error(
            f"--seconds {options.seconds:g} --share {options.share:g}: give up to 600 seconds, and up to one core"
        )
    connections.raise_limit(attackers.FILES - connections.SPARE_FILES)
    before, rows = os.getloadavg()[0], []
    for number, attack in enumerate(options.only):
        for front in options.fronts if number % 2 == 0 else options.fronts[::-1]:
            CONSOLE.print(f"[dim]{attack}, front={front} ...[/dim]")
            rows.append(measured(attack, front, options))
            CONSOLE.print("  " + "; ".join(rows[-1].cells()[2:-2]), rows[-1].why, markup=False)
    rows.sort(key=lambda row: (NAMES.index(row.attack), FRONTS.index(row.front)))
    lines = [row.cells() for row in rows]
    CONSOLE.print(report.drawn(f"A good client beside attackers, {os.cpu_count()} cores", TITLES, lines))
    if not (options.no_save or len(rows) < len(NAMES) * len(FRONTS)):
        about = (
            f"Each attack {options.seconds:g} s long at a broker of its own with default settings, by one process with "
            f"{options.share * 100:.0f} % of a core at most; all on one machine. {load_words(before)}"
        )
        path = report.written(
            "attacks", "A good client beside attackers", about, TITLES, lines, front="both", load_before=before
        )
        CONSOLE.print(f"saved in {path.relative_to(load.PROJECT)}")
    return 0 if all(row.ok for row in rows if row.front == "http2") else 1


def load_words(before: float) -> str:
    """Returns whether the machine had other work, which makes the times unreliable."""
    busy = before > BUSY_LOAD
    return "The machine had other work: compare rows, do not quote times." if busy else "The machine had no other work."


if __name__ == "__main__":
    raise SystemExit(main())
