"""`evenq message get | find | tail | trace`: stored messages and their deliveries; and `recall`, the only change."""

from __future__ import annotations

import argparse
import base64
import contextlib
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from evenq.cli.admin import warn_silent, with_admin
from evenq.cli.formats import Output
from evenq.cli.output import (
    WIDE,
    Column,
    Listing,
    Page,
    Scalar,
    print_lines,
    print_page,
    print_record,
    print_value,
    progress_console,
)
from evenq.cli.values import moment_ms
from evenq.client.async_admin import Admin
from evenq.client.core.admin.query_views import MessageTraceView, MessageView, TraceEventView
from evenq.errors import BadRequest
from evenq.model import MessageQueue
from evenq.runtime.clock import SystemClock

FOLLOW_MS = 500
STORED_THERE = "the messages stored there"
Facts = dict[str, Scalar | list[str]]


def find(options: argparse.Namespace) -> None:
    now_ms = SystemClock().now_ms()
    queue = _queue(options)

    async def work(admin: Admin) -> None:
        view = await admin.find_messages(
            options.topic,
            key=options.key,
            begin_ms=moment_ms(options.begin, now_ms=now_ms) if options.begin else 0,
            end_ms=moment_ms(options.end, now_ms=now_ms) if options.end else 0,
            queue=queue,
            offset=options.offset,
            newest_first=options.newest,
            limit=options.limit,
            body_max=options.body_max,
        )
        warn_silent(options, view.silent, STORED_THERE)
        if options.output.for_programs:
            _lines(view.messages, options.output)
            return
        empty = f"No message matches. To see the newest: evenq message tail {options.topic}"
        print_page(Page(facts={}, listings=[_listing(view.messages, empty, options.body_max)]), options.output)
        if view.more:
            progress_console().print("More messages match: give a shorter time range, or raise --limit.")

    with_admin(options, work)


def get(options: argparse.Namespace) -> None:
    if bool(options.id) == (options.offset is not None):
        raise BadRequest("give the ID of a message, or --topic, --queue and --offset; see evenq message get --help")
    queue = _queue(options)

    async def work(admin: Admin) -> None:
        message = await admin.get_message(
            options.id, topic=options.topic, queue=queue, offset=options.offset, body_max=options.body_max
        )
        _show(message, options)

    with_admin(options, work)


def recall(options: argparse.Namespace) -> None:
    async def work(admin: Admin) -> None:
        message_id = await admin.recall_message(options.topic, options.handle)
        page = Page(
            facts={"topic": options.topic, "recalled": message_id},
            sentence=f"Message {message_id} of {options.topic} was recalled and will not be delivered.",
        )
        print_page(page, options.output)

    with_admin(options, work)


def tail(options: argparse.Namespace) -> None:
    queue = _queue(options)

    async def work(admin: Admin) -> None:
        view = await admin.peek_messages(options.topic, queue=queue, limit=options.limit, body_max=options.body_max)
        warn_silent(options, view.silent, STORED_THERE)
        newest = list(reversed(view.messages))
        if options.output.for_programs:
            _lines(newest, options.output)
        elif options.follow:
            _texts(newest, options.body_max)
        else:
            empty = f"Topic {options.topic} holds no message. Send one: evenq produce {options.topic} --body hello"
            print_page(Page(facts={}, listings=[_listing(newest, empty, options.body_max)]), options.output)
        if options.follow:
            await _follow(admin, dict(view.positions), queue, options)

    with contextlib.suppress(KeyboardInterrupt) if options.follow else contextlib.nullcontext():
        with_admin(options, work)


async def _follow(
    admin: Admin, known: dict[MessageQueue, int], queue: MessageQueue | None, options: argparse.Namespace
) -> None:
    clock = SystemClock()
    while True:
        view = await admin.find_messages(
            options.topic, queue=queue, limit=options.limit, body_max=options.body_max, after=known
        )
        known.update(view.positions)
        if options.output.for_programs:
            _lines(view.messages, options.output)
        else:
            _texts(view.messages, options.body_max)
        if not view.more:
            await clock.sleep_ms(FOLLOW_MS)


