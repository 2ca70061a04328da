"""`evenq offset show | reset | skip | clone`: where groups are, and moving them. First the plan; `--yes` does it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from evenq.cli.admin import Admin, with_admin
from evenq.cli.moments import moment_ms
from evenq.cli.output import Column, Listing, Page, Scalar, print_page
from evenq.runtime.clock import SystemClock
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2

__all__ = ["clone", "reset", "show", "skip"]

FAILED = 1


def show(options: argparse.Namespace) -> None:
    """`evenq offset show GROUP`."""

    async def work(admin: Admin) -> None:
        request = admin_pb2.DescribeGroupRequest(group=options.group)
        answer = await admin.call("DescribeGroup", request, admin_pb2.DescribeGroupResponse)
        columns = (
            Column("topic", "topic"),
            Column("broker", "broker"),
            Column("queue", "queue", "number"),
            Column("min_offset", "first", "number"),
            Column("committed", "group is at", "number"),
            Column("max_offset", "end", "number"),
            Column("lag", "lag", "number"),
            Column("inflight", "in flight", "number"),
            Column("next_store_ms", "next one stored", "time"),
            Column("owner", "owner"),
        )
        queues = [queue for queue in answer.queues if options.topic in {"", queue.queue.topic}]
        rows: list[tuple[Scalar, ...]] = [
            (
                q.queue.topic,
                q.queue.broker_name,
                q.queue.queue_id,
                q.min_offset,
                q.committed,
                q.max_offset,
                q.lag,
                q.inflight,
                q.next_store_ms,
                q.owner,
            )
            for q in sorted(queues, key=lambda q: (q.queue.topic, q.queue.broker_name, q.queue.queue_id))
        ]
        empty = f"Nothing was read yet. Read with it: evenq consume TOPIC --group {options.group}"
        facts: dict[str, Scalar | list[str]] = {"group": options.group, "lag": sum(queue.lag for queue in queues)}
        listing = Listing(key="queues", columns=columns, rows=rows, empty=empty)
        print_page(Page(facts=facts, listings=[listing]), as_json=options.json)

    with_admin(options, work)


def reset(options: argparse.Namespace) -> int:
    """`evenq offset reset GROUP --to WHERE`."""
    request = _request(options)
    where = (options.to or "").lower()
    if options.to_offset is not None:
        request.to, request.value = admin_pb2.OFFSET, options.to_offset
    elif where in {"earliest", "first", "beginning"}:
        request.to = admin_pb2.EARLIEST
    elif where in {"latest", "last", "end"}:
        request.to = admin_pb2.LATEST
    else:
        request.to = admin_pb2.TIMESTAMP
        request.value = moment_ms(options.to, now_ms=SystemClock().now_ms())
    return _move(options, request)


def skip(options: argparse.Namespace) -> int:
    """`evenq offset skip GROUP`."""
    request = _request(options)
    if options.count is None:
        request.to = admin_pb2.LATEST
    else:
        request.to, request.value = admin_pb2.SKIP, options.count
    return _move(options, request)


def clone(options: argparse.Namespace) -> int:
    """`evenq offset clone GROUP --from GROUP2`."""
    request = _request(options)
    request.to, request.source_group = admin_pb2.LIKE_GROUP, options.source
    return _move(options, request)


def _request(options: argparse.Namespace) -> admin_pb2.ResetOffsetsRequest:
    return admin_pb2.ResetOffsetsRequest(
        group=options.group,
        topic=options.topic,
        queues=[
            common_pb2.Queue(topic=options.topic, broker_name=broker, queue_id=queue_id)
            for broker, queue_id in options.queue
        ],
        dry_run=not options.yes,
    )


def _move(options: argparse.Namespace, request: admin_pb2.ResetOffsetsRequest) -> int:
    moves: list[admin_pb2.OffsetMove] = []

    async def work(admin: Admin) -> None:
        answer = await admin.call("ResetOffsets", request, admin_pb2.ResetOffsetsResponse)
        moves.extend(answer.moves)
        print_page(_page(options, answer.moves), as_json=options.json)

    with_admin(options, work)
    return FAILED if any(move.error for move in moves) else 0


def _page(options: argparse.Namespace, moves: Sequence[admin_pb2.OffsetMove]) -> Page:
    columns = (
        Column("topic", "topic"),
        Column("broker", "broker"),
        Column("queue", "queue", "number"),
        Column("before", "from", "number"),
        Column("after", "to", "number"),
        Column("messages", "messages", "number"),
        Column("inflight", "in flight", "number"),
        Column("owner", "owner"),
        Column("result", "result"),
    )
    rows: list[tuple[Scalar, ...]] = []
    for move in moves:
        before = None if move.before < 0 else move.before
        result = f"failed: {move.error}" if move.error else "moved" if options.yes else "would move"
        if not move.error and move.before == move.after and not move.inflight:
            result = "stays"
        rows.append((
            move.queue.topic,
            move.queue.broker_name,
            None if move.queue.queue_id < 0 else move.queue.queue_id,
            before,
            None if move.error else move.after,
            None if move.error else move.after - (move.min_offset if before is None else before),
            move.inflight,
            move.owner,
            f"{result} ({move.note})" if move.note else result,
        ))  # fmt: skip
    failed = sum(bool(move.error) for move in moves)
    facts: dict[str, Scalar | list[str]] = {
        "group": options.group,
        "done": options.yes and not failed,
        "failed": failed,
    }
    empty = f"There is nothing to move: evenq offset show {options.group}"
    listing = Listing(key="moves", columns=columns, rows=rows, empty=empty)
    return Page(facts=facts, listings=[listing], sentence=_sentence(options, moves, failed))


def _sentence(options: argparse.Namespace, moves: Sequence[admin_pb2.OffsetMove], failed: int) -> str:
    if not options.yes:
        return f"The plan for group {options.group}; nothing was changed. To do it, add --yes."
    if failed:
        return f"Group {options.group} was moved, but {failed} of it failed: do it again when the reason is gone."
    where = f"{len(moves)} queue{'s' * (len(moves) != 1)}"
    return f"Group {options.group} was moved on {where}. Look: evenq offset show {options.group}"
