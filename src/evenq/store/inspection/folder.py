"""Reads a data folder once and judges it file by file, except the log's frames and the queue entries.

`read_folder` does not raise for damage: a damaged file is a finding. It raises StoreError only where nothing can be
judged: without an identity, or for a format of a newer program.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from evenq.errors import StoreCorrupted, StoreError
from evenq.store.copies import epoch_file, lost_tail
from evenq.store.inspection.findings import Findings, Harm, StoreFinding
from evenq.store.io.disk import Disk
from evenq.store.log import consume_queue, lock, segment, snapshot
from evenq.store.log.lock import Identity
from evenq.store.log.snapshot import Snapshot
from evenq.store.opening import checkpoint as checkpoint_file
from evenq.store.opening import copied_mark
from evenq.store.opening.checkpoint import Checkpoint

IDENTITY: Final = "identity"
CHECKPOINT: Final = "checkpoint"
LOCK: Final = "lock"
SPARE: Final = "spare"  # see commit_log
COPIED: Final = copied_mark.PATH
EPOCHS: Final = epoch_file.PATH
OWNERS: Final = frozenset({"replica", "group-record", "last-group-record"})
"""Files of a broker with copies: its number in its group, and what it saw of the group's record. Not judged here."""
REPLACED: Final = frozenset({IDENTITY, CHECKPOINT, EPOCHS}) | OWNERS
REPAIRS: Final = "repair-"
"""Prefix of the folders into which a repair moves files."""
INDEX: Final = "index"
TIMERS: Final = "timers"
BESIDE: Final = ".new"
FOLDERS: Final = frozenset({segment.FOLDER, consume_queue.FOLDER, snapshot.FOLDER, INDEX, TIMERS})
NOT_OURS: Final = frozenset({"lost+found", lost_tail.FOLDER})
"""Folder of the file system at the root of a volume, and records that an unclean election cut off the log."""


@dataclass(frozen=True, slots=True)
class SnapshotFileInfo:
    """One file of `snapshot/`."""

    path: str
    log_offset: int
    size: int
    good: bool


@dataclass(slots=True)
class Folder:
    """A data folder as it was when it was read."""

    identity: Identity
    owner: str | None
    """Pid of the running owner, `?` if unknown; None if no process has the folder open."""
    starts: list[int]
    """Starts of the log files that count, ascending."""
    log_start: int
    """Start of the log: files before it were given up."""
    log_end: int
    """End of the newest file."""
    checkpoint: Checkpoint | None
    checkpoint_damaged: bool
    snapshots: list[SnapshotFileInfo]
    findings: Findings = field(default_factory=Findings)

    @property
    def running(self) -> bool:
        return self.owner is not None

    @property
    def clean_stop(self) -> bool:
        return self.checkpoint is not None and self.checkpoint.clean and not self.running

    @property
    def snapshot(self) -> SnapshotFileInfo | None:
        """The newest snapshot from which the log continues: a start uses it."""
        return next(
            (file for file in reversed(self.snapshots) if file.good and file.log_offset >= self.log_start), None
        )

    @property
    def judged_end(self) -> int:
        """End of the part of the log that can be judged: all, or up to the checkpoint of a running store."""
        if not self.running:
            return self.log_end
        return self.checkpoint.log_offset if self.checkpoint is not None else self.log_start


def place_of(log_offset: int, segment_bytes: int) -> tuple[str, int]:
    """Returns file and byte of a log offset."""
    start, position = segment.segment_of(log_offset, segment_bytes)
    return segment.path_of(start), position


