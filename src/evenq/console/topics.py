"""Topics: the list, one topic with its queues, readers and newest messages, and the form that sends a message."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

from starlette.responses import Response
from starlette.routing import BaseRoute

from evenq.client.core.admin.query_views import FoundMessagesView
from evenq.client.core.admin.views import TopicDetails
from evenq.console.pages import ROWS, Console, Visit, route
from evenq.errors import BadRequest, Error
from evenq.model import Message, MessageType

NEWEST = 20
BODY_SHOWN = 2_048


def routes(console: Console) -> list[BaseRoute]:
    return [
        route(console, "/topics", _topics),
        route(console, "/topics", _create, changes=True),
        route(console, "/topics/{topic:path}/send", _send, changes=True),
        route(console, "/topics/{topic:path}/delete", _delete, changes=True),
        route(console, "/topics/{topic:path}", _topic),
    ]


async def _topics(visit: Visit) -> Response:
    sample = await visit.figures.newest()
    if sample.topics is None:
        raise sample.failures["topics"]
    words = visit.query("q").strip().lower()
    order = visit.query("sort", "topic")
    rates = {name: visit.figures.rate("messages", name) for name in sample.topics}
    kept = [one for one in sample.topics.values() if words in one.topic.lower()]
    if order == "rate":
        kept.sort(key=lambda one: (-(rates[one.topic] or 0), one.topic))
    elif order == "messages":
        kept.sort(key=lambda one: (-one.messages, one.topic))
    else:
        kept.sort(key=lambda one: one.topic)
    begin = visit.number("begin")
    return visit.page(
        "topics.html",
        title="Topics",
        sample=sample,
        topics=kept[begin : begin + ROWS],
        total=len(kept),
        begin=begin,
        rows=ROWS,
        q=words,
        sort=order,
        rates=rates,
        types=[str(one) for one in MessageType],
    )


async def _topic(visit: Visit) -> Response:
    name = visit.path("topic")

    async def newest() -> FoundMessagesView | Error:
        try:
            return await visit.admin.peek_messages(name, limit=NEWEST, body_max=BODY_SHOWN)
        except Error as error:
            return error

    details, messages, _ = await asyncio.gather(
        visit.admin.describe_topic(name),
        newest(),
        visit.figures.newest(),  # the rate is of now, while somebody looks
    )
    return visit.page(
        "topic.html",
        title=name,
        topic=details,
        stored=_stored(details),
        messages=None if isinstance(messages, Error) else messages,
        refused=messages if isinstance(messages, Error) else None,
        rate=visit.figures.rate("messages", name),
    )


def _stored(details: TopicDetails) -> int:
    return sum(one.max_offset - one.min_offset for one in details.queues)


async def _create(visit: Visit) -> Response:
    name = visit.text("topic").strip()
    made = await visit.admin.create_topic(
        name, queues=visit.number("queues", most=4_096), message_type=visit.text("type") or None
    )
    failed = [f"{one.broker_name}: {one.error}" for one in made if one.error]
    if failed:
        raise BadRequest(f"topic {name} was not created everywhere: {'; '.join(failed)}")
    return visit.after(f"Created topic {name}.", "topics", name)


async def _delete(visit: Visit) -> Response:
    name = visit.path("topic")
    if visit.text("confirm") != name:
        raise BadRequest(f"type the name {name} to delete the topic with all its messages and schedules")
    await visit.admin.delete_topic(name)
    return visit.after(f"Deleted topic {name}.", "topics")


async def _send(visit: Visit) -> Response:
    name = visit.path("topic")
    message = message_of(visit, name)
    # Browsers send each line break of a form as two bytes.
    message = replace(message, body=message.body.replace(b"\r\n", b"\n"))
    result = await visit.principal.producer.send(message)
    return visit.after(f"Sent message {result.message_id}.", "topics", name)


def message_of(visit: Visit, topic: str) -> Message:
    """Returns the message of a send form. Raises BadRequest."""
    try:
        properties = json.loads(visit.text("properties") or "{}")
    except (RecursionError, ValueError) as error:
        raise BadRequest(f'properties are not JSON: {error}; write {{"name": "value"}}') from None
    if not isinstance(properties, dict) or not all(_is_text(one) for pair in properties.items() for one in pair):
        raise BadRequest('properties must be a JSON object with texts, such as {"region": "eu"}')
    delay_s = visit.number("delay_s", most=365 * 86_400)
    return Message(
        topic=topic,
        body=visit.text("body").encode(),
        tag=visit.text("tag").strip() or None,
        keys=tuple(visit.text("keys").split()),
        properties=properties,
        message_group=visit.text("message_group").strip() or None,
        delay=delay_s * 1_000 or None,
    )


def _is_text(value: object) -> bool:
    """JSON may contain half of a surrogate pair, which no encoding can send."""
    return isinstance(value, str) and value.encode("utf-8", "replace").decode() == value
