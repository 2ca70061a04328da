"""A group record that another server keeps: the common part of etcd and Kubernetes.

A `RecordStore` makes single tries. This module adds retries, bounded in number and time, and interprets the outcomes. A
compare-and-set whose answer is lost is tried again. That is safe: the second try compares the same token, and each
write has a number by which it is recognized. An unknown outcome or an unreachable server is CoordinatorUnknown: a
leader continues without it. Watches resume with a new read, also after a silence, since a silent connection may be
dead. A record from a backup is rejected (`epoch_mark.py`); a watch that reports an older state than a read is only
late.
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

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTiming:
    """Waiting times and number of tries."""

    total_ms: int = 5_000
    """One read or compare-and-set with all its tries."""
    tries: int = 6
    """Of one read or compare-and-set; a store with more endpoints gets one for each, and one more."""
    silence_ms: int = 10_000
    """After this time without a change a watch reads the record again."""
    retry_ms_max: int = 2_000
    """Longest pause between two watches that end immediately."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as a store holds it."""

    record: GroupRecord
    token: str
    write: str
    """Number of the write that made it, by which the writer recognizes it."""

    @property
    def seen(self) -> Seen:
        """The record and its token, for the caller."""
        return Seen(self.record, self.token)


@dataclass(frozen=True, slots=True)
class Look:
    """Result of a read."""

    stored: StoredRecord | None
    since: str
    """Position at which a watch continues; only the store interprets it."""


class RecordStore(Protocol):
    """Single tries of some seconds. An unknown outcome is an Error, retryable if another try may help."""

    @property
    def name(self) -> str:
        """The record, as messages name it."""
        ...

    @property
    def endpoints(self) -> int:
        """Number of servers that can be called, one per try."""
        ...

    async def read(self) -> Look:
        """Returns the newest record, linearizably. Raises RecordRefused."""
        ...

    async def write(self, record: GroupRecord, text: str, token: str) -> str | None:
        """Sets it to `text` if its token is `token` (empty: if it does not exist). Returns the new token, or None."""
        ...

    def changes(self, since: str) -> AsyncGenerator[StoredRecord | None, None]:
        """Yields each change after `since`; None, or the end: read again."""
        ...


class RemoteCoordinator:
    """Coordinator on a RecordStore. Belongs to one loop."""

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
        # One call at a time: an older answer must not reach the mark after a newer one.
        self._busy = asyncio.Lock()
        self._failing: dict[str, str] = {}
        """Failed kind of call, `read` or `written`, to the token of the newest record then."""
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
            problem = f"no answer within {self._timing.total_ms} ms; check the server and the network to it"
            raise self._unknown(done, problem) from error
        except RecordWentBack:
            raise
        except CoordinatorUnknown as error:
            raise self._noted(error, done) from error.__cause__
        except Error as error:
            raise self._unknown(done, error.message) from error
        if result is not None:  # None: a write that met another token; the next read returns the record
            self._succeeded(done)
        return result

    def _succeeded(self, done: str) -> None:
        before = bool(self._failing)
        self._failing.pop(done, None)
        if self._failing.get("written", self._newest) != self._newest:  # another copy can write: no own write is due
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
            log.warning("%s; the leader continues, no other copy can be elected meanwhile", error.message)
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
            await self._read()  # raises for a record that went back; otherwise another writer was faster
            return None
        await asyncio.to_thread(self._mark.check_proposal, proposed)
        write = f"{self._rng.getrandbits(64):016x}"
        text = json.dumps({**record_fields(proposed), "write": write}, separators=(",", ":"))
        stored_of(text, "", self._store.name)  # a text that could not be read again is not written
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
        # Of two writes of one version one is rejected, so the same record in the same version is the same write.
        if fresh is None and not unsure and expected is not None and proposed.version > expected.record.version:
            token = await self._touched_token(expected)
            fresh = await self._tried(once) if token else None
        # The token may have changed by the first try of this write, whose answer was lost.
        if fresh is None and unsure:
            fresh = await self._token_of(write)
        if fresh is None:
            return None
        await self._accept(proposed)
        self._newest = fresh
        return Seen(proposed, fresh)

    async def _touched_token(self, expected: Seen) -> str:
        """Returns the present token of the expected record if only its surroundings changed: a label of the Lease, as
        an upgrade of a chart does, or the same record written again. Otherwise every other try would meet the new token
        too, since no watch reports a record without a higher version. Empty: it has not changed.
        """
        stored = (await self._tried(self._store.read)).stored
        is_touched = stored is not None and stored.record == expected.record and stored.token != expected.token
        return stored.token if stored is not None and is_touched else ""

    async def _token_of(self, write: str) -> str:
        """Returns the token of this broker's write, whose answer was lost."""
        stored = (await self._tried(self._store.read)).stored
        if stored is not None and stored.write == write:
            return stored.token
        raise CoordinatorUnknown(
            f"the group record {self._store.name} may or may not have been written: the answer was lost, and another "
            "write is there now; read it again"
        )

    async def _next(self, changes: AsyncGenerator[StoredRecord | None, None]) -> StoredRecord | None:
        """Returns the next change; None: read again."""
        try:
            async with asyncio.timeout(self._timing.silence_ms / 1000):
                return await anext(changes, None)
        except TimeoutError:
            return None
        except Error as error:
            log.debug("the watch of the group record %s ended: %s", self._store.name, error.message)
            return None

    async def _is_late(self, stored: StoredRecord) -> bool:
        """True: the state is older than one read meanwhile. Otherwise it is noted in the mark, and may be used."""
        try:
            async with self._busy:
                await self._accept(stored.record)
        except RecordWentBack:  # a read was faster; if the record did go back, the next read raises it
            return True
        except CoordinatorUnknown as error:  # of the mark
            raise self._noted(error) from error.__cause__
        return False


def stored_of(text: str | bytes, token: str, name: str) -> StoredRecord:
    """Parses a stored record. Raises RecordRefused."""
    record, fields = parsed_record(text, name)
    return StoredRecord(record, token, str(fields.get("write") or ""))
