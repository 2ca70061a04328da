"""A lease that is a file, for several rebalancers on one machine (quick start, tests).

The file holds one JSON object and is replaced whole by a rename, under an exclusive lock of the file beside it, so a
compare-and-set is one step for all processes. Its text is its version: a counter in it grows with each write. What
cannot be read counts as held, and its holder is waited for. The lock is waited for `LOCK_WAIT_MS` at most. The disk is
touched by a worker thread only.
"""

from __future__ import annotations

import asyncio
import json
import os
from functools import partial
from pathlib import Path

from evenq.errors import PersistenceTimeout
from evenq.runtime.clock import Clock, SystemClock
from evenq.runtime.lock_file import HOW_TO_FREE, LockHeld, run_locked
from evenq.runtime.private_files import open_private
from evenq_rebalancer.core.election import Record, SeenRecord

__all__ = ["FileLease"]

BYTES_MAX = 4_096
LOCK_WAIT_MS = 2_000


class FileLease:
    """See the module."""

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        self._path = path
        self._clock = clock or SystemClock()
        self._lock = path.with_name(path.name + ".lock")

    async def read(self) -> SeenRecord | None:
        """What the file says. Raises PersistenceTimeout if it cannot be read."""
        return await asyncio.to_thread(self._read)

    async def write(self, record: Record, version: str) -> str | None:
        """Replace it if its text is still `version`. Raises PersistenceTimeout if that cannot be done, or if another
        process has the lock all the time: one that is stopped.
        """
        change = partial(self._write, record, version)
        try:
            return await run_locked(self._lock, change, clock=self._clock, wait_ms=LOCK_WAIT_MS)
        except LockHeld as held:
            raise PersistenceTimeout(
                f"the lease {self._path} cannot be written: {held} has had the lock {self._lock} for {LOCK_WAIT_MS} "
                f"ms; {HOW_TO_FREE}"
            ) from held
        except OSError as error:
            raise self._failed("written", error) from error

    def _read(self) -> SeenRecord | None:
        try:
            text = self._text()
        except OSError as error:
            raise self._failed("read", error) from error
        return SeenRecord(record=_record(text), version=text) if text else None

    def _write(self, record: Record, version: str) -> str | None:
        before = self._text()
        if before != version:
            return None
        text = _text(record, writes=_writes(before) + 1)
        fresh = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with open_private(fresh, "w", encoding="utf-8") as file:
            file.write(text)
        fresh.replace(self._path)
        return text

    def _text(self) -> str:
        try:
            with self._path.open("rb") as file:
                return file.read(BYTES_MAX).decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def _failed(self, done: str, error: OSError) -> PersistenceTimeout:
        return PersistenceTimeout(
            f"the lease {self._path} cannot be {done}: {error.strerror or error}; all rebalancers of the machine need "
            "a folder that they may write"
        )


def _text(record: Record, *, writes: int) -> str:
    fields = {"holder": record.holder, "duration_ms": record.duration_ms, "began_ms": record.began_ms, "writes": writes}
    return json.dumps(fields) + "\n"


def _fields(text: str) -> dict[str, object]:
    try:
        fields = json.loads(text)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _writes(text: str) -> int:
    return _number(_fields(text).get("writes"))


def _record(text: str) -> Record:
    fields = _fields(text)
    holder = fields.get("holder")
    return Record(
        holder=holder if isinstance(holder, str) else "?",
        duration_ms=_number(fields.get("duration_ms")),
        began_ms=_number(fields.get("began_ms")),
    )


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else 0
