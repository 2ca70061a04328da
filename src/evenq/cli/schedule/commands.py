"""`evenq schedule create | list | show | pause | resume | run | move | delete`."""

from __future__ import annotations

import argparse

from evenq.cli.admin import warn_silent, with_admin
from evenq.cli.contexts.settling import in_namespace
from evenq.cli.output import WIDE, Column, Listing, Page, Scalar, print_page
from evenq.cli.values import duration_text
from evenq.client.async_admin import Admin
from evenq.client.core.admin.query_views import ScheduleView
from evenq.errors import BadRequest
from evenq.model import Message

BODY_READ_MAX = 1 << 20
"""More than brokers accept: their error then names the limit."""
_COLUMNS = (
    Column("topic", "topic"),
    Column("name", "name"),
    Column("rule", "rule"),
    Column("state", "state"),
    Column("next_ms", "next", "time"),
    Column("last_ms", "last", "time", shown=WIDE),
    Column("fired", "fired", "number"),
    Column("missed", "missed", "number"),
    Column("broker", "broker", shown=WIDE),
    Column("problem", "problem", "sentence"),
)


def create(options: argparse.Namespace) -> None:
    if options.missed_max and options.missed != "all":
        raise BadRequest("--missed-max needs --missed all")
    message = Message(
        topic=options.topic,
        body=_body(options),
        tag=options.tag,
        keys=tuple(options.key),
        properties=dict(options.property),
        message_group=options.message_group,
    )

    async def work(admin: Admin) -> None:
        _print(
            options,
            await admin.create_schedule(
                options.name,
                message,
                schedule=options.schedule,
                every=options.every,
                missed=options.missed,
                missed_max=options.missed_max,
            ),
        )

    with_admin(options, work)


def list_all(options: argparse.Namespace) -> None:
    async def work(admin: Admin) -> None:
        view = await admin.list_schedules(options.topic)
        warn_silent(options, view.silent, "the schedules there")
        rows = [_row(one) for one in view.schedules if in_namespace(options.namespace, one.topic)]
        empty = "No schedules. Create one: evenq schedule create TOPIC NAME --every 10m --body TEXT"
        listing = Listing(key="schedules", columns=_COLUMNS, rows=rows, empty=empty)
        print_page(Page(facts={}, listings=[listing], names="schedules.name"), options.output)

    with_admin(options, work)


def show(options: argparse.Namespace) -> None:
    async def work(admin: Admin) -> None:
        one = await admin.describe_schedule(options.topic, options.name)
        facts: dict[str, Scalar | list[str]] = {
            "name": one.name,
            "policy": f"all, at most {one.missed_max}" if one.missed == "all" else one.missed,
            "tag": one.tag,
            "keys": list(one.keys),
            "message_group": one.message_group,
            "properties": [f"{name}={value}" for name, value in one.properties.items()],
            "body": one.body.decode(errors="backslashreplace"),
        }
        listing = Listing(key="schedules", columns=_COLUMNS, rows=[_row(one)])
        print_page(Page(facts=facts, listings=[listing], names="name"), options.output)

    with_admin(options, work)


def pause(options: argparse.Namespace) -> None:
    async def work(admin: Admin) -> None:
        _print(options, await admin.pause_schedule(options.topic, options.name))

    with_admin(options, work)


def resume(options: argparse.Namespace) -> None:
    async def work(admin: Admin) -> None:
        _print(options, await admin.resume_schedule(options.topic, options.name))

    with_admin(options, work)


def run(options: argparse.Namespace) -> None:
    async def work(admin: Admin) -> None:
        message_id = await admin.run_schedule(options.topic, options.name)
        page = Page(
            facts={"message_id": message_id}, sentence=f"Message {message_id} was sent to topic {options.topic}."
        )
        print_page(page, options.output)

    with_admin(options, work)


def move(options: argparse.Namespace) -> None:
    async def work(admin: Admin) -> None:
        _print(options, await admin.move_schedule(options.topic, options.name, to=options.to))

    with_admin(options, work)


def delete(options: argparse.Namespace) -> None:
    async def work(admin: Admin) -> None:
        await admin.delete_schedule(options.topic, options.name)
        sentence = f"Schedule {options.name} of topic {options.topic} is deleted."
        print_page(Page(facts={"deleted": options.name}, sentence=sentence), options.output)

    with_admin(options, work)


def _print(options: argparse.Namespace, one: ScheduleView) -> None:
    listing = Listing(key="schedules", columns=_COLUMNS, rows=[_row(one)])
    print_page(Page(facts={}, listings=[listing], names="schedules.name"), options.output)


def _row(one: ScheduleView) -> tuple[Scalar, ...]:
    state = "paused" if one.paused else "failing" if one.problem else "active"
    state = "moving" if one.moving_to else state
    rule = one.schedule or f"every {duration_text(one.every_ms)}"
    times = one.next_ms, one.last_ms
    return one.topic, one.name, rule, state, *times, one.fired, one.passed, one.broker_name, one.problem


def _body(options: argparse.Namespace) -> bytes:
    if options.file is None:
        return str(options.body).encode(errors="surrogateescape")  # the bytes of the argument
    with options.file.open("rb") as file:
        body: bytes = file.read(BODY_READ_MAX)
    return body
