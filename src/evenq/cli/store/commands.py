"""`evenq store inspect | verify DIR`: read-only views of a broker's data folder.

The output of verify is made for reports: version, folder, range, and each finding with its place.
"""

from __future__ import annotations

import argparse
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from evenq.cli.exit_codes import ExitCode
from evenq.cli.output import Column, Listing, Page, complain, print_lines, print_page, progress_bar
from evenq.errors import Error, StoreError
from evenq.runtime.clock import SystemClock
from evenq.store.inspection.findings import Harm, StoreFinding
from evenq.store.inspection.survey import KIND_NAMES, FolderSurvey, survey
from evenq.store.inspection.verify import FolderVerdict
from evenq.store.inspection.verify import verify as verify_folder
from evenq.store.io.disk import ReadOnlyDisk

EXIT_CLEAN, EXIT_FINDINGS, EXIT_UNREADABLE = ExitCode.DONE, ExitCode.NOT_DONE, ExitCode.USAGE
QUEUES_SHOWN = 50
MiB = 1 << 20


def folder_of(path: Path) -> ReadOnlyDisk:
    """Opens a folder for reading. Raises StoreError if it does not exist."""
    try:
        return ReadOnlyDisk(path)
    except OSError as error:
        raise StoreError(f"there is no folder {path}: give the folder that contains `commitlog`") from error


