"""`evenq dlq list | show | replay`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any, Self

from evenq.cli.admin import Admin, no_server
from evenq.cli.output import Column, Listing, Page, Scalar, print_page, progress_console
from evenq.client.core.access_points import access_points
from evenq.client.wiring import Ground
from evenq.errors import BadRequest, ConnectionFailed, MessageNotFound
from evenq.runtime.net import Net
from evenq.wire.status import check
from evenq.wire.stubs.evenq.v1 import common_pb2
from evenq.wire.stubs.evenq.v1 import dead_letters_pb2 as pb

__all__ = ["list_all", "replay", "show"]

SERVICE = "/evenq.v1.DeadLetters/"
_DAY_MS = 86_400_000
_SQL_SIGNS = ("=", "<", ">", " IS ", " IN ", " BETWEEN ", " CONTAINS ", "STARTSWITH", "ENDSWITH")


def list_all(options: argparse.Namespace) -> None:
    """`evenq dlq list [GROUP]`."""
    request = pb.ListDeadLettersRequest(group=options.group or "", max=options.max, waiting=options.waiting)
    answer = _ask(options, request)
    listings = [_counts(answer)]
    if options.group:
        listings.append(_letters(answer))
    print_page(Page(facts=_silent(answer), listings=listings), as_json=options.json)


def show(options: argparse.Namespace) -> None:
    """`evenq dlq show GROUP [ID]`."""
    request = pb.ListDeadLettersRequest(
        group=options.group, max=100 if options.message_id else 1, bodies=True, message_id=options.message_id
    )
    answer = _ask(options, request)
    if not answer.letters:
        what = f"dead letter {options.message_id}" if options.message_id else "dead letters"
        raise MessageNotFound(f"group {options.group} has no {what}; see `evenq dlq list`")
    for letter in answer.letters if options.message_id else answer.letters[:1]:
        properties: list[tuple[Scalar, ...]] = [(key, letter.properties[key]) for key in sorted(letter.properties)]
        columns = (Column("key", "property"), Column("value", "value"))
        listing = Listing(key="properties", columns=columns, rows=properties, title="Properties")
        print_page(Page(facts=_facts(letter), listings=[listing]), as_json=options.json)


def replay(options: argparse.Namespace) -> int:
    """`evenq dlq replay GROUP`; 1 if some could not be sent. Without `--yes` the plan only."""
    kind = common_pb2.Filter.SQL if _is_sql(options.filter) else common_pb2.Filter.TAG
    request = pb.ReplayDeadLettersRequest(
        group=options.group,
        filter=common_pb2.Filter(expression=options.filter, type=kind),
        to_topic=options.to,
        per_second=options.rate,
        max=options.max,
    )
    if options.dry_run or not options.yes:
        _plan(options, request)
        return 0
    last = asyncio.run(_replay(options, request))
    columns = (
        Column("broker", "broker"),
        Column("replayed", "replayed", "number"),
        Column("left_out", "left out", "number"),
        Column("failed", "failed", "number"),
        Column("error", "first error"),
    )
    rows: list[tuple[Scalar, ...]] = [
        (one.broker_name, one.replayed, one.left_out, one.failed, one.error) for one in last.values()
    ]
    total = sum(one.replayed for one in last.values())
    failed = sum(one.failed for one in last.values()) + sum(bool(one.error) and not one.failed for one in last.values())
    print_page(
        Page(
            facts={"group": options.group, "replayed": total, "failed": failed},
            listings=[Listing(key="brokers", columns=columns, rows=rows)],
            sentence=f"Replayed {total:,} dead letter{'s' * (total != 1)} of {options.group}.",
        ),
        as_json=options.json,
    )
    return 1 if failed else 0


def _plan(options: argparse.Namespace, request: pb.ReplayDeadLettersRequest) -> None:
    """Say what would be sent, and where to. Raises BadRequest if it was to be done."""
    request.dry_run = True
    frames = asyncio.run(_replay(options, request)).values()
    would: dict[tuple[str, str], int] = {}
    for one in frames:
        for topic, number in one.would.items():
            would[topic, one.broker_name] = number
    columns = (Column("topic", "to topic"), Column("broker", "from broker"), Column("letters", "letters", "number"))
    rows: list[tuple[Scalar, ...]] = [(topic, broker, would[topic, broker]) for topic, broker in sorted(would)]
    total, left_out = sum(would.values()), sum(one.left_out for one in frames)
    broken = [f"{one.broker_name} ({one.error})" for one in frames if one.error]
    topics = sorted({topic or "nowhere: name one with --to" for topic, _ in would})
    sentence = f"{total:,} dead letter{'s' * (total != 1)} of {options.group} would be sent once more"
    sentence += f", to {', '.join(topics)}." if topics else "."
    if left_out:
        sentence += f" The filter leaves out {left_out:,}."
    page = Page(
        facts={"group": options.group, "would_replay": total, "left_out": left_out},
        listings=[Listing(key="topics", columns=columns, rows=rows, empty="Nothing to send.")],
        sentence=sentence,
    )
    print_page(page, as_json=options.json)
    if broken:
        raise ConnectionFailed(f"not all brokers told what they hold: {', '.join(broken)}")
    if not options.dry_run and total:
        raise BadRequest("nothing was sent; add --yes to do it")


async def _replay(options: argparse.Namespace, request: pb.ReplayDeadLettersRequest) -> dict[str, pb.ReplayProgress]:
    net = Ground.of(None, None, endpoint=options.endpoint).open_net()
    last: dict[str, pb.ReplayProgress] = {}
    addresses = access_points(options.endpoint).addresses
    try:
        with _Bar(shown=not options.json and sys.stderr.isatty()) as bar:
            while True:
                try:
                    await _follow(net, addresses[0], request, last, bar)
                    break
                except ConnectionFailed as error:
                    if last:
                        raise ConnectionFailed(
                            f"{error}; what was replayed until now is marked: start it again to go on"
                        ) from error
                    if len(addresses) == 1:
                        raise no_server(options.endpoint, error) from error
                    addresses.pop(0)
    finally:
        await net.close()
    return last


async def _follow(
    net: Net, address: str, request: pb.ReplayDeadLettersRequest, last: dict[str, pb.ReplayProgress], bar: _Bar
) -> None:
    # A replay with a rate takes as long as it takes.
    async for frame in net.stream(address, SERVICE + "Replay", request.SerializeToString(), timeout_ms=_DAY_MS):
        progress = pb.ReplayProgress.FromString(frame)
        if not progress.broker_name:
            check(progress.status)
        last[progress.broker_name] = progress
        bar.show(progress)


class _Bar:
    """A progress bar on standard error, one line for each broker, when a person looks on."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._bar: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Self:
        if self._shown:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=progress_console(), transient=True)
            self._bar.start()
        return self

    def show(self, progress: pb.ReplayProgress) -> None:
        """The newest word of one broker."""
        if self._bar is None:
            return
        name = progress.broker_name
        if name not in self._tasks:
            self._tasks[name] = self._bar.add_task(f"replaying at {name}", total=progress.total)
        seen = progress.replayed + progress.left_out + progress.failed
        self._bar.update(self._tasks[name], completed=seen, total=progress.total)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _ask(options: argparse.Namespace, request: pb.ListDeadLettersRequest) -> pb.ListDeadLettersResponse:
    async def ask() -> pb.ListDeadLettersResponse:
        net = Ground.of(None, None, endpoint=options.endpoint).open_net()
        try:
            admin = Admin(net, options.endpoint, timeout_ms=options.timeout * 1000)
            return await admin.call("List", request, pb.ListDeadLettersResponse, service="evenq.v1.DeadLetters")
        finally:
            await net.close()

    if request.max < 0:
        raise BadRequest(f"--max {request.max} is below 0")
    return asyncio.run(ask())


