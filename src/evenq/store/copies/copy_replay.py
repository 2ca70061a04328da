"""Keeps a follower warm: derives from its copied log, up to a place, what a store would have to read at its start.

One replay is a start's recovery with an end. It begins where the folder's checkpoint and newest snapshot do, reads the
log up to the log offset of a snapshot that a leader took, files the consume queues' entries, takes in timers, and then
keeps a checkpoint and that snapshot, whose timers are the follower's own. `LogCopy.replay` calls it for places that are
committed and on disk, so nothing that is derived here tells of what may be cut. Until the end of a replay no file says
anything new, so one that is given up, by a crash or because the log changes, leaves the folder as it was for a start.

Runs on a thread of its own, piece by piece, each about a millisecond; between two `Replays` pauses for three times as
long, so a replay takes a quarter of a core at most. What changes the log or its files otherwise ends it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, TypeVar

from evenq.errors import StoreCorrupted, StoreFull
from evenq.runtime.clock import Clock
from evenq.runtime.failpoints import passing
from evenq.store.copies.snapshot_copy import TIMERS_UNKNOWN
from evenq.store.io.disk import Disk
from evenq.store.io.jobs import Jobs
from evenq.store.log import snapshot
from evenq.store.log.commit_log import FULL, shortage
from evenq.store.log.snapshot import Snapshot
from evenq.store.opening import checkpoint as checkpoint_file
from evenq.store.opening.checkpoint import Checkpoint
from evenq.store.opening.recovery import Recovery
from evenq.store.timers import manifest as manifest_file
from evenq.store.timers import runs
from evenq.store.timers.keeper import named_by_snapshots
from evenq.store.timers.loading import TimerLoader

__all__ = ["CopyReplay", "Replays", "replayed_end"]

log = logging.getLogger(__name__)

PIECE_BYTES: Final = 256 << 10
"""Of the log in one step: more would keep the loop from the interpreter, which confirms records to the leader."""
PAUSE_MS_MIN: Final = 3
PAUSE_FACTOR: Final = 3  # a replay takes a quarter of the time: what confirms records to the leader goes first

T = TypeVar("T")


def replayed_end(disk: Disk, *, log_start: int) -> int:
    """Log offset from which on a store that opens the folder reads the log; `log_start` if it reads all of it. Raises
    StoreCorrupted, StoreError.
    """
    checkpoint, saved = checkpoint_file.load(disk), snapshot.load(disk, log_start=log_start)
    if checkpoint is None or saved is None or saved.timers == TIMERS_UNKNOWN:
        return log_start
    return max(log_start, min(checkpoint.log_offset, saved.log_offset))


class Replays:
    """Runs the replays of one copy, one at a time. `run` on the loop, everything else on any thread."""

    def __init__(
        self, disk: Disk, segment_bytes: int, clock: Clock, guarded: Callable[[Callable[[], bool]], bool]
    ) -> None:
        """`guarded` calls a step and makes an error of the disk final for the copy."""
        self.disk = disk
        self.segment_bytes = segment_bytes
        self._clock = clock
        self._guarded = guarded
        self._jobs = Jobs(threads=1, name="evenq-copy-replay", threaded=disk.blocks)
        self._alone = threading.RLock()
        self.changes = 0
        """Times that the log or its derived files were changed by others; the replay that runs is of one number."""
        self._closed = False

    def give_way(self, change: Callable[[], T]) -> T:
        """Do what changes what a replay reads or writes; the one under way is given up."""
        with self._alone:
            self.changes += 1
            return change()

    def waiting(self, change: Callable[[], T]) -> T:
        """Do it between two steps of a replay, which goes on."""
        with self._alone:
            return change()

    async def run(self, taken: Snapshot, *, log_start: int) -> bool:
        """Replay up to a leader's snapshot. False: given up, because the log changed or the copy was closed. Raises as
        `CopyReplay.steps`, but StorePoisoned for OSError.
        """
        replay = CopyReplay(self.disk, self.segment_bytes, taken, log_start=log_start)
        await self.drive(replay.steps())
        return replay.done

    async def drive(self, steps: Iterator[None]) -> bool:
        """Take these steps on the thread, one after the other, with pauses. False: given up, because the log changed or
        the copy was closed. Raises what a step raises, but StorePoisoned for OSError.
        """
        changes = self.changes
        while not self._closed:
            begun_ms = self._clock.monotonic_ms()
            if not await self._jobs.run(lambda: self._guarded(lambda: self._step(steps, changes))):
                return changes == self.changes and not self._closed
            spent_ms = self._clock.monotonic_ms() - begun_ms
            await self._clock.sleep_ms(max(PAUSE_MS_MIN, PAUSE_FACTOR * spent_ms))
        return False

    def close(self) -> None:
        """Give up what runs and wait for its step."""
        self._closed = True
        self.give_way(lambda: None)
        self._jobs.close()

    def _step(self, steps: Iterator[None], changes: int) -> bool:
        """Whether there is more to do."""
        with self._alone:
            return changes == self.changes and next(steps, self) is not self


class CopyReplay:
    """One replay. Iterate over `steps`; when they are over, `done` says whether all is kept."""

    def __init__(self, disk: Disk, segment_bytes: int, taken: Snapshot, *, log_start: int) -> None:
        """`taken` is a leader's snapshot. The log up to its log offset, a place between groups of records, is committed
        and on disk; `log_start`: where it begins.
        """
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._taken = taken
        self._stop = taken.log_offset
        self._log_start = log_start
        self.done = False
        """Whether checkpoint and snapshot are kept."""

    def steps(self) -> Iterator[None]:
        """Do it. Blocks on the disk between yields. Raises StoreCorrupted (damage, with file and place; or a snapshot
        of another log), StoreError, StoreFull, OSError.
        """
        try:
            yield from self._steps()
        except OSError as error:
            if error.errno in FULL:
                raise StoreFull(f"the copied log is not replayed now: {shortage(error)}") from error
            raise

    def _steps(self) -> Iterator[None]:
        disk = self._disk
        checkpoint = checkpoint_file.load(disk) or Checkpoint()
        saved = snapshot.load(disk, log_start=checkpoint.log_start)
        if max(checkpoint.log_start, saved.log_start if saved is not None else 0) != self._log_start:
            return  # it was trimmed just now
        recovery = Recovery(
            disk, self._segment_bytes, checkpoint, saved, stop=self._stop, piece_bytes=PIECE_BYTES
        )  # fmt: skip
        timers = recovery.timers = TimerLoader(
            disk, section=saved.timers if saved is not None else None,
            log_offset=saved.log_offset if saved is not None else 0, log_start=recovery.log_start,
        )  # fmt: skip
        yield
        for _ in recovery.steps(self._stop):
            yield
        passing("replay.scanned")
        yield from timers.settle()
        ahead = not recovery.rebuilt and checkpoint.log_offset > self._stop  # led here until a moment ago
        if not ahead:
            self._compare(recovery)
            recovery.file_entries()
            yield
            passing("replay.filed")
            checkpoint_file.save(disk, self._checkpoint(recovery))
            passing("replay.checkpointed")
        manifest = manifest_file.pack(timers.pending.freeze())
        snapshot.save(disk, replace(self._taken, timers=manifest, log_start=self._log_start))
        self.done = True
        passing("replay.saved")
        # Last: until the new snapshot is there, a start needs the runs that the one before names.
        runs.remove(disk, sorted(set(runs.numbers(disk)) - named_by_snapshots(disk)))

    def _checkpoint(self, recovery: Recovery) -> Checkpoint:
        filed = {key: (queue.min_offset, queue.filed) for key, queue in recovery.queues.items()}
        return Checkpoint(self._stop, False, recovery.last_store_ms, filed, self._log_start)

    def _compare(self, recovery: Recovery) -> None:
        """The leader counted the same messages."""
        for key in sorted(recovery.queues.keys() | self._taken.queues.keys()):
            queue, span = recovery.queues.get(key), self._taken.queues.get(key)
            if queue is None:
                continue  # all its messages are gone
            if span is None or queue.max_offset != span[1]:
                topic_id, queue_id = key
                raise StoreCorrupted(
                    f"the leader's snapshot at {self._stop} has {span[1] if span else 0} as the next offset of queue "
                    f"{queue_id} of topic {topic_id}, the log here has {queue.max_offset}: one of them is damaged; "
                    "stop this broker, empty its folder and let it copy the leader's log again"
                )
