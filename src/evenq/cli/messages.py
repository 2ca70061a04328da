"""`evenq message get | find | tail | trace`: stored messages, and what became of them. They only look."""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from evenq.cli.admin import Admin, with_admin
from evenq.cli.moments import moment_ms
from evenq.cli.output import Column, Listing, Page, Scalar, print_page, progress_console
from evenq.errors import BadRequest, MessageNotFound
from evenq.runtime.clock import SystemClock
from evenq.wire.convert import ms_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2

__all__ = ["find", "get", "message_row", "tail", "trace"]

FOLLOW_MS = 500
Facts = dict[str, Scalar | list[str]]


def find(options: argparse.Namespace) -> None:
    """`evenq message find TOPIC`."""
    now_ms = SystemClock().now_ms()
    request = admin_pb2.FindMessagesRequest(
        topic=options.topic,
        key=options.key,
        begin_ms=moment_ms(options.begin, now_ms=now_ms) if options.begin else 0,
        end_ms=moment_ms(options.end, now_ms=now_ms) if options.end else 0,
        newest_first=options.newest,
        count_max=options.limit,
        body_max=options.body_max,
    )
    _at_place(options, request)

    async def work(admin: Admin) -> None:
        answer = await admin.call("FindMessages", request, admin_pb2.FindMessagesResponse)
        _warn(answer.silent)
        if options.json:
            _lines(answer.messages)
            return
        empty = f"No message fits. What is there: evenq message tail {options.topic}"
        print_page(Page(facts={}, listings=[_listing(answer.messages, empty, options.body_max)]), as_json=False)
        if answer.more:
            progress_console().print("There are more: narrow the time, or raise --limit.", markup=False)

    with_admin(options, work)


def get(options: argparse.Namespace) -> None:
    """`evenq message get ID`."""
    if bool(options.id) == (options.offset is not None):
        raise BadRequest("name a message by its ID, or by --topic, --queue and --offset; see evenq message get --help")
    request = admin_pb2.FindMessagesRequest(
        topic=options.topic,
        message_id=options.id,
        count_max=1,
        body_max=options.body_max,
        newest_first=bool(options.id),
    )
    _at_place(options, request)

    async def work(admin: Admin) -> None:
        answer = await admin.call("FindMessages", request, admin_pb2.FindMessagesResponse)
        _warn(answer.silent)
        at = None if not answer.messages else answer.messages[0].message.system_properties.queue_offset
        if at is None or (options.offset is not None and at != options.offset):
            what = (
                f"id {options.id}"
                if options.id
                else f"offset {options.offset} in {options.queue[0]}/{options.queue[1]}"
            )
            raise MessageNotFound(
                f"no message with {what} is stored (any more); evenq message find TOPIC shows what is there"
            )
        _show(answer.messages[0], options)

    with_admin(options, work)


def tail(options: argparse.Namespace) -> None:
    """`evenq message tail TOPIC`."""
    request = admin_pb2.FindMessagesRequest(
        topic=options.topic, newest_first=True, count_max=options.limit, body_max=options.body_max
    )
    if options.queue is not None:
        request.queue.broker_name, request.queue.queue_id = options.queue

    async def work(admin: Admin) -> None:
        answer = await admin.call("FindMessages", request, admin_pb2.FindMessagesResponse)
        _warn(answer.silent)
        newest = list(reversed(answer.messages))
        if options.json or options.follow:
            _lines(newest) if options.json else _texts(newest, options.body_max)
        else:
            empty = f"Topic {options.topic} holds no message. Send one: evenq produce {options.topic} --body hello"
            print_page(Page(facts={}, listings=[_listing(newest, empty, options.body_max)]), as_json=False)
        if options.follow:
            await _follow(admin, request, list(answer.positions), options)

    with contextlib.suppress(KeyboardInterrupt):
        with_admin(options, work)


async def _follow(
    admin: Admin,
    request: admin_pb2.FindMessagesRequest,
    positions: list[admin_pb2.QueuePosition],
    options: argparse.Namespace,
) -> None:
    clock = SystemClock()
    request.newest_first = False
    known = {(at.queue.broker_name, at.queue.queue_id): at for at in positions}
    while True:
        del request.positions[:]
        request.positions.extend(known.values())
        answer = await admin.call("FindMessages", request, admin_pb2.FindMessagesResponse)
        known.update({(at.queue.broker_name, at.queue.queue_id): at for at in answer.positions})
        if options.json:
            _lines(answer.messages)
        else:
            _texts(answer.messages, options.body_max)
        if not answer.more:
            await clock.sleep_ms(FOLLOW_MS)


