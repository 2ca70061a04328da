"""`evenq dlq list | show | replay`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, Self

from evenq.cli.admin import warn_silent, with_admin
from evenq.cli.contexts.settling import in_namespace
from evenq.cli.exit_codes import NotConfirmed
from evenq.cli.output import WIDE, Column, Listing, Page, Scalar, print_page, progress_bar
from evenq.client.async_admin import Admin
from evenq.client.core.admin.query_views import DeadLettersView, DeadLetterView, ReplayView
from evenq.errors import ConnectionFailed, MessageNotFound
from evenq.model import FilterExpression
from evenq.runtime.printable import printable

_SQL_SIGNS = ("=", "<", ">", " IS ", " IN ", " BETWEEN ", " CONTAINS ", "STARTSWITH", "ENDSWITH")


def list_all(options: argparse.Namespace) -> None:
    async def work(admin: Admin) -> None:
        view = await admin.list_dead_letters(options.group or "", limit=options.max, waiting=options.waiting)
        listings = [_counts(view, options.namespace)]
        if options.group and (view.counts or options.output.structured):
            listings.append(_letters(view))
        print_page(Page(facts=_silent(view), listings=listings, names=listings[-1].key), options.output)
        warn_silent(options, view.silent, "the dead letters there")

    with_admin(options, work)


def show(options: argparse.Namespace) -> None:
    async def work(admin: Admin) -> DeadLettersView:
        limit = 100 if options.message_id else 1
        return await admin.list_dead_letters(options.group, limit=limit, bodies=True, message_id=options.message_id)

    view = with_admin(options, work)
    if not view.letters:
        what = f"dead letter {options.message_id}" if options.message_id else "dead letters"
        missing = f" at the brokers that answer; {', '.join(view.silent)} did not answer" if view.silent else ""
        raise MessageNotFound(f"group {options.group} has no {what}{missing}; see `evenq dlq list`")
    for letter in view.letters if options.message_id else view.letters[:1]:
        properties: list[tuple[Scalar, ...]] = [(key, letter.properties[key]) for key in sorted(letter.properties)]
        columns = (Column("key", "property"), Column("value", "value"))
        listing = Listing(key="properties", columns=columns, rows=properties, title="Properties")
        print_page(Page(facts=_facts(letter), listings=[listing]), options.output)


def replay(options: argparse.Namespace) -> int:
    """`evenq dlq replay GROUP`: returns 1 if some could not be sent. Without `--yes` it only prints the plan."""
    planned = options.dry_run or not options.yes

    async def work(admin: Admin) -> list[ReplayView]:
        with _Bar(shown=not planned and not options.output.for_programs and sys.stderr.isatty()) as bar:
            return await admin.replay_dead_letters(
                options.group,
                filter=FilterExpression.sql(options.filter) if _is_sql(options.filter) else options.filter,
                to_topic=options.to,
                per_second=options.rate,
                limit=options.max,
                dry_run=planned,
                on_progress=bar.show,
            )

    last = with_admin(options, work)
    if planned:
        _print_plan(options, last)
        return 0
    columns = (
        Column("broker", "broker"),
        Column("replayed", "replayed", "number"),
        Column("left_out", "left out", "number"),
        Column("failed", "failed", "number"),
        Column("error", "first error", "sentence"),
    )
    rows: list[tuple[Scalar, ...]] = [
        (one.broker_name, one.replayed, one.left_out, one.failed, one.error) for one in last
    ]
    total = sum(one.replayed for one in last)
    failed = sum(one.failed for one in last) + sum(bool(one.error) and not one.failed for one in last)
    print_page(
        Page(
            facts={"group": options.group, "replayed": total, "failed": failed},
            listings=[Listing(key="brokers", columns=columns, rows=rows)],
            sentence=f"Replayed {total:,} dead letter{'s' * (total != 1)} of {options.group}.",
        ),
        options.output,
    )
    return 1 if failed else 0


def _print_plan(options: argparse.Namespace, brokers: Sequence[ReplayView]) -> None:
    """Prints the plan. Raises NotConfirmed without `--dry-run`, ConnectionFailed if brokers did not answer."""
    would = {(topic, one.broker_name): number for one in brokers for topic, number in one.would.items()}
    columns = (Column("topic", "to topic"), Column("broker", "from broker"), Column("letters", "letters", "number"))
    rows: list[tuple[Scalar, ...]] = [(topic, broker, would[topic, broker]) for topic, broker in sorted(would)]
    total, left_out = sum(would.values()), sum(one.left_out for one in brokers)
    broken = [f"{one.broker_name} ({one.error})" for one in brokers if one.error]
    topics = sorted({topic or "no topic: give one with --to" for topic, _ in would})
    sentence = f"{total:,} dead letter{'s' * (total != 1)} of {options.group} would be sent again"
    sentence += f", to {', '.join(topics)}." if topics else "."
    if left_out:
        sentence += f" The filter leaves out {left_out:,}."
    page = Page(
        facts={"group": options.group, "would_replay": total, "left_out": left_out},
        listings=[Listing(key="topics", columns=columns, rows=rows, empty="Nothing to send.")],
        sentence=sentence,
    )
    print_page(page, options.output)
    if broken:
        raise ConnectionFailed(f"some brokers did not answer, their dead letters are not included: {', '.join(broken)}")
    if not options.dry_run and total:
        raise NotConfirmed("nothing was sent; add --yes to send them")


class _Bar:
    """A progress bar on standard error, one line for each broker."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._bar: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Self:
        if self._shown:
            from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

            self._bar = progress_bar(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar.start()
        return self

    def show(self, progress: ReplayView) -> None:
        """Shows the newest progress of one broker."""
        if self._bar is None:
            return
        name = progress.broker_name
        if name not in self._tasks:
            self._tasks[name] = self._bar.add_task(printable(f"replaying at {name}"), total=progress.total)
        seen = progress.replayed + progress.left_out + progress.failed
        self._bar.update(self._tasks[name], completed=seen, total=progress.total)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _silent(view: DeadLettersView) -> dict[str, Scalar | list[str]]:
    return {"silent": list(view.silent)} if view.silent else {}


def _counts(view: DeadLettersView, namespace: str) -> Listing:
    columns = (
        Column("group", "group"),
        Column("broker", "broker"),
        Column("stored", "stored", "number"),
        Column("waiting", "not replayed", "number"),
    )
    rows: list[tuple[Scalar, ...]] = [
        (count.group, count.broker_name, count.stored, count.waiting)
        for count in view.counts
        if in_namespace(namespace, count.group)
    ]
    return Listing(key="counts", columns=columns, rows=rows, empty="No dead letters.")


def _letters(view: DeadLettersView) -> Listing:
    columns = (
        Column("message_id", "message id"),
        Column("stored_ms", "died", "time"),
        Column("topic", "from topic"),
        Column("attempts", "attempts", "number", shown=WIDE),
        Column("reason", "reason"),
        Column("tag", "tag", shown=WIDE),
        Column("body_bytes", "bytes", "number", shown=WIDE),
        Column("replayed", "replayed", shown=WIDE),
        Column("broker", "broker", shown=WIDE),
        Column("offset", "offset", "number", shown=WIDE),
    )
    rows = [_letter_row(one) for one in view.letters]
    return Listing(key="letters", columns=columns, rows=rows, empty="No dead letter waits for a replay.")


def _letter_row(one: DeadLetterView) -> tuple[Scalar, ...]:
    how = (one.origin.topic, one.attempts, one.reason, one.tag, one.body_bytes, one.replayed)
    return (one.message_id, one.stored_ms, *how, one.queue.broker_name, one.offset)


def _facts(letter: DeadLetterView) -> dict[str, Scalar | list[str]]:
    origin = letter.origin
    return {
        "message_id": letter.message_id,
        "died_ms": letter.stored_ms,
        "from": f"{origin.topic}@{origin.broker_name}:{origin.queue_id} offset {letter.origin_offset}",
        "attempts": letter.attempts,
        "reason": letter.reason,
        "replayed": letter.replayed,
        "tag": letter.tag,
        "keys": list(letter.keys),
        "body": letter.body.decode(errors="backslashreplace"),
    }


def _is_sql(expression: str) -> bool:
    upper = f" {expression.upper()} "
    return any(sign in upper for sign in _SQL_SIGNS)