def read_folder(disk: Disk, *, owner: str | None) -> Folder:
    """Reads all small files. Raises StoreError if this is not a data folder, or one of a newer program."""
    identity = lock.load(disk)
    if identity is None:
        raise StoreError(
            f"{disk.describe('')} has no file `identity`, so it is not an evenq data folder: give the folder that "
            "holds `commitlog` (of `evenq up --data DIR` it is DIR/BROKER)"
        )
    findings = Findings()
    saved = checkpoint_file.load(disk)  # before the log's end is looked at: a running store moves both
    starts = _starts(disk, identity.segment_bytes, findings)
    snapshots = _snapshots(disk, findings)
    damaged = saved is None and CHECKPOINT in disk.list("")
    folder = Folder(
        identity,
        owner,
        starts,
        _log_start(disk, saved, snapshots),
        _log_end(disk, starts),
        saved,
        damaged,
        snapshots,
        findings,
    )
    _judge_start(folder)
    _judge_names(disk, folder)
    _judge_checkpoint(folder)
    _judge_snapshots(folder)
    _judge_state(folder)
    return folder


def _starts(disk: Disk, segment_bytes: int, findings: Findings) -> list[int]:
    starts: list[int] = []
    for name in disk.list(segment.FOLDER):
        if len(name) == segment.NAME_DIGITS and name.isdecimal() and int(name) % segment_bytes == 0:
            starts.append(int(name))
            continue
        findings.add(
            StoreFinding(
                kind="foreign-file",
                harm=Harm.FOREIGN,
                file=f"{segment.FOLDER}/{name}",
                what=f"this is not a file of a log: its name is not a multiple of {segment_bytes} in "
                f"{segment.NAME_DIGITS} digits. A start refuses such a folder.",
                advice="move the file elsewhere",
            )
        )
    return starts


def _log_start(disk: Disk, saved: Checkpoint | None, snapshots: list[SnapshotFileInfo]) -> int:
    """Returns the start of the log by checkpoint and newest snapshot, as recovery does."""
    newest = next((file for file in reversed(snapshots) if file.good), None)
    kept = _read_snapshot(disk, newest.path) if newest is not None else None
    return max(saved.log_start if saved is not None else 0, kept.log_start if kept is not None else 0)


def _judge_start(folder: Folder) -> None:
    """Judges the start: files before it are left over from a deletion; a file that is missing there is damage."""
    for start in folder.starts:
        if start < folder.log_start:
            folder.findings.add(left_over(segment.path_of(start)))
    folder.starts = [start for start in folder.starts if start >= folder.log_start]
    first = folder.starts[0] if folder.starts else folder.log_start
    if first > folder.log_start and not folder.running:
        folder.findings.add(
            StoreFinding(
                kind="log-file-missing",
                harm=Harm.LOST,
                file=segment.path_of(folder.log_start),
                log_offset=folder.log_start,
                what=f"the log should begin at {folder.log_start}, but its first file begins at {first}: "
                f"{first - folder.log_start} bytes of it are missing, with all messages in them.",
                advice="restore the file from a copy",
            )
        )
        folder.log_start = first


def _log_end(disk: Disk, starts: list[int]) -> int:
    return starts[-1] + size_of(disk, segment.path_of(starts[-1])) if starts else 0


def size_of(disk: Disk, path: str) -> int:
    """Returns the bytes of a file; 0 if it does not exist."""
    try:
        file = disk.open(path)
    except (FileNotFoundError, IsADirectoryError):
        return 0
    try:
        return file.size()
    finally:
        file.close()


def _snapshots(disk: Disk, findings: Findings) -> list[SnapshotFileInfo]:
    snapshots: list[SnapshotFileInfo] = []
    for name in disk.list(snapshot.FOLDER):
        path = f"{snapshot.FOLDER}/{name}"
        if name.endswith(BESIDE):
            findings.add(left_over(path))
        elif len(name) != segment.NAME_DIGITS or not name.isdecimal():
            findings.add(foreign(path))
        else:
            good = _read_snapshot(disk, path)
            snapshots.append(
                SnapshotFileInfo(
                    path, int(name), size_of(disk, path), good is not None and good.log_offset == int(name)
                )
            )
    return snapshots


