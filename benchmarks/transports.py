"""`make bench-tls`: the same loads on evenq without TLS, with TLS, and with TLS and client certificates, in turn.

    python benchmarks/transports.py [--rounds 5] [--quick] [--only unary single batch receive latency connect]

Three brokers run in parallel and differ only in their transport; the idle ones cost nothing. `replay` makes the loads
of bench-peers (1 KiB bodies, data on disk, asynchronous flush, eight queues); `connect` opens connections for one call
each, without resumed sessions. Certificates are new (ECDSA P-256) and checked by both ends. The order changes with each
round; ratios to plain are taken round by round. A full run takes about ten minutes and writes results/<date>-tls.md. It
needs Go and the package cryptography.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import load
import peers_report as report
import replay_requests as made
import servers
from peers import CONSOLE, LOADS, MORE, QUEUES, Load, topic

from evenq.errors import SettingsError
from evenq.testing.certificates import Authority, here

NAMES = {"plain": "plain", "tls": "TLS", "mtls": "mTLS"}
MESSAGES_MAX = 96_000
"""Most messages of a load of sends, whose requests are prepared in memory."""
RATE, LATENCY_S = 500, 10
CONNECTIONS = 1_000
BOUND = ("-timeout", "300s")


@dataclass
class Side:
    name: str
    server: servers.Server
    flags: tuple[str, ...]
    """Options of `replay`."""
    rows: dict[str, list[float]] = field(default_factory=dict)

    def replayed(self, mode: str, requests: list[bytes], *flags: object) -> load.Replayed:
        """Runs `replay` on this broker."""
        return load.replayed(mode, self.server.address, requests, *self.flags, *BOUND, *map(str, flags))

    def keep(self, what: str, value: float) -> None:
        self.rows.setdefault(what, []).append(value)


@dataclass(frozen=True, slots=True)
class Row:
    """One line: the figures of each side in all rounds, in order."""

    what: str
    unit: str
    values: dict[str, list[float]]
    cpu_us: dict[str, list[float]]
    """CPU of the broker for each message or connection, microseconds; may be empty."""

    def ratios(self, name: str) -> list[float]:
        """Returns the ratios of one side to plain, round by round."""
        return [mine / plain for mine, plain in zip(self.values[name], self.values["plain"], strict=True)]

    def cells(self) -> tuple[str, ...]:
        cpu = [f"{statistics.median(self.cpu_us[name]):.0f}" for name in NAMES if self.cpu_us]
        more = [self.cpu_us["tls"], self.cpu_us["plain"]] if self.cpu_us else []
        extra = [one / two for one, two in zip(*more, strict=True)] if more else []
        return (
            f"{self.what}, {self.unit}",
            *(report.spread(self.values[name]) for name in NAMES),
            *(report.spread(self.ratios(name)) for name in NAMES if name != "plain"),
            f"{' / '.join(cpu)} us" if cpu else "-",
            report.spread(extra) if extra else "-",
        )


TITLES = (
    "what",
    *NAMES.values(),
    "TLS : plain",
    "mTLS : plain",
    "broker CPU a message, plain / TLS / mTLS",
    "CPU, TLS : plain",
)


@contextmanager
def sides(front: str) -> Iterator[list[Side]]:
    """Runs the three brokers until the block ends."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="evenq-bench-")))
        try:
            authority = Authority(folder / "certificates")
        except SettingsError as error:
            raise SystemExit(f"no certificates: {error}") from error
        server, client = authority.sign("server", hosts=here()), authority.sign("client")
        common = {"EVENQ_BROKER_FRONT": front, "EVENQ_BROKER_DEFAULT_QUEUES": str(QUEUES)}
        secured = {
            "EVENQ_BROKER_PORT": "-1",
            "EVENQ_BROKER_TLS__PORT": "0",
            "EVENQ_BROKER_TLS__CERTIFICATE": str(server.certificate),
            "EVENQ_BROKER_TLS__KEY": str(server.key),
        }
        settings = {"plain": {}, "tls": secured, "mtls": {**secured, "EVENQ_BROKER_TLS__CLIENT_CA": str(authority.ca)}}
        tls = ("-ca", str(authority.ca))
        flags = {"plain": (), "tls": tls, "mtls": (*tls, "-cert", str(client.certificate), "-key", str(client.key))}
        yield [
            Side(name, stack.enter_context(servers.broker(folder / name, **common, **settings[name])), flags[name])
            for name in NAMES
        ]


def in_turn(all_sides: list[Side], number: int) -> list[Side]:
    first = number % len(all_sides)
    return all_sides[first:] + all_sides[:first]


def row(all_sides: list[Side], what: str, unit: str, key: str) -> Row:
    cpu = {side.name: side.rows.get(f"{key} cpu", []) for side in all_sides}
    return Row(what, unit, {side.name: side.rows[key] for side in all_sides}, cpu if all(cpu.values()) else {})


