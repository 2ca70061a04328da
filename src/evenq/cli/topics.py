"""`evenq topic create | list | show | delete`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from evenq.cli.admin import Admin, message_type_name, message_type_number, on_every_broker, with_admin
from evenq.cli.output import Column, Listing, Page, print_page
from evenq.cli.resizing import permission_text
from evenq.errors import BadRequest, ConnectionFailed
from evenq.wire.stubs.evenq.v1 import admin_pb2

__all__ = ["create", "create_topic", "delete", "list_all", "show"]

READERS_MAX = 50


async def create_topic(
    admin: Admin, name: str, *, queues: int, message_type: str, retention_ms: int | None = None
) -> admin_pb2.CreateTopicResponse:
    """Create on every broker; raises ConnectionFailed that names the brokers on which it did not land.

    `retention_ms`: None = as it is, 0 = for ever, -1 = the broker's setting.
    """
    request = admin_pb2.CreateTopicRequest(
        topic=name, queues=queues, message_type=message_type_number(message_type), retention_ms=retention_ms
    )
    answer = await admin.call("CreateTopic", request, admin_pb2.CreateTopicResponse)
    failed = [f"{placement.broker_name} ({placement.error})" for placement in answer.placements if placement.error]
    if failed:
        raise ConnectionFailed(
            f"topic {name} was not created on {', '.join(failed)}; run the command again when they are back"
        )
    return answer


def create(options: argparse.Namespace) -> None:
    """`evenq topic create NAME`."""

    async def work(admin: Admin) -> None:
        answer = await on_every_broker(
            lambda: create_topic(
                admin, options.name, queues=options.queues, message_type=options.type, retention_ms=options.retention
            )
        )
        rows = [
            (placement.broker_name, placement.entry.write_queues, message_type_name(placement.entry.message_type))
            for placement in answer.placements
        ]
        total = sum(placement.entry.write_queues for placement in answer.placements)
        columns = (Column("broker", "broker"), Column("queues", "queues", "number"), Column("type", "type"))
        page = Page(
            facts={"topic": options.name, "queues": total},
            listings=[Listing(key="brokers", columns=columns, rows=rows)],
            sentence=f"Topic {options.name} has {total} queues on {len(rows)} broker{'s' * (len(rows) != 1)}.",
        )
        print_page(page, as_json=options.json)

    with_admin(options, work)


def list_all(options: argparse.Namespace) -> None:
    """`evenq topic list`."""

    async def work(admin: Admin) -> None:
        request = admin_pb2.ListTopicsRequest(include_system=options.all, lite=options.lite)
        answer = await admin.call("ListTopics", request, admin_pb2.ListTopicsResponse)
        columns = (
            Column("topic", "topic"),
            Column("type", "type"),
            Column("brokers", "brokers", "number"),
            Column("queues", "queues", "number"),
            Column("messages", "messages", "number"),
        )
        rows = [
            (topic.topic, message_type_name(topic.message_type), topic.brokers, topic.queues, topic.messages)
            for topic in sorted(answer.topics, key=lambda topic: topic.topic)
        ]
        empty = "No topics yet. Make one: evenq topic create NAME"
        listings = [Listing(key="topics", columns=columns, rows=rows, empty=empty)]
        if options.lite:
            listings.append(_lite_topics(answer))
        print_page(Page(facts={}, listings=listings), as_json=options.json)

    with_admin(options, work)


def _lite_topics(answer: admin_pb2.ListTopicsResponse) -> Listing:
    columns = (
        Column("topic", "topic"),
        Column("lite_topic", "lite topic"),
        Column("broker", "broker"),
        Column("messages", "messages", "number"),
        Column("subscribers", "subscribers", "number"),
    )
    rows = [(one.topic, one.lite_topic, one.broker_name, one.messages, one.subscribers) for one in answer.lite_topics]
    return Listing(key="lite_topics", columns=columns, rows=rows, empty="No lite topics: nothing was sent to any yet.")


def show(options: argparse.Namespace) -> None:
    """`evenq topic show NAME`."""
    if options.name is None:
        list_all(options)
        return

    async def work(admin: Admin) -> None:
        request = admin_pb2.DescribeTopicRequest(topic=options.name)
        answer = await admin.call("DescribeTopic", request, admin_pb2.DescribeTopicResponse)
        columns = (
            Column("broker", "broker"),
            Column("queue", "queue", "number"),
            Column("min_offset", "min offset", "number"),
            Column("max_offset", "max offset", "number"),
            Column("messages", "messages", "number"),
            Column("permission", "permission"),
            Column("last_store_ms", "last message", "time"),
        )
        queues = sorted(answer.queues, key=lambda queue: (queue.queue.broker_name, queue.queue.queue_id))
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
            for q in queues
        ]
        facts: dict[str, str | int | bool | list[str] | None] = {
            "topic": options.name,
            "type": message_type_name(answer.message_type),
            "retention": _retention_text(answer),
            "messages": sum(queue.max_offset - queue.min_offset for queue in answer.queues),
            "groups": sorted(answer.groups),
            "stranded": answer.stranded,
        }
        listings = [
            Listing(key="queues", columns=columns, rows=rows),
            await _readers(admin, options.name, answer.groups),
        ]
        print_page(Page(facts=facts, listings=listings), as_json=options.json)

    with_admin(options, work)


async def _readers(admin: Admin, topic: str, groups: Sequence[str]) -> Listing:
    """Who reads the topic, and how far behind; the first READERS_MAX groups."""
    rows: list[tuple[str | int | bool | None, ...]] = []
    for group in sorted(groups)[:READERS_MAX]:
        asked = admin_pb2.DescribeGroupRequest(group=group)
        told = await admin.call("DescribeGroup", asked, admin_pb2.DescribeGroupResponse)
        queues = [queue for queue in told.queues if queue.queue.topic == topic]
        wanted = [entry for member in told.members for entry in member.subscriptions if entry.topic == topic]
        filters = sorted({entry.filter.expression or "*" for entry in wanted})
        inflight = sum(queue.inflight for queue in queues)
        rows.append((group, len(told.members), " | ".join(filters), sum(queue.lag for queue in queues), inflight))
    columns = (
        Column("group", "group"),
        Column("members", "members", "number"),
        Column("filters", "filters"),
        Column("lag", "lag", "number"),
        Column("inflight", "in flight", "number"),
    )
    return Listing(key="readers", columns=columns, rows=rows, title="Readers", empty="no group has read it")


def delete(options: argparse.Namespace) -> None:
    """`evenq topic delete NAME --yes`."""
    if not options.yes:
        raise BadRequest(f"this deletes topic {options.name} with all its messages on every broker; add --yes to do it")

    async def work(admin: Admin) -> None:
        await admin.call("DeleteTopic", admin_pb2.DeleteTopicRequest(topic=options.name), admin_pb2.DeleteTopicResponse)
        print_page(
            Page(facts={"deleted": options.name}, sentence=f"Topic {options.name} is gone."), as_json=options.json
        )

    with_admin(options, work)


def _retention_text(answer: admin_pb2.DescribeTopicResponse) -> str:
    if not answer.HasField("retention_ms"):
        return "the broker's setting"
    if answer.retention_ms == 0:
        return "for ever"
    return f"{answer.retention_ms / 3_600_000:g} h"
