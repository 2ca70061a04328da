"""`evenq client list | show | stack`: who talks to the cluster."""

from __future__ import annotations

import argparse
from datetime import datetime

from evenq.cli.admin import warn_silent, with_admin
from evenq.cli.output import WIDE, Column, Listing, Page, Scalar, print_lines, print_page
from evenq.client.async_admin import Admin
from evenq.client.core.admin.query_views import ClientView

__all__ = ["list_all", "show", "stack"]

_COLUMNS = (
    Column("client_id", "client"),
    Column("kind", "kind"),
    Column("group", "group"),
    Column("language", "language", shown=WIDE),
    Column("topics", "topics", shown=WIDE),
    Column("owned", "owns", "number"),
    Column("inflight", "holds", "number"),
    Column("brokers", "brokers", shown=WIDE),
    Column("last_seen_ms", "last call", "time", shown=WIDE),
)


def list_all(options: argparse.Namespace) -> None:
    """`evenq client list`."""

    async def work(admin: Admin) -> None:
        view = await admin.list_clients(group=options.group)
        warn_silent(options, view.silent, "who talks only to them")
        rows = [_row(client) for client in view.clients]
        empty = "No client is connected. Try: evenq consume TOPIC --group NAME"
        listing = Listing(key="clients", columns=_COLUMNS, rows=rows, empty=empty)
        print_page(Page(facts={}, listings=[listing]), as_json=options.json, wide=options.wide)

    with_admin(options, work)


def show(options: argparse.Namespace) -> None:
    """`evenq client show ID`."""

    async def work(admin: Admin) -> None:
        views = await admin.describe_client(options.id)
        client = views[0]
        facts: dict[str, Scalar | list[str]] = {
            "client": client.client_id,
            "kind": client.kind,
            "groups": [one.group for one in views if one.group],
            "language": client.language,
            "version": client.version,
            "protocol": client.protocol,
            "brokers": list(client.brokers),
            "answers_questions_at": list(client.command_brokers),
            "joined": _moment(client.joined_ms),
            "last_call": _moment(client.last_seen_ms),
            "deliveries_held": client.inflight,
        }
        subscriptions: list[tuple[Scalar, ...]] = [
            (one.group, entry.topic, entry.filter.expression) for one in views for entry in one.subscriptions
        ]
        owned: list[tuple[Scalar, ...]] = [
            (queue.topic, queue.broker_name, queue.queue_id) for one in views for queue in one.owned
        ]
        listings = [
            Listing(
                key="subscriptions",
                title="Subscriptions",
                columns=(Column("group", "group"), Column("topic", "topic"), Column("filter", "filter")),
                rows=subscriptions,
                empty="none reported",
            ),
            Listing(
                key="queues",
                title="Queues it owns",
                columns=(Column("topic", "topic"), Column("broker", "broker"), Column("queue", "queue", "number")),
                rows=owned,
                empty="none",
            ),
        ]
        print_page(Page(facts=facts, listings=listings), as_json=options.json)

    with_admin(options, work)


def stack(options: argparse.Namespace) -> None:
    """`evenq client stack ID`."""

    async def work(admin: Admin) -> None:
        text = await admin.client_stack(options.id)
        if options.json:
            print_page(Page(facts={"client": options.id, "stack": text}), as_json=True)
        else:
            print_lines(text.rstrip("\n"), keep="\n\t")

    with_admin(options, work)


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(sep=" ", timespec="seconds") if ms else "-"


def _row(client: ClientView) -> tuple[Scalar, ...]:
    return (
        client.client_id,
        client.kind.lower().replace("_", " "),
        client.group,
        client.language,
        ", ".join(sorted(entry.topic for entry in client.subscriptions)),
        len(client.owned),
        client.inflight,
        ", ".join(client.brokers),
        client.last_seen_ms or client.joined_ms,
    )
