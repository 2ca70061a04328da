"""Identity of a data folder in its broker group: the file `replica`, replaced whole and synced.

It holds the cluster and broker id of the folder, the store id (R10), the highest synced epoch (R3), and how the last
stop went: with REPL_MEMORY, a store that lost its page cache gets a new id. A folder of another cluster or broker is
rejected. Beside it is the remembered group record (`remembered.py`). Used only on the thread of the log's writer.
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
from evenq_broker.core.replication.config import LastStop, Mode, keeps_identity
from evenq_broker.core.replication.record import NUMBER_MAX, STORE_ID, GroupRecord
from evenq_broker.loops.replication.remembered import RememberedRecord, replace_file

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
    """Identity of one open folder. Made by `load`."""

    def __init__(self, disk: Disk, fields: _Fields, *, is_new: bool, restored_epoch: int) -> None:
        self.disk, self._fields = disk, fields
        self.is_new = is_new
        """True: the folder had no such file until now."""
        self.restored_epoch = restored_epoch
        """See `load`."""
        self.remembered = RememberedRecord.load(
            disk, cluster=fields.cluster, broker_id=fields.broker_id, store_id=fields.store_id
        )
        """The group record as the last start knew it."""
        self._forgotten = False

    @classmethod
    def load(
        cls,
        disk: Disk,
        *,
        cluster: str,
        broker_id: int,
        mode: Mode,
        restored_epoch: int = 0,
        boot_id: str | None = None,
        new_store_id: Callable[[], str] | None = None,
    ) -> ReplicaIdentity:
        """Reads the file, or creates it for a folder without one, and marks it as in use. The folder is locked
        meanwhile, so that no file of another process is overwritten. `restored_epoch`: the highest that a log from a
        backup may hold; 0: not from a backup. `boot_id`: differs after each start of the machine; None: from the
        kernel. `new_store_id`: for a folder without; None: at random.

        Raises StoreLocked; StoreError for a folder of another cluster or broker, an invalid file, and one that cannot
        be written; OSError.
        """
        with lock.held(disk):
            return cls._load(
                disk,
                cluster,
                broker_id,
                mode,
                restored_epoch,
                _boot_id() if boot_id is None else boot_id,
                new_store_id or _new_store_id,
            )

    @classmethod
    def _load(
        cls,
        disk: Disk,
        cluster: str,
        broker_id: int,
        mode: Mode,
        restored_epoch: int,
        boot_id: str,
        new_store_id: Callable[[], str],
    ) -> ReplicaIdentity:
        known, path = _read(disk), disk.describe(FILE)
        if known is not None and (known.cluster, known.broker_id) != (cluster, broker_id):
            raise StoreError(
                f"{path} belongs to broker {known.broker_id} of cluster {known.cluster!r}, and this "
                f"is broker {broker_id} of cluster {cluster!r}: correct the settings `cluster` and "
                "replication.broker_id, or give the broker its own folder; a new copy begins with an empty one"
            )
        is_new = known is None
        stop = None
        if known is not None:
            stop = LastStop(clean=known.clean, boot_id=known.boot_id, acted=known.epoch > restored_epoch)
        # The epoch stays although the store gets another id: promises of an epoch (R3) do not depend on the records.
        if known is None or not keeps_identity(mode, stop, boot_id=boot_id):
            epoch = restored_epoch if known is None else known.epoch
            known = _Fields(cluster, broker_id, new_store_id(), epoch, boot_id, clean=False)
        fields = replace(known, boot_id=boot_id, clean=False)
        identity = cls(disk, fields, is_new=is_new, restored_epoch=restored_epoch)
        # Before the first record: until `mark_clean`, a start finds that the last stop was not clean.
        identity._write(identity._fields)
        return identity

    @property
    def folder(self) -> Path:
        """The data folder."""
        return Path(self.disk.describe(FILE)).parent

    @property
    def store_id(self) -> str:
        """32 hexadecimal digits; different after the store was formatted."""
        return self._fields.store_id

    @property
    def epoch(self) -> int:
        """The highest epoch that was synced here."""
        return self._fields.epoch

    def persist_epoch(self, epoch: int, record: GroupRecord | None = None) -> None:
        """Syncs the highest epoch seen (R3), and remembers the record that has it. Raises StoreError."""
        if epoch > self._fields.epoch:
            self._write(replace(self._fields, epoch=epoch))
        if record is not None and not self._forgotten:
            self.remembered.keep(record)

    def forgets(self, record: GroupRecord) -> bool:
        """True: this record of the present epoch holds something that a start would not remember."""
        return record.epoch == self.epoch > 0 and not self._forgotten and not self.remembered.is_as(record)

    def forget(self) -> None:
        """Removes the file for good: the folder is not for a group. Raises OSError."""
        self._forgotten = True
        self.remembered.forget()
        self.disk.remove(FILE)

    def mark_clean(self) -> None:
        """Marks the log as all synced: the process ends. Raises StoreError."""
        self._write(replace(self._fields, clean=True))

    def _write(self, fields: _Fields) -> None:
        """Writes the fields; durable when it returns. Raises StoreError."""
        if self._forgotten:
            return
        try:
            # A partly written file would lose the epoch, and the copy could act in an older one (R3).
            replace_file(self.disk, FILE, asdict(fields))
        except OSError as error:
            raise StoreError(f"{self.disk.describe(FILE)} cannot be written: {not_written(error)}") from error
        self._fields = fields


def must_be_alone(folder: Path | None) -> None:
    """Raises StoreError if the folder is a copy's: a broker without copies must not write into the log of a group."""
    try:
        is_copy = folder is not None and (folder / FILE).exists()
    except OSError:
        return  # the store reports a folder that cannot be read
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