def speed(case: Load, all_sides: list[Side], rounds: int, part: int) -> list[Row]:
    flags = {name: int(str(value)) for name, value in case.flags.items()}
    batch, conns = flags.get("batch", 1), flags.get("conns", 2)
    count = min(flags["n"], MESSAGES_MAX) // part // batch * batch
    for number in range(rounds):
        for side in in_turn(all_sides, number):
            name = topic(case.name, number if case.mode == "recv" else 0)
            if case.mode == "recv":
                fill(side, name, count + MORE)
                requests, mode, extra = [made.receive(name, f"g-{name}", "*", is_sql=False)], "consume", ("-n", count)
            else:
                requests, mode, extra = made.sends("normal", name, count, batch=batch, together=True), "call", ()
            before = servers.cpu_s(side.server.pid)
            done = side.replayed(mode, requests, "-c", flags["c"], "-conns", conns, *extra)
            spent = servers.cpu_s(side.server.pid) - before
            if case.mode != "recv":
                made.must_be_ok("SendMessage", done.answers())
            messages = done.messages if case.mode == "recv" else count
            side.keep(case.name, messages / done.secs)
            side.keep(f"{case.name} cpu", spent / messages * 1e6)
    return [row(all_sides, case.what, "messages/s", case.name)]


def fill(side: Side, name: str, count: int) -> None:
    """Sends this number of messages to a topic."""
    answers = side.replayed("call", made.sends("normal", name, count, batch=16, together=True), "-c", 16).answers()
    made.must_be_ok("SendMessage", answers)


def latencies(all_sides: list[Side], rounds: int, part: int) -> list[Row]:
    """Measures from just before the send to the end of the answer with the message, 500 a second."""
    for number in range(rounds):
        for side in in_turn(all_sides, number):
            name = topic("latency", number)
            fill(side, name, 1)  # makes the topic
            request = made.receive(name, f"g-{name}", "*", is_sql=False)
            sends = made.sends("normal", name, RATE * LATENCY_S // part)
            before = servers.cpu_s(side.server.pid)
            done = side.replayed("latency", [request, *sends], "-c", QUEUES, "-rate", RATE)
            side.keep("p99 cpu", (servers.cpu_s(side.server.pid) - before) / len(sends) * 1e6)
            for quantile in ("p50", "p99"):
                side.keep(quantile, done.figures[f"{quantile}_ms"])
    return [row(all_sides, f"send to receive, {RATE}/s, {quantile}", "ms", quantile) for quantile in ("p50", "p99")]


def connects(all_sides: list[Side], rounds: int, part: int) -> list[Row]:
    """Measures new connections, eight at a time, one call each."""
    count = CONNECTIONS // part
    for number in range(rounds):
        for side in in_turn(all_sides, number):
            before = servers.cpu_s(side.server.pid)
            done = side.replayed("connect", [], "-n", count, "-c", 8)
            side.keep("connect cpu", (servers.cpu_s(side.server.pid) - before) / count * 1e6)
            side.keep("connect", count / done.secs)
    return [row(all_sides, "new connections, 8 at a time", "connections/s", "connect")]


def measured(options: argparse.Namespace) -> list[Row]:
    rounds, part = (2, 6) if options.quick else (options.rounds, 1)
    load.replay()
    rows: list[Row] = []
    with sides(options.front) as all_sides:
        for side in all_sides:
            CONSOLE.print(f"[dim]warming {NAMES[side.name]} ...[/dim]")
            fill(side, "warm", MESSAGES_MAX // 4 // part)
        for case in LOADS:
            if not options.only or case.name in options.only:
                CONSOLE.print(f"[dim]{case.what} ...[/dim]")
                rows += speed(case, all_sides, rounds, part)
        for name, what, others in (("latency", "send to receive", latencies), ("connect", "new connections", connects)):
            if not options.only or name in options.only:
                CONSOLE.print(f"[dim]{what} ...[/dim]")
                rows += others(all_sides, rounds, part)
    return rows


def main() -> int:
    """Measures, shows and saves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each load is run on each broker")
    parser.add_argument("--quick", action="store_true", help="two rounds, a sixth of the messages; nothing is saved")
    parser.add_argument("--only", nargs="+", choices=[*(one.name for one in LOADS), "latency", "connect"])
    parser.add_argument("--front", default="http2", choices=["http2", "grpcio"], help="evenq's gRPC front")
    parser.add_argument("--no-save", action="store_true", help="write no file into benchmarks/results")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: give 1 or more")
    before = os.getloadavg()[0]
    lines = [one.cells() for one in measured(options)]
    CONSOLE.print(
        report.drawn(f"evenq without TLS, with TLS, with mTLS: medians, {os.cpu_count()} cores", TITLES, lines)
    )
    if not (options.quick or options.only or options.no_save):
        about = f"{options.rounds} rounds in turn, bodies of 1 KiB, {report.WHERE}; median (least to most)."
        title = "evenq without TLS, with TLS, with mTLS"
        path = report.written("tls", title, about, TITLES, lines, front=options.front, load_before=before)
        CONSOLE.print(f"saved in {path.relative_to(load.PROJECT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