def _silent(answer: pb.ListDeadLettersResponse) -> dict[str, Scalar | list[str]]:
    return {"silent": list(answer.silent)} if answer.silent else {}


def _counts(answer: pb.ListDeadLettersResponse) -> Listing:
    columns = (
        Column("group", "group"),
        Column("broker", "broker"),
        Column("stored", "stored", "number"),
        Column("waiting", "not replayed", "number"),
    )
    rows: list[tuple[Scalar, ...]] = [
        (count.group, count.broker_name, count.stored, count.waiting) for count in answer.counts
    ]
    return Listing(key="counts", columns=columns, rows=rows, empty="No dead letters.")


def _letters(answer: pb.ListDeadLettersResponse) -> Listing:
    columns = (
        Column("message_id", "message id"),
        Column("stored_ms", "died", "time"),
        Column("topic", "from topic"),
        Column("attempts", "attempts", "number"),
        Column("reason", "reason"),
        Column("tag", "tag"),
        Column("body_bytes", "bytes", "number"),
        Column("replayed", "replayed"),
        Column("broker", "broker"),
        Column("offset", "offset", "number"),
    )
    rows: list[tuple[Scalar, ...]] = [
        (
            one.message_id, one.stored_ms, one.origin.topic, one.attempts, one.reason, one.tag, one.body_bytes,
            one.replayed, one.place.broker_name, one.offset,
        )
        for one in answer.letters
    ]  # fmt: skip
    return Listing(key="letters", columns=columns, rows=rows, empty="No dead letters.")


def _facts(letter: pb.DeadLetter) -> dict[str, Scalar | list[str]]:
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
