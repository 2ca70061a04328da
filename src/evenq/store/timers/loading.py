"""Loads the timers at a start: the newest good snapshot's manifest, its runs checked byte by byte, and the log's later
timers and ends.

If a manifest or a run is damaged, or the snapshot came from another copy (`TIMERS_UNKNOWN`), the pending timers come
from the whole log: retention appends older ones again before it deletes a part of the log. Runs on the flush thread
while the store opens. Full tables become runs here too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from evenq.errors import StoreCorrupted
from evenq.store.io.disk import Disk
from evenq.store.log.commit_log import FULL
from evenq.store.log.record import TIMER, TIMER_END, Frame, timer_ids_of, timer_of
from evenq.store.timers import manifest as manifest_file
from evenq.store.timers import runs
from evenq.store.timers.manifest import TIMERS_UNKNOWN
from evenq.store.timers.merging import WriteJob
from evenq.store.timers.pending import PendingTimers

log = logging.getLogger(__name__)


class TimerLoader:
    """Builder of `pending` while the log is read."""

    def __init__(
        self,
        disk: Disk,
        *,
        section: bytes | None,
        log_offset: int,
        log_start: int,
        pending: PendingTimers | None = None,
    ) -> None:
        """`section` is the timers' part of the newest good snapshot, taken at `log_offset`; None without a snapshot."""
        self._disk = disk
        self._writes = True
        self.pending = PendingTimers() if pending is None else pending
        self.start = log_start
        """Frames from this log offset on are applied."""
        self.unneeded: set[int] = set()
        """Runs in the folder that only an older snapshot may name."""
        disk.make_folder(runs.FOLDER)
        there = runs.numbers(disk)
        next_run = max(there, default=0) + 1
        if section == TIMERS_UNKNOWN:
            pass  # all of the log is read
        elif section:
            try:
                self._restore(section)
            except StoreCorrupted as error:
                log.warning("rebuilding the timers from the log: %s", error, extra={"reason": str(error)})
            else:
                self.start = max(log_offset, log_start)
        elif section is not None:
            self.start = max(log_offset, log_start)  # from before there were timers
        self.pending.begin_runs_at(next_run)
        if self.start == log_start:
            self.pending.raise_floor(log_start)
        used = {run.number for run, _ in self.pending.used_runs()}
        self.unneeded.update(number for number in there if number not in used)

    def apply(self, frame: Frame) -> None:
        """Applies one frame of the log, in order. Raises StoreCorrupted for a broken list of ends."""
        if frame.log_offset < self.start:
            return
        if frame.kind == TIMER:
            timer = timer_of(frame)
            self.pending.put(timer.due_ms, timer.log_offset, timer.kind)
            self._write()
        elif frame.kind == TIMER_END:
            for timer_id in timer_ids_of(frame):
                self.pending.end(timer_id)

    def settle(self) -> Iterator[None]:
        """Writes and merges as an open store would; yields after each file. Stops when the disk is full."""
        while self._writes and (job := self.pending.write_job()) is not None:
            self._carry_out(job)
            yield

    def _restore(self, section: bytes) -> None:
        manifest = manifest_file.unpack(section)
        self.pending.restore(manifest, [runs.verify(self._disk, run.number, count=run.count) for run in manifest.runs])

    def _write(self) -> None:
        """Writes full tables immediately; with a full disk all stays in memory."""
        while self._writes and self.pending.wants_writing and (job := self.pending.write_job()) is not None:
            self._carry_out(job)

    def _carry_out(self, job: WriteJob) -> None:
        try:
            for _ in job.steps(self._disk):
                pass
        except OSError as error:
            self.pending.write_failed()
            if error.errno not in FULL:
                raise
            self._writes = False
        else:
            self.pending.write_done(job)