def trace(options: argparse.Namespace) -> None:
    """`evenq message trace ID`."""
    request = admin_pb2.TraceMessageRequest(topic=options.topic, message_id=options.id, group=options.group)

    async def work(admin: Admin) -> None:
        answer = await admin.call("TraceMessage", request, admin_pb2.TraceMessageResponse)
        _warn(answer.silent)
        if options.json:
            told = [_trace_json(one) for one in answer.traces]
            sys.stdout.write(json.dumps({"message_id": options.id, "copies": told}, ensure_ascii=False) + "\n")
            return
        for one in answer.traces:
            print_page(_trace_page(one), as_json=False)

    with_admin(options, work)


# ---------------------------------------------------------------------------------------------------- one message


def message_row(found: admin_pb2.FoundMessage) -> dict[str, Any]:
    """One message for JSON. A body that is no UTF-8 is given in base64 as `body_base64`."""
    system = found.message.system_properties
    row: dict[str, Any] = {
        "topic": found.queue.topic,
        "broker": found.queue.broker_name,
        "queue": found.queue.queue_id,
        "offset": system.queue_offset,
        "message_id": system.message_id,
        "type": definition_pb2.MessageType.Name(system.message_type),
        "tag": system.tag if system.HasField("tag") else None,
        "keys": list(system.keys),
        "message_group": system.message_group if system.HasField("message_group") else None,
        "properties": dict(found.message.user_properties),
        "born_ms": ms_of(system.born_timestamp),
        "born_host": system.born_host,
        "store_ms": ms_of(system.store_timestamp),
        "body_bytes": found.body_bytes,
    }
    if system.HasField("dead_letter_queue"):
        row["origin_topic"] = system.dead_letter_queue.topic
        row["origin_message_id"] = system.dead_letter_queue.message_id
    body = found.message.body
    try:
        row["body"] = body.decode()
    except UnicodeDecodeError:
        row["body_base64"] = base64.b64encode(body).decode()
    return row


def _show(found: admin_pb2.FoundMessage, options: argparse.Namespace) -> None:
    row = message_row(found)
    if options.json:
        sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
        return
    facts: Facts = {
        "message_id": row["message_id"],
        "place": _place(found),
        "type": row["type"],
        "tag": row["tag"],
        "keys": row["keys"],
        "message_group": row["message_group"],
        "properties": [f"{key}={value}" for key, value in sorted(row["properties"].items())],
        "born": f"{_time(row['born_ms'])} at {row['born_host'] or '-'}",
        "stored": _time(row["store_ms"]),
    }
    if "origin_topic" in row:
        facts["origin"] = f"{row['origin_topic']} {row['origin_message_id']}"
    facts["body"] = f"{found.body_bytes:,} bytes"
    print_page(Page(facts=facts), as_json=False)
    if options.body != "none":
        sys.stdout.write(_body(found.message.body, options.body) + "\n")
        if len(found.message.body) < found.body_bytes:
            told = f"The first {len(found.message.body):,} bytes of {found.body_bytes:,}; raise --body-max for more."
            progress_console().print(told, markup=False)


def _body(body: bytes, form: str) -> str:
    if form == "hex":
        lines = [body[start : start + 16] for start in range(0, len(body), 16)]
        return "\n".join(f"{16 * number:08x}  {line.hex(' '):<47}  {_safe(line)}" for number, line in enumerate(lines))
    if form == "base64":
        return base64.b64encode(body).decode()
    text = body.decode(errors="backslashreplace")
    return "".join(sign if sign.isprintable() or sign in "\n\t" else repr(sign)[1:-1] for sign in text)


def _safe(line: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)


# ---------------------------------------------------------------------------------------------------- many messages


def _listing(messages: Iterable[admin_pb2.FoundMessage], empty: str, body_max: int) -> Listing:
    columns = (
        Column("store_ms", "stored", "time"),
        Column("place", "place"),
        Column("message_id", "id"),
        Column("tag", "tag"),
        Column("keys", "keys"),
        Column("body_bytes", "bytes", "number"),
        Column("body", "body"),
    )
    rows: list[tuple[Scalar, ...]] = []
    for found in messages:
        system = found.message.system_properties
        rows.append((
            ms_of(system.store_timestamp),
            _place(found),
            system.message_id,
            system.tag,
            ", ".join(system.keys),
            found.body_bytes,
            _preview(found, body_max),
        ))  # fmt: skip
    return Listing(key="messages", columns=columns, rows=rows, empty=empty)


