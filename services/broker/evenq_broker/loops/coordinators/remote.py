"""A group record that another server keeps: what etcd and Kubernetes have in common.

A `RecordStore` makes single tries; here are the retries, all bounded in number and time, and what is concluded from
them. A compare-and-set whose answer is lost is tried again: that is safe, because the second try compares the same
token, and each write carries a number of its own by which it is known again. What stays unknown is CoordinatorUnknown,
and so is a server that is away: a leader goes on without it. Watches are resumed by reading again, also when they
have been silent for a while, since a silent connection may be a dead one. A record from a backup is refused
(`epoch_mark.py`); a watch that tells an older state than was read meanwhile is only late.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, TypeVar

from evenq.errors import Error
from evenq.runtime.backoff import Backoff
from evenq.runtime.clock import Clock
from evenq_broker.core.replication.record import GroupRecord, Seen, record_fields
from evenq_broker.loops.coordinators.coordinator import CoordinatorUnknown, RecordWentBack, parsed_record
from evenq_broker.loops.coordinators.epoch_mark import EpochMark

__all__ = ["Look", "RecordStore", "RemoteCoordinator", "RemoteTiming", "StoredRecord", "stored_of"]

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTiming:
    """How long is waited, and how often tried."""

    total_ms: int = 5_000
    """One read or compare-and-set with all its tries."""
    tries: int = 6
    """Of one read or compare-and-set; a store with more endpoints gets one for each, and one more."""
    silence_ms: int = 10_000
    """After this time without a change a watch reads the record again."""
    retry_ms_max: int = 2_000
    """Between two watches that end at once."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as a store holds it."""

    record: GroupRecord
    token: str
    write: str
    """Number of the write that made it, to know it again."""

    @property
    def seen(self) -> Seen:
        """For the caller."""
        return Seen(self.record, self.token)


@dataclass(frozen=True, slots=True)
class Look:
    """What a read found."""

    stored: StoredRecord | None
    since: str
    """Where a watch goes on from here; means something to the store only."""


class RecordStore(Protocol):
    """Single tries, each bounded by some seconds. All raise an Error if the outcome is not known, retryable if another
    try may help.
    """

    @property
    def name(self) -> str:
        """The record, as messages name it."""
        ...

    @property
    def endpoints(self) -> int:
        """How many servers can be asked, one per try."""
        ...

    async def read(self) -> Look:
        """The newest record, linearizably. Raises RecordRefused."""
        ...

    async def write(self, record: GroupRecord, text: str, token: str) -> str | None:
        """Set it to `text`, if its token is still `token` (empty: if there is none). The new token; None: it is not."""
        ...

    def changes(self, since: str) -> AsyncGenerator[StoredRecord | None, None]:
        """Each change after `since`; None, or the end: read again."""
        ...


