"""The options for the start and end of a read: keywords, queue offsets and times, as text and as JSON.

Called by `options`. The JSON has the shape of Spark's Kafka source with the broker between topic and queue:
`{"topic": {"broker": {"0": number}}}`, or a keyword for a whole topic. As there, a time for all queues takes precedence
over times by queue, and those over offsets. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from evenq.errors import SettingsError
from evenq.model.queue import MessageQueue

EARLIEST_MARK = -2  # as in Spark's Kafka source
LATEST_MARK = -1
_MARKS = MappingProxyType({"earliest": EARLIEST_MARK, "latest": LATEST_MARK})
FIRST_MS = 1
"""Every message is stored later; 0 means no time in calls."""


class Place(StrEnum):
    """Start or end without an offset."""

    GROUP = "group"
    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSpec:
    """Start or end of a read."""

    place: Place
    """For every queue without another value."""
    offsets: Mapping[MessageQueue, int] = field(default_factory=dict)
    """Queue offsets; -2 is the earliest and -1 the latest."""
    topics: Mapping[str, int] = field(default_factory=dict)
    """The same for all queues of a topic; only -2 and -1."""
    times: Mapping[MessageQueue, int] = field(default_factory=dict)
    """Ms since the epoch, 1 or more: the first message stored then or later."""
    time_ms: int = 0
    """The same for all queues; 0 = none."""
    must_match: bool = False
    """A queue without a message at its time or later is an error; otherwise its latest offset counts."""

    def time_of(self, queue: MessageQueue) -> int:
        """Returns ms since the epoch; 0 if the queue has no time."""
        return self.time_ms or self.times.get(queue, 0)

    def offset_of(self, queue: MessageQueue) -> int | None:
        """Returns an offset, -2 or -1; None without a value for the queue or its topic."""
        return self.offsets.get(queue, self.topics.get(queue.topic))


def offset_spec(values: Mapping[str, str], side: str, *, default: Place, rest: Place, must_match: bool) -> OffsetSpec:
    """Parses the options `<side>Timestamp`, `<side>OffsetsByTimestamp` and `<side>Offsets`. `rest`: for the queues that
    a JSON object leaves out. Raises SettingsError.
    """
    name = f"{side}Timestamp"
    if name in values:
        return OffsetSpec(place=rest, time_ms=_milliseconds(name, values[name]), must_match=must_match)
    name = f"{side}OffsetsByTimestamp"
    if text := values.get(name, "").strip():
        times, _ = _by_queue(name, text, expected="ms since the epoch, 0 or more")
        for queue, time in times.items():
            if not _is_whole(time) or time < 0:
                raise SettingsError(
                    f"option {name}: the time of {queue} is {time!r}; give ms since the epoch, 0 or more"
                )
        stored = {queue: max(time, FIRST_MS) for queue, time in times.items()}
        return OffsetSpec(place=rest, times=stored, must_match=must_match)
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
    offsets, topics = _by_queue(name, text, expected=expected, words=_MARKS)
    for queue, offset in offsets.items():
        if not _is_whole(offset) or offset < EARLIEST_MARK:
            raise SettingsError(f"option {name}: the offset of {queue} is {offset!r}; give {expected}")
    return OffsetSpec(place=rest, offsets=offsets, topics=topics)


def assigned_queues(text: str) -> tuple[MessageQueue, ...]:
    expected = 'an object {"topic": {"broker": [0, 1]}}'
    hint = f"{expected}: queue ids count per broker, as `evenq topic show` lists them"
    queues = set()
    for topic, brokers in _object("assign", _parsed("assign", text, hint), "the value", hint):
        for broker, queue_ids in _object("assign", brokers, f"the value of topic {topic!r}", hint):
            if not isinstance(queue_ids, list):
                raise _wrong("assign", f"the value of broker {broker!r} of topic {topic!r}", queue_ids, "list", hint)
            for queue_id in queue_ids:
                if not _is_whole(queue_id):
                    raise _wrong("assign", f"a queue of broker {broker!r} of topic {topic!r}", queue_id, "number", hint)
                queues.add(MessageQueue(topic, broker, queue_id))
    if not queues:
        raise SettingsError(f"option assign names no queue; give {expected}")
    return tuple(sorted(queues))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _milliseconds(name: str, text: str) -> int:
    try:
        time_ms = int(text)
    except ValueError:
        time_ms = -1
    if time_ms < 0:
        raise SettingsError(f"option {name} is {text!r}; give ms since the epoch, a whole number of 0 or more")
    return max(time_ms, FIRST_MS)


def _by_queue(
    name: str, text: str, *, expected: str, words: Mapping[str, int] = MappingProxyType({})
) -> tuple[dict[MessageQueue, Any], dict[str, int]]:
    """Returns queue -> number, and the topics that have one of `words` instead."""
    hint = f'an object {{"topic": {{"broker": {{"0": number}}}}}} with {expected}'
    if words:
        hint += f', or {{"topic": "{next(iter(words))}"}}'
    numbers: dict[MessageQueue, Any] = {}
    topics: dict[str, int] = {}
    for topic, brokers in _object(name, _parsed(name, text, hint), "the value", hint):
        if isinstance(brokers, str) and brokers.lower() in words:
            topics[topic] = words[brokers.lower()]
            continue
        for broker, queues in _object(name, brokers, f"the value of topic {topic!r}", hint):
            for queue_id, number in _object(name, queues, f"the value of broker {broker!r} of topic {topic!r}", hint):
                if not queue_id.isdecimal():
                    raise _wrong(name, f"a queue of broker {broker!r} of topic {topic!r}", queue_id, "number", hint)
                numbers[MessageQueue(topic, broker, int(queue_id))] = number
    return numbers, topics


def _parsed(name: str, text: str, hint: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as broken:
        raise SettingsError(f"option {name} does not parse ({broken}); give {hint}") from None


def _object(name: str, value: Any, what: str, hint: str) -> Collection[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise _wrong(name, what, value, "object", hint)
    return value.items()


def _wrong(name: str, what: str, value: object, kind: str, hint: str) -> SettingsError:
    article = "an" if kind[0] in "aeiou" else "a"
    return SettingsError(f"option {name} does not parse: {what} is {value!r}, not {article} {kind}; give {hint}")
