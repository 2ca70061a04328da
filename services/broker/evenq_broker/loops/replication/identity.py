"""Who a data folder is in its broker group: the file `replica`, replaced whole and synced.

It holds the cluster and broker id that it belongs to, the store id (R10), the highest epoch that was synced (R3), and
what the last stop left (REPL_MEMORY loses its identity with the page cache). A folder of another cluster or broker is
refused. On the thread of the log's writer only.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from evenq.errors import StoreError
from evenq_broker.core.replication.record import NUMBER_MAX, STORE_ID
from evenq_broker.core.replication.rules import Mode
from evenq_broker.core.replication.store_identity import LastStop, keeps_identity
from evenq_broker.loops.coordinators.epoch_mark import replace_file

__all__ = ["FILE", "ReplicaIdentity", "must_be_alone"]

FILE = "replica"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
BYTES_MAX = 4_096


@dataclass(frozen=True, slots=True)
class _Fields:
    cluster: str
    broker_id: int
    store_id: str
    epoch: int
    boot_id: str
    clean: bool


class ReplicaIdentity:
    """One open folder's. Made by `load`."""

    def __init__(self, path: Path, fields: _Fields, *, is_new: bool) -> None:
        self._path, self._fields = path, fields
        self.is_new = is_new
        """True: the folder had no such file until now."""
        self._forgotten = False

    @classmethod
    def load(
        cls, folder: Path, *, cluster: str, broker_id: int, mode: Mode, restored_epoch: int = 0
    ) -> ReplicaIdentity:  # fmt: skip
        """Read the file, or make it for a folder that never had one, and mark it as in use. `restored_epoch`:
        the highest that a log from a backup may hold; 0: it is none. Raises StoreError for a
        folder of another cluster or broker, and for a file that is none; OSError.
        """
        path, boot_id = folder / FILE, _boot_id()
        known = _read(path)
        if known is not None and (known.cluster, known.broker_id) != (cluster, broker_id):
            raise StoreError(
                f"{path} says that this folder is of broker {known.broker_id} of cluster {known.cluster!r}, and this "
                f"is broker {broker_id} of cluster {cluster!r}: give the broker its own folder; a new copy "
                "begins with an empty one"
            )
        is_new = known is None
        stop = None if known is None else LastStop(clean=known.clean, boot_id=known.boot_id)
        if known is None or not keeps_identity(mode, stop, boot_id=boot_id):
            epoch = restored_epoch if known is None else known.epoch
            known = _Fields(cluster, broker_id, secrets.token_hex(16), epoch, boot_id, clean=False)
        identity = cls(path, replace(known, boot_id=boot_id, clean=False), is_new=is_new)
        identity._write()
        return identity

    @property
    def store_id(self) -> str:
        """32 hexadecimal digits; another one after the store was formatted."""
        return self._fields.store_id

    @property
    def epoch(self) -> int:
        """The highest epoch that was synced here."""
        return self._fields.epoch

    def persist_epoch(self, epoch: int) -> None:
        """Sync the highest epoch seen (R3). Raises OSError."""
        if epoch > self._fields.epoch:
            self._fields = replace(self._fields, epoch=epoch)
            self._write()

    def forget(self) -> None:
        """Take the file away again, for good: the folder is not for a group. Raises OSError."""
        self._forgotten = True
        self._path.unlink(missing_ok=True)

    def mark_clean(self) -> None:
        """All of the log is synced and the process ends. Raises OSError."""
        self._fields = replace(self._fields, clean=True)
        self._write()

    def _write(self) -> None:
        if not self._forgotten:
            replace_file(self._path, json.dumps(asdict(self._fields)) + "\n")


def must_be_alone(folder: Path | None) -> None:
    """A broker without copies must not write into the log of a group. Raises StoreError."""
    try:
        is_copy = folder is not None and (folder / FILE).exists()
    except OSError:
        return  # of a folder that cannot be looked into the store says more
    if is_copy:
        raise StoreError(
            f"{folder} holds one copy of a broker group: start it with the replication.* settings of the group, or "
            "give this broker a folder of its own"
        )


def _read(path: Path) -> _Fields | None:
    try:
        with path.open("rb") as file:
            text = file.read(BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    try:
        values = json.loads(text)
        known = _Fields(**values)
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"{path} cannot be read ({error}): restore it from a copy, or begin with an empty folder"
        ) from error
    sound = (
        isinstance(known.cluster, str)
        and isinstance(known.broker_id, int)
        and isinstance(known.store_id, str)
        and STORE_ID.fullmatch(known.store_id) is not None
        and isinstance(known.epoch, int)
        and 0 <= known.epoch < NUMBER_MAX
    )
    if not sound:
        raise StoreError(f"{path} holds {values}, which no broker wrote: restore it from a copy")
    return known


def _boot_id() -> str:
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""  # not Linux: every unclean stop counts as a new kernel
