"""`evenq message scheduled | check`: messages that wait for a time or for the outcome of their transaction."""

from __future__ import annotations

import argparse

from evenq.cli.admin import warn_silent, with_admin
from evenq.cli.output import WIDE, Column, Listing, Page, Scalar, print_page, progress_console
from evenq.client.async_admin import Admin
from evenq.model import MessageQueue
from evenq.model.names import GIVEN_UP_TOPIC

_COLUMNS = (
    Column("due_ms", "due", "time"),
    Column("topic", "topic"),
    Column("kind", "kind"),
    Column("message_id", "message"),
    Column("tag", "tag"),
    Column("keys", "keys", shown=WIDE),
    Column("body_bytes", "bytes", "number"),
    Column("broker", "broker", shown=WIDE),
    Column("recall_handle", "recall handle", shown=WIDE),
)


def show(options: argparse.Namespace) -> None:
    async def work(admin: Admin) -> None:
        view = await admin.list_scheduled(options.topic, limit=options.limit)
        warn_silent(options, view.silent, "the messages that wait there")
        rows: list[tuple[Scalar, ...]] = [
            (
                one.due_ms,
                one.topic,
                one.kind,
                one.message_id,
                one.tag,
                " ".join(one.keys),
                one.body_bytes,
                one.broker_name,
                one.recall_handle,
            )
            for one in view.messages
        ]
        listing = Listing(key="messages", columns=_COLUMNS, rows=rows, empty="No message waits.")
        print_page(Page(facts={}, listings=[listing]), options.output)
        if view.more:
            progress_console().print("Later messages wait, too: name a topic, or raise --limit.")

    with_admin(options, work)


def check(options: argparse.Namespace) -> None:
    broker, number = options.queue

    async def work(admin: Admin) -> None:
        message_id = await admin.check_again(MessageQueue(GIVEN_UP_TOPIC, broker, number), options.offset)
        page = Page(
            facts={"checked": message_id},
            sentence=f"Transaction {message_id} is open again; its brokers call a producer of its topic.",
        )
        print_page(page, options.output)

    with_admin(options, work)
