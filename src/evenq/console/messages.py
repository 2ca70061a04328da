"""Messages: the search, one message with its body and its trace, its body as a file, and sending it again, edited."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, replace

from starlette.datastructures import UploadFile
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute

from evenq.client.core.admin.query_views import MessageView, TracesView
from evenq.console.bodies import CHECKED_BYTES_MAX, SHOWN_BYTES, BodyForm, ShownBody, is_whole_text, shown_body
from evenq.console.pages import Console, Visit, route
from evenq.console.searching import OFFSET_MAX, search_of
from evenq.console.timelines import timelines
from evenq.console.topics import message_of
from evenq.errors import BadRequest, Error, Forbidden, NotFound
from evenq.model import Message, MessageQueue
from evenq.model.names import DLQ_PREFIX, RETRY_PREFIX
from evenq.runtime.printable import json_line
from evenq.wire.described import DESCRIBED_BYTES_MAX, DESCRIPTORS_BYTES_MAX, described

PROPERTIES_SHOWN = 200
VALUE_CHARACTERS_SHOWN = 2_000
TIMELINES_SHOWN = 20
STEPS_SHOWN = 200
EDITED_BYTES_MAX = 256 << 10
PRIORITY_MAX = (1 << 31) - 1
_COPY_PROPERTIES = ("DLQ_", "RETRY_ORIGIN_")
"""Beginnings of the names of properties with which a broker marks a copy of a failed message."""
_ORIGIN_GROUP = "DLQ_ORIGIN_MESSAGE_GROUP"
_CUT_FORMS = (BodyForm.TEXT, BodyForm.HEX, BodyForm.PROTOBUF)
_ONE = "/messages/{topic}/{broker}/{queue}/{offset}"


def routes(console: Console) -> list[BaseRoute]:
    one_at_a_time = asyncio.Semaphore(1)

    async def decode(visit: Visit) -> Response:
        async with one_at_a_time:  # each may take much memory for a moment
            return await _decode(visit)

    return [
        route(console, "/messages", _find),
        route(console, f"{_ONE}/body", _download),
        route(console, f"{_ONE}/protobuf", decode, posts=True),
        route(console, f"{_ONE}/resend", _edit),
        route(console, f"{_ONE}/resend", _resend, changes=True),
        route(console, _ONE, _show),
    ]


async def _find(visit: Visit) -> Response:
    search = search_of(visit)
    message_id = visit.query("id").strip()
    if message_id:
        message = await visit.admin.get_message(message_id, topic=search.topic, body_max=1)
        return RedirectResponse(visit.console.href(*_address(message)), 303)
    query = {name: visit.query(name) for name in ("topic", "key", "begin", "end", "queue", "offset", "order")}
    page = await search.page(visit) if search.topic else None
    return visit.page(
        "messages.html",
        title="Messages",
        query=query,
        found=page,
        next_query=query | dict(page.next) if page is not None and page.next is not None else None,
        newest_first=search.newest_first,
        continued=bool(search.last or search.positions),
    )


# ---------------------------------------------------------------------------------------------------- one message


async def _show(visit: Visit) -> Response:
    form = visit.query("form")
    message = await _message(visit, SHOWN_BYTES)
    if form not in _CUT_FORMS and len(message.body) < message.body_bytes <= CHECKED_BYTES_MAX:
        message = await _message(visit, 0)  # JSON is checked as a whole
    if form == BodyForm.PROTOBUF:
        body = ShownBody(form=BodyForm.PROTOBUF, text="", hidden_bytes=message.body_bytes)
    else:
        body = await asyncio.to_thread(shown_body, message, form)
    return await _page(visit, message, body)


async def _decode(visit: Visit) -> Response:
    """Shows the body by descriptors that are uploaded with the request and then forgotten."""
    upload = visit.form.get("descriptors")
    if not isinstance(upload, UploadFile):
        raise BadRequest("the form has no file; choose a FileDescriptorSet")
    descriptors = await upload.read(DESCRIPTORS_BYTES_MAX + 1)
    await upload.close()
    name = visit.text("message").strip()
    if not name:
        raise BadRequest("the form names no message type; give its full name, such as shop.Order")
    message = await _message(visit, DESCRIBED_BYTES_MAX + 1)
    text, whole = await asyncio.to_thread(described, message.body, descriptors, name, characters_max=SHOWN_BYTES)
    note = "" if whole else f"Only the first {SHOWN_BYTES:,} characters are shown."
    return await _page(
        visit, message, ShownBody(form=BodyForm.PROTOBUF, text=text, hidden_bytes=0, note=note), name=name
    )


async def _page(visit: Visit, message: MessageView, body: ShownBody, *, name: str = "") -> Response:
    traces = await _traces(visit, message)
    refused = traces if isinstance(traces, Error) else None
    lines = [] if isinstance(traces, Error) else timelines(traces.traces)
    group = visit.query("group")
    names = sorted(message.properties)
    return visit.page(
        "message.html",
        title=f"Message {message.message_id}",
        message=message,
        address=_address(message),
        properties=[(one, message.properties[one]) for one in names[:PROPERTIES_SHOWN]],
        properties_hidden=max(0, len(names) - PROPERTIES_SHOWN),
        characters=VALUE_CHARACTERS_SHOWN,
        body=body,
        forms=[str(one) for one in BodyForm],
        type_name=name,
        descriptors_max=DESCRIPTORS_BYTES_MAX,
        traces=None if isinstance(traces, Error) else traces,
        refused=refused,
        lines=lines,
        lines_shown=[one for one in lines if one.group == group or (not group and one.has_events)][:TIMELINES_SHOWN],
        steps_max=STEPS_SHOWN,
        group=group,
    )


async def _traces(visit: Visit, message: MessageView) -> TracesView | Error:
    try:
        return await visit.admin.trace_message(message.message_id, topic=message.origin_topic or message.queue.topic)
    except Error as error:
        return error


async def _download(visit: Visit) -> Response:
    message = await _message(visit, 0)
    name = f"{message.queue.topic}-{message.queue.broker_name}-{message.queue.queue_id}-{message.offset}.bin"
    return Response(message.body, media_type="application/octet-stream", headers=attachment(name))


def attachment(name: str) -> dict[str, str]:
    """Returns the header with which a browser saves a response as a file."""
    kept = re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:150].lstrip(".")
    return {"content-disposition": f'attachment; filename="{kept}"'}


async def _message(visit: Visit, body_max: int) -> MessageView:
    """Returns the message that the address of the page names. Raises MessageNotFound, TopicNotFound."""
    queue_id, offset = visit.path("queue"), visit.path("offset")
    for text in (queue_id, offset):
        if not (text.isascii() and text.isdecimal() and int(text[:20]) <= OFFSET_MAX):
            raise NotFound(f"{text[:50]!r} is not a number of a queue or an offset; see the topic for both")
    if int(queue_id) >= 1 << 31:
        raise NotFound(f"no topic has a queue {queue_id}; see the topic for its queues")
    queue = MessageQueue(visit.path("topic"), visit.path("broker"), int(queue_id))
    return await visit.admin.get_message(topic=queue.topic, queue=queue, offset=int(offset), body_max=body_max)


def _address(message: MessageView) -> tuple[object, ...]:
    queue = message.queue
    return ("messages", queue.topic, queue.broker_name, queue.queue_id, message.offset)


# ---------------------------------------------------------------------------------------------------- edit and resend


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """Content of the form that sends a message again."""

    topic: str
    body: str
    keeps_body: bool
    """True: the stored body is sent; it cannot be edited without a change."""
    newline: str
    """`lf`: the lines of the body end with LF, which a browser replaces by CR LF."""
    tag: str
    keys: str
    properties: str
    message_group: str
    lite_topic: str
    priority: str
    delay_s: str = ""


async def _edit(visit: Visit) -> Response:
    if not visit.console.settings.allow_changes:
        raise Forbidden("this console is read-only; start it with --allow-changes to send messages")
    message = await _message(visit, EDITED_BYTES_MAX)
    return _form(visit, message, _draft(message))


async def _resend(visit: Visit) -> Response:
    stored = await _message(visit, 0 if visit.text("keeps_body") else EDITED_BYTES_MAX)
    try:
        result = await visit.principal.producer.send(_edited(visit, stored))
    except (BadRequest, NotFound) as error:
        draft = _Draft(
            keeps_body=bool(visit.text("keeps_body")),
            **{name: visit.text(name) for name in _Draft.__slots__ if name != "keeps_body"},
        )
        return _form(visit, stored, draft, problem=f"{error}")
    return visit.after(f"Sent message {result.message_id} to topic {result.queue.topic}.", *_address(stored))


def _form(visit: Visit, message: MessageView, draft: _Draft, *, problem: str = "") -> Response:
    return visit.page(
        "resend.html",
        status=400 if problem else 200,
        title="Edit and resend",
        message=message,
        address=_address(message),
        draft=draft,
        editable=_newline(message) is not None,
        problem=problem,
    )


def _draft(message: MessageView) -> _Draft:
    is_copy = message.queue.topic.startswith((DLQ_PREFIX, RETRY_PREFIX))
    properties = {
        name: value for name, value in message.properties.items() if not (is_copy and name.startswith(_COPY_PROPERTIES))
    }
    newline = _newline(message)
    group = message.message_group or (message.properties.get(_ORIGIN_GROUP) if is_copy else None)
    return _Draft(
        topic=message.origin_topic or message.queue.topic,
        body=message.body.decode() if newline is not None else "",
        keeps_body=newline is None,
        newline=newline or "",
        tag=message.tag or "",
        keys=" ".join(message.keys),
        properties=json_line(properties) if properties else "",
        message_group=group or "",
        lite_topic=message.lite_topic or "",
        priority="" if message.priority is None else f"{message.priority}",
    )


def _newline(message: MessageView) -> str | None:
    """Returns how lines of the body end; None: a browser's text field cannot hold the body without a change."""
    if not is_whole_text(message) or b"\0" in message.body:
        return None
    pairs = message.body.count(b"\r\n")
    if message.body.count(b"\r") != pairs or (pairs and message.body.count(b"\n") != pairs):
        return None
    return "crlf" if pairs else "lf"


def _edited(visit: Visit, stored: MessageView) -> Message:
    """Returns the message of the form. Raises BadRequest."""
    message = message_of(visit, visit.text("topic").strip())
    body = message.body.replace(b"\r\n", b"\n") if visit.text("newline") == "lf" else message.body
    priority = visit.number("priority", most=PRIORITY_MAX) if visit.text("priority").strip() else None
    return replace(
        message,
        body=stored.body if visit.text("keeps_body") else body,
        priority=priority,
        lite_topic=visit.text("lite_topic").strip() or None,
    )
