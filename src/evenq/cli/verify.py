"""`evenq verify`: runs `evenq.verify` with a progress bar and prints its table. Exit code 1: a promise was broken."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from evenq.cli.output import Column, Listing, Page, print_page, progress_bar
from evenq.runtime.clock import SystemClock
from evenq.serving.program.logs import errors_only
from evenq.verify import Kind, Moment, Plan, Repeat, Result, Verdict, verify

_COLUMNS = (
    Column("kind", "kind"), Column("sent", "sent", "number"),
    Column("expected", "expected", "number"), Column("received", "received", "number"),
    Column("lost", "lost", "number"), Column("unsure", "unsure", "number"), Column("refused", "refused", "number"),
    Column("repeated", "again", "number"), Column("resent", "resent", "number"), Column("outage", "outage", "number"),
    Column("timeout", "timeout", "number"), Column("after_ack", "after ack", "number"),
    Column("unexplained", "unexplained", "number"), Column("reordered", "disorder", "number"),
    Column("early", "early", "number"), Column("late", "late", "number"), Column("excused", "excused", "number"),
    Column("late_p50_ms", "p50 ms", "number"), Column("late_p99_ms", "p99 ms", "number"),
    Column("leaked", "wrong", "number"),
)  # fmt: skip
_ALWAYS = frozenset({"kind", "sent", "expected", "received", "lost", "repeated", "late_p50_ms", "late_p99_ms"})
"""Columns that are always shown: they fit 80 characters. Others are shown if a value is not 0."""


def run(options: argparse.Namespace) -> int:
    """Verifies, prints the result and returns the exit code."""
    plan = Plan(
        endpoint=options.endpoint,
        kinds=tuple(Kind(kind) for kind in options.kinds),
        seconds=options.seconds,
        rate=options.rate,
        tolerance_ms=options.tolerance,
        consumers=options.consumers,
        streams=options.streams,
        body_bytes=options.body_bytes,
        drain_seconds=options.drain,
        timeout_ms=options.timeout * 1_000,
    )
    with (
        errors_only("evenq.client"),  # outages are expected here, and are in the table
        _bar(plan, shown=not options.output.for_programs and sys.stderr.isatty()) as progress,
    ):
        rng = random.Random(os.urandom(8))  # noqa: S311  # spreads load and names topics, keeps no secret
        verdict = asyncio.run(verify(plan, clock=SystemClock(), rng=rng, progress=progress))
    print_page(page(verdict, plan, full=options.output.for_programs), options.output)
    return 0 if verdict.ok else 1


def page(verdict: Verdict, plan: Plan, *, full: bool) -> Page:
    """Returns the verdict as a page; unless `full`, without rare columns that are empty."""
    problems = [(result.kind, text) for result in verdict.results for text in result.problems]
    rows = [_row(result) for result in verdict.results]
    shown = [n for n, column in enumerate(_COLUMNS) if full or column.key in _ALWAYS or any(row[n] for row in rows)]
    columns, rows = [_COLUMNS[n] for n in shown], [tuple(row[n] for n in shown) for row in rows]
    listings = [Listing(key="kinds", columns=columns, rows=rows)]
    if problems:
        problem_columns = (Column("kind", "kind"), Column("problem", "what happened"))
        listings.append(Listing(key="problems", columns=problem_columns, rows=problems, title="Broken promises"))
    sent = sum(result.sent for result in verdict.results)
    away = (
        f"; brokers were down {verdict.outages} times, for at most {verdict.outage_ms_max:,} ms"
        if verdict.outages
        else ""
    )
    outcome = "every promise was kept, nothing lost, out of order or late" if verdict.ok else "PROMISES WERE BROKEN"
    return Page(
        facts={
            "ok": verdict.ok,
            "run": verdict.run,
            "seconds": round(verdict.seconds),
            "sent": sent,
            "outages": verdict.outages,
            "outage_ms_max": verdict.outage_ms_max,
        },
        names="run",
        listings=listings,
        sentence=f"{sent:,} messages in {verdict.seconds:.0f} s at {plan.endpoint}: {outcome}{away}.",
    )


def _row(result: Result) -> tuple[str | int | None, ...]:
    reasons = tuple(result.repeats.get(reason, 0) for reason in Repeat)
    counts = (result.sent, result.expected, result.received, result.lost, result.unsure, result.refused)
    times = (result.early, result.late, result.excused, result.late_p50_ms, result.late_p99_ms)
    return (result.kind.value, *counts, result.repeated, *reasons, result.reordered, *times, result.leaked)


@contextmanager
def _bar(plan: Plan, *, shown: bool) -> Iterator[Callable[[Moment], None]]:
    """Yields the callback of a progress bar on standard error."""
    if not shown:
        yield lambda _: None
        return
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

    with progress_bar(BarColumn(), TextColumn("{task.fields[counts]}"), TimeRemainingColumn()) as bar:
        task = bar.add_task("starting", total=plan.seconds * 1_000, counts="")

        def show(moment: Moment) -> None:
            counts = f"{moment.sent:,} sent, {moment.received:,} received"
            bar.update(task, description=moment.phase, completed=moment.elapsed_ms, counts=counts)

        yield show
