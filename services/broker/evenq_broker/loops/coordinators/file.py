"""A group record in a file, for several brokers on one machine.

The file holds one JSON object. It is replaced whole (write, fsync, rename, fsync of the folder) under an exclusive lock
of the file beside it. So a compare-and-set is one step for all processes, and a crash leaves the old or the new text. A
process waits for the lock for `LOCK_WAIT_MS` at most. A process stopped with the lock (SIGSTOP) blocks all writes of
others; its number stands in the file. A file from a backup is rejected (`epoch_mark.py`). Only a worker thread touches
the disk.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

from evenq.runtime.clock import Clock
from evenq.runtime.lock_file import HOW_TO_FREE, LockHeld, run_locked
from evenq.runtime.private_files import replace_file
from evenq_broker.core.replication.record import GroupRecord, RecordRefused, Seen, record_fields, record_of
from evenq_broker.loops.coordinators.coordinator import BYTES_MAX, CoordinatorUnknown, parsed_record
from evenq_broker.loops.coordinators.epoch_mark import EpochMark

LOCK_WAIT_MS = 2_000
WATCH_MS = 50


class FileCoordinator:
    """Coordinator on a file. `path`: the record, the same for all brokers of the group; `mark_path`: this broker's."""

    def __init__(self, path: Path, *, mark_path: Path, clock: Clock, lock_wait_ms: int = LOCK_WAIT_MS) -> None:
        self._path = path
        self._lock_path = path.with_name(path.name + ".lock")
        self._mark = EpochMark(mark_path)
        self._clock = clock
        self._lock_wait_ms = lock_wait_ms
        self._busy = asyncio.Lock()

    async def read(self) -> Seen | None:
        """See Coordinator."""
        async with self._busy:
            return await asyncio.to_thread(self._read)

    async def compare_and_set(self, expected: Seen | None, proposed: GroupRecord) -> Seen | None:
        """See Coordinator."""
        change = partial(self._set, expected, proposed)
        async with self._busy:
            try:
                return await run_locked(self._lock_path, change, clock=self._clock, wait_ms=self._lock_wait_ms)
            except LockHeld as held:
                raise CoordinatorUnknown(
                    f"{held} has had the lock {self._lock_path} for {self._lock_wait_ms} ms: nothing was written, and "
                    f"no copy can be elected; {HOW_TO_FREE}"
                ) from held
            except OSError as error:
                raise self._unknown("written", error) from error

    async def watch(self) -> AsyncIterator[Seen]:
        """See Coordinator. Reads every `WATCH_MS`."""
        last = ""
        while True:
            seen = await self.read()
            if seen is not None and seen.token != last:
                last = seen.token
                yield seen
            await self._clock.sleep_ms(WATCH_MS)

    def _read(self) -> Seen | None:
        try:
            return self._seen()
        except OSError as error:
            raise self._unknown("read", error) from error

    def _set(self, expected: Seen | None, proposed: GroupRecord) -> Seen | None:
        before = self._seen()
        if (None if before is None else before.token) != (None if expected is None else expected.token):
            return None
        self._mark.check_proposal(proposed)
        token = str(int(before.token) + 1 if before is not None else 1)
        text = json.dumps({"token": token, **record_fields(proposed)}) + "\n"
        record_of(json.loads(text))  # a text that could not be read again is not written
        replace_file(self._path, text)
        self._mark.accept(proposed, str(self._path))
        return Seen(proposed, token)

    def _seen(self) -> Seen | None:
        try:
            with self._path.open("rb") as file:
                seen = _parsed(self._path, file.read(BYTES_MAX + 1))
        except FileNotFoundError:
            seen = None
        self._mark.accept(None if seen is None else seen.record, str(self._path))
        return seen

    def _unknown(self, done: str, error: OSError) -> CoordinatorUnknown:
        return CoordinatorUnknown(
            f"the group record {self._path} cannot be {done}: {error.strerror or error}; all brokers of the group need "
            "a folder on this machine that they may write"
        )


def _parsed(path: Path, data: bytes) -> Seen:
    record, fields = parsed_record(data, str(path))
    token = fields.get("token")
    if not isinstance(token, str) or not token.isdigit() or len(token) > 18:
        raise RecordRefused(f"token {token!r} in {path}: it must be a number, as text")
    return Seen(record, token)
