"""The result of a listener call (CC-4): all messages done, none done, or some to be delivered again.

`None`, `True` and any value that is neither `False` nor a `Retry` mean done. A `Retry` with messages that were not
passed to the listener means that none is done, because its intention is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evenq.errors import BadRequest
from evenq.model import ReceivedMessage

LEVEL_MAX = 64


@dataclass(frozen=True, slots=True)
class Retry:
    """Result of a listener: these messages are not done, the others of the call are done."""

    messages: Sequence[ReceivedMessage] | None = None
    """None: none of them is done."""
    delay_level: int = 0
    """-1 .. 64. 0: by the number of attempts: 10 s, 30 s, 1 min ... 2 h. 1 .. 18: that level of the broker; level 1 is
    a second (RD-7). -1: to the dead-letter topic immediately. An ordered consumer accepts only 0 and -1.
    """

    def __post_init__(self) -> None:
        if not -1 <= self.delay_level <= LEVEL_MAX:
            raise BadRequest(f"Retry.delay_level is {self.delay_level}, the range is -1 to {LEVEL_MAX}")


def failures(result: object, chunk: Sequence[ReceivedMessage]) -> tuple[list[ReceivedMessage], int]:
    """Returns the messages of the chunk that are not done, and the requested delay level."""
    if isinstance(result, Retry):
        if result.messages is None:
            return list(chunk), result.delay_level
        named = _named(result.messages)
        if not named <= {message.queue_offset for message in chunk}:
            return list(chunk), result.delay_level
        return [message for message in chunk if message.queue_offset in named], result.delay_level
    return (list(chunk), 0) if result is False else ([], 0)


def _named(messages: object) -> set[object]:
    if isinstance(messages, ReceivedMessage):
        messages = [messages]
    if not isinstance(messages, Iterable):
        return {None}
    return {one.queue_offset if isinstance(one, ReceivedMessage) else None for one in messages}
