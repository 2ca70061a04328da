"""View of a follower for readers that take committed messages from any copy (HA-9, decision 71).

A `CommittedView` of the copied log, and the topics that its state records name. It is opened with the first read,
advanced to the known committed end with each further one, and closed after the last reader: an unused view costs
nothing. `rpc.delivery.follower_data` answers with it. Belongs to one loop.

Everything shown is below the committed end of this replica's core, which never falls and is never cut. While the copy
leads, or its folder changes owners, nothing is shown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from evenq.errors import Error, HaNotAvailable
from evenq.runtime.clock import Clock
from evenq.store.copies.committed_view import CommittedView
from evenq.store.copies.log_copy import LogCopy
from evenq.store.log.log_damage import Repairs
from evenq_broker.core.replication.replica import Replica
from evenq_broker.core.state.copied_names import CopiedNames, names_something
from evenq_broker.loops.state.signals import Signal

log = logging.getLogger(__name__)

LOG_BYTES_MIN = 1 << 30
"""Least part of the log that may lie behind the last replay: its entries are read and kept in memory for readers."""
IDLE_MS = 60_000
"""After this time without a read the view is closed."""
TICK_MS = 1_000
LOOK_MS = 250
"""A waiting reader checks at least this often, ms: not every step of the committed end is announced."""


@dataclass(frozen=True, slots=True)
class FollowerView:
    """Readable messages at one moment."""

    log: CommittedView
    names: CopiedNames


class FollowerReads:
    """The reads of one follower."""

    def __init__(
        self,
        replica: Replica,
        *,
        copy: Callable[[], LogCopy | None],
        refusal: Callable[[], str],
        clock: Clock,
        growth_bytes: int,
        group: str,
    ) -> None:
        """`copy`: the log's copy, None while the broker leads. `refusal`: why nothing is shown now; empty: nothing
        hinders. `growth_bytes`: growth of the log between a leader's snapshots.
        """
        self._replica, self._copy, self._refusal, self._clock = replica, copy, refusal, clock
        self._group = group
        self._log_bytes_max = max(LOG_BYTES_MIN, 4 * growth_bytes)
        self.messages_out = 0
        """Messages given to readers so far."""
        self.repairs: Repairs | None = None
        """Of damage that a reader meets."""
        self._view: FollowerView | None = None
        self._of: LogCopy | None = None
        """The copy that the view belongs to."""
        self._replayed = 0
        """End of the copy's replay when the view last gave memory back."""
        self._used_ms = 0
        self._opening = asyncio.Lock()
        self._moved = Signal()

    async def view(self) -> FollowerView:
        """Returns all that is known to be committed now. Raises HaNotAvailable: read from another copy."""
        refusal = self._refusal()
        if refusal:
            raise HaNotAvailable(f"this copy serves no reads: {refusal}; read from another one")
        until = self._committed_end()
        self._used_ms = self._clock.monotonic_ms()
        view = self._current()
        if view is None:
            async with self._opening:
                # Again behind the lock: another reader may have opened it, and more may be committed.
                view = self._current() or await self._open(self._committed_end())
        if view.log.end < until:
            await view.log.advance(until)
        return view

    async def grown(self, end: int, wait_ms: int) -> None:
        """Waits until more of the log than `end` is known to be committed, or for `wait_ms`. Raises HaNotAvailable."""
        until_ms = self._clock.monotonic_ms() + wait_ms
        while self._committed_end() <= end:
            seen = self._moved.count
            left_ms = until_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                return
            await self._moved.wait(seen, clock=self._clock, timeout_ms=min(left_ms, LOOK_MS))

    def changed(self) -> None:
        """Wakes waiting readers after a change of the replica."""
        self._moved.notify()

    async def run(self) -> None:
        """Releases unused memory, for ever."""
        while True:
            await self._clock.sleep_ms(TICK_MS)
            view = self._view
            if view is None:
                continue
            if self._current() is None or self._clock.monotonic_ms() - self._used_ms > IDLE_MS:
                self.close()
            elif self._of is not None and self._of.replayed_end != self._replayed:
                self._replayed = self._of.replayed_end
                try:
                    await view.log.let_filed_go()
                except Error as error:
                    log.info("replica %s: readers of this copy begin anew: %s", self._group, error.message)
                    self.close()

    def close(self) -> None:
        """Closes the view: the folder changes its owner, or no reader is left. The next read opens a new one."""
        view, self._view, self._of = self._view, None, None
        if view is not None:
            view.log.close()

    def _committed_end(self) -> int:
        copy = self._copy()
        if copy is None:
            raise HaNotAvailable("this copy leads, or is about to: read from the leader that the route names")
        return min(self._replica.log.hw, copy.end)

    def _current(self) -> FollowerView | None:
        view = self._view
        return view if view is not None and view.log.is_current and self._of is self._copy() else None

    async def _open(self, until: int) -> FollowerView:
        self.close()
        copy, names = self._copy(), CopiedNames()
        assert copy is not None, "checked in the same step"
        self._replayed = copy.replayed_end
        shown = await CommittedView.open(
            copy.replays,
            until=until,
            log_bytes_max=self._log_bytes_max,
            on_snapshot=names.apply,
            on_state=names.apply,
            wanted=names_something,
            repairs=self.repairs,
        )
        # The folder changed its owner while the view was opened.
        if self._copy() is not copy:
            shown.close()
            raise HaNotAvailable("this copy begins to lead; read from another one")
        self._of = copy
        self._view = FollowerView(shown, names)
        return self._view
