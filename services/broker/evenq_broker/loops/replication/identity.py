"""Who a data folder is in its broker group: the file `replica`, replaced whole and synced.

It holds the cluster and broker id that it belongs to, the store id (R10), the highest epoch that was synced (R3), and
what the last stop left (REPL_MEMORY loses its identity with the page cache). A folder of another cluster or broker is
refused. Beside it lies what the copy remembers of the group record (`remembered.py`). On the thread of the log's writer
only.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from evenq.errors import StoreError
from evenq.store.io.disk import Disk, read_whole
from evenq.store.log import lock
from evenq.store.log.commit_log import not_written
from evenq_broker.core.replication.config import Mode
from evenq_broker.core.replication.record import NUMBER_MAX, STORE_ID, GroupRecord
from evenq_broker.core.replication.store_identity import LastStop, keeps_identity
from evenq_broker.loops.replication.remembered import RememberedRecord, replace_file

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

    def __init__(self, disk: Disk, fields: _Fields, *, is_new: bool) -> None:
        self._disk, self._fields = disk, fields
        self.is_new = is_new
        """True: the folder had no such file until now."""
        self.remembered = RememberedRecord.load(
            disk, cluster=fields.cluster, broker_id=fields.broker_id, store_id=fields.store_id
        )
        """What the last start knew of the group record."""
        self._forgotten = False

    @classmethod
    def load(
        cls, disk: Disk, *, cluster: str, broker_id: int, mode: Mode, restored_epoch: int = 0,
        boot_id: str | None = None, new_store_id: Callable[[], str] | None = None,
    ) -> ReplicaIdentity:  # fmt: skip
        """Read the file, or make it for a folder that never had one, and mark it as in use; the folder is locked
        meanwhile, so that nothing of another process is written over. `restored_epoch`: the highest that a log from a
        backup may hold; 0: it is none. `boot_id`: another one after each start of the machine; None asks the kernel.
        `new_store_id`: for a folder without; None: at random.

        Raises StoreLocked; StoreError for a folder of another cluster or broker, a file that is none, and one that
        cannot be written; OSError.
        """
        with lock.held(disk):
            return cls._load(
                disk, cluster, broker_id, mode, restored_epoch, _boot_id() if boot_id is None else boot_id,
                new_store_id or _new_store_id,
            )  # fmt: skip

    @classmethod
    def _load(
        cls, disk: Disk, cluster: str, broker_id: int, mode: Mode, restored_epoch: int, boot_id: str,
        new_store_id: Callable[[], str],
    ) -> ReplicaIdentity:  # fmt: skip
        known, path = _read(disk), disk.describe(FILE)
        if known is not None and (known.cluster, known.broker_id) != (cluster, broker_id):
            raise StoreError(
                f"{path} says that this folder is of broker {known.broker_id} of cluster {known.cluster!r}, and this "
                f"is broker {broker_id} of cluster {cluster!r}: correct the settings `cluster` and "
                "replication.broker_id, or give the broker its own folder; a new copy begins with an empty one"
            )
        is_new = known is None
        stop = None
        if known is not None:
            stop = LastStop(clean=known.clean, boot_id=known.boot_id, acted=known.epoch > restored_epoch)
        # The epoch stays although the store gets another id: what was promised in it (R3) does not depend on the
        # records.
        if known is None or not keeps_identity(mode, stop, boot_id=boot_id):
            epoch = restored_epoch if known is None else known.epoch
            known = _Fields(cluster, broker_id, new_store_id(), epoch, boot_id, clean=False)
        identity = cls(disk, replace(known, boot_id=boot_id, clean=False), is_new=is_new)
        # Before the first record: until `mark_clean`, a start finds that the last stop was not clean.
        identity._write(identity._fields)
        return identity

    @property
    def folder(self) -> Path:
        """Of the data."""
        return Path(self._disk.describe(FILE)).parent

    @property
    def store_id(self) -> str:
        """32 hexadecimal digits; another one after the store was formatted."""
        return self._fields.store_id

    @property
    def epoch(self) -> int:
        """The highest epoch that was synced here."""
        return self._fields.epoch

    def persist_epoch(self, epoch: int, record: GroupRecord | None = None) -> None:
        """Sync the highest epoch seen (R3), and remember the record that told of it. Raises StoreError."""
        if epoch > self._fields.epoch:
            self._write(replace(self._fields, epoch=epoch))
        if record is not None and not self._forgotten:
            self.remembered.keep(record)

    def forgets(self, record: GroupRecord) -> bool:
        """True: a start would learn something from this record of the epoch now that it does not remember."""
        return record.epoch == self.epoch > 0 and not self._forgotten and not self.remembered.is_as(record)

    def forget(self) -> None:
        """Take the file away again, for good: the folder is not for a group. Raises OSError."""
        self._forgotten = True
        self.remembered.forget()
        self._disk.remove(FILE)

    def mark_clean(self) -> None:
        """All of the log is synced and the process ends. Raises StoreError."""
        self._write(replace(self._fields, clean=True))

    def _write(self, fields: _Fields) -> None:
        """They are on disk when it returns. Raises StoreError."""
        if self._forgotten:
            return
        try:
            # One that is half written would leave the folder without its epoch, and the copy could act in an older one
            # (R3).
            replace_file(self._disk, FILE, asdict(fields))
        except OSError as error:
            raise StoreError(f"{self._disk.describe(FILE)} cannot be written: {not_written(error)}") from error
        self._fields = fields


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


def _read(disk: Disk) -> _Fields | None:
    text, path = read_whole(disk, FILE), disk.describe(FILE)
    if text is None:
        return None
    try:
        if len(text) > BYTES_MAX:
            raise ValueError(f"it has {len(text)} bytes, at most {BYTES_MAX} were written")
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


def _new_store_id() -> str:
    return secrets.token_hex(16)


def _boot_id() -> str:
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""  # not Linux: every unclean stop counts as a new kernel
