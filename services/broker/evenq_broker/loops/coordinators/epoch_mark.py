"""The highest epoch that one broker saw in its group's record; a record from a backup is rejected by it.

A record below the mark was restored from an older state. It would make a second leader of an epoch, which writes other
bytes at the same offsets. The mark is a file of the broker and outlives its process. Renewals change the version every
few seconds, so only a higher epoch is synced to disk; versions in between count while the process runs. Used by every
coordinator that outlives a process, from one worker thread at a time.
"""

from __future__ import annotations

from pathlib import Path

from evenq.runtime.private_files import replace_file
from evenq.store.log.commit_log import not_written
from evenq_broker.core.replication.record import GroupRecord, RecordRefused
from evenq_broker.loops.coordinators.coordinator import CoordinatorUnknown, RecordWentBack


class MarkUnusable(CoordinatorUnknown):
    """The mark, on this broker's own disk, cannot be read or written, so the record may not be used."""


class EpochMark:
    """The mark of one broker."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen = (0, 0)
        """Highest epoch and version that this process saw; it only increases."""

    def accept(self, record: GroupRecord | None, place: str) -> None:
        """Notes a record before its use (None: there is none). Raises RecordWentBack, RecordRefused, MarkUnusable."""
        epoch, version = self.highest()
        if record is None:
            if epoch or version:
                raise RecordWentBack(
                    f"the group record {place} is gone; this broker has seen epoch {epoch}, version {version}. Restore "
                    "it, or write it anew as docs/operating/runbooks/GroupRecordAway.md describes"
                )
            return
        if (record.epoch, record.version) < (epoch, version):
            raise RecordWentBack(
                f"the group record {place} is at epoch {record.epoch}, version {record.version}; this broker has seen "
                f"epoch {epoch}, version {version}. An older state was restored, as by a backup, and epochs never "
                "decrease: put the newest state there, or write it anew as "
                "docs/operating/runbooks/GroupRecordAway.md describes"
            )
        if record.epoch > epoch or (epoch, version) == (0, 0):
            self._write(record, place)
        self._seen = max(self._seen, (record.epoch, record.version))

    def check_proposal(self, record: GroupRecord) -> None:
        """Raises RecordRefused for a record to write that is older than one seen."""
        if self.is_over(record):
            epoch, version = self.highest()
            raise RecordRefused(
                f"a record of epoch {record.epoch}, version {record.version} is not written: this broker has seen "
                f"epoch {epoch}, version {version}, and neither decreases"
            )

    def is_over(self, record: GroupRecord | None) -> bool:
        """True if a newer record than this one was seen. Raises the errors of `accept`."""
        return ((record.epoch, record.version) if record is not None else (0, 0)) < self.highest()

    def highest(self) -> tuple[int, int]:
        """Returns epoch and version; (0, 0): none was seen. Raises RecordRefused, MarkUnusable."""
        if self._seen == (0, 0):
            self._seen = self._read()
        return self._seen

    def _write(self, record: GroupRecord, place: str) -> None:
        try:
            replace_file(self.path, f"{record.epoch} {record.version}\n")
        except OSError as error:
            raise MarkUnusable(
                f"the epoch that this broker saw in the group record {place} cannot be kept in {self.path}: "
                f"{not_written(error)}"
            ) from error

    def _read(self) -> tuple[int, int]:
        try:
            epoch, version = self.path.read_text(encoding="ascii").split()
            return int(epoch), int(version)
        except FileNotFoundError:
            return 0, 0
        except OSError as error:
            raise MarkUnusable(
                f"the epoch that this broker saw in the group record cannot be read from {self.path}: "
                f"{error.strerror or error}; "
                "it must be able to read and write that file"
            ) from error
        except ValueError as error:
            raise RecordRefused(f"{self.path} must hold an epoch and a version, two numbers: {error}") from error
