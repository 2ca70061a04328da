"""Pushdown of a batch query's filters to the brokers: the option filterPushdown.

Used instead of `BatchReader` only when the option is on, because Spark rejects a reader with `pushFilters` while its
own setting is off. Filters reduce the read to queues by topic, broker and queue id, to ranges by queue offset and store
time, and to messages by tag. Only rows that do not match are left out. Spark evaluates every filter again.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from evenq import errors
from evenq.columns.arrow_schema import OutputColumn
from evenq.columns.blocks import tag_set
from evenq.columns.extra_columns import partition_of
from evenq.model.queue import MessageQueue
from pyspark_evenq.brokers import cluster
from pyspark_evenq.options.source import Format, ReadOptions, SchemaStyle
from pyspark_evenq.plan.planner import OffsetRange
from pyspark_evenq.source.reader import BatchReader

log = logging.getLogger(__name__)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
PLACES = {
    "topic": lambda queue: queue.topic,
    "brokerName": lambda queue: queue.broker_name,
    "queueId": lambda queue: queue.queue_id,
    "partition": partition_of,
}
NAMES = {
    SchemaStyle.EVENQ: {
        name: name for name in ("topic", "brokerName", "queueId", "queueOffset", "storeTimestamp", "tag")
    },
    SchemaStyle.KAFKA: {
        "topic": "topic",
        "partition": "partition",
        "offset": "queueOffset",
        "timestamp": "storeTimestamp",
    },
}
"""Column name of each style -> name in `PushedFilters`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedFilters:
    """Conditions that all matching rows meet."""

    only: Mapping[str, frozenset[Any]] = field(default_factory=dict)
    """Column -> its possible values."""
    low: Mapping[str, int] = field(default_factory=dict)
    """The minimum of queueId, partition, queueOffset and storeTimestamp (ms since the epoch)."""
    end: Mapping[str, int] = field(default_factory=dict)
    """One past the maximum."""

    def takes(self, queue: MessageQueue) -> bool:
        for name, value_of in PLACES.items():
            value = value_of(queue)
            if name in self.only and value not in self.only[name]:
                return False
            if not self._between(name, value):
                return False
        return True

    def _between(self, name: str, value: Any) -> bool:
        return not (name in self.low and value < self.low[name]) and not (name in self.end and value >= self.end[name])


