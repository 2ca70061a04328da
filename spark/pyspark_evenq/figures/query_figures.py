"""Figures of one query from its progress events: lag by queue, rows, losses, resets, failures.

`listener` passes Spark's progress events, which hold the offsets of this source as JSON (`offsets`): the end of the
batch, the newest offsets known at its planning, its losses and the moves of its group by operators. Counters start when
this driver first sees the query; a restart of the query in the same driver continues them. Other sources are skipped.
Pure, and never raises for the content of an event: a listener must not disturb a query.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from evenq.errors import Unsupported
from evenq.model.queue import MessageQueue
from pyspark_evenq.plan.offsets import StreamOffset

_OURS = re.compile(r"\b(?:pyspark_evenq|evenq)(?:\.\w+)*\.([A-Z]\w+)")
"""The class of an evenq error in the text of a failed query."""


class Failure(StrEnum):
    """Reason of a query's failure."""

    QUEUE_TAKEN = "queue_taken"
    """The query lost the ownership of a queue."""
    GROUP_BUSY = "group_busy"
    OFFSET_CONFLICT = "offset_conflict"
    DATA_LOST = "data_lost"
    BROKERS_AWAY = "brokers_away"
    OTHER = "other"


_CLASSES = {
    "QueueTaken": Failure.QUEUE_TAKEN,
    "GroupBusy": Failure.GROUP_BUSY,
    "OffsetConflict": Failure.OFFSET_CONFLICT,
    "DataLost": Failure.DATA_LOST,
    "BrokersAway": Failure.BROKERS_AWAY,
}


def failure_of(text: str) -> Failure | None:
    """Returns the reason from the text of a query's exception; None without an evenq error in it."""
    names = _OURS.findall(text)
    return next((_CLASSES[name] for name in names if name in _CLASSES), Failure.OTHER) if names else None


class Lag(NamedTuple):
    """Messages of some queues that no batch has read."""

    total: int = 0
    least: int = 0
    most: int = 0
    mean: float = 0.0

    @classmethod
    def of(cls, lags: Sequence[int]) -> Lag:
        return cls(sum(lags), min(lags), max(lags), sum(lags) / len(lags)) if lags else cls()


class Change(NamedTuple):
    """Changes in one progress event that are worth a log line."""

    lost: Mapping[MessageQueue, int]
    """Messages that a batch left out because they are gone; 0: their number is not known."""
    away: frozenset[MessageQueue]
    """Queues that no longer have a broker."""
    back: frozenset[MessageQueue]
    resets: int
    """Moves of the group by operators that the batch follows."""
    gained: frozenset[MessageQueue]
    left: frozenset[MessageQueue]
    """Queues that the query no longer owns."""


@dataclass(slots=True)
class QueryFigures:
    """Figures of one query. Values of fields are replaced, never mutated, so a shallow copy is a snapshot."""

    name: str
    id: str = ""
    """Spark's id of the query; the same after a restart from its checkpoint."""
    active: bool = True
    last_event_s: float = 0.0
    """Time of the last event, seconds since the epoch."""
    batch: int = -1
    rows: int = 0
    rows_in: float = 0.0
    """Arriving rows per second, at the last batch."""
    rows_through: float = 0.0
    """Rows per second of processing time, in the last batch."""
    durations_ms: dict[str, int] = field(default_factory=dict)
    """Parts of the last batch, by Spark's names."""
    lags: dict[MessageQueue, int] = field(default_factory=dict)
    """Queue of the query -> lag, as of the planning of the last batch."""
    away: frozenset[MessageQueue] = frozenset()
    lost: int = 0
    """Lost messages, where their number is known."""
    losses: int = 0
    """Times that a queue lost messages."""
    resets: int = 0
    gained: int = 0
    left: int = 0
    failures: Counter[Failure] = field(default_factory=Counter)
    _counted: dict[int, str] = field(default_factory=dict)
    """Source -> end of the batch that was counted last. An idle query reports it repeatedly."""

    def begin(self, query_id: str) -> None:
        """Records that a run of the query begins, or is seen for the first time."""
        if query_id != self.id:
            self.id, self._counted = query_id, {}
        self.active = True

    def end(self, why: Failure | None) -> None:
        """Records the end of the run. From now on the lag is not known."""
        self.active = False
        self.lags, self.away = {}, frozenset()
        self.rows_in = self.rows_through = 0.0
        if why is not None:
            self.failures = self.failures + Counter([why])

    def take(self, progress: Any) -> Change | None:
        """Adds a progress event (`StreamingQueryProgress`). Returns None if no source of the query is evenq's."""
        sources = [(at, source, _offset(source.endOffset)) for at, source in enumerate(progress.sources)]
        ours = [(at, source, end) for at, source, end in sources if end is not None]
        if not ours:
            return None
        self.batch = progress.batchId
        self.durations_ms = dict(progress.durationMs)
        self.rows += sum(source.numInputRows for _, source, _ in ours)
        self.rows_in = sum(_rate(source.inputRowsPerSecond) for _, source, _ in ours)
        self.rows_through = sum(_rate(source.processedRowsPerSecond) for _, source, _ in ours)
        lags: dict[MessageQueue, int] = {}
        away: set[MessageQueue] = set()
        lost: Counter[MessageQueue] = Counter()
        gained: set[MessageQueue] = set()
        left: set[MessageQueue] = set()
        resets = 0
        for at, source, end in ours:
            away |= set(end.away)
            newest = _offset(source.latestOffset)
            for queue, read in end.ends.items():
                high = read if newest is None else newest.ends.get(queue, read)
                lags[queue] = max(lags.get(queue, 0), high - read)
            if source.endOffset == self._counted.get(at):
                continue
            self._counted = {**self._counted, at: source.endOffset}
            for queue, messages in end.lost.items():
                lost[queue] += messages
            if (start := _offset(source.startOffset)) is not None:
                resets += max(0, end.generation - start.generation)
                gained |= end.ends.keys() - start.ends.keys()
                left |= start.ends.keys() - end.ends.keys()
        change = Change(
            lost=dict(lost),
            away=frozenset(away) - self.away,
            back=self.away - frozenset(away),
            resets=resets,
            gained=frozenset(gained),
            left=frozenset(left),
        )
        self.lags, self.away = lags, frozenset(away)
        self.lost += lost.total()
        self.losses += len(lost)
        self.resets += resets
        self.gained += len(gained)
        self.left += len(left)
        return change

    @property
    def lag(self) -> Lag:
        return Lag.of(list(self.lags.values()))

    def lag_by_topic(self) -> dict[str, int]:
        sums: Counter[str] = Counter()
        for queue, lag in self.lags.items():
            sums[queue.topic] += lag
        return dict(sorted(sums.items()))

    def furthest_behind(self, count: int) -> list[tuple[MessageQueue, int]]:
        """Returns at most `count` queues with lag, the largest first."""
        behind = sorted(((-lag, queue) for queue, lag in self.lags.items() if lag > 0))
        return [(queue, -lag) for lag, queue in behind[:count]]


def _offset(text: str | None) -> StreamOffset | None:
    """Parses an offset of evenq; None for another source's, for one of a newer version, and without one."""
    try:
        document = json.loads(text or "null")
        return StreamOffset.from_json(document) if isinstance(document, dict) and "q" in document else None
    except (ValueError, TypeError, KeyError, AttributeError, Unsupported):
        return None


def _rate(number: float | None) -> float:
    """Returns 0 for infinity and NaN, which Spark reports for triggers that took no time."""
    return float(number) if number is not None and 0 <= number < float("inf") else 0.0