class RemoteCoordinator:
    """See the module. Belongs to one loop."""

    def __init__(
        self,
        store: RecordStore,
        *,
        mark: EpochMark,
        clock: Clock,
        rng: random.Random,
        timing: RemoteTiming | None = None,
    ) -> None:
        self._store = store
        self._mark = mark
        self._clock = clock
        self._rng = rng
        self._timing = timing or RemoteTiming()
        # One call at a time: an answer that was overtaken must not reach the mark after a newer one.
        self._busy = asyncio.Lock()
        self._failing: dict[str, str] = {}
        """What failed last, `read` or `written`, with the token of the newest record then: a right to write that is
        missing stays missing, however well the record can be read.
        """
        self._newest = ""
        """Token of the record that was read or written last."""

    async def read(self) -> Seen | None:
        """See Coordinator."""
        stored = (await self._bounded("read", self._read)).stored
        return None if stored is None else stored.seen

    async def compare_and_set(self, expected: Seen | None, proposed: GroupRecord) -> Seen | None:
        """See Coordinator."""
        return await self._bounded("written", lambda: self._set(expected, proposed))

    async def watch(self) -> AsyncIterator[Seen]:
        """See Coordinator."""
        last, backoff = "", Backoff(self._rng, first_ms=50, max_ms=self._timing.retry_ms_max)
        while True:
            look = await self._bounded("read", self._read)
            if look.stored is not None and look.stored.token != last:
                last = look.stored.token
                backoff.reset()
                yield look.stored.seen
            async with aclosing(self._store.changes(look.since)) as changes:
                while (stored := await self._next(changes)) is not None:
                    if stored.token != last and not await self._is_late(stored):
                        last = stored.token
                        backoff.reset()
                        yield stored.seen
            await self._clock.sleep_ms(backoff.next_ms())

    # --- inside

    async def _bounded(self, done: str, work: Callable[[], Awaitable[ResultT]]) -> ResultT:
        try:
            async with asyncio.timeout(self._timing.total_ms / 1000), self._busy:
                result = await work()
        except TimeoutError as error:
            problem = f"no answer within {self._timing.total_ms} ms; see whether the server and the way to it are up"
            raise self._unknown(done, problem) from error
        except RecordWentBack:
            raise
        except CoordinatorUnknown as error:
            raise self._noted(error, done) from error.__cause__
        except Error as error:
            raise self._unknown(done, error.message) from error
        if result is not None:  # None: of a set that met another token; the read says what is there
            self._succeeded(done)
        return result

    def _succeeded(self, done: str) -> None:
        before = bool(self._failing)
        self._failing.pop(done, None)
        if self._failing.get("written", self._newest) != self._newest:  # another copy writes, so nothing waits for us
            del self._failing["written"]
        if before and not self._failing:
            log.info("the group record %s is reached again", self._store.name)

    def _unknown(self, done: str, problem: str) -> CoordinatorUnknown:
        error = CoordinatorUnknown(f"the group record {self._store.name} cannot be {done}: {problem}")
        return self._noted(error, done)

    def _noted(self, error: CoordinatorUnknown, done: str = "read") -> CoordinatorUnknown:
        first = not self._failing
        self._failing.setdefault(done, self._newest)
        if first:
            log.warning("%s; the leader goes on, no other copy can be elected meanwhile", error.message)
        error.is_logged = True
        return error

    async def _tried(self, once: Callable[[], Awaitable[ResultT]]) -> ResultT:
        backoff = Backoff(self._rng, first_ms=100, max_ms=1_000)
        for left in range(max(self._timing.tries, self._store.endpoints + 1) - 1, -1, -1):
            try:
                return await once()
            except Error as error:
                if not left or not error.retryable or isinstance(error, CoordinatorUnknown):
                    raise
            await self._clock.sleep_ms(backoff.next_ms())
        raise AssertionError("there is at least one try")

    async def _read(self) -> Look:
        look = await self._tried(self._store.read)
        await self._accept(None if look.stored is None else look.stored.record)
        self._newest = "" if look.stored is None else look.stored.token
        return look

    async def _accept(self, record: GroupRecord | None) -> None:
        await asyncio.to_thread(self._mark.accept, record, self._store.name)

    async def _set(self, expected: Seen | None, proposed: GroupRecord) -> Seen | None:
        if await asyncio.to_thread(self._mark.is_over, None if expected is None else expected.record):
            await self._read()  # refuses a record that went back; otherwise another writer was faster
            return None
        await asyncio.to_thread(self._mark.check_proposal, proposed)
        write = f"{self._rng.getrandbits(64):016x}"
        text = json.dumps({**record_fields(proposed), "write": write}, separators=(",", ":"))
        stored_of(text, "", self._store.name)  # what could not be read again is not written
        token = "" if expected is None else expected.token
        unsure = False

        async def once() -> str | None:
            nonlocal unsure
            try:
                return await self._store.write(proposed, text, token)
            except Error:
                unsure = True
                raise

        fresh = await self._tried(once)
        # Of two writes of one version one is refused, so the same record in the same version is the same write.
        if fresh is None and not unsure and expected is not None and proposed.version > expected.record.version:
            token = await self._touched_token(expected)
            fresh = await self._tried(once) if token else None
        # The token may be another one because of the own first try, whose answer was lost.
        if fresh is None and unsure:
            fresh = await self._token_of(write)
        if fresh is None:
            return None
        await self._accept(proposed)
        self._newest = fresh
        return Seen(proposed, fresh)

    async def _touched_token(self, expected: Seen) -> str:
        """The token that the expected record has now, if somebody changed only what stands around it: a label of the
        Lease, as an upgrade of a chart does, or the same record put there again. Every other try would meet the new
        token, too: nothing else tells it, since a record of no higher version is no news. Empty: it has not changed.
        """
        stored = (await self._tried(self._store.read)).stored
        is_touched = stored is not None and stored.record == expected.record and stored.token != expected.token
        return stored.token if stored is not None and is_touched else ""

    async def _token_of(self, write: str) -> str:
        """The token of our own write, whose answer was lost."""
        stored = (await self._tried(self._store.read)).stored
        if stored is not None and stored.write == write:
            return stored.token
        raise CoordinatorUnknown(
            f"the group record {self._store.name} may or may not have been written: the answer was lost, and another "
            "write stands there now; read it again"
        )

    async def _next(self, changes: AsyncGenerator[StoredRecord | None, None]) -> StoredRecord | None:
        """The next change; None: read again."""
        try:
            async with asyncio.timeout(self._timing.silence_ms / 1000):
                return await anext(changes, None)
        except TimeoutError:
            return None
        except Error as error:
            log.debug("the watch of the group record %s ended: %s", self._store.name, error.message)
            return None

    async def _is_late(self, stored: StoredRecord) -> bool:
        """True: an older state than was read meanwhile. Otherwise it is kept in mind, and may be used."""
        try:
            async with self._busy:
                await self._accept(stored.record)
        except RecordWentBack:  # a read was faster; if it did go back, the next read says so
            return True
        except CoordinatorUnknown as error:  # of the mark
            raise self._noted(error) from error.__cause__
        return False


def stored_of(text: str | bytes, token: str, name: str) -> StoredRecord:
    """Read what was stored. Raises RecordRefused."""
    record, fields = parsed_record(text, name)
    return StoredRecord(record, token, str(fields.get("write") or ""))
