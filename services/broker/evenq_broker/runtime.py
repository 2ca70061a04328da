"""What every part of the broker runs on: its settings, time, chance, network, counters, and tasks that live as long.

Made by the composition root, handed to every part by name. Belongs to one event loop.
Always true: `now_ms` never jumps while the process lives; a task of `spawn` that ends unasked ends the process.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from evenq.errors import Error
from evenq.model import BrokerAddress
from evenq.model.delay_levels import DelayLevels
from evenq.runtime.clock import Clock
from evenq.runtime.net import Net
from evenq.runtime.tasks import spawn
from evenq.store import MessageStore
from evenq_broker.core.lite.subscriptions import LiteSet
from evenq_broker.core.replication.actions import HandedOver
from evenq_broker.core.replication.group_view import ReplicaGroupView
from evenq_broker.core.replication.membership import CopyChange
from evenq_broker.core.replication.record import UncleanElection
from evenq_broker.core.replication.unclean import UncleanOrder, UncleanPlan
from evenq_broker.core.shares import UsersNow, no_users
from evenq_broker.settings import BrokerSettings
from evenq_broker.stats import BrokerStats

__all__ = ["ONE_COPY", "GroupControl", "Leadership", "Runtime"]


class GroupControl(Protocol):
    """The broker group that this broker leads; `loops.replication.group_control.ReplicaControl` is one."""

    def view(self) -> ReplicaGroupView:
        """The group as this copy knows it."""
        ...

    async def hand_over(self, to: int | None) -> HandedOver:
        """Let another copy lead; gives who does. Raises NotFound, PreconditionFailed."""
        ...

    async def change(self, change: CopyChange) -> ReplicaGroupView:
        """Change the copies; gives the group as it is then. Raises NotFound, PreconditionFailed, HaNotAvailable."""
        ...

    def unclean_plan(self, view: ReplicaGroupView, order: UncleanOrder | None) -> UncleanPlan:
        """What would be lost if a copy led that is not in sync, and why it may not. `view`: of all that answer."""
        ...

    async def elect_unclean(self, view: ReplicaGroupView, order: UncleanOrder) -> UncleanElection:
        """Let this copy lead although it is not in sync. Raises PreconditionFailed, HaNotAvailable."""
        ...


@dataclass(frozen=True, slots=True)
class Leadership:
    """As what a broker serves: the only copy, or the leader of an epoch of its group."""

    epoch: int = 1
    """In each record of the log and in routes."""
    attach: Callable[[MessageStore], None] | None = None
    """Told of the store before anything is appended: from then on it commits. None: there is one copy."""
    group: GroupControl | None = None
    """The other copies, for operators; None: there is one copy."""
    copies: int = 1
    """Of the log, this one included; in routes."""
    followers: Callable[[], tuple[str, ...]] = tuple
    """Where the others answer reads now; in routes."""
    lite_sets: Sequence[LiteSet] = ()
    """What clients want of lite topics, as the leader before this one knew it."""
    lite_changed: Callable[[], None] = lambda: None
    """Called whenever that becomes something else."""


ONE_COPY = Leadership()


class Runtime:
    """One broker's surroundings."""

    def __init__(
        self, settings: BrokerSettings, *, clock: Clock, rng: random.Random, net: Net,
        leadership: Leadership = ONE_COPY, users: UsersNow = no_users,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.leadership = leadership
        self.users = users
        """Users with a share of what all of them fill (`core.shares`)."""
        self.clock, self.rng, self.net = clock, rng, net
        self.stats = BrokerStats()
        self.started_ms = clock.now_ms()
        """Wall time of the start, ms since the epoch."""
        self.failed: asyncio.Future[BaseException] | None = None
        """Done with the error when a loop that should never end did, or the store is poisoned; the process then ends.
        None before `begin`.
        """
        self.addresses: tuple[BrokerAddress, ...] = ()
        """What clients receive, the default listener first; empty before `begin`."""
        self.closing = False
        """True: the broker ends, no message is handed out any more."""
        self.delay_levels = DelayLevels.parse(settings.delay_levels)
        """What a message that was given back waits (RD-9)."""
        self._zero_ms = self.started_ms - clock.monotonic_ms()
        self._tasks: list[asyncio.Task[Any]] = []

    def now_ms(self) -> int:
        """Ms since the epoch that never jump while the process lives: for deadlines that are also journalled (D10)."""
        return self._zero_ms + self.clock.monotonic_ms()

    def skip_ms(self, ahead_ms: int) -> None:
        """Let `now_ms` go on that much later: the clock was set back while the broker was down."""
        self._zero_ms += ahead_ms

    def begin(self, addresses: Sequence[BrokerAddress]) -> None:
        """The servers listen at these addresses; from now on an end that was not requested is in `failed`."""
        self.addresses = tuple(addresses)
        self.failed = asyncio.get_running_loop().create_future()

    def fail(self, error: Error | BaseException) -> None:
        """Only a restart helps: end the process with this."""
        if self.failed is not None and not self.failed.done():
            self.failed.set_result(error)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Start a loop that lives as long as the broker; its unexpected end ends the process (`failed`)."""
        task = spawn(coroutine, name=name)
        self._tasks.append(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        """End the tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if task in self._tasks:
            self._tasks.remove(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)
