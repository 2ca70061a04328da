"""Keeps a follower warm: derives from its copied log what a store would otherwise have to read at its start.

Problem: after a failover the new leader opens its folder as a store. The folder of a follower has the log, but consume
queues, timers and the owner's state only as of its last leader phase. A start would have to read all of the log after
that, perhaps hundreds of gigabytes, before it serves a client.

Idea: one replay is the recovery of a start (`Recovery`) with an end. It begins at the folder's checkpoint and newest
snapshot, reads the log up to the log offset of a snapshot that the leader took, files the entries of the consume
queues, and takes in the timers. Then it saves a checkpoint and the leader's snapshot. The snapshot gets the follower's
own manifest of timers, because the run files differ from copy to copy.

Example: checkpoint and snapshot of a follower are at log offset 1,000,000,000. The leader's next snapshot is at
1,268,435,456, which is 256 MiB later. The replay reads these bytes in about 1,024 steps of 256 KiB. With steps of 1 ms
and pauses of 3 ms it takes about 4 s. From then on a start reads the log only from 1,268,435,456 on.

Invariants:
- `LogCopy.replay` calls it only for places that are committed and on disk, so no derived file covers records that may
  be cut.
- Files change in the order in which a start trusts them: entries, checkpoint, snapshot; unneeded runs are removed last.
  Before the end of a replay no checkpoint or snapshot changes, so a crash or a replay that is given up costs only work.
- A change of the log or of its derived files gives up a running replay (`Replays.give_way`), or runs between two of its
  steps (`Replays.waiting`).
- A replay takes a quarter of a core at most: after each step the thread pauses for three times as long.

References: decision record 60 (a follower replays up to its leader's snapshots); `opening.recovery`;
docs/internals/replication.md.
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
from evenq.store.timers.manifest import TIMERS_UNKNOWN

log = logging.getLogger(__name__)

PIECE_BYTES: Final = 256 << 10
"""Log bytes in one step: more would keep the interpreter from the loop, which confirms records to the leader."""
PAUSE_MS_MIN: Final = 3
PAUSE_FACTOR: Final = 3  # a replay takes a quarter of the time, so that it does not delay confirmations to the leader

T = TypeVar("T")


def replayed_end(disk: Disk, *, log_start: int) -> int:
    """Returns the log offset from which a store that opens the folder would read. Raises StoreCorrupted, StoreError."""
    checkpoint, saved = checkpoint_file.load(disk), snapshot.load(disk, log_start=log_start)
    if checkpoint is None or saved is None or saved.timers == TIMERS_UNKNOWN:
        return log_start
    return max(log_start, min(checkpoint.log_offset, saved.log_offset))


class Replays:
    """Runner of the replays of one copy, one at a time. `run` on the loop, everything else on any thread."""

    def __init__(
        self, disk: Disk, segment_bytes: int, clock: Clock, guarded: Callable[[Callable[[], bool]], bool]
    ) -> None:
        """`guarded` calls a step and makes a disk error final for the copy."""
        self.disk = disk
        self.segment_bytes = segment_bytes
        self._clock = clock
        self._guarded = guarded
        self._jobs = Jobs(threads=1, name="evenq-copy-replay", threaded=disk.blocks)
        self._alone = threading.RLock()
        """Held during a step and during a change, so that neither happens in the middle of the other."""
        self.changes = 0
        """Number of changes of the log or its derived files by others; a replay ends when it is no longer its own."""
        self._closed = False
        """No step begins any more."""

    def give_way(self, change: Callable[[], T]) -> T:
        """Runs a change of what a replay reads or writes; the running replay is given up."""
        with self._alone:
            self.changes += 1
            return change()

    def waiting(self, change: Callable[[], T]) -> T:
        """Runs a change between two steps of a replay, which continues."""
        with self._alone:
            return change()

    async def run(self, taken: Snapshot, *, log_start: int) -> bool:
        """Replays up to a leader's snapshot. Returns False if given up. Raises as `drive`."""
        replay = CopyReplay(self.disk, self.segment_bytes, taken, log_start=log_start)
        await self.drive(replay.steps())
        return replay.done

    async def drive(self, steps: Iterator[None]) -> bool:
        """Runs these steps on the thread, with pauses. Returns False if given up: the log changed or the copy was
        closed. Raises as the steps do, but StorePoisoned for OSError.
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
        """Gives up the running replay and waits for its step."""
        self._closed = True
        self.give_way(lambda: None)
        self._jobs.close()

    def _step(self, steps: Iterator[None], changes: int) -> bool:
        """Runs one step; returns whether more follow. Not if the log was changed since `changes`."""
        with self._alone:
            return changes == self.changes and next(steps, self) is not self


class CopyReplay:
    """One replay. Iterate over `steps`; afterwards `done` says whether it is complete."""

    def __init__(self, disk: Disk, segment_bytes: int, taken: Snapshot, *, log_start: int) -> None:
        """`taken`: a leader's snapshot. The log from `log_start` up to its place is committed and on disk."""
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._taken = taken
        self._stop = taken.log_offset
        self._log_start = log_start
        self.done = False
        """Whether checkpoint and snapshot are saved."""

    def steps(self) -> Iterator[None]:
        """Yields after each step of the replay; blocks on the disk in between. Raises StoreCorrupted (damage, with file
        and place; or a snapshot of another log), StoreError, StoreFull, OSError.
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
            return  # the log was trimmed a moment ago, so `log_start` is out of date
        recovery = Recovery(disk, self._segment_bytes, checkpoint, saved, stop=self._stop, piece_bytes=PIECE_BYTES)
        timers = recovery.timers = TimerLoader(
            disk,
            section=saved.timers if saved is not None else None,
            log_offset=saved.log_offset if saved is not None else 0,
            log_start=recovery.log_start,
        )
        yield
        for _ in recovery.steps(self._stop):
            yield
        passing("replay.scanned")
        yield from timers.settle()
        # Case: this copy led until a moment ago, and its checkpoint is ahead of the snapshot. Only the snapshot is new.
        ahead = not recovery.rebuilt and checkpoint.log_offset > self._stop
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
        # Last: until the new snapshot exists, a start needs the runs that the previous one names.
        runs.remove(disk, sorted(set(runs.numbers(disk)) - named_by_snapshots(disk)))

    def _checkpoint(self, recovery: Recovery) -> Checkpoint:
        filed = {key: (queue.min_offset, queue.filed) for key, queue in recovery.queues.items()}
        return Checkpoint(self._stop, False, recovery.last_store_ms, filed, self._log_start)

    def _compare(self, recovery: Recovery) -> None:
        """Checks that the leader counted the same messages."""
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
