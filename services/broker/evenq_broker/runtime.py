"""The environment of every part of the broker: settings, time, randomness, network, counters and tasks.

The composition root creates it. Belongs to one event loop. Invariants: `now_ms` never jumps while the process lives;
a task of `spawn` that fails ends the process.
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
from evenq_broker.core.sending.validation import MessageLimits
from evenq_broker.core.shares import UsersNow, no_users
from evenq_broker.settings import BrokerSettings
from evenq_broker.stats import BrokerStats


class GroupControl(Protocol):
    """The broker group that this broker leads; implemented by `loops.replication.group_control.ReplicaControl`."""

    def view(self) -> ReplicaGroupView:
        """Returns the group as this copy knows it."""
        ...

    async def hand_over(self, to: int | None) -> HandedOver:
        """Hands over to another copy; returns the new leader. Raises NotFound, PreconditionFailed."""
        ...

    async def change(self, change: CopyChange) -> ReplicaGroupView:
        """Changes the copies; returns the new group. Raises NotFound, PreconditionFailed, HaNotAvailable."""
        ...

    def unclean_plan(self, view: ReplicaGroupView, order: UncleanOrder | None) -> UncleanPlan:
        """Returns the loss if a copy that is not in sync led, and why it may not lead. `view`: of all that answer."""
        ...

    async def elect_unclean(self, view: ReplicaGroupView, order: UncleanOrder) -> UncleanElection:
        """Makes this copy the leader although it is not in sync. Raises PreconditionFailed, HaNotAvailable."""
        ...


@dataclass(frozen=True, slots=True)
class Leadership:
    """The role of a broker that serves: the only copy, or the leader of an epoch of its group."""

    epoch: int = 1
    """Part of each record of the log and of routes."""
    attach: Callable[[MessageStore], None] | None = None
    """Receives the store before the first append: from then on the replica commits. None: there is one copy."""
    group: GroupControl | None = None
    """The group for operators; None: there is one copy."""
    copies: int = 1
    """Copies of the log, this one included; part of routes."""
    followers: Callable[[], tuple[str, ...]] = tuple
    """Returns the addresses at which the other copies answer reads now; part of routes."""
    lite_sets: Sequence[LiteSet] = ()
    """Lite subscriptions of clients, as the previous leader knew them."""
    lite_changed: Callable[[], None] = lambda: None
    """Called after each change of lite subscriptions."""
    copies_read_crc32: Callable[[], bool] = lambda: True
    """Returns True if each copy of the group accepts messages with a CRC32 (`core.sending.body_digest`)."""


ONE_COPY = Leadership()


class Runtime:
    def __init__(
        self,
        settings: BrokerSettings,
        *,
        clock: Clock,
        rng: random.Random,
        net: Net,
        leadership: Leadership = ONE_COPY,
        users: UsersNow = no_users,
    ) -> None:
        self.settings = settings
        self.leadership = leadership
        self.users = users
        """Users among whom the limits are shared (`core.shares`)."""
        self.clock, self.rng, self.net = clock, rng, net
        self.stats = BrokerStats()
        self.started_ms = clock.now_ms()
        """Wall time of the start, ms since the epoch."""
        self.failed: asyncio.Future[BaseException] | None = None
        """Done with the error of a loop or of a poisoned store; then the process ends. None before `begin`."""
        self.addresses: tuple[BrokerAddress, ...] = ()
        """Addresses that clients receive, the default listener first; empty before `begin`."""
        self.closing = False
        """True: the broker ends and delivers no more messages."""
        self.delay_levels = DelayLevels.parse(settings.delay_levels)
        """Waits before messages that were given back are redelivered (RD-9)."""
        self._zero_ms = self.started_ms - clock.monotonic_ms()
        self._tasks: list[asyncio.Task[Any]] = []

    def now_ms(self) -> int:
        """Returns ms since the epoch that never jump while the process lives, for journalled deadlines (D10)."""
        return self._zero_ms + self.clock.monotonic_ms()

    def skip_ms(self, ahead_ms: int) -> None:
        """Advances `now_ms` by `ahead_ms`: the clock was set back while the broker was down."""
        self._zero_ms += ahead_ms

    def begin(self, addresses: Sequence[BrokerAddress]) -> None:
        """Stores the addresses at which the servers listen; from now on failures are reported in `failed`."""
        self.addresses = tuple(addresses)
        self.failed = asyncio.get_running_loop().create_future()

    def fail(self, error: Error | BaseException) -> None:
        """Ends the process with this error: only a restart helps."""
        if self.failed is not None and not self.failed.done():
            self.failed.set_result(error)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Starts a loop that lives as long as the broker; an exception in it ends the process (`failed`)."""
        task = spawn(coroutine, name=name)
        self._tasks.append(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        """Cancels the tasks and waits for their end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if task in self._tasks:
            self._tasks.remove(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)


def limits_of(runtime: Runtime) -> MessageLimits:
    """Returns what limits a message that is sent to this broker."""
    settings = runtime.settings
    return MessageLimits(
        body_bytes_max=settings.body_bytes_max,
        properties_max=settings.properties_max,
        properties_bytes_max=settings.properties_bytes_max,
        delay_max_ms=settings.delay_max_ms,
        first_check_ms=settings.transaction_first_check_ms,
        lite_topic_size_max=settings.lite_topic_size_max,
        store_host=runtime.addresses[0].target if runtime.addresses else "",
        only_md5=lambda: settings.body_digest == "md5" or not runtime.leadership.copies_read_crc32(),
    )
