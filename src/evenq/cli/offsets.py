"""`evenq offset show | reset | skip | clone`: the progress of groups. Without `--yes` a change is only planned."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from evenq.cli.admin import with_admin
from evenq.cli.lag import lag_facts, warn_lag
from evenq.cli.output import QUEUE, WIDE, Column, Listing, Page, Scalar, print_page, queue_cells
from evenq.cli.values import moment_ms
from evenq.client.async_admin import Admin
from evenq.client.core.admin.views import OffsetMoveView
from evenq.model import MessageQueue
from evenq.runtime.clock import SystemClock

FAILED = 1


def show(options: argparse.Namespace) -> None:
    async def work(admin: Admin) -> None:
        details = await admin.describe_group(options.group)
        silent = details.summary.silent
        named = (one for one in details.queues if options.topic in {"", one.queue.topic})
        queues = sorted(named, key=lambda one: one.queue)
        columns = (
            *QUEUE,
            Column("owner", "owner", shown=WIDE),
            Column("min_offset", "first", "number", shown=WIDE),
            Column("committed", "committed", "number"),
            Column("max_offset", "end", "number"),
            Column("lag", "lag", "number"),
            Column("inflight", "in flight", "number"),
            Column("next_store_ms", "next stored", "time"),
        )
        rows: list[tuple[Scalar, ...]] = [
            (
                *queue_cells(q.queue),
                q.owner,
                q.min_offset,
                q.committed,
                q.max_offset,
                q.lag,
                q.inflight,
                q.next_store_ms,
            )
            for q in queues
        ]
        empty = f"The group has read nothing yet. To read: evenq consume TOPIC --group {options.group}"
        facts = {"group": options.group, **lag_facts(sum(queue.lag for queue in queues), silent)}
        warn_lag(options, silent)
        listing = Listing(key="queues", columns=columns, rows=rows, empty=empty)
        print_page(Page(facts=facts, listings=[listing]), options.output)

    with_admin(options, work)


def reset(options: argparse.Namespace) -> int:
    where = (options.to or "").lower()
    timestamp_ms = None
    to: str | int = "latest"
    if options.to_offset is not None:
        to = options.to_offset
    elif where in {"earliest", "first", "beginning"}:
        to = "earliest"
    elif where not in {"latest", "last", "end"}:
        timestamp_ms = moment_ms(options.to, now_ms=SystemClock().now_ms())
    return _move(
        options,
        lambda admin: admin.reset_offsets(options.group, to=to, timestamp_ms=timestamp_ms, **_limits(options)),
    )


def skip(options: argparse.Namespace) -> int:
    return _move(options, lambda admin: admin.skip_offsets(options.group, count=options.count, **_limits(options)))


def clone(options: argparse.Namespace) -> int:
    return _move(
        options, lambda admin: admin.clone_offsets(options.group, like_group=options.source, **_limits(options))
    )


def _limits(options: argparse.Namespace) -> dict[str, Any]:
    queues = [MessageQueue(options.topic, broker, queue_id) for broker, queue_id in options.queue]
    return {"topic": options.topic, "queues": queues, "dry_run": not options.yes}


def _move(options: argparse.Namespace, how: Callable[[Admin], Coroutine[Any, Any, list[OffsetMoveView]]]) -> int:
    moves = with_admin(options, how)
    print_page(_page(options, moves), options.output)
    return FAILED if any(move.error for move in moves) else 0


def _page(options: argparse.Namespace, moves: Sequence[OffsetMoveView]) -> Page:
    columns = (
        *QUEUE,
        Column("owner", "owner"),
        Column("before", "from", "number"),
        Column("after", "to", "number"),
        Column("messages", "messages", "number", shown=WIDE),
        Column("inflight", "in flight", "number", shown=WIDE),
        Column("result", "result", "sentence"),
    )
    rows: list[tuple[Scalar, ...]] = []
    for move in moves:
        before = None if move.before < 0 else move.before
        result = f"failed: {move.error}" if move.error else "moved" if options.yes else "would move"
        if not move.error and move.before == move.after and not move.inflight:
            result = "stays"
        rows.append(
            (
                *queue_cells(move.queue)[:-1],
                None if move.queue.queue_id < 0 else move.queue.queue_id,
                move.owner,
                before,
                None if move.error else move.after,
                None if move.error else move.after - (move.min_offset if before is None else before),
                move.inflight,
                f"{result} ({move.note})" if move.note else result,
            )
        )
    failed = sum(bool(move.error) for move in moves)
    facts: dict[str, Scalar | list[str]] = {
        "group": options.group,
        "done": options.yes and not failed,
        "failed": failed,
    }
    empty = f"There is no offset to move. See: evenq offset show {options.group}"
    listing = Listing(key="moves", columns=columns, rows=rows, empty=empty)
    return Page(facts=facts, listings=[listing], sentence=_sentence(options, moves, failed))


def _sentence(options: argparse.Namespace, moves: Sequence[OffsetMoveView], failed: int) -> str:
    if not options.yes:
        return f"Plan for group {options.group}: nothing was changed. To apply it, add --yes."
    if failed:
        return f"Group {options.group} was moved, except on {failed}: remove the cause and run the command again."
    where = f"{len(moves)} queue{'s' * (len(moves) != 1)}"
    return f"Group {options.group} was moved on {where}. Check: evenq offset show {options.group}"
