"""`make bench-replication-peers`: three copies compared with Apache RocketMQ's SYNC_MASTER and two slaves, in turn.

    python benchmarks/replication_peers.py [--rounds 5] [--quick] [--only unary single batch receive latency]
                                           [--modes sync memory]

Mode `memory` (a message counts once every copy has written it) is compared with SYNC_MASTER and ASYNC_FLUSH, which
guarantees the same. `sync` (once it is on every copy's disk) is compared with SYNC_MASTER and SYNC_FLUSH, which
guarantees less: it is on the master's disk, and the slaves have written it. The load is that of bench-peers; all
processes share this machine. RocketMQ's group does not elect another master, so no process is killed. A full run takes
about fifteen minutes and writes results/<date>-replication-peers.md. It needs Java 17, Maven, Go and 8 GB of memory.
"""

from __future__ import annotations

import argparse
import os

import load
import peers_report as report
import servers
from peers import CONSOLE, LOADS, QUEUES, WARM_UP, Side, compare, latencies, topic, warm_up
from peers_report import Row
from replication import FLUSH, pid_of, sides
from rocketmq_peer import rocketmq_group

PEER_FLUSH = {"sync": "SYNC_FLUSH", "memory": "ASYNC_FLUSH"}
GOAL = 1.0
"""No load may be slower than with RocketMQ."""


def measured(mode: str, options: argparse.Namespace) -> list[Row]:
    rounds, part = (2, 6) if options.quick else (options.rounds, 1)
    program, rows = load.built(), []
    with rocketmq_group(flush=PEER_FLUSH[mode]) as peer, sides(mode) as (_, three):
        names = ["warm", *(topic(name, 0) for name in ("unary", "single", "batch"))]
        names += [topic(name, number) for name in ("receive", "latency") for number in range(rounds)]
        CONSOLE.print(f"[dim]{mode}: {len(names)} topics at RocketMQ ...[/dim]")
        peer.make(names, QUEUES)
        leader = three.leader
        both = (Side("evenq", servers.Server(pid_of(leader), leader.address, 0)), Side("RocketMQ", peer.server))
        warm_up(program, both, WARM_UP // part)
        for case in LOADS:
            if case.name in options.only:
                CONSOLE.print(f"[dim]{mode}: {case.what} ...[/dim]")
                rows.append(compare(case, program, both, rounds, part))
        if "latency" in options.only:
            CONSOLE.print(f"[dim]{mode}: send to receive ...[/dim]")
            rows += latencies(program, both, rounds, part)
    for row in rows:
        row.what, row.goal = f"{mode}: {row.what}", GOAL
    return rows


def main() -> int:
    """Measures, shows and saves. Returns 1 if a goal was missed."""
    names = [*(one.name for one in LOADS), "latency"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each load is run on each side")
    parser.add_argument("--quick", action="store_true", help="two rounds, a sixth of the messages; nothing is saved")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--modes", nargs="+", choices=[*FLUSH], default=[*FLUSH])
    parser.add_argument("--no-save", action="store_true", help="write no file into benchmarks/results")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: give 1 or more")
    before = os.getloadavg()[0]
    rows: list[Row] = []
    for mode in options.modes:
        of_mode = measured(mode, options)
        title = f"three copies, {mode} mode: medians, {os.cpu_count()} cores"
        CONSOLE.print(report.drawn(title, report.TITLES, map(report.cells, of_mode)))
        rows += of_mode
    cells = [report.cells(row) for row in rows]
    if not (options.quick or options.no_save or options.only != names):
        about = (
            f"{options.rounds} rounds in turn, bodies of 1 KiB, data on one disk, eight queues, all processes on this "
            "machine; median (least to most). Modes are explained at the begin of benchmarks/replication_peers.py."
        )
        title = "Three copies beside RocketMQ's SYNC_MASTER with two slaves"
        path = report.written(
            "replication-peers", title, about, report.TITLES, cells, front="http2", load_before=before
        )
        CONSOLE.print(f"saved in {path.relative_to(load.PROJECT)}")
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
