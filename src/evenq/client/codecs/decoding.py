"""A listener of decoded messages, and what becomes of bodies that do not decode.

A body that does not decode will not decode next time. Raised from a listener, the error would fail its neighbours, too,
and be repeated `max_attempts` times. So the listener that `decoded` returns separates such messages before the user's
function is called: they go to the dead letters (or are redelivered, by choice), and the function gets the others.

Invariants: the user's function never gets a message without its value. A message that does not decode is delivered at
most `max_attempts` times, whatever the function returns. With `dead_letter` it is delivered once, or twice if a
neighbour in its call failed, because a failed message is next delivered alone.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from evenq.client.codecs.codec import Codec
from evenq.client.core.clients.user_functions import check_function, is_coroutine_function
from evenq.client.core.reading.outcome import Retry
from evenq.errors import BadRequest, InvalidBody
from evenq.model import ReceivedMessage

log = logging.getLogger(__name__)

Value = TypeVar("Value")
LEVELS = {"dead_letter": -1, "retry": 0}
"""By `on_invalid`: the delay level of a message that does not decode."""


@dataclass(frozen=True, slots=True)
class Decoded(Generic[Value]):
    """A received message and its value."""

    value: Value
    message: ReceivedMessage


@overload
def decoded(
    codec: Codec[Value],
    function: Callable[[list[Decoded[Value]]], Coroutine[Any, Any, object]],
    *,
    on_invalid: str = ...,
) -> Callable[[list[ReceivedMessage]], Coroutine[Any, Any, object]]: ...
@overload
def decoded(
    codec: Codec[Value], function: Callable[[list[Decoded[Value]]], object], *, on_invalid: str = ...
) -> Callable[[list[ReceivedMessage]], object]: ...
def decoded(
    codec: Codec[Value], function: Callable[[list[Decoded[Value]]], object], *, on_invalid: str = "dead_letter"
) -> Callable[[list[ReceivedMessage]], object]:
    """Returns a listener for a push consumer that decodes each body and calls `function` with the decoded messages.

    `function` returns what a listener returns; a `Retry` names the `message` of what failed. With a coroutine function,
    the listener is one, for `evenq.aio`. `function` is not called if no body decodes.

    `on_invalid`: what becomes of a message whose body raises InvalidBody, after one WARNING in the log. `dead_letter`:
    it moves to the group's dead letters. `retry`: it is redelivered like one whose listener failed, and moves there
    after the group's `max_attempts`. Other exceptions of the codec fail the whole call. Raises BadRequest.
    """
    if on_invalid not in LEVELS:
        raise BadRequest(f"on_invalid is {on_invalid!r:.80}; give {' or '.join(map(repr, LEVELS))}")
    if not callable(getattr(codec, "decode", None)):
        raise BadRequest(f"the codec is {codec!r:.80}; give an object with decode(body, topic), as evenq.JsonCodec()")
    check_function("function", function, "messages", items=Decoded)
    level = LEVELS[on_invalid]

    def listen(messages: list[ReceivedMessage]) -> object:
        valid, invalid = _separate(codec, messages)
        result = function(valid) if valid else None
        return _later(result, invalid, level) if inspect.isawaitable(result) else _outcome(result, invalid, level)

    async def listen_async(messages: list[ReceivedMessage]) -> object:
        result = listen(messages)
        return await result if inspect.isawaitable(result) else result

    return listen_async if is_coroutine_function(function) else listen


async def _later(result: Awaitable[object], invalid: list[ReceivedMessage], level: int) -> object:
    return _outcome(await result, invalid, level)


def _separate(
    codec: Codec[Value], messages: Sequence[ReceivedMessage]
) -> tuple[list[Decoded[Value]], list[ReceivedMessage]]:
    valid, invalid = [], []
    for message in messages:
        try:
            valid.append(Decoded(codec.decode(message.body, message.topic), message))
        except InvalidBody as error:
            invalid.append(message)
            log.warning(
                "message %s of queue %s, offset %d, attempt %d, is not processed: %s",
                message.message_id,
                message.queue,
                message.queue_offset,
                message.delivery_attempt,
                error,
            )
    return valid, invalid


def _outcome(result: object, invalid: list[ReceivedMessage], level: int) -> object:
    """Adds the invalid messages to the function's result. A result that fails messages decides about all of them: the
    invalid ones are separated again when they are redelivered.
    """
    if not invalid or result is False:
        return result
    if not isinstance(result, Retry):
        return Retry(invalid, delay_level=level)
    if result.messages is None:
        return result
    return Retry([*result.messages, *invalid], delay_level=result.delay_level)