def _preview(found: admin_pb2.FoundMessage, body_max: int) -> str:
    text = found.message.body[:body_max].decode(errors="backslashreplace")
    safe = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
    return safe + ("..." if found.body_bytes > len(found.message.body) else "")


def _lines(messages: Iterable[admin_pb2.FoundMessage]) -> None:
    for found in messages:
        sys.stdout.write(json.dumps(message_row(found), ensure_ascii=False) + "\n")
    sys.stdout.flush()


def _texts(messages: Iterable[admin_pb2.FoundMessage], body_max: int) -> None:
    for found in messages:
        system = found.message.system_properties
        marks = " ".join(filter(None, (system.tag, *system.keys)))
        marked = f"[{marks}] " if marks else ""
        time = _time(ms_of(system.store_timestamp))
        sys.stdout.write(f"{time}  {_place(found):<20}  {system.message_id}  {marked}{_preview(found, body_max)}\n")
    sys.stdout.flush()


def _at_place(options: argparse.Namespace, request: admin_pb2.FindMessagesRequest) -> None:
    if options.offset is not None and (options.queue is None or not options.topic):
        raise BadRequest("an offset means nothing without its queue: add --queue BROKER/ID, and the topic")
    if options.queue is not None:
        request.queue.CopyFrom(common_pb2.Queue(broker_name=options.queue[0], queue_id=options.queue[1]))
    if options.offset is not None:
        request.by_offset, request.offset = True, options.offset


def _warn(silent: Sequence[str]) -> None:
    if silent:
        names = ", ".join(silent)
        progress_console().print(f"No answer from {names}: what is stored there is missing here.", markup=False)


def _place(found: admin_pb2.FoundMessage) -> str:
    return f"{found.queue.broker_name}/{found.queue.queue_id}:{found.message.system_properties.queue_offset}"


def _time(ms: int, *, exact: bool = False) -> str:
    if not ms:
        return "-"
    told = datetime.fromtimestamp(ms / 1000).astimezone()
    return told.strftime("%Y-%m-%d %H:%M:%S") + (f".{ms % 1000:03}" if exact else "")


# ---------------------------------------------------------------------------------------------------- traces

_STATES = {
    "WAITING": "not delivered yet",
    "IN_FLIGHT": "delivered, not acknowledged",
    "RETRY": "waits for its next delivery",
    "BLOCKED": "waits for the message before it in its message group",
    "FINISHED": "finished",
    "DEAD_LETTERED": "in the dead-letter topic",
}


def _trace_json(trace: admin_pb2.MessageTrace) -> dict[str, Any]:
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
                "what": admin_pb2.TraceEvent.Kind.Name(event.kind),
                "group": event.group,
                "client_id": event.client_id,
                "attempt": event.attempt,
                "until_ms": event.until_ms,
            }
            for event in trace.events
        ],
    }


def _trace_page(trace: admin_pb2.MessageTrace) -> Page:
    system = trace.message.message.system_properties
    facts: Facts = {
        "message_id": system.message_id,
        "topic": trace.message.queue.topic,
        "place": _place(trace.message),
        "sent": f"{_time(ms_of(system.born_timestamp), exact=True)} by {system.born_host or 'an unknown host'}",
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
        (_time(event.at_ms, exact=True), _told(event), event.group, event.client_id) for event in trace.events
    ]
    return Page(
        facts=facts,
        listings=[
            Listing(key="groups", columns=state_columns, rows=states, title="Groups", empty="no group reads its queue"),
            Listing(key="events", columns=event_columns, rows=events, title="Events"),
        ],
    )


def _told(event: admin_pb2.TraceEvent) -> str:
    kinds = admin_pb2.TraceEvent
    match event.kind:
        case kinds.STORED:
            return "stored"
        case kinds.DELIVERED:
            return f"delivered, attempt {event.attempt}"
        case kinds.INVISIBLE:
            return "given back" if not event.until_ms else f"invisible until {_time(event.until_ms, exact=True)}"
        case kinds.ACKNOWLEDGED:
            return "acknowledged"
        case kinds.DEAD_LETTERED:
            return "moved to the dead-letter topic"
        case kinds.COMMITTED:
            return "passed by its owner's commit"
        case _:
            return "group moved by an operator"
