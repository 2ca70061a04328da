"""`make bench-nats`: evenq's own wire and SDK compared with NATS JetStream, in one run, in turn.

    python benchmarks/jetstream.py [--rounds 5] [--quick] [--only wire send single drain] [--sizes 1024 100]

- wire: compares the servers: prepared `Publish` calls of 256 messages of 1 KiB and `Pull` calls of 512, from a Go
  program, with NATS' Go client: asynchronous publish, and fetch with an ack each.
- send: `Producer.send_batch` (blocks of 1,000) and `send_async`, each beside `publish_async` of nats-py with its window
  of 4,000; every message is acknowledged when the clock stops.
- single: one `Producer.send` after another beside one awaited `publish` after another.
- drain: `PullConsumer.poll` and `PushConsumer`, each beside a pull subscription of nats-py that fetches 500 and
  acknowledges each; a new group and a new durable consumer each round, joining included.

The broker has eight queues, NATS a stream of eight subjects; both keep data in files on the same disk and flush
asynchronously. Both clients are Python processes with asyncio's own loop, and take turns. It needs Go (the server of
NATS is built once) and port 4222, and installs nats-py into a separate environment. A full run takes about seven
minutes and writes results/<date>-nats.md. The first run takes some minutes more to build.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import load
import nats_peer
import peers_report as report
import replay_requests as made
import servers
from peers import CONSOLE, QUEUES
from turns import Client, Turn, started

import evenq
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2

HERE = Path(__file__).resolve().parent
SEND_CPU_US = 250.0
BLOCK, READ = 256, 512
"""Messages of one `Publish` and one `Pull`."""
BLOCK_BYTES_MAX = 4 << 20
TITLES = (
    "what",
    "evenq",
    "NATS JetStream",
    "ratio",
    "client CPU a message, both",
    "server CPU a message, both",
    "goal",
    "ok",
)


@dataclass
class Row(report.Row):
    """A line with the client's CPU."""

    client_us: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))

    def cells(self) -> tuple[str, ...]:
        both = [
            " / ".join(f"{statistics.median(one):.1f}" if one else "-" for one in costs) + " us" if any(costs) else "-"
            for costs in (self.client_us, self.cpu_us)
        ]
        return (
            f"{self.what}, {self.unit}",
            report.spread(self.ours),
            report.spread(self.theirs),
            report.spread(self.ratios),
            *both,
            self.goal_text,
            report.said(self),
        )


@dataclass(frozen=True, slots=True)
class Case:
    """One job of the SDK and its counterpart."""

    part: str
    what: str
    ours: str
    """Name of the job in sdk_client.py."""
    theirs: str
    """Name of the job in nats_client.py."""
    goal: float | None


CASES = (
    Case("send", "send_batch : publish_async", "send_batch", "publish_async", 1.0),
    Case("send", "send_async : publish_async", "send_async", "publish_async", None),
    Case("single", "send : publish, one at a time", "send", "publish", None),
    Case("drain", "PullConsumer : fetch and ack", "pull", "fetch", 2.0),
    Case("drain", "PushConsumer : fetch and ack", "push", "fetch", 2.0),
)
COUNTS = {"send": 100_000, "single": 5_000, "drain": 100_000}
WIRE = 100_000


@dataclass
class Side:
    """A server and its client, with the figures of all rounds by job and size."""

    server: servers.Server
    client: Client
    rates: dict[str, list[float]] = field(default_factory=dict)
    client_us: dict[str, list[float]] = field(default_factory=dict)
    server_us: dict[str, list[float]] = field(default_factory=dict)

    def work(self, key: str, work: str, **arguments: object) -> None:
        before = servers.cpu_s(self.server.pid)
        turn: Turn = self.client.ask(work, **arguments)
        spent = servers.cpu_s(self.server.pid) - before
        for figures, value in (
            (self.rates, turn.messages / turn.secs),
            (self.client_us, turn.cpu_s / turn.messages * 1e6),
            (self.server_us, spent / turn.messages * 1e6),
        ):
            figures.setdefault(key, []).append(value)


