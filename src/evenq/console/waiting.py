"""Messages that wait: delayed ones until they are due, and transactions without an outcome.

A delayed message can be recalled by its handle. A transaction that the brokers gave up can be checked again: it is
stored as an open one with its first id, and a producer of its topic is called for the outcome. Both are shown before
they are done.
"""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import BaseRoute

from evenq.client.core.admin.query_views import FoundMessagesView, MessageView
from evenq.console.pages import ROWS, Console, Visit, route
from evenq.errors import BadRequest, NotFound, TopicNotFound
from evenq.model import MessageQueue
from evenq.model.names import GIVEN_UP_TOPIC

SCHEDULED_MAX = 500
GIVEN_UP_MAX = 200
HANDLE_CHARACTERS_MAX = 4_096
KINDS = ("", "DELAY", "TRANSACTION")


def routes(console: Console) -> list[BaseRoute]:
    return [
        route(console, "/scheduled", _scheduled),
        route(console, "/recall", _recall_plan),
        route(console, "/recall", _recall, changes=True),
        route(console, "/transactions", _transactions),
        route(console, "/transactions/{broker}/{queue}/{offset}", _check_plan),
        route(console, "/transactions/{broker}/{queue}/{offset}", _check, changes=True),
    ]


# ------------------------------------------------------------------------------------------------- delayed messages


async def _scheduled(visit: Visit) -> Response:
    topic, kind = visit.query("topic").strip(), visit.query("kind")
    if kind not in KINDS:
        raise BadRequest(f"kind is {kind[:50]!r}; it is one of {', '.join(KINDS[1:])}, or empty for both")
    view = await visit.admin.list_scheduled(topic, limit=SCHEDULED_MAX)
    shown = [one for one in view.messages if kind in {"", one.kind}]
    begin = visit.number("begin")
    return visit.page(
        "scheduled.html",
        title="Scheduled",
        topic=topic,
        kind=kind,
        kinds=KINDS[1:],
        messages=shown[begin : begin + ROWS],
        total=len(shown),
        begin=begin,
        rows=ROWS,
        loaded_max=SCHEDULED_MAX,
        more=view.more,
        silent=view.silent,
        now_ms=visit.console.clock.now_ms(),
    )


def _handle(text: str) -> str:
    if not text or len(text) > HANDLE_CHARACTERS_MAX or not text.isascii() or not text.isprintable():
        raise BadRequest("the recall handle is not valid; take the one of the list, or that of the send")
    return text


async def _recall_plan(visit: Visit) -> Response:
    topic, handle = visit.query("topic").strip(), _handle(visit.query("handle").strip())
    view = await visit.admin.list_scheduled(topic, limit=SCHEDULED_MAX)
    known = next((one for one in view.messages if one.recall_handle == handle), None)
    return visit.page(
        "recall.html", title="Recall a message", topic=topic, handle=handle, message=known, silent=view.silent
    )


async def _recall(visit: Visit) -> Response:
    topic, handle = visit.text("topic").strip(), _handle(visit.text("handle").strip())
    message_id = await visit.admin.recall_message(topic, handle)
    return visit.after(f"Recalled message {message_id} of {topic}.", "scheduled", topic=topic)


# ------------------------------------------------------------------------------------- transactions that were given up


async def _transactions(visit: Visit) -> Response:
    try:
        found = await visit.admin.peek_messages(GIVEN_UP_TOPIC, limit=GIVEN_UP_MAX, body_max=1)
    except TopicNotFound:  # the brokers create it with the first transaction that they give up
        found = FoundMessagesView(messages=(), more=False, positions={}, silent=())
    words = visit.query("q").strip()
    shown = [one for one in found.messages if words in {"", one.message_id, _origin(one)}]
    begin = visit.number("begin")
    return visit.page(
        "transactions.html",
        title="Transactions",
        q=words,
        messages=shown[begin : begin + ROWS],
        total=len(shown),
        begin=begin,
        rows=ROWS,
        loaded=len(found.messages),
        more=found.more,
        silent=found.silent,
        origin=_origin,
        checks=_checks,
        given_up_topic=GIVEN_UP_TOPIC,
    )


def _origin(message: MessageView) -> str:
    """Returns the topic that the message was sent to; empty: unknown."""
    return message.origin_topic or message.properties.get("REAL_TOPIC", "")


def _checks(message: MessageView) -> str:
    return message.properties.get("TRANSACTION_CHECK_TIMES", "")


async def _check_plan(visit: Visit) -> Response:
    queue, offset = _place(visit)
    message = await visit.admin.get_message(topic=GIVEN_UP_TOPIC, queue=queue, offset=offset, body_max=1)
    return visit.page(
        "transaction.html",
        title="Check a transaction again",
        message=message,
        origin=_origin(message),
        checks=_checks(message),
        address=("transactions", queue.broker_name, queue.queue_id, offset),
        copy=("messages", GIVEN_UP_TOPIC, queue.broker_name, queue.queue_id, offset),
    )


async def _check(visit: Visit) -> Response:
    queue, offset = _place(visit)
    message_id = await visit.admin.check_again(queue, offset)
    return visit.after(f"Transaction {message_id} is open again and will be checked.", "transactions")


def _place(visit: Visit) -> tuple[MessageQueue, int]:
    number, offset = visit.path("queue"), visit.path("offset")
    for text, most in ((number, (1 << 31) - 1), (offset, (1 << 63) - 1)):
        if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= most):
            raise NotFound(f"{text[:50]!r} is not a number of a queue or an offset; see the list of transactions")
    return MessageQueue(GIVEN_UP_TOPIC, visit.path("broker"), int(number)), int(offset)
