"""Listeners that answer requests: `producer.answer_with(function)`, for a push consumer of the topic of the requests.

Each request is settled by itself. It is finished once its reply is stored; if the function or the send failed, only
this request is redelivered. Its requester may have given up by then, and a late reply is dropped there. A message that
is not a request is logged and finished: no reply can be sent, now or later.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from evenq.client.core.clients.user_functions import check_function
from evenq.client.core.reading.outcome import Retry
from evenq.client.core.sending.requests import expects_reply, reply_to
from evenq.client.loops.sending.outgoing import SendResult
from evenq.errors import BadRequest
from evenq.model import Message, ReceivedMessage

log = logging.getLogger(__name__)

Answer = Callable[[ReceivedMessage], object]
"""Returns the body of the reply, or a value for the producer's encoder."""
Encode = Callable[[str, object], bytes]


def sync_listener(
    function: Answer, encode: Encode, send: Callable[[Message], Future[SendResult]]
) -> Callable[[list[ReceivedMessage]], object]:
    """Returns a listener for threads. `send` begins to send a reply."""
    check_function("function", function, "request", awaited_by="evenq.aio.Producer")

    def listen(messages: list[ReceivedMessage]) -> object:
        begun: list[tuple[ReceivedMessage, Future[SendResult]]] = []
        failed: list[ReceivedMessage] = []
        for request in filter(_is_request, messages):
            try:
                begun.append((request, send(_reply(request, function(request), encode))))
            except Exception as error:  # noqa: BLE001 - the user's function raises what it likes; one request fails
                _log_failure(request, error)
                failed.append(request)
        for request, sent in begun:
            problem = sent.exception()
            if problem is not None:
                _log_failure(request, problem)
                failed.append(request)
        return Retry(failed) if failed else None

    return listen


def async_listener(
    function: Answer, encode: Encode, send: Callable[[Message], Coroutine[Any, Any, SendResult]]
) -> Callable[[list[ReceivedMessage]], Coroutine[Any, Any, object]]:
    """Returns a coroutine function. `send` sends a reply and waits until it is stored."""
    check_function("function", function, "request")

    async def listen(messages: list[ReceivedMessage]) -> object:
        failed: list[ReceivedMessage] = []
        for request in filter(_is_request, messages):
            try:
                result = function(request)
                body = await result if inspect.isawaitable(result) else result
                await send(_reply(request, body, encode))
            except Exception as error:  # noqa: BLE001 - as above
                _log_failure(request, error)
                failed.append(request)
        return Retry(failed) if failed else None

    return listen


def _reply(request: ReceivedMessage, body: object, encode: Encode) -> Message:
    if inspect.iscoroutine(body):
        body.close()
        raise BadRequest("the function returns a coroutine, which a thread cannot run; use evenq.aio.Producer")
    if body is None:
        raise BadRequest("the function returned None; return the body of the reply as bytes")
    return reply_to(request, body if isinstance(body, bytes) else encode(request.topic, body))


def _is_request(message: ReceivedMessage) -> bool:
    if expects_reply(message):
        return True
    log.warning(
        "message %s (%s, offset %d) expects no reply, it is skipped; send requests with Producer.request",
        message.message_id,
        message.queue,
        message.queue_offset,
    )
    return False


def _log_failure(request: ReceivedMessage, error: BaseException) -> None:
    log.error(
        "request %s (%s, offset %d, attempt %d) was not answered, it is delivered again",
        request.message_id,
        request.queue,
        request.queue_offset,
        request.delivery_attempt,
        exc_info=error,
    )