def foreign(path: str) -> StoreFinding:
    """Returns the finding for a file that no part of a store wrote."""
    return StoreFinding(
        kind="foreign-file",
        harm=Harm.FOREIGN,
        file=path,
        what="this is not a file of a store of this version; nothing reads it.",
        advice="move it elsewhere if it is yours; if a newer evenq made it, use the tool of that version",
    )


def left_over(path: str) -> StoreFinding:
    """Returns the finding for a file that a crash left and nothing reads."""
    return StoreFinding(
        kind="left-over",
        harm=Harm.NOTE,
        file=path,
        what="a file that was being replaced when the process ended; the one it would replace counts.",
        advice="nothing: it is overwritten next time",
    )


def _judge_names(disk: Disk, folder: Folder) -> None:
    for name in disk.list(""):
        if (
            name in FOLDERS
            or name in NOT_OURS
            or name in REPLACED
            or name in {LOCK, SPARE, COPIED}
            or name.startswith(REPAIRS)
        ):
            continue
        if name.removesuffix(BESIDE) in REPLACED and not folder.running:
            folder.findings.add(left_over(name))
        elif name.removesuffix(BESIDE) not in REPLACED:
            folder.findings.add(foreign(name))


def _judge_checkpoint(folder: Folder) -> None:
    if folder.checkpoint is not None or not folder.starts:
        return
    if folder.checkpoint_damaged:
        folder.findings.add(
            StoreFinding(
                kind="checkpoint-damaged",
                harm=Harm.REBUILT,
                file=CHECKPOINT,
                byte=0,
                what="the checkpoint does not fit its CRC. A start reads the whole log instead and rebuilds all "
                "consume queues; nothing is lost.",
                advice="start the broker, or `evenq store repair DIR --apply` to take the file out first",
            )
        )
    else:
        folder.findings.add(
            StoreFinding(
                kind="checkpoint-missing",
                harm=Harm.NOTE,
                file=CHECKPOINT,
                what="there is no checkpoint. That is normal for a folder that is new, or a copy that never led; a "
                "start reads the whole log and builds all consume queues. Nothing is lost.",
                advice="nothing: the first start writes it",
            )
        )


def _judge_snapshots(folder: Folder) -> None:
    for file in folder.snapshots:
        if file.good:
            continue
        covered = folder.log_start == 0 or folder.snapshot is not None
        folder.findings.add(
            StoreFinding(
                kind="snapshot-damaged",
                harm=Harm.REBUILT if covered else Harm.LOST,
                file=file.path,
                byte=0,
                log_offset=file.log_offset,
                what="the snapshot does not fit its CRC, its length or its name. "
                + (
                    "An older one and the log behind it hold the same; a start takes those."
                    if covered
                    else "No other one is good and the log's beginning is gone: topics, groups and progress "
                    "cannot be known any more."
                ),
                advice="`evenq store repair DIR --apply` takes it out" if covered else "restore it from a copy",
            )
        )


def _judge_state(folder: Folder) -> None:
    if folder.log_start == 0 or folder.snapshot is not None or any(not file.good for file in folder.snapshots):
        return
    folder.findings.add(
        StoreFinding(
            kind="snapshot-missing",
            harm=Harm.LOST,
            file=snapshot.FOLDER,
            what=f"the log begins at {folder.log_start} and no snapshot holds what came before: topics, groups and "
            "progress from before it cannot be known any more.",
            advice="restore the folder `snapshot` from a copy",
        )
    )


def _read_snapshot(disk: Disk, path: str) -> Snapshot | None:
    return snapshot._read(disk, path)  # noqa: SLF001 - one file, where `load` takes the newest good one


def load_snapshot(disk: Disk, folder: Folder) -> Snapshot | None:
    """Returns the newest snapshot from which the log continues, with all its sections."""
    file = folder.snapshot
    return _read_snapshot(disk, file.path) if file is not None else None


def unreadable(error: OSError | StoreCorrupted, disk: Disk) -> StoreError:
    """Returns the error for a disk failure while a folder is read."""
    return StoreError(f"the data folder {disk.describe('')} cannot be read: {error}")
