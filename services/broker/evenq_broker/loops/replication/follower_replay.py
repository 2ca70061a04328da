"""Keeps a follower ready to lead: takes each newer snapshot of the leader and replays its own log up to it.

A leader takes a snapshot each time its log has grown by `store.snapshot_log_bytes` or `store.snapshot_records`, and of
records mostly a twentieth of that. A new leader then reads about that much before it serves, however long the log.
Runs beside the log's writer and yields to it: `LogCopy.replay` works slowly, and ends as soon as the folder changes its
owner. Only committed records that are on disk here are replayed, so no result of it can be cut.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from evenq.errors import Error, StoreCorrupted
from evenq.runtime.clock import Clock
from evenq.store.copies.copy_index import CopyIndex
from evenq.store.copies.log_copy import LogCopy
from evenq.store.log.log_damage import Repairs
from evenq_broker.core.replication.replica import Replica
from evenq_broker.core.replication.rules import Role
from evenq_broker.loops.replication.snapshots import FetchedSnapshot

log = logging.getLogger(__name__)

LOOK_MS = 1_000
REST_MS = 10_000
"""Between two requests for a snapshot while little would have to be read."""
MUCH_BYTES = 3 << 20
"""More than little: thousands of records."""
ASK_REST = 100
"""Pause between two requests, as a multiple of the duration of the last one: the leader reads its snapshot for each."""

DAMAGED_REST_MS = 600_000
"""Between two tries of a copy whose damage could not be repaired."""

FetchSnapshot = Callable[[int, int], Awaitable[FetchedSnapshot | None]]
"""Fetches the leader's newest snapshot between two log offsets (otherwise without data); None: there is none."""


class FollowerReplay:
    """Replay of one follower."""

    def __init__(
        self,
        replica: Replica,
        *,
        copy: Callable[[], LogCopy | None],
        fetch: FetchSnapshot,
        trim: Callable[[int], None],
        clock: Clock,
        growth_bytes: int,
        group: str,
        index: CopyIndex | None = None,
    ) -> None:
        """`copy`: the log's copy, None while the broker leads. `trim` removes the log before an offset. `growth_bytes`:
        growth of the log between a leader's snapshots. `index`: builds the message index.
        """
        self._group = group
        self._replica, self._copy, self._fetch, self._trim = replica, copy, fetch, trim
        self._clock, self._growth_bytes, self._index = clock, growth_bytes, index
        self._fetched_ms = clock.monotonic_ms() - REST_MS
        self._took_ms = 0
        """Duration of the last request, without the replay."""
        self._damaged: LogCopy | None = None
        """The copy whose damage was logged."""
        self._damaged_ms = self._seen = 0
        """Time of that, and the version of the repairs then."""
        self._logged: set[type[Error]] = set()
        """Kinds of trouble with the leader's snapshot that were logged since one was taken over, or there was none."""
        self.repairs: Repairs | None = None
        """Of damage that a replay meets."""
        self._is_indexed = False
        """Whether the message index covers the replayed log."""

    @property
    def lag(self) -> int:
        """Returns the committed bytes of the log that this copy would read if it had to lead now; 0 while it leads."""
        copy = self._copy()
        return 0 if copy is None else max(0, min(self._replica.log.hw, copy.end) - copy.replayed_end)

    async def run(self) -> None:
        """Runs for ever. Raises StorePoisoned if the disk fails."""
        while True:
            await self._clock.sleep_ms(LOOK_MS)
            copy = self._copy()
            # Until the logs are matched, the end of this one may still be cut.
            if copy is None or self._replica.role is not Role.FETCHING:
                continue
            rested_ms = self._clock.monotonic_ms() - self._fetched_ms
            much = self.lag >= min(self._growth_bytes, MUCH_BYTES) and rested_ms >= ASK_REST * self._took_ms
            if rested_ms >= REST_MS or much:
                self._fetched_ms = self._clock.monotonic_ms()
                await self._look(copy)
            if self._index is not None and not self._is_indexed and copy is self._copy():
                self._is_indexed = await self._index.follow(copy)

    async def _look(self, copy: LogCopy) -> None:
        seen = 0 if self.repairs is None else self.repairs.version
        try:
            known = await self._fetch(copy.replayed_end, min(self._replica.log.hw, copy.synced_end))
            self._took_ms = self._clock.monotonic_ms() - self._fetched_ms
            if known is None:
                self._logged.clear()
                return
            if known.data and not self._is_damaged(copy):
                await self._replay(copy, known)
        except StoreCorrupted as error:
            await self._look_at_damage(copy, error, seen)
        except Error as error:
            if copy.failure is not None:
                raise
            if type(error) not in self._logged:
                self._logged.add(type(error))
                log.warning("replica %s: the leader's snapshot is not taken over now: %s", self._group, error.message)
        else:
            self._logged.clear()
            if self._replica.log.table.start < known.log_start <= copy.replayed_end:
                self._trim(known.log_start)

    async def _look_at_damage(self, copy: LogCopy, error: StoreCorrupted, seen: int) -> None:
        """Has damage repaired; the next turn continues the replay. Damage that stays is logged once."""
        repairs = self.repairs
        try:
            if repairs is not None and await repairs.repair(error, seen):
                self._fetched_ms = self._clock.monotonic_ms() - REST_MS
                return
        except StoreCorrupted as failure:
            error = failure
        before, self._damaged = self._damaged, copy
        self._damaged_ms, self._seen = self._clock.monotonic_ms(), 0 if repairs is None else repairs.version
        if copy is not before:
            log.error(
                "replica %s: this copy cannot prepare to lead, a failover to it would be slow or fail: %s",
                self._group,
                error.message,
            )

    def _is_damaged(self, copy: LogCopy) -> bool:
        """True if it is recent, and nothing was repaired since. A replay reads much before it meets damage again."""
        version = 0 if self.repairs is None else self.repairs.version
        lately = self._clock.monotonic_ms() - self._damaged_ms < DAMAGED_REST_MS
        return copy is self._damaged and version == self._seen and lately

    async def _replay(self, copy: LogCopy, known: FetchedSnapshot) -> None:
        begun_ms = self._clock.monotonic_ms()
        if await copy.replay(known.data, committed=self._replica.log.hw, origin=known.origin):
            spent_ms = self._clock.monotonic_ms() - begun_ms
            log.info(
                "replica %s: the copied log is replayed up to %d, in %d ms", self._group, known.log_offset, spent_ms
            )
            self._is_indexed = False
