"""`make bench-delivery`: every kind of message and every call of a delivery, compared with the floor in one run.

    python benchmarks/delivery.py [--quick] [--rounds N] [--only NAME ...] [--no-save]

A line is one RPC, or a receive with its acks. Both servers get the same prepared requests from the same program
(`replay`). Measurements without a floor follow: 5,000 parked polls, a million deliveries in flight (micro/inflight.py),
and the latency at 500 messages/s compared with handlers that only forward bytes. Goals and explanation: README.md. A
full run takes ten minutes and writes `results/<date>-delivery.md`.
"""

from __future__ import annotations

import argparse
import datetime as dt
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import load
import parked
import replay_requests as made
import servers
from run import CONSOLE, RESULTS, Row, machine, show

GOAL = 0.5
IN_FLIGHT = 64
READERS = 8


@dataclass(frozen=True, slots=True)
class Turn:
    """One round's load on one server."""

    server: servers.Server
    is_floor: bool
    number: int
    count: int


@dataclass(frozen=True, slots=True)
class Took:
    """Time and CPU of one round, without preparations."""

    count: int
    secs: float
    cpu_s: float


Load = Callable[[Turn], Took]


def calls(turn: Turn, method: str, requests: list[bytes], *options: str) -> tuple[Took, list[bytes]]:
    """Sends unary requests, 64 in flight; each must be answered OK."""
    before = servers.cpu_s(turn.server.pid)
    done = load.replayed("call", turn.server.address, requests, "-method", method, "-c", str(IN_FLIGHT), *options)
    cpu_s = servers.cpu_s(turn.server.pid) - before
    answers = done.answers()
    made.must_be_ok(method, answers)
    return Took(len(requests), done.secs, cpu_s), answers


def sends(kind: str) -> Load:

    def run(turn: Turn) -> Took:
        return calls(turn, "SendMessage", made.sends(kind, f"send-{kind}", turn.count))[0]

    return run


def commits(turn: Turn) -> Took:
    """EndTransaction of half messages that were sent before."""
    topic = "commit"
    _, answers = calls(turn, "SendMessage", made.sends("transaction", topic, turn.count))
    return calls(turn, "EndTransaction", made.commits(topic, answers))[0]


def filled(turn: Turn, kind: str, topic: str, count: int) -> None:
    """Sends `count` messages to a new topic and waits until they can be received."""
    if turn.is_floor:
        return
    if kind == "lite":
        calls(turn, "SyncLiteSubscription", [made.lite_subscription(topic, f"g-{topic}")])
    _, answers = calls(turn, "SendMessage", made.sends(kind, topic, count, batch=1 if kind == "transaction" else 16))
    if kind == "transaction":
        calls(turn, "EndTransaction", made.commits(topic, answers))
    if kind == "delay-short":
        time.sleep(made.SHORT_DELAY_MS / 1000 + 1)


def receives(kind: str, *, filtered: str = "", is_sql: bool = False) -> Load:
    """ReceiveMessage of 32 and one AckMessage, eight readers; half of the messages pass the filter."""

    def run(turn: Turn) -> Took:
        topic = f"receive-{kind}{'-sql' if is_sql else '-tag' if filtered else ''}-{turn.number}"
        # Some more than are read, so that the last polls do not wait for each other.
        filled(turn, kind, topic, (turn.count + 1_500) * (2 if filtered else 1))
        request = made.receive(topic, f"g-{topic}", filtered or "*", is_sql=is_sql)
        before = servers.cpu_s(turn.server.pid)
        done = load.replayed(
            "consume", turn.server.address, [request], "-c", str(READERS), "-n", str(turn.count), "-id", made.CLIENT
        )
        return Took(done.messages, done.secs, servers.cpu_s(turn.server.pid) - before)

    return run


def pulls(turn: Turn) -> Took:
    """PullMessage of 32, eight readers."""
    topic = f"pull-{turn.number}"
    filled(turn, "normal", topic, turn.count)
    before = servers.cpu_s(turn.server.pid)
    options = ("-method", "PullMessage", "-stream", "-c", str(READERS))
    done = load.replayed("call", turn.server.address, made.pulls(topic, turn.count), *options)
    return Took(done.messages, done.secs, servers.cpu_s(turn.server.pid) - before)