class ProgressBar:
    """A context manager: a bar with the rate on standard error, if that is a terminal; called with bytes."""

    def __init__(self, text: str, *, quiet: bool) -> None:
        self._text = text
        self._shown = not quiet and sys.stderr.isatty()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        if self._shown:
            from rich import progress

            size, rate = progress.DownloadColumn(binary_units=True), progress.TransferSpeedColumn()
            self._bar = progress_bar(progress.BarColumn(), size, rate, progress.TimeRemainingColumn())
            self._bar.start()
            self._task = self._bar.add_task(self._text, total=None)
        return self

    def __call__(self, done: int, total: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


# -- inspect ----------------------------------------------------------------------------------------------------------


def inspect(options: argparse.Namespace) -> int:
    try:
        disk = folder_of(options.dir)
        with ProgressBar("reading the log", quiet=options.output.for_programs) as progress:
            seen = survey(disk, owner=disk.owner, quick=options.quick, on_progress=progress)
    except StoreError as error:
        return unreadable(error)
    print_page(_page(options, seen), options.output)
    return EXIT_CLEAN


def _page(options: argparse.Namespace, seen: FolderSurvey) -> Page:
    folder = seen.folder
    saved = folder.checkpoint
    facts: dict[str, Any] = {
        "folder": str(options.dir),
        "broker": folder.identity.broker_name,
        "store_id": folder.identity.store_id,
        "state": state_of(seen.folder.owner, clean=folder.clean_stop, checkpoint=saved is not None),
        "log_start": folder.log_start,
        "log_end": folder.log_end,
        "checkpoint_at": saved.log_offset if saved is not None else None,
        "snapshot_at": folder.snapshot.log_offset if folder.snapshot is not None else None,
        "start_reads_bytes": seen.scan_bytes,
    }
    return Page(facts=facts, listings=[_segments(seen), _queues(options, seen), _snapshots(seen), _others(seen)])


def state_of(owner: str | None, *, clean: bool, checkpoint: bool) -> str:
    """Returns whether the broker runs, or how it stopped."""
    if owner is not None:
        return f"running, process {owner}"
    if clean:
        return "stopped in order"
    return "not stopped in order: the next start reads the end of the log" if checkpoint else "never checkpointed"


def _segments(seen: FolderSurvey) -> Listing:
    kinds = sorted({kind for row in seen.segments for kind in row.frames})
    names = [KIND_NAMES.get(kind, f"kind {kind}") for kind in kinds]
    columns = [
        Column("start", "log file", "number"),
        Column("bytes", "bytes", "number"),
        *(Column(name.replace(" ", "_"), name, "number") for name in names),
        Column("first_ms", "first stored", "time"),
        Column("last_ms", "last stored", "time"),
        Column("epoch", "epoch", "number"),
    ]
    rows = [
        (row.start, row.size, *(row.frames[kind] for kind in kinds), row.first_ms, row.last_ms, row.epoch)
        for row in seen.segments
    ]
    return Listing(key="segments", columns=columns, rows=rows, title="log", empty="empty")


def _queues(options: argparse.Namespace, seen: FolderSurvey) -> Listing:
    columns = (
        Column("topic_id", "topic id", "number"),
        Column("queue_id", "queue", "number"),
        Column("min", "min", "number"),
        Column("max", "max", "number"),
        Column("filed", "entries on file", "number"),
    )
    shown = seen.queues if options.output.structured else seen.queues[:QUEUES_SHOWN]
    rows = [(row.topic_id, row.queue_id, row.min_offset, row.max_offset, row.filed) for row in shown]
    more = len(seen.queues) - len(shown)
    title = "queues, as of the checkpoint" + (f" ({more} more: --json shows all)" if more else "")
    return Listing(key="queues", columns=columns, rows=rows, title=title)


def _snapshots(seen: FolderSurvey) -> Listing:
    columns = (Column("file", "file"), Column("bytes", "bytes", "number"), Column("good", "good"))
    rows = [(file.path, file.size, file.good) for file in seen.folder.snapshots]
    return Listing(key="snapshots", columns=columns, rows=rows, title="snapshots")


def _others(seen: FolderSurvey) -> Listing:
    columns = (Column("kind", "kind"), Column("files", "files", "number"), Column("bytes", "bytes", "number"))
    rows = [
        (kind, len(files), sum(file.size for file in files))
        for kind, files in (("index", seen.indexes), ("timers", seen.timers))
    ]
    return Listing(key="others", columns=columns, rows=rows, title="index and timers")


# -- verify -----------------------------------------------------------------------------------------------------------


def verify(options: argparse.Namespace) -> int:
    clock = SystemClock()
    began_ms = clock.monotonic_ms()
    try:
        disk = folder_of(options.dir)
        with ProgressBar("verifying", quiet=options.output.for_programs) as progress:
            verdict = verify_folder(disk, owner=disk.owner, on_progress=progress)
    except StoreError as error:
        return unreadable(error)
    took_ms = max(1, clock.monotonic_ms() - began_ms)
    page = _verdict_page(options, verdict, took_ms)
    if options.output.for_programs:
        print_page(page, options.output)
    else:
        print_page(Page(facts=page.facts), options.output)
        for finding in verdict.findings.listed:
            print_lines("", *finding_lines(finding))
        if verdict.findings.unlisted:
            print_lines("", f"and {verdict.findings.unlisted} more findings of the same kinds")
        print_lines("", _sentence(verdict))
    return EXIT_CLEAN if verdict.clean else EXIT_FINDINGS


def _verdict_page(options: argparse.Namespace, verdict: FolderVerdict, took_ms: int) -> Page:
    folder = verdict.folder
    facts: dict[str, Any] = {
        "evenq": f"{version('evenq')}, Python {platform.python_version()}, {platform.system()} {platform.machine()}",
        "folder": str(options.dir),
        "broker": folder.identity.broker_name,
        "store_id": folder.identity.store_id,
        "state": state_of(folder.owner, clean=folder.clean_stop, checkpoint=folder.checkpoint is not None),
        "log_start": folder.log_start,
        "log_end": verdict.log_end,
        "records": sum(verdict.frames.values()),
        "messages": verdict.frames.get(1, 0),
        "queues": verdict.queues,
        "entries_compared": verdict.entries_checked,
        "bytes_read": verdict.bytes_read,
        "took_ms": took_ms,
        "mib_per_second": round(verdict.bytes_read / MiB * 1000 / took_ms),
    }
    if options.output.structured:
        facts["clean"] = verdict.clean
    columns = [Column(key, key) for key in ("kind", "harm", "file", "byte", "log_offset", "what", "advice")]
    rows = [[getattr(finding, column.key) for column in columns] for finding in verdict.findings.listed]
    return Page(facts=facts, listings=[Listing(key="findings", columns=columns, rows=rows)], names="folder")


def finding_lines(finding: StoreFinding) -> list[str]:
    """Returns the text of one finding."""
    return [
        f"{finding.harm.upper()}  {finding.kind}  {finding.place}",
        f"  {finding.what}",
        f"  next: {finding.advice}",
    ]


def _sentence(verdict: FolderVerdict) -> str:
    seen = verdict.findings.listed
    judged = ""
    if verdict.folder.running:
        judged = f" up to the checkpoint at log offset {verdict.log_end}; the running broker still writes behind it"
    if not seen:
        return f"clean{judged}"
    if verdict.clean:
        return f"clean{judged}: these findings are harmless, the next start handles them"
    by_harm = [f"{count} {harm}" for harm in Harm if (count := sum(finding.harm is harm for finding in seen))]
    return f"NOT clean{judged}: {', '.join(by_harm)}"


def unreadable(error: Error) -> int:
    """Reports a folder that cannot be read, and returns the exit code."""
    complain(f"evenq: {error}")
    return EXIT_UNREADABLE
