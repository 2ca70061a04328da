"""Requests and events of a consumer of lite topics (wire contract 3.14, 4.5, 5.6).

`loops.subscribing` keeps the subscriptions, `loops.lite_pushing` calls the listener, `rpc.lite` implements the wire.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from evenq.client.core.reading.start_offset import start_policy, timestamp_of
from evenq.errors import BadRequest
from evenq.model import StartFrom


class LiteAction(IntEnum):
    """The numbers of the wire's `LiteSubscriptionAction`."""

    ADD = 0
    REMOVE = 1
    ALL = 2
    """Replaces the whole set."""


class LiteStartKind(StrEnum):
    """Kinds of a `LiteStart`; the values are the names of the wire's fields."""

    FIRST = "min"
    LAST = "max"
    OFFSET = "offset"
    TAIL = "tail_n"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class LiteStart:
    """Start of a subscription, if no other member of the group has the lite topic."""

    kind: LiteStartKind
    value: int = 0


@dataclass(frozen=True, slots=True)
class LiteConnected:
    """A broker accepted the settings: a connection to it is open."""


@dataclass(frozen=True, slots=True)
class LiteEnded:
    """A broker ended the subscription to a lite topic."""

    name: str


LiteEvent = LiteConnected | LiteEnded


@dataclass(frozen=True, slots=True)
class Suspend:
    """Result of a listener: the message is redelivered after `pause_ms`, without counting an attempt."""

    pause_ms: int
    """10 .. 43,200,000, unless the broker allows less."""

    def __post_init__(self) -> None:
        if not 10 <= self.pause_ms <= 43_200_000:
            raise BadRequest(f"Suspend.pause_ms is {self.pause_ms}, the range is 10 to 43200000")


def starting(
    start_from: StartFrom | str | None, start_timestamp_ms: int | str, start_offset: int | None, start_tail: int | None
) -> LiteStart | None:
    """Returns the start that these arguments define; at most one may be given. Raises BadRequest."""
    given = [start_from is not None, start_offset is not None, start_tail is not None]
    if sum(given) > 1:
        raise BadRequest("a lite subscription has one start: give one of start_from, start_offset and start_tail")
    for name, value in (("start_offset", start_offset), ("start_tail", start_tail)):
        if value is not None and value < 0:
            raise BadRequest(f"{name} is {value}; give 0 or more")
    if start_offset is not None:
        return LiteStart(LiteStartKind.OFFSET, start_offset)
    if start_tail is not None:
        return LiteStart(LiteStartKind.TAIL, start_tail)
    if start_from is None:
        return None
    match start_policy(start_from):
        case StartFrom.FIRST:
            return LiteStart(LiteStartKind.FIRST)
        case StartFrom.LAST:
            return LiteStart(LiteStartKind.LAST)
        case StartFrom.TIMESTAMP:
            return LiteStart(LiteStartKind.TIMESTAMP, timestamp_of(start_timestamp_ms))