def trace(options: argparse.Namespace) -> None:
    async def work(admin: Admin) -> None:
        view = await admin.trace_message(options.id, topic=options.topic, group=options.group)
        warn_silent(options, view.silent, STORED_THERE)
        if options.output.for_programs:
            copies = [_trace_json(one) for one in view.traces]
            print_value({"message_id": options.id, "copies": copies}, options.output, name=options.id)
            return
        for one in view.traces:
            print_page(_trace_page(one), options.output)

    with_admin(options, work)


# ---------------------------------------------------------------------------------------------------- one message


def message_row(message: MessageView) -> dict[str, Any]:
    """Returns one message for JSON. A body that is not UTF-8 becomes base64 in `body_base64`."""
    row: dict[str, Any] = {
        "topic": message.queue.topic,
        "broker": message.queue.broker_name,
        "queue": message.queue.queue_id,
        "offset": message.offset,
        "message_id": message.message_id,
        "type": message.message_type.value,
        "tag": message.tag,
        "keys": list(message.keys),
        "message_group": message.message_group,
        "properties": dict(message.properties),
        "born_ms": message.born_ms,
        "born_host": message.born_host,
        "store_ms": message.store_ms,
        "body_bytes": message.body_bytes,
    }
    if message.origin_topic:
        row["origin_topic"] = message.origin_topic
        row["origin_message_id"] = message.origin_message_id
    try:
        row["body"] = message.body.decode()
    except UnicodeDecodeError:
        row["body_base64"] = base64.b64encode(message.body).decode()
    return row


def _show(message: MessageView, options: argparse.Namespace) -> None:
    if options.output.for_programs:
        print_value(message_row(message), options.output, name=message.message_id)
        return
    facts: Facts = {
        "message_id": message.message_id,
        "place": _place(message),
        "type": message.message_type.value,
        "tag": message.tag,
        "keys": list(message.keys),
        "message_group": message.message_group,
        "properties": [f"{key}={value}" for key, value in sorted(message.properties.items())],
        "born": f"{_time(message.born_ms)} at {message.born_host or '-'}",
        "stored": _time(message.store_ms),
    }
    if message.origin_topic:
        facts["origin"] = f"{message.origin_topic} {message.origin_message_id}"
    facts["body"] = f"{message.body_bytes:,} bytes"
    print_page(Page(facts=facts), options.output)
    if options.body != "none":
        print_lines(_body(message.body, options.body), keep="\n\t")
        if len(message.body) < message.body_bytes:
            note = f"The first {len(message.body):,} of {message.body_bytes:,} bytes; raise --body-max for more."
            progress_console().print(note)


def _body(body: bytes, form: str) -> str:
    if form == "hex":
        lines = [body[start : start + 16] for start in range(0, len(body), 16)]
        return "\n".join(f"{16 * number:08x}  {line.hex(' '):<47}  {_safe(line)}" for number, line in enumerate(lines))
    if form == "base64":
        return base64.b64encode(body).decode()
    return body.decode(errors="backslashreplace")


def _safe(line: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)


# ---------------------------------------------------------------------------------------------------- many messages


def _listing(messages: Iterable[MessageView], empty: str, body_max: int) -> Listing:
    columns = (
        Column("message_id", "id"),
        Column("store_ms", "stored", "time"),
        Column("place", "place", shown=WIDE),
        Column("tag", "tag", shown=WIDE),
        Column("keys", "keys", shown=WIDE),
        Column("body_bytes", "bytes", "number", shown=WIDE),
        Column("body", "body", "sentence"),
    )
    rows: list[tuple[Scalar, ...]] = [
        (
            message.message_id,
            message.store_ms,
            _place(message),
            message.tag,
            ", ".join(message.keys),
            message.body_bytes,
            _preview(message, body_max),
        )
        for message in messages
    ]
    return Listing(key="messages", columns=columns, rows=rows, empty=empty)


def _preview(message: MessageView, body_max: int) -> str:
    text = message.body[:body_max].decode(errors="backslashreplace")
    return text + ("..." if message.body_bytes > len(message.body) else "")


def _lines(messages: Iterable[MessageView], output: Output) -> None:
    for message in messages:
        print_record(message_row(message), output, name=message.message_id)


