"""`evenq group create | list | show | delete`."""

from __future__ import annotations

import argparse

from evenq.cli.admin import on_every_broker, with_admin
from evenq.cli.contexts.settling import in_namespace
from evenq.cli.exit_codes import NotConfirmed
from evenq.cli.group.policies import balance_policy, balance_text, retry_policy
from evenq.cli.lag import lag_cells, lag_columns, lag_facts, warn_lag
from evenq.cli.output import QUEUE, WIDE, Column, Listing, Page, Scalar, print_page, progress_console, queue_cells
from evenq.client.async_admin import Admin
from evenq.client.core.admin.views import GroupDetails, filter_text
from evenq.runtime.clock import SystemClock

_TROUBLES = ("ordered", "oldest_unread_s", "waiting_for_retry", "given_back", "timed_out", "dead_letters")
"""Facts that `group show` prints only if they are not 0."""


def create(options: argparse.Namespace) -> None:
    async def work(admin: Admin) -> None:
        before = next((one.balance for one in await admin.list_groups() if one.group == options.name), None)
        warnings = await on_every_broker(
            lambda: admin.create_group(
                options.name,
                ordered=options.ordered or None,  # an existing group keeps its own
                max_attempts=options.max_attempts,
                strategy=options.strategy,
                start_from=options.start_from,
                retry=retry_policy(options),
                balance=balance_policy(options, before),
            )
        )
        for warning in warnings:
            progress_console().print(f"warning: {warning}")
        now = (await admin.describe_group(options.name)).summary
        page = Page(
            facts={
                "group": now.group,
                "ordered": now.ordered,
                "max_attempts": now.max_attempts,
                "strategy": now.strategy,
                "retry": str(now.retry),
                "balance": balance_text(now.balance),
            },
            sentence=f"Group {options.name} is ready. To read: evenq consume TOPIC --group {options.name}",
        )
        print_page(page, options.output)

    with_admin(options, work)


def list_all(options: argparse.Namespace) -> None:
    async def work(admin: Admin) -> None:
        known = await admin.list_groups()
        groups = sorted(
            (one for one in known if in_namespace(options.namespace, one.group)), key=lambda group: group.group
        )
        silent = {name for group in groups for name in group.silent}
        columns = (
            Column("group", "group"),
            Column("ordered", "ordered"),
            Column("max_attempts", "max attempts", "number"),
            Column("strategy", "strategy"),
            Column("members", "members", "number"),
            Column("topics", "topics", "number"),
            *lag_columns(silent),
        )
        rows = [
            (
                group.group,
                group.ordered,
                group.max_attempts,
                group.strategy,
                group.members,
                group.topics,
                *lag_cells(group.lag, silent),
            )
            for group in groups
        ]
        warn_lag(options, silent)
        empty = "No groups yet. The first consumer creates one, or: evenq group create NAME"
        print_page(
            Page(facts={}, listings=[Listing(key="groups", columns=columns, rows=rows, empty=empty)]),
            options.output,
        )

    with_admin(options, work)


def show(options: argparse.Namespace) -> None:
    if options.name is None:
        list_all(options)
        return

    async def work(admin: Admin) -> None:
        details = await admin.describe_group(options.name)
        warn_lag(options, details.summary.silent)
        print_page(_page(options.name, details), options.output)

    with_admin(options, work)


def _age_s(stored_ms: int) -> int:
    """Returns the age of a message in seconds; 0 if there is none."""
    return max(0, SystemClock().now_ms() - stored_ms) // 1000 if stored_ms else 0


def _page(name: str, details: GroupDetails) -> Page:
    summary, troubles = details.summary, details.troubles
    differing = Listing(
        key="differing_filters",
        columns=(Column("topic", "topic"), Column("filter", "filter"), Column("members", "members")),
        rows=[
            (one.topic, filter_text(expression), ", ".join(client_ids))
            for one in details.differing_filters
            for expression, client_ids in one.filters
        ],
        title="Different filters (messages excluded by one member are skipped for all)",
        empty="",
    )
    return Page(
        facts={
            "group": name,
            "ordered": summary.ordered,
            "max_attempts": summary.max_attempts,
            "strategy": summary.strategy,
            "retry": str(summary.retry),
            "balance": balance_text(summary.balance),
            **lag_facts(summary.lag, summary.silent),
            "oldest_unread_s": _age_s(troubles.oldest_ms),
            "waiting_for_retry": troubles.retries_waiting,
            "given_back": troubles.given_back,
            "timed_out": troubles.timed_out,
            "dead_letters": troubles.dead_letters,
        },
        listings=[
            _members(details),
            _queues(details),
            differing,
        ],
        tables_first=True,
        zeros_left_out=_TROUBLES,
    )


def _members(details: GroupDetails) -> Listing:
    columns = (
        Column("client_id", "member"),
        Column("language", "language"),
        Column("version", "version", shown=WIDE),
        Column("protocol", "protocol", shown=WIDE),
        Column("zone", "zone", shown=WIDE),
        Column("instance", "instance", shown=WIDE),
        Column("topics", "topics"),
        Column("filters", "filters", shown=WIDE),
        Column("joined_ms", "joined", "time"),
    )
    rows: list[tuple[Scalar, ...]] = [
        (
            m.client_id,
            m.language,
            m.version,
            m.protocol,
            m.zone,
            m.instance,
            ", ".join(sorted(m.subscriptions)),
            ", ".join(m.subscriptions[topic] for topic in sorted(m.subscriptions)),
            m.joined_ms,
        )
        for m in details.members
    ]
    return Listing(key="members", columns=columns, rows=rows, title="Members", empty="no member is connected")


def _queues(details: GroupDetails) -> Listing:
    columns = (
        *QUEUE,
        Column("owner", "owner"),
        Column("committed", "committed", "number", shown=WIDE),
        Column("max_offset", "max offset", "number", shown=WIDE),
        Column("lag", "lag", "number"),
        Column("oldest_unread_s", "oldest, s", "number", shown=WIDE),
        Column("inflight", "in flight", "number"),
    )
    ordered = sorted(details.queues, key=lambda queue: queue.queue)
    rows = [
        (
            *queue_cells(q.queue),
            q.owner,
            q.committed,
            q.max_offset,
            q.lag,
            _age_s(q.next_store_ms) if q.lag else 0,
            q.inflight,
        )
        for q in ordered
    ]
    return Listing(key="queues", columns=columns, rows=rows, title="Queues", empty="the group has read nothing yet")


def delete(options: argparse.Namespace) -> None:
    if not options.yes:
        raise NotConfirmed(f"this deletes group {options.name} and its progress on every broker; add --yes to confirm")

    async def work(admin: Admin) -> None:
        await admin.delete_group(options.name)
        print_page(Page(facts={"deleted": options.name}, sentence=f"Group {options.name} is deleted."), options.output)

    with_admin(options, work)
