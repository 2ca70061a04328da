"""Filters of a batch query that the brokers need not send rows for: the option filterPushdown.

Called by the source instead of `BatchReader` when the option is on; only then, because Spark refuses a reader with
`pushFilters` while its own setting is off. A filter narrows what is read: whole queues by topic, broker and queue id,
ranges by queue offset and store time, messages by tag. Always true: what is left out does not fit the filters, and
every filter is handed back to Spark, which evaluates it again.
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
from evenq.model.queue import MessageQueue
from pyspark_evenq import cluster
from pyspark_evenq.arrow_schema import OutputColumn
from pyspark_evenq.blocks import tag_set
from pyspark_evenq.extra_columns import partition_of
from pyspark_evenq.options import Format, ReadOptions, SchemaStyle
from pyspark_evenq.planner import OffsetRange
from pyspark_evenq.reader import BatchReader

__all__ = ["Narrowing", "PushdownReader", "narrowing"]

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
"""What a column of each style is in here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """What fits the filters, at least."""

    only: Mapping[str, frozenset[Any]] = field(default_factory=dict)
    """The values that a column may have."""
    low: Mapping[str, int] = field(default_factory=dict)
    """The least value of queueId, partition, queueOffset and storeTimestamp (ms since the epoch)."""
    end: Mapping[str, int] = field(default_factory=dict)
    """One past the greatest."""

    def takes(self, queue: MessageQueue) -> bool:
        """Whether messages of the queue may fit."""
        for name, value_of in PLACES.items():
            value = value_of(queue)
            if name in self.only and value not in self.only[name]:
                return False
            if not self._between(name, value):
                return False
        return True

    def _between(self, name: str, value: Any) -> bool:
        return not (name in self.low and value < self.low[name]) and not (name in self.end and value >= self.end[name])


def narrowing(filters: Iterable[Filter], style: SchemaStyle) -> Narrowing:
    """All filters hold together; those that say nothing about places, times or tags are passed over."""
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
    return Narrowing(only=only, low=low, end=end)


def _equal(
    name: str, values: frozenset[Any], only: dict[str, frozenset[Any]], low: dict[str, int], end: dict[str, int]
) -> None:
    if name in {"queueOffset", "storeTimestamp"}:  # one range around all values
        bounds = [_edges(value) for value in values]
        if not bounds:
            # Equal to nothing but null, which these columns never are: no row fits.
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
    """The whole numbers (a time: ms since the epoch) at or below, and at or above; None for anything else."""
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
    """A batch reader that leaves out what the query's filters exclude."""

    def __init__(self, options: ReadOptions, columns: tuple[OutputColumn, ...]) -> None:
        super().__init__(options, columns)
        self._narrowing = Narrowing()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  Spark's name
        """Note the filters; all of them stay Spark's, too."""
        self._narrowing = narrowing(filters, self._options.schema_style)
        self.narrowed = self._narrowing != Narrowing()
        tags = self._narrowing.only.get("tag")
        # Who asks for records alone gets all of them: brokers choose by tags among messages.
        if tags is not None and not self._options.sql_filter and self._options.format is not Format.LOG:
            self._push_tags(tags)
        return filters

    def _push_tags(self, tags: frozenset[Any]) -> None:
        given = tag_set(self._options.tags)
        both = tags & given if given else tags
        # A tag that the filter's language cannot write stays Spark's alone to filter.
        if all(tag and tag == tag.strip() and not {"|", "*"} & set(tag) for tag in both):
            if both:
                self._options = replace(self._options, tags=" || ".join(sorted(both)))
            else:
                # No tag fits both, and an empty expression would mean all: so no queue is taken.
                self._narrowing = replace(self._narrowing, only={**self._narrowing.only, "topic": frozenset()})

    def _narrowed(self, ranges: list[OffsetRange], route: cluster.Route) -> list[OffsetRange]:
        narrow = self._narrowing
        # Before the times, which cost a call to each broker of what is left.
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
        """The first offset stored at the time or later, by the brokers' index of times."""
        queues = {one.queue for one in ranges}
        # In the call 0 means that no time is asked for; every message is stored later than that.
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
                log.warning("times are not looked up at %s, more is read than the filters need: %s", address, failure)
                continue
            offsets |= {queue: state.times[time_ms] for queue, state in states.items() if state.times[time_ms] >= 0}
        return offsets


def _cut(whole: OffsetRange, low: int | None, end: int | None) -> OffsetRange:
    return replace(
        whole,
        start=whole.start if low is None else max(whole.start, low),
        end=whole.end if end is None else min(whole.end, end),
    )
