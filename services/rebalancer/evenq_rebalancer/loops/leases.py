"""The lease of the setting `lease`: none, a file, or a Kubernetes object."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path

from evenq.errors import PersistenceTimeout, SettingsError
from evenq.model.route import WILDCARDS
from evenq.runtime.clock import Clock, SystemClock
from evenq.runtime.lock_file import HOW_TO_FREE, LockHeld, run_locked
from evenq.runtime.private_files import replace_file
from evenq.serving.kubernetes.api import KubernetesApi
from evenq_rebalancer.core.election import Record, SeenRecord
from evenq_rebalancer.loops.kubernetes_lease import KubernetesLease
from evenq_rebalancer.loops.leading import Lease
from evenq_rebalancer.settings import RebalancerSettings

BYTES_MAX = 4_096
LOCK_WAIT_MS = 2_000


def lease_of(settings: RebalancerSettings) -> Lease | None:
    """Returns the lease of the settings; None: the only rebalancer. Raises SettingsError without a usable address."""
    kind, _, name = settings.lease.partition(":")
    if kind == "none":
        return None
    if not settings.advertise and settings.host in WILDCARDS:
        raise SettingsError(
            f"lease = {settings.lease!r} with host = {settings.host!r}: brokers need an address of "
            "this rebalancer; set advertise to its host:port"
        )
    if kind == "file":
        return FileLease(Path(name))
    return KubernetesLease(KubernetesApi(settings.kubernetes_namespace), name)


class FileLease:
    """A lease in a file, for several rebalancers on one machine (quick start, tests).

    The file holds one JSON object. A rename replaces it under an exclusive lock of the file beside it, so a
    compare-and-set is atomic for all processes. Its text is its version, because a counter in it grows with each write.
    Unreadable content counts as held by an unknown holder. Worker threads access the disk, and wait `LOCK_WAIT_MS` for
    the lock at most.
    """

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        self._path = path
        self._clock = clock or SystemClock()
        self._lock = path.with_name(path.name + ".lock")

    async def read(self) -> SeenRecord | None:
        """Returns the record in the file. Raises PersistenceTimeout if the file cannot be read."""
        return await asyncio.to_thread(self._read)

    async def write(self, record: Record, version: str) -> str | None:
        """Replaces the text if it is `version`. Raises PersistenceTimeout, also if a stopped process has the lock."""
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
        replace_file(self._path, text, durable=False)  # a power loss leaves no holder
        return text

    def _text(self) -> str:
        try:
            with self._path.open("rb") as file:
                return file.read(BYTES_MAX).decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def _failed(self, done: str, error: OSError) -> PersistenceTimeout:
        return PersistenceTimeout(
            f"the lease {self._path} cannot be {done}: {error.strerror or error}; put it into a folder that all "
            "rebalancers of the machine may write"
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
