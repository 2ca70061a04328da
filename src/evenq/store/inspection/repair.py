"""Repair: first a plan from the findings of verify; then, on request, its steps, one by one.

Only provable changes are made: cut a torn tail, remove derived files that do not agree (the next start builds them
again), and remove damaged snapshots that other files cover. Cutting the log at damage loses data, so it is planned only
with `accept_loss`. Nothing is deleted: everything is moved into `repair-<time>/`, which `evenq store dump` reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from evenq.errors import StoreCorrupted, StoreError
from evenq.store.inspection.findings import Harm, StoreFinding
from evenq.store.inspection.folder import CHECKPOINT, COPIED, IDENTITY, Folder, place_of, size_of
from evenq.store.inspection.log_walk import LogWalk, Piece
from evenq.store.inspection.queues import LostRange
from evenq.store.inspection.verify import FolderVerdict
from evenq.store.io.disk import Disk, read_whole, write_whole
from evenq.store.log import segment, snapshot
from evenq.store.log.record import MESSAGE

COPY_BYTES: Final = 4 << 20
TAKEN_OUT: Final = frozenset(
    {
        "entry-differs",
        "entries-missing",
        "snapshot-damaged",
        "checkpoint-damaged",
        "off-the-mark",
        "index-damaged",
        "run-damaged",
    }
)
"""Findings whose file is removed if it is a derived one."""

BY_A_START: Final = frozenset({Harm.NOTE, Harm.REBUILT})


class RepairAction(StrEnum):
    """Effect of a step."""

    CUT = "cut"
    """Moves the log from an offset on."""
    MOVE = "move"
    """Moves one file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairStep:
    """One change of the folder."""

    action: RepairAction
    path: str
    log_offset: int = 0
    size: int
    why: str


@dataclass(slots=True)
class RepairPlan:
    """Steps of a repair, and what it leaves."""

    steps: list[RepairStep] = field(default_factory=list)
    left: list[StoreFinding] = field(default_factory=list)
    """Findings that no step corrects."""
    lost_from: int | None = None
    """Log offset from which the log would be given up; None if no loss is planned."""
    lost_bytes: int = 0
    lost: list[LostRange] = field(default_factory=list)
    """Messages that are lost with it, by queue, as far as they are known."""


def plan_of(disk: Disk, verdict: FolderVerdict, *, accept_loss: bool = False) -> RepairPlan:
    """Returns the plan. Raises StoreCorrupted if a loss is accepted but a cut would leave a log that cannot start."""
    plan = RepairPlan()
    cut_at = verdict.cut_at
    if cut_at is not None and accept_loss:
        _plan_loss(disk, verdict, plan, cut_at)
    elif verdict.torn_bytes and cut_at is None:
        plan.steps.append(
            RepairStep(
                action=RepairAction.CUT,
                path=place_of(verdict.log_end, verdict.folder.identity.segment_bytes)[0],
                log_offset=verdict.log_end,
                size=verdict.torn_bytes,
                why="a torn tail: it was never acknowledged",
            )
        )
    _plan_files(disk, verdict, plan)
    planned = {step.path for step in plan.steps}
    for finding in verdict.findings.listed:
        mended = finding.file in planned or (plan.lost_from is not None and _goes(finding, plan.lost_from))
        if not mended and finding.harm not in BY_A_START:
            plan.left.append(finding)
    return plan


def _goes(finding: StoreFinding, lost_from: int) -> bool:
    return finding.kind == "messages-missing" or (finding.log_offset is not None and finding.log_offset >= lost_from)


def _plan_files(disk: Disk, verdict: FolderVerdict, plan: RepairPlan) -> None:
    """Plans to move derived files that do not agree, each once."""
    planned = {step.path for step in plan.steps}
    for finding in verdict.findings.listed:
        path = CHECKPOINT if finding.kind == "queue-unlisted" else finding.file
        derived = (finding.harm is Harm.REBUILT and finding.kind in TAKEN_OUT) or finding.kind == "queue-unlisted"
        if derived and path not in planned and _is_there(disk, path):
            planned.add(path)
            plan.steps.append(
                RepairStep(action=RepairAction.MOVE, path=path, size=size_of(disk, path), why=_why(finding))
            )


def _why(finding: StoreFinding) -> str:
    if finding.kind == "snapshot-damaged":
        return "the snapshot is damaged; an older one and the log hold the same"
    if finding.file == CHECKPOINT or finding.kind == "queue-unlisted":
        return "the checkpoint is wrong; without it the next start reads the whole log"
    return "does not agree with the log; the next start makes it again"