@contextmanager
def both() -> Iterator[tuple[Side, Side]]:
    """Runs evenq and NATS with their clients until the block ends."""
    python = nats_peer.python()
    CONSOLE.print("[dim]NATS starts (the first time it is built, some minutes) ...[/dim]")
    with nats_peer.nats() as nats, tempfile.TemporaryDirectory(dir=nats_peer.CACHE, prefix="evenq-") as folder:
        settings = {"EVENQ_BROKER_DEFAULT_QUEUES": str(QUEUES)}
        with (
            servers.broker(Path(folder), **settings) as broker,
            started(sys.executable, HERE / "sdk_client.py", broker.address) as sdk,
            started(python, HERE / "nats_client.py", nats.address) as client,
        ):
            yield Side(broker, sdk), Side(nats, client)


def of_clients(ours: Side, theirs: Side, cases: list[Case], size: int, rounds: int, part: int) -> list[Row]:
    """Returns the lines of both SDKs with bodies of one size."""
    works = [(ours, case.ours, case.part) for case in cases]
    works += [(theirs, name, part_of) for name, part_of in dict.fromkeys((case.theirs, case.part) for case in cases)]
    counts = {name: count // part for name, count in COUNTS.items()}
    filled = f"filled-{size}"
    if any(case.part == "drain" for case in cases):
        CONSOLE.print(f"[dim]{counts['drain']:,} messages of {size} bytes to read ...[/dim]")
        ours.client.ask("send_batch", topic=filled, count=counts["drain"], size=size)
        theirs.client.ask("publish_async", topic=filled, count=counts["drain"], size=size)
    for number in range(rounds):
        CONSOLE.print(f"[dim]{size} bytes, round {number + 1} of {rounds} ...[/dim]")
        for side, work, part_of in works if number % 2 == 0 else works[::-1]:
            more = (
                {"topic": filled, "group": f"{work}-{size}-{number}"}
                if part_of == "drain"
                else {"topic": f"{work}-{size}", "size": size}
            )
            side.work(f"{work} {size}", work, count=counts[part_of], **more)
    rows = []
    for case in cases:
        mine, other = f"{case.ours} {size}", f"{case.theirs} {size}"
        what = f"{case.what}, {size} bytes"
        client_us = ours.client_us[mine], theirs.client_us[other]
        cpu_us = ours.server_us[mine], theirs.server_us[other]
        rows.append(
            Row(
                what,
                "messages/s",
                ours.rates[mine],
                theirs.rates[other],
                case.goal,
                more_is_better=True,
                cpu_us=cpu_us,
                client_us=client_us,
            )
        )
        if case.part == "single" and size == 1_024:
            rows.append(
                Row(f"client CPU of a {case.what}", "us", *client_us, SEND_CPU_US, more_is_better=False, absolute=True)
            )
    return rows


def publishes(topic: str, count: int) -> list[bytes]:
    """PublishRequests with blocks for the queues in turn."""
    requests = []
    for number, request in enumerate(made.sends("normal", topic, count, batch=BLOCK, together=True)):
        queue = common_pb2.Queue(topic=topic, queue_id=number % QUEUES)
        messages = service_pb2.SendMessageRequest.FromString(request).messages
        requests.append(data_pb2.PublishRequest(queue=queue, messages=messages).SerializeToString())
    return requests


def pulls(topic: str, ends: list[int]) -> list[bytes]:
    """PullRequests for all messages of all queues; `ends`: the number of each queue."""
    return [
        data_pb2.PullRequest(
            client_id="replay",
            queue=common_pb2.Queue(topic=topic, queue_id=queue),
            offset=offset,
            batch_max=READ,
            bytes_max=BLOCK_BYTES_MAX,
            committed=-1,
        ).SerializeToString()
        for offset in range(0, max(ends), READ)
        for queue, end in enumerate(ends)
        if offset < end
    ]


def checked(what: str, answers: list[bytes], parse: Callable[[bytes], object]) -> list[object]:
    """Returns the answers; ends the run if one is not OK."""
    parsed = [parse(one) for one in answers]
    for one in parsed:
        if one.status.code != definition_pb2.OK:  # type: ignore[attr-defined]  # both answers have one
            raise SystemExit(f"{what} was answered {one.status}")  # type: ignore[attr-defined]
    return parsed


def of_wire(ours: Side, rounds: int, part: int) -> list[Row]:
    """Both servers under Go programs."""
    count = WIRE // part // (BLOCK * QUEUES) * (BLOCK * QUEUES)
    ends = [count // QUEUES] * QUEUES
    published: tuple[list[float], list[float]] = ([], [])
    pulled: tuple[list[float], list[float]] = ([], [])
    cpu: tuple[list[float], list[float]] = ([], [])
    load.replay()
    nats_peer.go_load()
    address, pid = ours.server.address, ours.server.pid
    with evenq.Admin(endpoint=address) as admin:
        for number in range(rounds):
            admin.create_topic(f"wire-{number}", queues=QUEUES)

    def mine(number: int) -> None:
        topic = f"wire-{number}"
        for what, requests, rates, costs in (
            ("Publish", publishes(topic, count), published[0], cpu[0]),
            ("Pull", pulls(topic, ends), pulled[0], cpu[1]),
        ):
            before = servers.cpu_s(pid)
            done = load.replayed("call", address, requests, "-method", f"/evenq.v1.Data/{what}", "-c", "8")
            costs.append((servers.cpu_s(pid) - before) / count * 1e6)
            rates.append(count / done.secs)
            answers = checked(what, done.answers(), getattr(data_pb2, f"{what}Response").FromString)
            if what == "Pull":
                came = sum(len(one.messages) for one in answers)  # type: ignore[attr-defined]  # of a PullResponse
                if came != count:
                    raise SystemExit(f"Pull brought {came} of {count} messages; is {READ} above the broker's batch?")

    def other(_number: int) -> None:
        rates = nats_peer.go_rates()
        published[1].append(rates["async publish"])
        pulled[1].append(rates["fetch+ack"])

    for number in range(rounds):
        CONSOLE.print(f"[dim]wire, round {number + 1} of {rounds} ...[/dim]")
        for side in (mine, other) if number % 2 == 0 else (other, mine):
            side(number)
    return [
        Row(
            f"wire: Publish blocks of {BLOCK} : async publish",
            "messages/s",
            *published,
            1.0,
            more_is_better=True,
            cpu_us=(cpu[0], []),
        ),
        Row(
            f"wire: Pull of {READ} : fetch and ack",
            "messages/s",
            *pulled,
            1.0,
            more_is_better=True,
            cpu_us=(cpu[1], []),
        ),
    ]


def measured(options: argparse.Namespace) -> list[Row]:
    rounds, part = (2, 10) if options.quick else (options.rounds, 1)
    cases = [case for case in CASES if not options.only or case.part in options.only]
    rows: list[Row] = []
    with both() as (ours, theirs):
        if not options.only or "wire" in options.only:
            rows += of_wire(ours, rounds, part)
        if cases:
            for size in options.sizes:
                rows += of_clients(ours, theirs, cases, size, rounds, part)
    return rows


def main() -> int:
    """Measures, shows and saves. Returns 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each work is done on each side")
    parser.add_argument("--quick", action="store_true", help="two rounds, a tenth of the messages; nothing is saved")
    parser.add_argument("--only", nargs="+", choices=["wire", *dict.fromkeys(case.part for case in CASES)])
    parser.add_argument(
        "--sizes",
        nargs="+",
        type=int,
        default=[1_024, 100],
        metavar="BYTES",
        help="bodies of the clients' lines (default 1024 100)",
    )
    parser.add_argument("--no-save", action="store_true", help="write no file into benchmarks/results")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: give 1 or more")
    if wrong := [size for size in options.sizes if not 1 <= size <= 1 << 20]:
        parser.error(f"--sizes {wrong[0]}: give 1 to {1 << 20}, NATS takes no larger body by default")
    before = os.getloadavg()[0]
    rows = measured(options)
    lines = [row.cells() for row in rows]
    title = f"evenq beside NATS JetStream {nats_peer.version()}, nats-py {nats_peer.CLIENT}"
    CONSOLE.print(report.drawn(f"{title}: medians, {os.cpu_count()} cores", TITLES, lines))
    if not (options.quick or options.only or options.no_save):
        about = f"{options.rounds} rounds in turn, {report.WHERE} or subjects; median (least to most)."
        path = report.written("nats", title, about, TITLES, lines, front="http2", load_before=before)
        CONSOLE.print(f"saved in {path.relative_to(load.PROJECT)}")
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
