"""`evenq bench`: runs it with a progress bar and prints rates and percentiles."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from evenq.cli.bench.latencies import Latencies
from evenq.cli.bench.running import BenchPlan, BenchProgress, BenchResult, bench
from evenq.cli.exit_codes import ExitCode
from evenq.cli.output import WIDE, Column, Listing, Page, Scalar, print_page, progress_bar
from evenq.errors import BadRequest
from evenq.runtime.clock import SystemClock

MiB = 1 << 20
_COLUMNS = (
    Column("what", "what"),
    Column("messages", "messages", "number"),
    Column("per_second", "per s", "number"),
    Column("mib_per_second", "MiB/s", "number"),
    Column("p50_ms", "p50 ms", "number"),
    Column("p90_ms", "p90 ms", "number", shown=WIDE),
    Column("p99_ms", "p99 ms", "number"),
    Column("p999_ms", "p99.9 ms", "number"),
    Column("max_ms", "max ms", "number"),
)


def run(options: argparse.Namespace) -> int:
    """Returns 1 if sends failed or messages are missing."""
    if options.use_existing and not options.topic:
        raise BadRequest("--use-existing needs the topic: add --topic NAME")
    plan = BenchPlan(
        endpoint=options.endpoint,
        topic=options.topic or "",
        use_existing=options.use_existing,
        seconds=options.seconds,
        count=options.count,
        rate=options.rate,
        size=options.size,
        senders=options.senders,
        receivers=options.receivers,
        wait_each=options.wait_each,
        queues=options.queues,
        drain_ms=options.drain * 1000,
        timeout_ms=options.timeout * 1000,
    )
    with _bar(shown=not options.output.for_programs and sys.stderr.isatty()) as progress:
        rng = random.Random(os.urandom(8))  # noqa: S311  # names a topic, keeps no secret
        result = asyncio.run(bench(plan, clock=SystemClock(), rng=rng, progress=progress))
    print_page(bench_page(plan, result), options.output)
    whole = not result.failed and (not plan.receivers or not result.missing)
    return ExitCode.DONE if whole else ExitCode.NOT_DONE


def bench_page(plan: BenchPlan, result: BenchResult) -> Page:
    """Returns rates and percentiles as a page."""
    rows = [_row("send", result.send, result.send_s, plan.size)]
    if plan.receivers:
        rows.append(_row("receive", result.receive, result.receive_s, plan.size))
    missing = result.missing if plan.receivers else 0
    facts: dict[str, Scalar | list[str]] = {
        "topic": result.topic,
        "sent": result.sent,
        "failed": result.failed,
        "first_error": result.first_error,
        "missing": missing,
        "repeated": result.repeated,
        "seconds": round(result.send_s, 3),
        "size": plan.size,
        "rate": plan.rate,
        "senders": plan.senders,
        "receivers": plan.receivers,
    }
    sentence = (
        f"{result.sent:,} messages of {plan.size:,} bytes in {result.send_s:.1f} s, {_many(plan.senders, 'sender')}, "
        f"{_many(plan.receivers, 'receiver')}."
    )
    if result.failed:
        sentence += f" {result.failed:,} sends FAILED: {result.first_error}."
    if missing:
        sentence += f" {missing:,} messages did not arrive in time; a longer --drain waits longer."
    if result.repeated:
        sentence += f" {result.repeated:,} deliveries were repeated."
    if result.existed:
        sentence += f" The messages stay in topic {result.topic}."
    return Page(facts=facts, listings=[Listing(key="results", columns=_COLUMNS, rows=rows)], sentence=sentence)


def _row(what: str, latencies: Latencies, seconds: float, size: int) -> tuple[Scalar, ...]:
    per_second = latencies.count / seconds if seconds else 0.0
    percentiles = [latencies.percentile_ms(percent) for percent in (50, 90, 99, 99.9, 100)]
    return (what, latencies.count, round(per_second, 1), round(per_second * size / MiB, 2), *percentiles)


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


@contextmanager
def _bar(*, shown: bool) -> Iterator[Callable[[BenchProgress], None]]:
    """Yields the callback of a progress bar on standard error."""
    if not shown:
        yield lambda _: None
        return
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

    with progress_bar(BarColumn(), TextColumn("{task.fields[counts]}"), TimeRemainingColumn()) as bar:
        task = bar.add_task("starting", total=1.0, counts="")

        def show(progress: BenchProgress) -> None:
            counts = f"{progress.sent:,} sent, {progress.received:,} received"
            bar.update(task, description=progress.phase, completed=progress.done, counts=counts)

        yield show
