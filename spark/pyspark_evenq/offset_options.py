"""The options that say where a read starts and ends: words, queue offsets and times, as text and as JSON.

Called by `options`. The JSON has the shape of Spark's Kafka source with the broker between topic and queue:
`{"topic": {"broker": {"0": number}}}`. As there, a time for everything wins over times by queue, and those win over
offsets. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from evenq.errors import SettingsError
from evenq.model.queue import MessageQueue

__all__ = ["EARLIEST_MARK", "LATEST_MARK", "OffsetSpec", "Place", "assigned_queues", "offset_spec"]

EARLIEST_MARK = -2  # as in Spark's Kafka source
LATEST_MARK = -1


class Place(StrEnum):
    """Where to start or end, when no offset is given."""

    GROUP = "group"
    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSpec:
    """Where to start, or where to end."""

    place: Place
    """For every queue that nothing else is said of."""
    offsets: Mapping[MessageQueue, int] = field(default_factory=dict)
    """Queue offsets; -2 is the earliest and -1 the latest."""
    times: Mapping[MessageQueue, int] = field(default_factory=dict)
    """Ms since the epoch; the first message stored then or later."""
    time_ms: int = 0
    """The same for all queues; 0 = none."""
    must_match: bool = False
    """A queue without a message at its time or later is an error; else that is the latest."""

    def time_of(self, queue: MessageQueue) -> int:
        """Ms since the epoch; 0 if no time is given for the queue."""
        return self.time_ms or self.times.get(queue, 0)


def offset_spec(values: Mapping[str, str], side: str, *, default: Place, rest: Place, must_match: bool) -> OffsetSpec:
    """From the options `<side>Timestamp`, `<side>OffsetsByTimestamp` and `<side>Offsets`. `rest`: for the queues that
    a JSON object leaves out. Raises SettingsError.
    """
    time_ms = _milliseconds(f"{side}Timestamp", values.get(f"{side}Timestamp", "0"))
    if time_ms:
        return OffsetSpec(place=rest, time_ms=time_ms, must_match=must_match)
    name = f"{side}OffsetsByTimestamp"
    if text := values.get(name, "").strip():
        times = _by_queue(name, text, expected="ms since the epoch, > 0")
        for queue, time in times.items():
            if not _is_whole(time) or time <= 0:
                raise SettingsError(f"option {name}: the time of {queue} is {time!r}; give ms since the epoch, > 0")
        return OffsetSpec(place=rest, times=times, must_match=must_match)
    name = f"{side}Offsets"
    text = values.get(name, "").strip()
    if not text:
        return OffsetSpec(place=default)
    if not text.startswith("{"):
        try:
            return OffsetSpec(place=Place(text.lower()))
        except ValueError:
            raise SettingsError(f"option {name} is {text!r}; give group, earliest, latest or a JSON object") from None
    expected = "offsets >= 0, -2 (earliest) or -1 (latest)"
    offsets = _by_queue(name, text, expected=expected)
    for queue, offset in offsets.items():
        if not _is_whole(offset) or offset < EARLIEST_MARK:
            raise SettingsError(f"option {name}: the offset of {queue} is {offset!r}; give {expected}")
    return OffsetSpec(place=rest, offsets=offsets)


def assigned_queues(text: str) -> tuple[MessageQueue, ...]:
    """The value of the option `assign`. Raises SettingsError."""
    expected = 'an object {"topic": {"broker": [0, 1]}}'
    try:
        queues = sorted(
            MessageQueue(topic, broker, queue_id)
            for topic, brokers in json.loads(text).items()
            for broker, queue_ids in brokers.items()
            for queue_id in queue_ids
            if _is_whole(queue_id) or _refuse(queue_id)
        )
    except (ValueError, AttributeError, TypeError) as broken:
        raise SettingsError(
            f"option assign does not parse ({broken}); give {expected}: queue ids count per broker, as `evenq topic "
            "show` lists them"
        ) from None
    if not queues:
        raise SettingsError(f"option assign names no queue; give {expected}")
    return tuple(dict.fromkeys(queues))


def _refuse(queue_id: object) -> bool:
    raise ValueError(f"{queue_id!r} is no queue id")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _milliseconds(name: str, text: str) -> int:
    try:
        time_ms = int(text)
    except ValueError:
        time_ms = -1
    if time_ms < 0:
        raise SettingsError(f"option {name} is {text!r}; give ms since the epoch, a whole number > 0")
    return time_ms


def _by_queue(name: str, text: str, *, expected: str) -> dict[MessageQueue, Any]:
    try:
        return {
            MessageQueue(topic, broker, int(queue_id)): number
            for topic, brokers in json.loads(text).items()
            for broker, queues in brokers.items()
            for queue_id, number in queues.items()
        }
    except (ValueError, AttributeError) as broken:
        raise SettingsError(
            f'option {name} does not parse ({broken}); give an object {{"topic": {{"broker": {{"0": number}}}}}} with '
            f"{expected}"
        ) from None
