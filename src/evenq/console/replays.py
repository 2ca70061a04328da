"""Replays of dead letters that run while their user is signed in.

A replay with a rate may take hours, longer than any request. So it is a task of the user's session: a page starts it,
any page shows its progress, and it is cancelled with the session. A replay that ended early is started again and
continues, because each dead letter is marked when it is sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from evenq.client.async_admin import Admin
from evenq.client.core.admin.query_views import ReplayView
from evenq.errors import Error, TooManyRequests
from evenq.model import FilterExpression
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

log = logging.getLogger(__name__)

EVERY = FilterExpression()
RUNNING_MAX = 10
KEPT_MAX = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """Which dead letters are sent again, where and how fast."""

    group: str
    expression: FilterExpression = EVERY
    to_topic: str = ""
    """Empty: the original topic of each."""
    per_second: float = 0.0
    limit: int = 0
    """Most dead letters of one replay; 0: all."""


@dataclass(slots=True, kw_only=True)
class GroupReplay:
    """A replay that runs or has ended."""

    plan: ReplayPlan
    begin_ms: int
    end_ms: int | None = None
    """None: it runs."""
    problem: str = ""
    """Why it ended before all was sent."""
    brokers: dict[str, ReplayView] = field(default_factory=dict)
    """Newest count of each broker."""

    @property
    def sent(self) -> int:
        return sum(one.replayed for one in self.brokers.values())


class SessionReplays:
    """The replays of one user. Belongs to one event loop."""

    def __init__(self, admin: Admin, clock: Clock) -> None:
        self._admin, self._clock = admin, clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._newest: dict[str, GroupReplay] = {}

    def of(self, group: str) -> GroupReplay | None:
        """Returns the newest replay of a group."""
        return self._newest.get(group)

    async def planned(self, plan: ReplayPlan) -> Sequence[ReplayView]:
        """Returns the result of a dry run."""
        return await self._replay(plan, dry_run=True)

    def start(self, plan: ReplayPlan) -> GroupReplay:
        """Starts a replay; one of the group that runs is returned instead. Raises TooManyRequests."""
        if plan.group in self._tasks:
            return self._newest[plan.group]
        if len(self._tasks) >= RUNNING_MAX:
            raise TooManyRequests(f"{RUNNING_MAX} replays run; wait for the end of one, or stop it")
        replay = GroupReplay(plan=plan, begin_ms=self._clock.now_ms())
        self._newest.pop(plan.group, None)
        self._newest[plan.group] = replay
        task = self._tasks[plan.group] = spawn(self._run(replay), name=f"replay of {plan.group}")
        task.add_done_callback(partial(self._ended, replay))
        for group in [one for one in self._newest if one not in self._tasks][: max(0, len(self._newest) - KEPT_MAX)]:
            del self._newest[group]
        return replay

    async def stop(self, group: str) -> None:
        """Ends the replay of a group; messages that were sent stay marked as replayed."""
        task = self._tasks.get(group)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        for group in list(self._tasks):
            await self.stop(group)

    async def _run(self, replay: GroupReplay) -> None:
        def note(report: ReplayView) -> None:
            replay.brokers[report.broker_name] = report

        try:
            for one in await self._replay(replay.plan, note=note):
                note(one)
        except Error as error:
            replay.problem = f"{error}"

    def _ended(self, replay: GroupReplay, task: asyncio.Task[None]) -> None:
        del self._tasks[replay.plan.group]
        replay.end_ms = self._clock.now_ms()
        if task.cancelled():
            replay.problem = "it was stopped"
        elif (mistake := task.exception()) is not None:
            replay.problem = f"{type(mistake).__name__}; see the log of the console"
            log.error("the replay of dead letters of %s failed", replay.plan.group, exc_info=mistake)

    async def _replay(
        self, plan: ReplayPlan, *, dry_run: bool = False, note: Callable[[ReplayView], None] | None = None
    ) -> Sequence[ReplayView]:
        return await self._admin.replay_dead_letters(
            plan.group,
            filter=plan.expression,
            to_topic=plan.to_topic,
            per_second=plan.per_second,
            limit=plan.limit,
            dry_run=dry_run,
            on_progress=note,
        )