def handled(method: str, request: Callable[[str, str, str], bytes]) -> Load:
    """A call with the handle of a delivery, a different one for each call."""

    def run(turn: Turn) -> Took:
        topic = f"{method.lower()}-{turn.number}"
        lines = [b"%b %b" % (b"0" * 34, b"h" * 120)] * turn.count
        if not turn.is_floor:
            filled(turn, "normal", topic, turn.count + 1_500)
            receive = made.receive(topic, f"g-{topic}", "*", is_sql=False)
            options = ("-c", str(READERS), "-n", str(turn.count), "-ack=false")
            lines = load.replayed("consume", turn.server.address, [receive], *options).output.splitlines()[: turn.count]
        return calls(turn, method, [request(topic, *line.decode().split()) for line in lines])[0]

    return run


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    what: str
    load: Load
    count: int


def cases() -> list[Case]:
    """All lines with a floor, with the messages of a full round."""
    kinds = ["normal", "fifo", "delay", "transaction", "priority", "lite"]
    lines = [Case(f"send-{kind}", f"SendMessage, {kind}", sends(kind), 5_000) for kind in kinds]
    lines.insert(4, Case("commit", "EndTransaction, commit", commits, 5_000))
    for kind in kinds:
        sent = "delay-short" if kind == "delay" else kind
        lines.append(Case(f"receive-{kind}", f"receive 32 + one ack, {kind}", receives(sent), 10_000))
    return [
        *lines,
        Case("tag", "receive 32 + one ack, half fits a tag", receives("normal", filtered="A"), 6_000),
        Case("sql", "receive 32 + one ack, half fits SQL", receives("normal", filtered=made.SQL, is_sql=True), 6_000),
        Case("pull", "PullMessage, 32", pulls, 20_000),
        Case("change", "ChangeInvisibleDuration", handled("ChangeInvisibleDuration", made.change), 5_000),
        Case("dead", "ForwardMessageToDeadLetterQueue", handled("ForwardMessageToDeadLetterQueue", made.dead), 5_000),
    ]


