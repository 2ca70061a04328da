"""The tables of `evenq top`, from two samples. Pure.

A rate is the growth of a counter between the samples. Only counters that both have are compared, and one that fell (a
topic was created again, a group was moved back, a broker restarted) counts as 0, so no rate is negative.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from evenq.cli.output import WIDE, Column, Listing, Page, Scalar
from evenq.cli.top.sampling import ClusterSample
from evenq.model import MessageQueue

WINDOW_MS = 10_000
"""Longest time between the two samples: SDKs commit every 5 s, so shorter ones would show rates in steps."""
_TOPICS = (
    Column("topic", "topic"),
    Column("type", "type", shown=WIDE),
    Column("brokers", "brokers", "number"),
    Column("queues", "queues", "number"),
    Column("messages", "messages", "number"),
    Column("in_per_s", "in/s", "number"),
    Column("out_per_s", "out/s", "number"),
    Column("groups", "groups", "number"),
    Column("lag", "lag", "number"),
)
_GROUPS = (
    Column("group", "group"),
    Column("members", "members", "number"),
    Column("topics", "topics", "number"),
    Column("in_per_s", "in/s", "number"),
    Column("out_per_s", "out/s", "number"),
    Column("lag", "lag", "number"),
    Column("inflight", "in flight", "number"),
    Column("oldest_s", "oldest, s", "number"),
)
_BROKERS = (
    Column("broker", "broker"),
    Column("answers", "answers"),
    Column("draining", "draining", shown=WIDE),
    Column("topics", "topics", "number"),
    Column("in_per_s", "in/s", "number"),
    Column("out_per_s", "out/s", "number"),
    Column("connections", "clients", "number"),
    Column("log_bytes", "log bytes", "number"),
)
_SORTED_BY = {
    "topics": {"in": "in_per_s", "out": "out_per_s", "lag": "lag", "members": "groups"},
    "groups": {"in": "in_per_s", "out": "out_per_s", "lag": "lag", "members": "members"},
    "brokers": {"in": "in_per_s", "out": "out_per_s", "lag": "log_bytes", "members": "connections"},
}
Row = tuple[Scalar, ...]


def base_of(samples: Sequence[ClusterSample]) -> ClusterSample:
    """Returns the sample with which the newest one is compared: the oldest within WINDOW_MS, at least the previous."""
    newest = samples[-1]
    within = [one for one in samples[:-1] if newest.at_ms - one.at_ms <= WINDOW_MS]
    return within[0] if within else samples[-2] if len(samples) > 1 else newest


def top_page(before: ClusterSample, now: ClusterSample, *, sort: str, reverse: bool = False) -> Page:
    """Returns brokers, groups and topics with their rates, and the totals as facts."""
    seconds = (now.at_ms - before.at_ms) / 1000
    ins = {name: _rate(before.ends.get(name, {}), ends, seconds) for name, ends in now.ends.items()}
    outs = {
        name: _by_topic(before.progress[name].committed, one.committed, seconds)
        for name, one in now.progress.items()
        if name in before.progress
    }
    if seconds <= 0:
        ins, outs = {}, {}
    listings = [
        _listing("brokers", _BROKERS, _broker_rows(before, now, seconds), sort, reverse=reverse),
        _listing("groups", _GROUPS, _group_rows(now, ins, outs), sort, reverse=reverse),
        _listing("topics", _TOPICS, _topic_rows(now, ins, outs), sort, reverse=reverse),
    ]
    facts: dict[str, Scalar | list[str]] = {
        "interval_s": round(seconds, 3),
        "in_per_s": _total(ins.values()),
        "out_per_s": _total(sum(one.values()) for one in outs.values()),
        "lag": sum(one.lag for one in now.groups),
        "members": sum(one.members for one in now.groups),
        "silent": sorted({name for one in now.groups for name in one.silent}),
        "topics_polled": len(now.ends),
        "groups_polled": len(now.progress),
    }
    return Page(facts=facts, listings=listings, sentence=_head(now, facts), names="topics")


def _head(now: ClusterSample, facts: Mapping[str, Scalar | list[str]]) -> str:
    def rate(key: str) -> str:
        value = facts[key]
        return f"{value:,.1f}" if isinstance(value, float) else "-"

    parts = [f"{rate('in_per_s')} in/s", f"{rate('out_per_s')} out/s", f"lag {facts['lag']:,}"]
    parts += [_many(len(now.brokers), "broker"), _many(len(now.topics), "topic")]
    parts += [_many(len(now.groups), "group"), _many(sum(one.members for one in now.groups), "member")]
    text = ", ".join(parts)
    if len(now.ends) < len(now.topics) or len(now.progress) < len(now.groups):
        text += f" (rates of {len(now.ends)} topics and {len(now.progress)} groups: see --limit)"
    silent = facts["silent"]
    if isinstance(silent, list) and silent:
        text += f"; no answer from {', '.join(silent)}: rates and lag are lower bounds"
    return text


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _listing(key: str, columns: Sequence[Column], rows: Sequence[Row], sort: str, *, reverse: bool) -> Listing:
    by = _SORTED_BY[key].get(sort, "")
    place = next((number for number, column in enumerate(columns) if column.key == by), 0)
    ordered = sorted(rows, key=lambda row: str(row[0]))
    if by:
        ordered.sort(key=lambda row: _weight(row[place]), reverse=True)
    if reverse:
        ordered.reverse()
    return Listing(key=key, columns=columns, rows=ordered, title=key.capitalize(), empty="none")


def _weight(value: Scalar) -> float:
    return float(value) if isinstance(value, int | float) else -1.0


def _broker_rows(before: ClusterSample, now: ClusterSample, seconds: float) -> list[Row]:
    known = {(one.name, one.broker_id): one for one in before.brokers}
    rows: list[Row] = []
    for one in now.brokers:
        was = known.get((one.name, one.broker_id))
        compared = was is not None and was.answered and one.answered and was.start_ms == one.start_ms and seconds > 0
        rates: tuple[Scalar, Scalar] = (None, None)
        if was is not None and compared:
            rates = (
                _per_second(one.messages_in - was.messages_in, seconds),
                _per_second(one.messages_out - was.messages_out, seconds),
            )
        rows.append((one.name, one.answered, one.draining, one.topics, *rates, one.connections, one.log_bytes))
    return rows


def _group_rows(now: ClusterSample, ins: Mapping[str, float], outs: Mapping[str, Mapping[str, float]]) -> list[Row]:
    rows: list[Row] = []
    for one in now.groups:
        progress = now.progress.get(one.group)
        arriving, finished = None, outs.get(one.group)
        if progress is not None and any(topic in ins for topic in progress.lags):
            arriving = round(sum(ins.get(topic, 0.0) for topic in progress.lags), 3)
        left = round(sum(finished.values()), 3) if finished is not None else None
        inflight = oldest = None
        if progress is not None:
            inflight = progress.inflight
            oldest = max(0, now.now_ms - progress.oldest_ms) // 1000 if progress.oldest_ms and one.lag else 0
        rows.append((one.group, one.members, one.topics, arriving, left, one.lag, inflight, oldest))
    return rows


def _topic_rows(now: ClusterSample, ins: Mapping[str, float], outs: Mapping[str, Mapping[str, float]]) -> list[Row]:
    rows: list[Row] = []
    for one in now.topics:
        readers = [name for name, progress in now.progress.items() if one.topic in progress.lags]
        finished = [outs[name].get(one.topic, 0.0) for name in readers if name in outs]
        out = round(sum(finished), 3) if finished else None
        lag = sum(now.progress[name].lags[one.topic] for name in readers)
        shape = (one.topic, one.message_type.value, one.brokers, one.queues, one.messages)
        rows.append((*shape, ins.get(one.topic), out, len(readers), lag))
    return rows


def _rate(before: Mapping[MessageQueue, int], now: Mapping[MessageQueue, int], seconds: float) -> float:
    if seconds <= 0:
        return 0.0
    return _per_second(sum(max(0, end - before[key]) for key, end in now.items() if key in before), seconds)


def _by_topic(before: Mapping[MessageQueue, int], now: Mapping[MessageQueue, int], seconds: float) -> dict[str, float]:
    return {
        topic: _rate(before, {queue: offset for queue, offset in now.items() if queue.topic == topic}, seconds)
        for topic in {queue.topic for queue in now}
    }


def _per_second(growth: int, seconds: float) -> float:
    return round(max(0, growth) / seconds, 3)


def _total(rates: Iterable[float]) -> float | None:
    values = list(rates)
    return round(sum(values), 3) if values else None
