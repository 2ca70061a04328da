"""The highest epoch that one broker saw in its group's record, so that a record from a backup is refused.

A record below the mark was restored from an older state; acting on it would make a second leader of an epoch, who
writes other bytes at the same offsets. The mark is a file of the broker's own and outlives it. Renewals change the
version every few seconds, so only a higher epoch is worth a sync; versions in between count while the process runs.
Used by every coordinator that outlives a process, from one worker thread at a time.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from evenq.runtime.private_files import make_private, open_private, sync_folder
from evenq.store.log.commit_log import not_written
from evenq_broker.core.replication.record import GroupRecord, RecordRefused
from evenq_broker.loops.coordinators.coordinator import CoordinatorUnknown, RecordWentBack

__all__ = ["EpochMark", "MarkUnusable", "replace_file"]


class MarkUnusable(CoordinatorUnknown):
    """The mark cannot be read or written, so what the record says may not be used; names the mark, and what to do. The
    disk is this broker's own, whatever keeps the record.
    """


class EpochMark:
    """See the module."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen = (0, 0)
        """Highest epoch and version of this process."""

    def accept(self, record: GroupRecord | None, place: str) -> None:
        """Keep what was read, before it is used; None: there is no record. `place` names the record to people. Raises
        RecordWentBack, RecordRefused for a file that is no mark, MarkUnusable.
        """
        epoch, version = self.highest()
        if record is None:
            if epoch or version:
                raise RecordWentBack(
                    f"the group record {place} is gone; this broker has seen epoch {epoch}, version {version}. Bring "
                    "it back, or write it anew as docs/operating/runbooks/GroupRecordAway.md says"
                )
            return
        if (record.epoch, record.version) < (epoch, version):
            raise RecordWentBack(
                f"the group record {place} is at epoch {record.epoch}, version {record.version}; this broker has seen "
                f"epoch {epoch}, version {version}. An older state was put back, as by a backup, and epochs never go "
                "back: put the newest state there, or write it anew as docs/operating/runbooks/GroupRecordAway.md says"
            )
        if record.epoch > epoch or (epoch, version) == (0, 0):
            self._write(record, place)
        self._seen = max(self._seen, (record.epoch, record.version))

    def check_proposal(self, record: GroupRecord) -> None:
        """Before it is written. Raises RecordRefused for one that is older than what was seen."""
        if self.is_over(record):
            epoch, version = self.highest()
            raise RecordRefused(
                f"a record of epoch {record.epoch}, version {record.version} is not written: this broker has seen "
                f"epoch {epoch}, version {version}, and neither goes back"
            )

    def is_over(self, record: GroupRecord | None) -> bool:
        """True if a newer record than this one was seen. Raises as `accept`."""
        return ((record.epoch, record.version) if record is not None else (0, 0)) < self.highest()

    def highest(self) -> tuple[int, int]:
        """Epoch and version; (0, 0): none was seen. Raises RecordRefused, MarkUnusable."""
        if self._seen == (0, 0):
            self._seen = self._read()
        return self._seen

    def _write(self, record: GroupRecord, place: str) -> None:
        try:
            replace_file(self.path, f"{record.epoch} {record.version}\n")
        except OSError as error:
            raise MarkUnusable(
                f"what this broker saw of the group record {place} cannot be kept in {self.path}: {not_written(error)}"
            ) from error

    def _read(self) -> tuple[int, int]:
        try:
            epoch, version = self.path.read_text(encoding="ascii").split()
            return int(epoch), int(version)
        except FileNotFoundError:
            return 0, 0
        except OSError as error:
            raise MarkUnusable(
                f"what this broker saw of the group record cannot be read from {self.path}: {error.strerror or error}; "
                "it must be able to read and write that file"
            ) from error
        except ValueError as error:
            raise RecordRefused(f"{self.path} must hold an epoch and a version, two numbers: {error}") from error


def replace_file(path: Path, text: str) -> None:
    """Replace a file whole and durably. Raises OSError."""
    make_private(path.parent)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with open_private(fresh, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError:  # a full disk, mostly: each process would leave a file there
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
