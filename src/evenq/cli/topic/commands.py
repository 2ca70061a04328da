"""`evenq topic create | list | show | delete`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from evenq.cli.admin import on_every_broker, warn_missing, with_admin
from evenq.cli.contexts.settling import in_namespace
from evenq.cli.exit_codes import NotConfirmed
from evenq.cli.lag import lag_cells, lag_columns, warn_lag
from evenq.cli.output import WIDE, Column, Listing, Page, Scalar, print_page
from evenq.cli.topic.resizing import permission_text
from evenq.client.async_admin import Admin
from evenq.client.core.admin.views import LiteTopicView, PlacementView, TopicDetails
from evenq.errors import BadRequest, ConnectionFailed, Forbidden, GroupNotFound
from evenq.model.names import table_group

READERS_MAX = 50
NOT_COUNTED = "messages were not counted"


async def create_topic(
    admin: Admin,
    name: str,
    *,
    queues: int,
    message_type: str | None,
    retention_ms: int | None = None,
    brokers: Mapping[str, int] | None = None,
) -> list[PlacementView]:
    """Creates a topic on every broker or on `brokers`. Raises ConnectionFailed, which names brokers without it.

    `retention_ms`: None = unchanged, 0 = for ever, -1 = the broker's setting.
    """
    placements = await admin.create_topic(
        name, queues=queues, message_type=message_type, brokers=brokers, retention_ms=retention_ms
    )
    failed = [f"{placement.broker_name} ({placement.error})" for placement in placements if placement.error]
    if failed:
        raise ConnectionFailed(
            f"topic {name} was not created on {', '.join(failed)}; run the command again when they are available"
        )
    return placements


def create(options: argparse.Namespace) -> None:
    brokers = dict(options.broker)
    if len(brokers) < len(options.broker):
        raise BadRequest("a broker is named twice; name each --broker once")

    async def work(admin: Admin) -> None:
        placements = await on_every_broker(
            lambda: create_topic(
                admin,
                options.name,
                queues=options.queues,
                message_type=options.type,
                retention_ms=options.retention,
                brokers=brokers,
            )
        )
        rows = [(placement.broker_name, placement.queues, placement.message_type.value) for placement in placements]
        total = sum(placement.queues for placement in placements)
        columns = (Column("broker", "broker"), Column("queues", "queues", "number"), Column("type", "type"))
        facts: dict[str, Scalar] = {"topic": options.name, "queues": total}
        if options.table:
            facts["table_group"] = await on_every_broker(lambda: _declare_table(admin, options.name))
        page = Page(
            facts=facts,
            listings=[Listing(key="brokers", columns=columns, rows=rows)],
            sentence=f"Topic {options.name} has {total} queue{'s' * (total != 1)} on {len(rows)} "
            f"broker{'s' * (len(rows) != 1)}.",
        )
        print_page(page, options.output)
        if not brokers:
            later = "It gets the topic when it is back"
            await warn_missing(options, admin, f"topic {options.name} was not created", later=later)

    with_admin(options, work)


async def _declare_table(admin: Admin, topic: str) -> str:
    """Makes the group for whose offsets retention waits, at the first message of each queue; returns its name."""
    group = table_group(topic)
    if not group:
        raise BadRequest(f"topic {topic} cannot have a table: it is a system topic, or longer than 108 characters")
    await admin.create_group(group, start_from="FIRST")
    moves = await admin.reset_offsets(group, topic=topic, to="earliest")
    if not any(move.before >= 0 for move in moves):  # otherwise an exporter has reported
        moves = await admin.reset_offsets(group, topic=topic, to="earliest", dry_run=False)
    failed = [f"{move.queue} ({move.error})" for move in moves if move.error]
    if failed:
        raise ConnectionFailed(f"the table of {topic} was not declared at {failed[0]}; run the command again")
    return group


def list_all(options: argparse.Namespace) -> None:
    async def work(admin: Admin) -> None:
        topics = await admin.list_topics(include_system=options.all)
        columns = (
            Column("topic", "topic"),
            Column("type", "type"),
            Column("brokers", "brokers", "number"),
            Column("queues", "queues", "number"),
            Column("messages", "messages", "number"),
        )
        rows = [
            (topic.topic, topic.message_type.value, topic.brokers, topic.queues, topic.messages)
            for topic in sorted(topics, key=lambda topic: topic.topic)
            if in_namespace(options.namespace, topic.topic)
        ]
        empty = "No topics yet. Create one: evenq topic create NAME"
        listings = [Listing(key="topics", columns=columns, rows=rows, empty=empty)]
        if options.lite:
            lite = await admin.list_lite_topics()
            listings.append(_lite_topics([one for one in lite if in_namespace(options.namespace, one.topic)]))
        print_page(Page(facts={}, listings=listings), options.output)
        await warn_missing(options, admin, NOT_COUNTED)

    with_admin(options, work)


def _lite_topics(topics: Sequence[LiteTopicView]) -> Listing:
    columns = (
        Column("topic", "topic"),
        Column("lite_topic", "lite topic"),
        Column("broker", "broker"),
        Column("messages", "messages", "number"),
        Column("subscribers", "subscribers", "number"),
    )
    rows = [(one.topic, one.lite_topic, one.broker_name, one.messages, one.subscribers) for one in topics]
    return Listing(
        key="lite_topics", columns=columns, rows=rows, empty="No lite topics yet. The first message creates one."
    )


def show(options: argparse.Namespace) -> None:
    if options.name is None:
        list_all(options)
        return

    async def work(admin: Admin) -> None:
        topic = await admin.describe_topic(options.name)
        columns = (
            Column("broker", "broker"),
            Column("queue", "queue", "number"),
            Column("min_offset", "min offset", "number", shown=WIDE),
            Column("max_offset", "max offset", "number"),
            Column("messages", "messages", "number"),
            Column("permission", "permission"),
            Column("last_store_ms", "last message", "time"),
        )
        rows = [
            (
                q.queue.broker_name,
                q.queue.queue_id,
                q.min_offset,
                q.max_offset,
                q.max_offset - q.min_offset,
                permission_text(q.permission),
                q.last_store_ms,
            )
            for q in sorted(topic.queues, key=lambda at: at.queue)
        ]
        facts: dict[str, str | int | bool | list[str] | None] = {
            "topic": options.name,
            "type": topic.message_type.value,
            "retention": _retention_text(topic),
            "messages": sum(queue.max_offset - queue.min_offset for queue in topic.queues),
            "groups": sorted(topic.groups),
            "stranded": topic.stranded,
        }
        listings = [
            Listing(key="queues", columns=columns, rows=rows),
            await _readers(options, admin, topic.groups),
        ]
        print_page(Page(facts=facts, listings=listings), options.output)
        await warn_missing(options, admin, NOT_COUNTED)

    with_admin(options, work)


async def _readers(options: argparse.Namespace, admin: Admin, groups: Sequence[str]) -> Listing:
    """Returns groups of the topic with their lag, at most READERS_MAX; only the name where the caller has no right."""
    topic: str = options.name
    rows: list[tuple[Scalar, ...]] = []
    silent: set[str] = set()
    for group in sorted(groups)[:READERS_MAX]:
        try:
            details = await admin.describe_group(group)
        except GroupNotFound:  # deleted meanwhile
            continue
        except Forbidden:
            rows.append((group, None, "", None, None))
            continue
        silent.update(details.summary.silent)
        queues = [queue for queue in details.queues if queue.queue.topic == topic]
        filters = sorted({m.subscriptions[topic] for m in details.members if topic in m.subscriptions})
        inflight = sum(queue.inflight for queue in queues)
        lag = lag_cells(sum(queue.lag for queue in queues), silent)
        rows.append((group, len(details.members), " | ".join(filters), *lag, inflight))
    warn_lag(options, silent)
    columns = (
        Column("group", "group"),
        Column("members", "members", "number"),
        Column("filters", "filters"),
        *lag_columns(silent),
        Column("inflight", "in flight", "number"),
    )
    return Listing(key="readers", columns=columns, rows=rows, title="Readers", empty="no group has read this topic")


def delete(options: argparse.Namespace) -> None:
    if not options.yes:
        raise NotConfirmed(
            f"this deletes topic {options.name} with all its messages and schedules on every broker; add --yes to "
            "confirm"
        )

    async def work(admin: Admin) -> None:
        await admin.delete_topic(options.name)
        print_page(Page(facts={"deleted": options.name}, sentence=f"Topic {options.name} is deleted."), options.output)

    with_admin(options, work)


def _retention_text(topic: TopicDetails) -> str:
    if topic.retention_ms is None:
        return "the broker's setting"
    if topic.retention_ms == 0:
        return "for ever"
    return f"{topic.retention_ms / 3_600_000:g} h"