def _plan_loss(disk: Disk, verdict: FolderVerdict, plan: RepairPlan, cut_at: int) -> None:
    folder = verdict.folder
    kept = [file for file in folder.snapshots if file.good and folder.log_start <= file.log_offset <= cut_at]
    if not kept and folder.log_start > 0:
        raise StoreCorrupted(
            f"cutting the log at {cut_at} would leave no snapshot to continue from (the log begins at "
            f"{folder.log_start}): topics and groups would be gone. Restore a snapshot taken before {cut_at} from "
            "a copy"
        )
    plan.lost_from = cut_at
    plan.lost_bytes = folder.log_end - cut_at
    plan.lost = _lost(disk, verdict, cut_at)
    file, _ = place_of(cut_at, folder.identity.segment_bytes)
    plan.steps += [
        RepairStep(action=RepairAction.MOVE, path=newer.path, size=newer.size, why="holds what came after the cut")
        for newer in folder.snapshots
        if newer.log_offset > cut_at
    ]
    plan.steps += [
        RepairStep(
            action=RepairAction.MOVE, path=path, size=size_of(disk, path), why="vouches for what came after the cut"
        )
        for path in (CHECKPOINT, COPIED)
        if _is_there(disk, path)
    ]
    if plan.lost_bytes > 0:
        plan.steps.append(
            RepairStep(
                action=RepairAction.CUT, path=file, log_offset=cut_at, size=plan.lost_bytes, why="damaged from there on"
            )
        )


def _lost(disk: Disk, verdict: FolderVerdict, cut_at: int) -> list[LostRange]:
    """Returns for each queue the range from its first missing message to the last known one."""
    folder = verdict.folder
    spans = {(gone.topic_id, gone.queue_id): (gone.start, gone.end) for gone in reversed(verdict.lost)}
    for step in LogWalk(disk, folder.identity.segment_bytes, folder.starts, begin=cut_at).steps():
        if not isinstance(step, Piece):
            continue
        for header in step.headers:
            if header[4] == MESSAGE:
                low, high = spans.get((header[7], header[8]), (header[9], 0))
                spans[header[7], header[8]] = (min(low, header[9]), max(high, header[9] + 1))
    return [LostRange(*key, *span) for key, span in sorted(spans.items())]


def _is_there(disk: Disk, path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return name in disk.list(folder)


def apply(disk: Disk, folder: Folder, plan: RepairPlan, *, into: str) -> Iterator[RepairStep]:
    """Does the steps and yields each afterwards. The caller holds the lock; `into` is the folder for what is moved. A
    crash between two steps leaves a folder that verify judges and from which a repair continues.
    """
    if folder.running:
        raise StoreError(f"the data folder {disk.describe('')} is in use by process {folder.owner}: stop that broker")
    if not plan.steps:
        return
    disk.make_folder(f"{into}/{segment.FOLDER}")
    disk.make_folder(f"{into}/{snapshot.FOLDER}")
    identity = read_whole(disk, IDENTITY)
    if identity is not None:
        write_whole(disk, f"{into}/{IDENTITY}", identity)
    for step in plan.steps:
        if step.action is RepairAction.CUT:
            _cut(disk, folder, step.log_offset, into)
        else:
            _move(disk, step.path, into)
        yield step


def _move(disk: Disk, path: str, into: str) -> None:
    parent = path.rpartition("/")[0]
    disk.make_folder(f"{into}/{parent}" if parent else into)
    disk.rename(path, f"{into}/{path}")
    # The new name first: after a crash the file may have both names, but never none.
    disk.sync_folder(f"{into}/{parent}" if parent else into)
    disk.sync_folder(parent)


def _cut(disk: Disk, folder: Folder, log_offset: int, into: str) -> None:
    """Cuts the log, newest files first, so that a crash in between leaves a log without a gap."""
    size = folder.identity.segment_bytes
    start, position = segment.segment_of(log_offset, size)
    for other in sorted(folder.starts, reverse=True):
        if other > start or (other == start and position == 0):
            _move(disk, segment.path_of(other), into)
    if position and start in folder.starts:
        _cut_file(disk, segment.path_of(start), position, into)
    disk.sync_folder(segment.FOLDER)


def _cut_file(disk: Disk, path: str, position: int, into: str) -> None:
    """Copies the end of a file to the same place of a new file, with a hole before it; then cuts."""
    source = disk.open(path)
    try:
        target = disk.open(f"{into}/{path}", create=True)
        try:
            at = position
            while data := source.pread(COPY_BYTES, at):
                target.pwrite([data], at)
                at += len(data)
            target.sync()
        finally:
            target.close()
        disk.sync_folder(f"{into}/{segment.FOLDER}")
        source.truncate(position)
        source.sync()
    finally:
        source.close()
