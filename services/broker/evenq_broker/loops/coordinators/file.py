"""A group record in a file, for several brokers on one machine.

The file holds one JSON object. It is replaced whole (write, fsync, rename, fsync of the folder) under an exclusive lock
of the file beside it, so a compare-and-set is one step for all processes, and a crash leaves the old text or the new
one. The lock is waited for `LOCK_WAIT_MS` at most. Each broker keeps, in a file of its own, the highest epoch and
version that it saw: a record below it was restored from a backup and is refused, because a second leader of an epoch
would write other bytes at the same offsets. The disk is touched by a worker thread only.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

from evenq.runtime.clock import Clock
from evenq_broker.core.replication.record import GroupRecord, RecordRefused, Seen, record_fields, record_of
from evenq_broker.loops.coordinators.coordinator import CoordinatorUnknown, RecordWentBack

__all__ = ["FileCoordinator"]

BYTES_MAX = 16_384
LOCK_WAIT_MS = 2_000
LOCK_RETRY_MS = 5
WATCH_MS = 200


class FileCoordinator:
    """See the module. `path`: the record, the same for all brokers of the group; `mark_path`: this broker's own."""

    def __init__(self, path: Path, *, mark_path: Path, clock: Clock, lock_wait_ms: int = LOCK_WAIT_MS) -> None:
        self._path = path
        self._lock_path = path.with_name(path.name + ".lock")
        self._mark_path = mark_path
        self._clock = clock
        self._lock_wait_ms = lock_wait_ms
        self._busy = asyncio.Lock()

    async def read(self) -> Seen | None:
        """See Coordinator."""
        async with self._busy:
            return await asyncio.to_thread(self._read)

    async def compare_and_set(self, expected: Seen | None, proposed: GroupRecord) -> Seen | None:
        """See Coordinator."""
        deadline_ms = self._clock.monotonic_ms() + self._lock_wait_ms
        async with self._busy:
            while True:
                done, seen = await asyncio.to_thread(self._try_set, expected, proposed)
                if done:
                    return seen
                if self._clock.monotonic_ms() >= deadline_ms:
                    raise CoordinatorUnknown(
                        f"the lock {self._lock_path} was held for {self._lock_wait_ms} ms by another process: nothing "
                        "was written; if none of the group's brokers runs, see who holds it (fuser)"
                    )
                await self._clock.sleep_ms(LOCK_RETRY_MS)

    async def watch(self) -> AsyncIterator[Seen]:
        """See Coordinator. Looks every 200 ms."""
        last = ""
        while True:
            seen = await self.read()
            if seen is not None and seen.token != last:
                last = seen.token
                yield seen
            await self._clock.sleep_ms(WATCH_MS)

    def _read(self) -> Seen | None:
        try:
            seen = self._seen()
            if seen is not None:
                self._keep_mark(seen.record)
        except OSError as error:
            raise self._unknown("read", error) from error
        return seen

    def _try_set(self, expected: Seen | None, proposed: GroupRecord) -> tuple[bool, Seen | None]:
        """True and the outcome, or False: the lock is held."""
        try:
            with self._locked() as mine:
                return (True, self._set(expected, proposed)) if mine else (False, None)
        except OSError as error:
            raise self._unknown("written", error) from error

    def _set(self, expected: Seen | None, proposed: GroupRecord) -> Seen | None:
        before = self._seen()
        if (None if before is None else before.token) != (None if expected is None else expected.token):
            return None
        token = str(int(before.token) + 1 if before is not None else 1)
        text = json.dumps({"token": token, **record_fields(proposed)}) + "\n"
        record_of(json.loads(text))  # what could not be read again is not written
        self._replace(self._path, text)
        self._keep_mark(proposed)
        return Seen(proposed, token)

    def _seen(self) -> Seen | None:
        mark = self._mark()
        try:
            with self._path.open("rb") as file:
                data = file.read(BYTES_MAX + 1)
        except FileNotFoundError:
            if mark > (0, 0):
                raise RecordWentBack(
                    f"the group record {self._path} is gone; this broker has seen epoch {mark[0]}. Bring it back, or "
                    f"remove {self._mark_path} on every broker to begin a new group"
                ) from None
            return None
        seen = _parsed(self._path, data)
        if (seen.record.epoch, seen.record.version) < mark:
            raise RecordWentBack(
                f"the group record {self._path} is at epoch {seen.record.epoch}, version {seen.record.version}; this "
                f"broker has seen epoch {mark[0]}, version {mark[1]}. An older file was put back: epochs never go back"
            )
        return seen

    def _mark(self) -> tuple[int, int]:
        try:
            epoch, version = self._mark_path.read_text(encoding="ascii").split()
            return int(epoch), int(version)
        except FileNotFoundError:
            return 0, 0
        except ValueError as error:
            raise RecordRefused(f"{self._mark_path} must hold an epoch and a version, two numbers: {error}") from error

    def _keep_mark(self, record: GroupRecord) -> None:
        """Before a record is used. Renewals change the version every few seconds, so only epochs are worth a sync."""
        mark = self._mark()
        if record.epoch > mark[0] or mark == (0, 0):
            self._replace(self._mark_path, f"{record.epoch} {record.version}\n")

    def _replace(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        self._lock_path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock_path.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def _unknown(self, done: str, error: OSError) -> CoordinatorUnknown:
        return CoordinatorUnknown(
            f"the group record {self._path} cannot be {done}: {error.strerror or error}; all brokers of the group need "
            "a folder on this machine that they may write"
        )


def _parsed(path: Path, data: bytes) -> Seen:
    if len(data) > BYTES_MAX:
        raise RecordRefused(f"{path} is over {BYTES_MAX} bytes: no group record is")
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise RecordRefused(f"{path} is no JSON: {error}") from error
    record = record_of(fields)
    token = fields.get("token")
    if not isinstance(token, str) or not token.isdigit() or len(token) > 18:
        raise RecordRefused(f"token {token!r} in {path}: it must be a number, as text")
    return Seen(record, token)
