"""The group record as a copy remembers it: the file `last-group-record`, replaced whole and synced.

Written when an epoch is entered, and again when copies or addresses changed in it; not for renewals. A start that
cannot read the record itself learns from it which leader to follow (R23), and nothing else. It helps and promises
nothing: a file that is missing, damaged, or of another cluster, broker or store (R10) is ignored. One that cannot be
written is a line of the log. It is a file beside `replica`, because earlier versions reject fields there that they do
not know. Used only on the thread of the log's writer.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from evenq.store.io.disk import Disk, read_whole
from evenq.store.log.commit_log import not_written
from evenq_broker.core.replication.record import GroupRecord, RecordRefused, record_fields, record_of

log = logging.getLogger(__name__)

FILE = "last-group-record"
BYTES_MAX = 32_768
"""Records in their own place have half of that at most."""


class RememberedRecord:
    """The remembered record of one open folder. Made by `load`."""

    def __init__(self, disk: Disk, owner: Mapping[str, object], record: GroupRecord | None) -> None:
        self._disk, self._owner = disk, owner
        self.record = record
        """The record in the file; None: there is no valid one."""

    @classmethod
    def load(cls, disk: Disk, *, cluster: str, broker_id: int, store_id: str) -> RememberedRecord:
        """Reads the file, if it exists and belongs to this store."""
        owner = {"cluster": cluster, "broker_id": broker_id, "store_id": store_id}
        try:
            record = _record(read_whole(disk, FILE), owner)
        except (OSError, ValueError) as error:  # RecordRefused and errors of json are ValueErrors
            log.warning("%s is not used: %s; the group record itself has all of it", disk.describe(FILE), error)
            record = None
        return cls(disk, owner, record)

    def is_as(self, record: GroupRecord) -> bool:
        """True if the file has all that a start would need of this record."""
        known = self.record
        return known is not None and (known.epoch, known.leader, known.members, known.addresses, known.unclean) == (
            record.epoch,
            record.leader,
            record.members,
            record.addresses,
            record.unclean,
        )

    def keep(self, record: GroupRecord) -> None:
        """Replaces the file; it is on disk when this returns, or the log has the reason why not."""
        try:
            replace_file(self._disk, FILE, {**self._owner, "record": record_fields(record)})
        except OSError as error:
            log.warning(
                "%s cannot be written: %s. If this copy starts while the group record is away, it waits for it",
                self._disk.describe(FILE),
                not_written(error),
            )
            self.record = None  # the file may hold either
        else:
            self.record = record

    def forget(self) -> None:
        """Removes the file, if it exists. Raises OSError."""
        self.record = None
        if FILE in self._disk.list(""):
            self._disk.remove(FILE)


def replace_file(disk: Disk, name: str, fields: Mapping[str, object]) -> None:
    """Replaces a small file of the folder whole: after a crash it is the old one or the new one. Raises OSError."""
    file = disk.open(f"{name}.new", create=True)
    try:
        file.truncate(0)
        file.pwrite([(json.dumps(fields) + "\n").encode()], 0)
        file.sync()
    finally:
        file.close()
    disk.rename(f"{name}.new", name)
    disk.sync_folder("")


def _record(text: bytes | None, owner: Mapping[str, object]) -> GroupRecord | None:
    """Raises RecordRefused for an invalid file; ValueError."""
    if text is None:
        return None
    if len(text) > BYTES_MAX:
        raise RecordRefused(f"it has {len(text)} bytes, at most {BYTES_MAX} were written")
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise RecordRefused(f"it holds {str(fields)[:80]!r}, which no broker wrote")
    record = record_of(fields.pop("record", None))
    if fields != owner:
        raise RecordRefused(f"it belongs to {fields}, and this is {dict(owner)}")
    return record