def _texts(messages: Iterable[MessageView], body_max: int) -> None:
    for message in messages:
        marks = " ".join(filter(None, (message.tag, *message.keys)))
        marked = f"[{marks}] " if marks else ""
        line = f"{_time(message.store_ms)}  {_place(message):<20}  {message.message_id}  {marked}"
        print_lines(f"{line}{_preview(message, body_max)}")


def _queue(options: argparse.Namespace) -> MessageQueue | None:
    if getattr(options, "offset", None) is not None and (options.queue is None or not options.topic):
        raise BadRequest("--offset needs a queue: add --queue BROKER/ID, and the topic")
    return None if options.queue is None else MessageQueue(options.topic, *options.queue)


def _place(message: MessageView) -> str:
    return f"{message.queue.broker_name}/{message.queue.queue_id}:{message.offset}"


def _time(ms: int, *, exact: bool = False) -> str:
    if not ms:
        return "-"
    moment = datetime.fromtimestamp(ms / 1000).astimezone()
    return moment.strftime("%Y-%m-%d %H:%M:%S") + (f".{ms % 1000:03}" if exact else "")


# ---------------------------------------------------------------------------------------------------- traces

_STATES = {
    "WAITING": "not delivered yet",
    "IN_FLIGHT": "delivered, not acknowledged",
    "RETRY": "waits for its next delivery",
    "BLOCKED": "waits for the previous message of its message group",
    "FINISHED": "finished",
    "DEAD_LETTERED": "in the dead-letter topic",
}


def _trace_json(trace: MessageTraceView) -> dict[str, Any]:
    row = message_row(trace.message)
    row.pop("body", None)
    return {
        **row,
        "remembered_since_ms": trace.remembered_since_ms,
        "groups": [
            {
                "group": at.group,
                "state": at.state,
                "attempt": at.attempt,
                "client_id": at.client_id,
                "until_ms": at.until_ms,
            }
            for at in trace.groups
        ],
        "events": [
            {
                "at_ms": event.at_ms,
                "what": event.what,
                "group": event.group,
                "client_id": event.client_id,
                "attempt": event.attempt,
                "until_ms": event.until_ms,
            }
            for event in trace.events
        ],
    }


def _trace_page(trace: MessageTraceView) -> Page:
    message = trace.message
    facts: Facts = {
        "message_id": message.message_id,
        "topic": message.queue.topic,
        "place": _place(message),
        "sent": f"{_time(message.born_ms, exact=True)} by {message.born_host or 'an unknown host'}",
        "remembered_since": _time(trace.remembered_since_ms)
        if trace.remembered_since_ms
        else "never (trace_bytes is 0)",
    }
    state_columns = (
        Column("group", "group"),
        Column("state", "state"),
        Column("attempt", "attempt", "number"),
        Column("client_id", "held by"),
        Column("until_ms", "until", "time"),
    )
    states: list[tuple[Scalar, ...]] = [
        (at.group, _STATES.get(at.state, at.state), at.attempt or None, at.client_id, at.until_ms)
        for at in trace.groups
    ]
    event_columns = (
        Column("at", "when"),
        Column("what", "what"),
        Column("group", "group"),
        Column("client_id", "client"),
    )
    events: list[tuple[Scalar, ...]] = [
        (_time(event.at_ms, exact=True), _event_text(event), event.group, event.client_id) for event in trace.events
    ]
    return Page(
        facts=facts,
        listings=[
            Listing(key="groups", columns=state_columns, rows=states, title="Groups", empty="no group reads it"),
            Listing(key="events", columns=event_columns, rows=events, title="Events"),
        ],
    )


def _event_text(event: TraceEventView) -> str:
    match event.what:
        case "STORED":
            return "stored"
        case "DELIVERED":
            return f"delivered, attempt {event.attempt}"
        case "INVISIBLE":
            return "given back" if not event.until_ms else f"invisible until {_time(event.until_ms, exact=True)}"
        case "ACKNOWLEDGED":
            return "acknowledged"
        case "DEAD_LETTERED":
            return "moved to the dead-letter topic"
        case "COMMITTED":
            return "passed by its owner's commit"
        case _:
            return "offset of the group moved by an operator"
