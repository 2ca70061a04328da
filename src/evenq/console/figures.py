"""Recent figures of a cluster: a sample every few seconds, kept in memory while somebody looks.

A page shows the newest sample, so that its time does not depend on the number of brokers, topics and groups. Sampling
begins with the first page and ends after `IDLE_MS` without one. Figures that the user may not read, or that did not
arrive, are None in the sample: unknown is not zero.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from typing import TypeVar

from evenq.client.async_admin import Admin
from evenq.client.core.admin.views import ClusterView, GroupView, TopicView
from evenq.errors import Error, Unauthorized
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

INTERVAL_MS = 5_000
LOAD_PARTS = 10  # a sample that takes a second is followed by at least nine without one
IDLE_MS = 300_000
SAMPLES_MAX = 120
SERIES_MAX = 20_000
UNKNOWN = nan

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """State of the cluster at one moment. None: it could not be read, for the reason in `failures`."""

    at_ms: int
    cluster: ClusterView | None
    topics: Mapping[str, TopicView] | None
    groups: Mapping[str, GroupView] | None
    failures: Mapping[str, Error] = field(default_factory=dict)
    """By `cluster`, `topics`, `groups`."""


class Figures:
    """Samples of one user's view of the cluster. Belongs to one event loop."""

    def __init__(self, admin: Admin, clock: Clock) -> None:
        self._admin, self._clock = admin, clock
        self._newest: Sample | None = None
        self._times: deque[tuple[int, int]] = deque(maxlen=SAMPLES_MAX)
        """Wall and monotonic time of each sample: charts show the one, rates divide by the other."""
        self._series: dict[tuple[str, str], array[float]] = {}
        """Values by kind and name; each ends with the newest sample, and may be shorter than `_times`."""
        self._used_ms = 0
        self._task: asyncio.Task[None] | None = None
        self._sampled = asyncio.Event()
        self._closed = False

    async def newest(self) -> Sample:
        """Returns the newest sample; waits for the first one. Raises Unauthorized if the session ended meanwhile."""
        self._check_open()
        self._used_ms = self._clock.monotonic_ms()
        if self._task is None or self._task.done():
            self._sampled.clear()
            self._task = spawn(self._run(), name="console figures")
        await self._sampled.wait()
        self._check_open()
        if self._newest is None:  # the task ended before its first sample, which only a mistake in it can cause
            raise RuntimeError("no sample was taken")
        return self._newest

    def history(self, kind: str, name: str) -> list[tuple[int, float | None]]:
        """Returns times (ms since the epoch) and values, None where a value is unknown. Kinds: `lag` of a group,
        `messages` of a topic, `in` and `out` of a broker.
        """
        values = self._series.get((kind, name), array("d"))
        times = [wall_ms for wall_ms, _ in self._times][-len(values) :] if values else []
        return [(at, None if isnan(value) else value) for at, value in zip(times, values, strict=True)]

    def rate(self, kind: str, name: str) -> float | None:
        """Returns how fast a counter grew between the two newest samples, per second; None: unknown."""
        values = self._series.get((kind, name), array("d"))[-2:]
        if len(values) < 2:
            return None
        growth, took_ms = values[1] - values[0], self._times[-1][1] - self._times[-2][1]
        if isnan(growth) or growth < 0 or took_ms <= 0:
            return None  # a counter that fell: the broker restarted, or retention deleted messages
        return growth * 1_000 / took_ms

    def _check_open(self) -> None:
        if self._closed:
            raise Unauthorized("the session of this page has ended: its user has signed out")

    async def close(self) -> None:
        """Ends sampling for good."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            if self._times:  # nobody looked for a while: no rate may span that time
                self._append_sample(self._clock.now_ms(), {})
            while self._clock.monotonic_ms() - self._used_ms < IDLE_MS:
                begin_ms = self._clock.monotonic_ms()
                self._keep(await self._sample())
                self._sampled.set()
                took_ms = self._clock.monotonic_ms() - begin_ms
                await self._clock.sleep_ms(max(INTERVAL_MS - took_ms, took_ms * (LOAD_PARTS - 1)))
        finally:
            self._sampled.set()

    async def _sample(self) -> Sample:
        failures: dict[str, Error] = {}

        async def read(kind: str, call: Awaitable[Value]) -> Value | None:
            try:
                return await call
            except Error as error:
                failures[kind] = error
                return None

        cluster, topics, groups = await asyncio.gather(
            read("cluster", self._admin.describe_cluster()),
            read("topics", self._admin.list_topics()),
            read("groups", self._admin.list_groups()),
        )
        return Sample(
            at_ms=self._clock.now_ms(),
            cluster=cluster,
            topics=None if topics is None else {one.topic: one for one in topics},
            groups=None if groups is None else {one.group: one for one in groups},
            failures=failures,
        )

    def _keep(self, sample: Sample) -> None:
        self._newest = sample
        values: dict[tuple[str, str], float] = {}
        for broker in sample.cluster.brokers if sample.cluster is not None else ():
            if broker.answered:
                values["in", broker.name] = broker.messages_in
                values["out", broker.name] = broker.messages_out
        values |= {("messages", topic.topic): topic.messages for topic in (sample.topics or {}).values()}
        for group in (sample.groups or {}).values():
            values["lag", group.group] = UNKNOWN if group.silent else group.lag
        self._append_sample(sample.at_ms, values)

    def _append_sample(self, at_ms: int, values: Mapping[tuple[str, str], float]) -> None:
        """Appends a value to each series; those that are not in `values` are unknown."""
        self._times.append((at_ms, self._clock.monotonic_ms()))
        for key in self._series.keys() - values.keys():
            self._series[key].append(UNKNOWN)
        for key, value in values.items():
            if key in self._series or len(self._series) < SERIES_MAX:
                self._series.setdefault(key, array("d")).append(value)
        for key in [key for key, series in self._series.items() if _is_unknown(series)]:
            del self._series[key]  # deleted a while ago
        for series in self._series.values():
            if len(series) > SAMPLES_MAX:
                del series[0]


def _is_unknown(series: Sequence[float]) -> bool:
    return all(map(isnan, series))
