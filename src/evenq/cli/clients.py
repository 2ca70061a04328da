"""`evenq client list | show | stack | access`: the producers and consumers of the cluster, and one's own rights."""

from __future__ import annotations

import argparse
from datetime import datetime

from evenq.cli.admin import warn_silent, with_admin
from evenq.cli.output import WIDE, Column, Listing, Page, Scalar, print_lines, print_page
from evenq.client.async_admin import Admin
from evenq.client.core.admin.query_views import ClientView

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
    async def work(admin: Admin) -> None:
        view = await admin.list_clients(group=options.group)
        warn_silent(options, view.silent, "clients that call only them")
        rows = [_row(client) for client in view.clients]
        empty = "No client is connected. Try: evenq consume TOPIC --group NAME"
        listing = Listing(key="clients", columns=_COLUMNS, rows=rows, empty=empty)
        print_page(Page(facts={}, listings=[listing]), options.output)

    with_admin(options, work)


def show(options: argparse.Namespace) -> None:
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
        print_page(Page(facts=facts, listings=listings), options.output)

    with_admin(options, work)


def stack(options: argparse.Namespace) -> None:
    async def work(admin: Admin) -> None:
        text = await admin.client_stack(options.id)
        if options.output.for_programs:
            print_page(Page(facts={"client": options.id, "stack": text}), options.output)
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


def access(options: argparse.Namespace) -> None:
    async def work(admin: Admin) -> None:
        caller = await admin.describe_caller()
        rows: list[tuple[Scalar, ...]] = [(one.resource, " ".join(one.actions)) for one in caller.grants]
        empty = "No grant: every call is refused."
        if not caller.user:
            empty = "The cluster has no users: every call is allowed."
        elif caller.admin:
            empty = "Every call is allowed, except those between servers."
        columns = (Column("resource", "resource"), Column("actions", "actions"))
        page = Page(
            facts={"user": caller.user, "admin": caller.admin, "broker": caller.broker_name},
            listings=[Listing(key="grants", columns=columns, rows=rows, empty=empty)],
        )
        print_page(page, options.output)

    with_admin(options, work)