def compare(case: Case, broker: servers.Server, floor: servers.Server, *, rounds: int, part: int) -> Row:
    """Runs both in turn; the order changes with each round."""
    row = Row(case.what, "messages/s", f">= {GOAL} x floor")
    for number in range(rounds):
        pairs = [(floor, row.floor, row.cpu_floor_us), (broker, row.ours, row.cpu_ours_us)]
        for server, speeds, costs in pairs if number % 2 == 0 else pairs[::-1]:
            took = case.load(Turn(server, server is floor, number, case.count // part))
            speeds.append(took.count / took.secs)
            costs.append(took.cpu_s / took.count * 1e6)
        row.ratios.append(row.ours[-1] / row.floor[-1])
    row.ok = statistics.median(row.ratios) >= GOAL
    return row


def latency(broker: servers.Server, relay: servers.Server, *, rounds: int) -> list[Row]:
    """Measures the time from birth to receipt at 500 messages/s, compared with handlers that forward bytes."""
    program = load.built()
    rows = [Row("send to receive, 500/s, p50", "ms", "<= 1.5 ms"), Row("send to receive, 500/s, p99", "ms", "<= 6 ms")]
    for number in range(rounds):
        flags = {"topic": f"e2e-{number}", "group": f"e2e-{number}", "rate": 500, "secs": 5}
        load.run(program, "send", broker.address, topic=f"e2e-{number}", n=1, c=1)  # makes the topic
        pairs = [("floor", relay), ("ours", broker)]
        for which, server in pairs if number % 2 == 0 else pairs[::-1]:
            figures = load.run(program, "e2e", server.address, **flags)
            for row, name in zip(rows, ("p50_ms", "p99_ms"), strict=True):
                getattr(row, which).append(figures[name])
    for row, most in zip(rows, (1.5, 6.0), strict=True):
        row.ratios = [ours / floor for ours, floor in zip(row.ours, row.floor, strict=True)]
        row.ok = statistics.median(row.ours) <= most
    return rows


def in_flight(*, quick: bool) -> tuple[Row, str]:
    """Runs micro/inflight.py and returns its result and output."""
    command = ["benchmarks/micro/inflight.py", *(("--count", "100000") if quick else ())]
    done = subprocess.run(
        [sys.executable, *command], cwd=RESULTS.parent.parent, capture_output=True, text=True, check=False
    )
    if done.returncode not in {0, 1}:
        raise SystemExit(f"{command[0]} failed: {done.stderr.strip()}")
    each = re.search(r"(\d+) bytes each", done.stdout)
    ratios = [float(one) for one in re.findall(r"ratio ([\d.]+)", done.stdout)]
    row = Row("ack p99, a million in flight to a thousand", "bytes each", "<= 2 x, <= 300 bytes")
    row.ours, row.ratios, row.ok = [float(each[1]) if each else 0.0], ratios, done.returncode == 0
    return row, f"$ python {' '.join(command)}\n{done.stdout.strip()}"


@dataclass
class Found:
    rows: list[Row] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def measured(options: argparse.Namespace, names: list[str]) -> Found:
    figures = Found()
    rounds = options.rounds or (3 if options.quick else 5)
    part = 5 if options.quick else 1
    with (
        tempfile.TemporaryDirectory(prefix="evenq-bench-") as folder,
        servers.broker(Path(folder)) as broker,
        servers.floor() as floor,
    ):
        for case in cases():
            if case.name in names:
                CONSOLE.print(f"[dim]{case.what} ...[/dim]")
                figures.rows.append(compare(case, broker, floor, rounds=rounds, part=part))
    # One by one, on a broker without other load.
    if "latency" in names:
        CONSOLE.print("[dim]latency ...[/dim]")
        with (
            tempfile.TemporaryDirectory(prefix="evenq-bench-") as folder,
            servers.broker(Path(folder)) as broker,
            servers.floor("--relay") as relay,
        ):
            figures.rows += latency(broker, relay, rounds=1 if options.quick else rounds)
    if "polls" in names:
        CONSOLE.print("[dim]parked polls ...[/dim]")
        with tempfile.TemporaryDirectory(prefix="evenq-bench-") as folder, servers.broker(Path(folder)) as broker:
            figures.rows += parked.rows(broker, quick=options.quick)
    if "inflight" in names:
        CONSOLE.print("[dim]in flight ...[/dim]")
        row, text = in_flight(quick=options.quick)
        figures.rows.append(row)
        figures.texts.append(text)
    return figures


def save(figures: Found) -> Path:
    """The table as Markdown, with the machine; a later run of the day replaces it."""
    now = dt.datetime.now(dt.UTC)
    facts = machine()
    packages = ", ".join(f"{name} {number}" for name, number in facts.pop("packages").items())
    lines = [
        f"# The benchmarks of delivery, {now:%Y-%m-%d %H:%M} UTC",
        "",
        "Machine: " + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items()) + ".",
        f"Packages: {packages}.",
        "",
        "Medians; in brackets the lowest and the highest ratio of the rounds. CPU: of the server, for each message.",
        "",
        "| what | ours | floor | ratio | CPU ours / floor | goal | ok |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in figures.rows:
        cpu = f"{_shown(row.cpu_ours_us)} / {_shown(row.cpu_floor_us)} us" if row.cpu_ours_us else "-"
        ratio = row.note or "-"
        if row.ratios:
            ratio = f"{statistics.median(row.ratios):.2f} ({min(row.ratios):.2f} to {max(row.ratios):.2f})"
        verdict = "-" if row.ok is None else "yes" if row.ok else "**no**"
        cells = [
            f"{_shown(row.ours)} {row.unit}",
            _shown(row.floor) if row.floor else "-",
            ratio,
            cpu,
            row.goal,
            verdict,
        ]
        lines.append(f"| {row.what} | {' | '.join(cells)} |")
    lines += [f"\n```console\n{text}\n```" for text in figures.texts]
    path = RESULTS / f"{now:%Y-%m-%d}-delivery.md"
    path.write_text("\n".join(lines) + "\n")
    return path


def _shown(values: list[float]) -> str:
    middle = statistics.median(values)
    return f"{middle:,.0f}" if middle >= 100 else f"{middle:.2f}"


def main() -> int:
    """Measures, shows and saves. Returns 1 if a goal was missed."""
    names = [*(case.name for case in cases()), "latency", "polls", "inflight"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the messages, three rounds, nothing saved")
    parser.add_argument("--rounds", type=int, default=0, help="how often each load is run (default 5)")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--no-save", action="store_true", help="write no file into benchmarks/results")
    options = parser.parse_args()
    figures = measured(options, options.only)
    show(figures.rows)
    if not options.quick and not options.no_save and options.only == names:
        CONSOLE.print(f"saved in benchmarks/results/{save(figures).name}")
    return 0 if all(row.ok is not False for row in figures.rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
