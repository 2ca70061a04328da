"""`evenq broker check-scale-in | forget`: whether brokers may be removed, and removal of a missing broker.

`check-scale-in` is for scripts and the chart's hook: it changes nothing, and its exit code is the result.
"""

from __future__ import annotations

import argparse

from evenq.cli.admin import with_admin
from evenq.cli.exit_codes import NotConfirmed
from evenq.cli.output import Column, Listing, Page, Scalar, print_page
from evenq.client.async_admin import Admin
from evenq.client.core.admin.views import ScaleInView

_COLUMNS = (
    Column("broker", "broker"),
    Column("state", "state"),
    Column("removable", "may be removed"),
    Column("draining", "draining"),
    Column("lag", "to read", "number"),
    Column("delayed", "delayed", "number"),
    Column("unread", "read by no group", "number"),
    Column("dead_letters", "dead letters", "number"),
    Column("schedules", "schedules", "number"),
    Column("why", "why not", "sentence"),
)


def check(options: argparse.Namespace) -> int:
    """Returns 0 if all named brokers may be removed, otherwise 1."""

    async def work(admin: Admin) -> list[ScaleInView]:
        return await admin.check_scale_in(options.names, allow_unread=options.yes)

    results = with_admin(options, work)
    refused = [one.broker_name for one in results if one.problem]
    sentence = (
        f"{', '.join(refused)}: not yet."
        if refused
        else "They may be removed: no unread message and no schedule would be lost."
    )
    listing = Listing(key="brokers", columns=_COLUMNS, rows=[_row(one) for one in results])
    page = Page(facts={"removable": not refused}, listings=[listing], sentence=sentence, names="brokers")
    print_page(page, options.output)
    return int(bool(refused))


def _row(one: ScaleInView) -> tuple[Scalar, ...]:
    left = one.left
    held: tuple[Scalar, ...] = (False, 0, 0, 0, 0, 0)
    if left:
        held = (left.draining, left.lag, left.delayed, left.unread, left.dead_letters, left.schedules)
    return (one.broker_name, one.state.lower(), not one.problem, *held, one.problem)


def forget(options: argparse.Namespace) -> None:
    if not options.yes:
        raise NotConfirmed(
            f"this declares broker {options.name} gone for good: brokers and clients no longer wait for it, and its "
            "messages and schedules return only with the broker; add --yes to confirm"
        )

    async def work(admin: Admin) -> None:
        await admin.forget_broker(options.name)
        print_page(
            Page(facts={"forgotten": options.name}, sentence=f"Broker {options.name} was removed from the cluster."),
            options.output,
        )

    with_admin(options, work)
