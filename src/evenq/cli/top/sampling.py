"""One poll of the cluster for `evenq top`: a `ClusterSample` of counters, from calls of `Admin`.

Lists of topics, groups and brokers are one call each. Offsets, from which rates follow, are one call for each topic and
group, so only those with most messages and lag are sampled, `limit` of each kind, CALLS_MAX at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from evenq.cli.contexts.settling import in_namespace
from evenq.client.async_admin import Admin
from evenq.client.core.admin.views import BrokerView, GroupDetails, GroupView, TopicView
from evenq.errors import Forbidden, NotFound
from evenq.model import MessageQueue
from evenq.runtime.clock import Clock

CALLS_MAX = 8
Details = TypeVar("Details")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSample:
    """Offsets of a group."""

    committed: dict[MessageQueue, int]
    """Only queues with a commit."""
    lags: dict[str, int]
    """By topic."""
    inflight: int
    oldest_ms: int
    """Store time of the oldest unfinished message; 0: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSample:
    """The counters of one moment."""

    at_ms: int
    """Monotonic."""
    now_ms: int
    """Since the epoch."""
    topics: Sequence[TopicView] = ()
    groups: Sequence[GroupView] = ()
    brokers: Sequence[BrokerView] = ()
    ends: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)
    """Topic to the end of each of its queues; only polled topics."""
    progress: dict[str, GroupSample] = field(default_factory=dict)
    """Only polled groups."""


async def take_sample(admin: Admin, *, limit: int, namespace: str, clock: Clock) -> ClusterSample:
    """Polls the cluster once. Raises the errors of the lists; a topic or group that is gone meanwhile is left out."""
    topics = [one for one in await admin.list_topics() if in_namespace(namespace, one.topic)]
    groups = [one for one in await admin.list_groups() if in_namespace(namespace, one.group)]
    brokers = await admin.list_brokers()
    busiest = sorted(topics, key=lambda one: (-one.messages, one.topic))[:limit]
    furthest = sorted(groups, key=lambda one: (-one.lag, one.group))[:limit]
    # Times of the offsets, not of the lists: rates are differences of offsets.
    at_ms, now_ms = clock.monotonic_ms(), clock.now_ms()
    ends = await _each((one.topic for one in busiest), admin.describe_topic)
    details = await _each((one.group for one in furthest), admin.describe_group)
    return ClusterSample(
        at_ms=at_ms,
        now_ms=now_ms,
        topics=topics,
        groups=groups,
        brokers=brokers,
        ends={name: {one.queue: one.max_offset for one in view.queues} for name, view in ends.items()},
        progress={name: _progress(view) for name, view in details.items()},
    )


async def _each(names: Iterable[str], call: Callable[[str], Awaitable[Details]]) -> dict[str, Details]:
    """Returns the result of each name, without those that are gone or that the caller may not see."""
    found: dict[str, Details] = {}
    free = asyncio.Semaphore(CALLS_MAX)

    async def one(name: str) -> None:
        async with free:
            try:
                found[name] = await call(name)
            except (NotFound, Forbidden):
                return

    async with asyncio.TaskGroup() as tasks:
        for name in names:
            tasks.create_task(one(name))
    return found


def _progress(details: GroupDetails) -> GroupSample:
    lags: dict[str, int] = {}
    for one in details.queues:
        lags[one.queue.topic] = lags.get(one.queue.topic, 0) + one.lag
    return GroupSample(
        committed={one.queue: one.committed for one in details.queues if one.committed >= 0},
        lags=lags,
        inflight=sum(one.inflight for one in details.queues),
        oldest_ms=details.troubles.oldest_ms,
    )
