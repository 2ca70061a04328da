"""`evenq broker list | show` and `evenq cluster show`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from evenq.cli.admin import with_admin
from evenq.cli.broker.copies import copies_listing, groups_listing
from evenq.cli.output import WIDE, Column, Listing, Page, Scalar, print_page
from evenq.client.async_admin import Admin
from evenq.client.core.admin.views import BrokerView, MissingBrokerView
from evenq.errors import NotFound

_COLUMNS = (
    Column("broker", "broker"),
    Column("id", "id", "number", shown=WIDE),
    Column("address", "address"),
    Column("answers", "answers"),
    Column("draining", "draining"),
    Column("topics", "topics", "number"),
    Column("messages_in", "messages in", "number", shown=WIDE),
    Column("messages_out", "messages out", "number", shown=WIDE),
    Column("log_bytes", "log bytes", "number", shown=WIDE),
    Column("connections", "connections", "number", shown=WIDE),
    Column("started_ms", "started", "time", shown=WIDE),
    Column("missing_since_ms", "missing since", "time"),
    Column("changes_waiting", "changes waiting", "number", shown=WIDE),
)


def _listing(brokers: Iterable[BrokerView], missing: Iterable[MissingBrokerView] = ()) -> Listing:
    """Returns the live brokers, then the missing ones."""
    rows: list[tuple[Scalar, ...]] = [
        (
            broker.name,
            broker.broker_id,
            broker.addresses[0] if broker.addresses else "",
            broker.answered,
            broker.draining,
            broker.topics,
            broker.messages_in,
            broker.messages_out,
            broker.log_bytes,
            broker.connections,
            broker.start_ms,
            0,
            0,
        )
        for broker in sorted(brokers, key=lambda broker: (broker.name, broker.broker_id))
    ]
    rows += [(one.name, 0, "", False, False, 0, 0, 0, 0, 0, 0, one.gone_ms, one.changes) for one in missing]
    return Listing(key="brokers", columns=_COLUMNS, rows=rows)


def list_all(options: argparse.Namespace) -> None:
    async def work(admin: Admin) -> None:
        listing = _listing(await admin.list_brokers(), await admin.list_missing_brokers())
        print_page(Page(facts={}, listings=[listing]), options.output)

    with_admin(options, work)


def show(options: argparse.Namespace) -> None:
    if options.name is None:
        list_all(options)
        return

    async def work(admin: Admin) -> None:
        brokers = await admin.list_brokers()
        matches = [broker for broker in brokers if broker.name == options.name]
        if not matches:
            names = ", ".join(sorted(broker.name for broker in brokers))
            raise NotFound(f"no broker is named {options.name}; the cluster has {names or 'no broker'}")
        (row, *_) = _listing(matches).as_rows()
        facts: dict[str, Scalar | list[str]] = {**row, "version": matches[0].version}
        print_page(Page(facts=facts), options.output)

    with_admin(options, work)


def cluster(options: argparse.Namespace) -> None:
    """`evenq cluster show`."""

    async def work(admin: Admin) -> None:
        view = await admin.describe_cluster()
        groups = [groups_listing(view.broker_groups)]
        if options.output.structured or any(group.mode for group in view.broker_groups):
            groups.append(copies_listing(view.broker_groups))
        if not view.brokers and view.broker_groups:  # a copy without a leader reports its own group only
            print_page(Page(facts={"cluster": view.cluster}, listings=groups), options.output)
            return
        facts: dict[str, str | int | bool | list[str] | None] = {
            "cluster": view.cluster,
            "nameservers": list(view.nameservers),
            "rebalancer": view.rebalancer,
            "rebalancer_answers": view.rebalancer_answers,
            "topics": view.topics,
            "groups": view.groups,
        }
        page = Page(facts=facts, listings=[_listing(view.brokers, view.missing), *groups])
        print_page(page, options.output)

    with_admin(options, work)