def narrowing(filters: Iterable[Filter], style: SchemaStyle) -> PushedFilters:
    """Returns the conditions of all filters together; filters on other columns than those of `NAMES` are ignored."""
    only: dict[str, frozenset[Any]] = {}
    low: dict[str, int] = {}
    end: dict[str, int] = {}
    for one in filters:
        path: tuple[str, ...] = getattr(one, "attribute", ())
        name = NAMES[style].get(path[0]) if len(path) == 1 else None
        if name is None:
            continue
        if isinstance(one, EqualTo | EqualNullSafe | In):
            values = one.value if isinstance(one, In) else (one.value,)
            if isinstance(one, EqualNullSafe) and one.value is None:
                continue
            _equal(name, frozenset(value for value in values if value is not None), only, low, end)
        elif isinstance(one, GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
            _compared(name, one, low, end)
    return PushedFilters(only=only, low=low, end=end)


def _equal(
    name: str, values: frozenset[Any], only: dict[str, frozenset[Any]], low: dict[str, int], end: dict[str, int]
) -> None:
    if name in {"queueOffset", "storeTimestamp"}:  # one range around all values
        bounds = [_edges(value) for value in values]
        if not bounds:
            # Equal only to null, which these columns never are: no row matches.
            end[name] = 0
        elif None not in bounds:
            _raise(low, name, min(floor for floor, _ in filter(None, bounds)))
            _lower(end, name, max(floor for floor, _ in filter(None, bounds)) + 1)
    else:
        only[name] = only.get(name, values) & values


def _compared(
    name: str,
    one: GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual,
    low: dict[str, int],
    end: dict[str, int],
) -> None:
    edges = _edges(one.value)
    if edges is None:
        return
    floor, ceiling = edges
    match one:
        case GreaterThan():
            _raise(low, name, floor + 1)
        case GreaterThanOrEqual():
            _raise(low, name, ceiling)
        case LessThan():
            _lower(end, name, ceiling)
        case LessThanOrEqual():
            _lower(end, name, floor + 1)


def _edges(value: Any) -> tuple[int, int] | None:
    """Returns the whole numbers (a time: ms since the epoch) at or below, and at or above; None for other types."""
    if isinstance(value, dt.datetime):
        if value.tzinfo is None:
            return None
        micros = (value - EPOCH) // dt.timedelta(microseconds=1)
        return micros // 1_000, -(-micros // 1_000)
    if isinstance(value, int) and not isinstance(value, bool):
        return value, value
    return None


def _raise(low: dict[str, int], name: str, value: int) -> None:
    low[name] = max(low.get(name, value), value)


def _lower(end: dict[str, int], name: str, value: int) -> None:
    end[name] = min(end.get(name, value), value)


class PushdownReader(BatchReader):
    """A batch reader that leaves out messages that the query's filters exclude."""

    def __init__(self, options: ReadOptions, columns: tuple[OutputColumn, ...]) -> None:
        super().__init__(options, columns)
        self._narrowing = PushedFilters()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  Spark's name
        """Records the filters, and returns all of them for Spark's own evaluation."""
        self._narrowing = narrowing(filters, self._options.schema_style)
        self.narrowed = self._narrowing != PushedFilters()
        tags = self._narrowing.only.get("tag")
        # Not with format=log: brokers filter by tag only in the format of messages.
        if tags is not None and not self._options.sql_filter and self._options.format is not Format.LOG:
            self._push_tags(tags)
        return filters

    def _push_tags(self, tags: frozenset[Any]) -> None:
        given = tag_set(self._options.tags)
        both = tags & given if given else tags
        # A tag that a tag expression cannot contain is filtered by Spark only.
        if all(tag and tag == tag.strip() and not {"|", "*"} & set(tag) for tag in both):
            if both:
                self._options = replace(self._options, tags=" || ".join(sorted(both)))
            else:
                # No tag matches both, and an empty expression would mean all tags: so no queue is read.
                self._narrowing = replace(self._narrowing, only={**self._narrowing.only, "topic": frozenset()})

    def _narrowed(self, ranges: list[OffsetRange], route: cluster.Route) -> list[OffsetRange]:
        narrow = self._narrowing
        # Before the times, which cost a call to each remaining broker.
        left = [_cut(one, narrow.low.get("queueOffset"), narrow.end.get("queueOffset")) for one in ranges]
        left = [one for one in left if one.count > 0 and narrow.takes(one.queue)]
        for mark, bounds in (("low", narrow.low), ("end", narrow.end)):
            time_ms = bounds.get("storeTimestamp")
            if time_ms is None:
                continue
            at = self._offsets_at(time_ms, left, route)
            left = [
                _cut(one, at.get(one.queue), None) if mark == "low" else _cut(one, None, at.get(one.queue))
                for one in left
            ]
        return [one for one in left if one.count > 0]

    def _offsets_at(self, time_ms: int, ranges: list[OffsetRange], route: cluster.Route) -> dict[MessageQueue, int]:
        """Returns the first offset stored at the time or later, from the brokers' index of times."""
        queues = {one.queue for one in ranges}
        # In the call 0 means no time; every message is stored later.
        if time_ms <= 0:
            return dict.fromkeys(queues, 0)
        offsets: dict[MessageQueue, int] = {}
        addresses = {queue: route[queue] for queue in queues if queue in route}
        for address, here in cluster.by_address(addresses).items():
            try:
                states = cluster.query(address, here, timestamp_ms=time_ms)
            except errors.Error as failure:
                if not (self._options.any_copy and failure.retryable):
                    raise
                log.warning("times cannot be looked up at %s, so more is read than needed: %s", address, failure)
                continue
            offsets |= {queue: state.times[time_ms] for queue, state in states.items() if state.times[time_ms] >= 0}
        return offsets


def _cut(whole: OffsetRange, low: int | None, end: int | None) -> OffsetRange:
    return replace(
        whole,
        start=whole.start if low is None else max(whole.start, low),
        end=whole.end if end is None else min(whole.end, end),
    )
