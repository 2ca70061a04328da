"""The writer: takes one group of appends at a time, writes it, syncs it if required, and reports once.

While it writes, the loop gathers the next group: that is the group commit. One `WriteBatch` goes to the thread through
one queue, and one `call_soon_threadsafe` comes back; nothing is shared, so nothing is locked. With a disk that never
blocks it runs inline on the loop.

A hand-over costs more than a small group: two switches of threads, a pipe, and the turns of the loop for which a group
gathers to be worth it. So a small group that needs no sync is written on the loop (`write_here`), while the disk is
fast. There it only continues the newest log file. The thread writes everything else: the end of a file, a group that
found the disk full (again, at the same place), and all groups while the flush thread works or after slow writes. So the
loop waits for no sync, and writes take a tenth of its time at most, after a budget of 20 ms: one that takes 2 s sends
the groups of the next 18 s to the thread (decision 146). One group is in work at a time, wherever it is written, so the
log has one order.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence

from evenq.errors import StoreFull
from evenq.runtime.clock import Clock
from evenq.runtime.failpoints import passing
from evenq.store.log.commit_log import CommitLog, LogRun
from evenq.store.log.consume_queue import ConsumeQueue
from evenq.store.log.messages import TimerAppend

log = logging.getLogger(__name__)

HERE_BYTES = 64 << 10  # largest group that is written on the loop: some 20 us of copying into the page cache
SHARE = 10  # ms of time that each ms of writing on the loop uses up. Whole ms of the clock are right on average
BURST_MS = 200  # time that may be used up in advance: a loop that waits for its processor does not have a slow disk

Touched = dict[ConsumeQueue, int]
"""Queues with their end once a group is safe."""

TimerChange = tuple[Sequence[TimerAppend], Sequence[int]]
"""Timers of one call, and the ids of those that end."""


class WriteBatch:
    """One group: bytes for the writer, and what the loop needs when they are safe."""

    __slots__ = (
        "cold_bytes",
        "data",
        "end",
        "futures",
        "messages",
        "runs",
        "start",
        "states",
        "timer_changes",
        "timers",
        "touched",
    )

    def __init__(self, start: int) -> None:
        self.start = start
        """Log offset of its first byte."""
        self.end = start
        self.runs: list[LogRun] = []
        self.data = bytearray()
        """Buffer of the newest run, for small records."""
        self.futures: list[asyncio.Future[None]] = []
        self.touched: Touched = {}
        self.messages = 0
        self.cold_bytes = 0
        """Bytes of messages that are not kept in memory."""
        self.states = 0
        self.timers = 0
        """Records of kind timer and timer end."""
        self.timer_changes: list[TimerChange] = []
        """Its timers and the ids of those that end, call by call."""

    def begin_run(self, run: LogRun) -> None:
        """Directs what is packed from now on to another file."""
        self.runs.append(run)
        self.data = run.data

    def add(self, part: bytes) -> None:
        """Adds a large piece without a copy."""
        run = self.runs[-1]
        run.add(part)
        self.data = run.data

    def forget_bytes(self) -> None:
        """Drops the written bytes. The senders to answer and the queues stay."""
        self.runs.clear()
        self.data = bytearray()

    @property
    def bytes(self) -> int:
        return self.end - self.start

    @property
    def records(self) -> int:
        """Number of records without padding."""
        return self.messages + self.states + self.timers


Done = Callable[[WriteBatch, Exception | None], None]


class Writer:
    """Writer of batches in order. `submit` is called only after the last report: one batch is in work at a time."""

    def __init__(
        self,
        commit_log: CommitLog,
        *,
        sync_each: bool,
        threaded: bool,
        done: Done,
        clock: Clock,
        disk_is_busy: Callable[[], bool] = lambda: False,
        written: Callable[[WriteBatch], None] | None = None,
    ) -> None:
        """`written` is called on the loop when a batch's sync begins, so that copies get it then; `done` follows.
        `disk_is_busy`: whether another thread syncs now, so that a write may have to wait.
        """
        self._log = commit_log
        self._monotonic_ms = clock.monotonic_ms
        self._disk_is_busy = disk_is_busy
        self._used_up_ms = 0
        """Time until which the loop's share is used up by its writes."""
        self._sync_each = sync_each
        self._done = done
        self._written = written if sync_each else None
        self._loop = asyncio.get_running_loop()
        self._inbox: queue.SimpleQueue[WriteBatch | None] = queue.SimpleQueue()
        self._closed = False
        self._thread: threading.Thread | None = None
        if threaded:
            self._thread = threading.Thread(target=self._main, name="evenq-store-writer", daemon=True)
            self._thread.start()

    def writes_here(self, batch: WriteBatch) -> bool:
        """Returns whether `write_here` may write the group now."""
        return (
            batch.bytes <= HERE_BYTES
            and not self._sync_each
            and not self._closed
            and not self._disk_is_busy()
            and self._used_up_ms <= self._monotonic_ms() + BURST_MS
        )

    def write_here(self, batch: WriteBatch) -> None:
        """Writes the group now, on the loop, and reports it before this returns. If it does more than continue a file,
        or if the disk is full, it is submitted.
        """
        began_ms = self._monotonic_ms()
        passing("group.taken")
        written = False

        def write() -> None:
            nonlocal written
            written = self._log.write_more(batch.runs)

        error = _outcome(write)
        took_ms = self._monotonic_ms() - began_ms
        self._used_up_ms = max(self._used_up_ms, began_ms) + SHARE * took_ms
        if error is None and not written:
            self.submit(batch)
            return
        if error is None:
            passing("group.written")
            passing("group.safe")
        self._done(batch, error)

    def submit(self, batch: WriteBatch) -> None:
        if self._thread is not None:
            self._inbox.put(batch)
        else:
            self._loop.call_soon(self._inline, batch)

    def close(self) -> None:
        """Ends the thread after submitted batches; waits for one write at most. Nothing is written afterwards."""
        self._closed = True
        if self._thread is not None:
            self._inbox.put(None)
            self._thread.join()
            self._thread = None

    def _inline(self, batch: WriteBatch) -> None:
        if not self._closed:  # otherwise the disk may be another store's by now
            self._done(batch, self._execute(batch))

    def _main(self) -> None:
        while (batch := self._inbox.get()) is not None:
            outcome = self._execute(batch)
            if not self._on_loop(self._done, batch, outcome):
                return

    def _on_loop(self, call: Callable[..., None], *of: object) -> bool:
        """Runs a call on the loop; False if no owner is left to notify."""
        if self._thread is None:
            call(*of)
            return True
        try:
            self._loop.call_soon_threadsafe(call, *of)
        except RuntimeError:  # the loop was closed without closing the store
            return False
        return True

    def _execute(self, batch: WriteBatch) -> Exception | None:
        return self._write(batch) or self._sync()

    def _write(self, batch: WriteBatch) -> Exception | None:
        """Writes the group to the files, where copies may read it; returns the error, if any."""

        def write() -> None:
            self._log.write(batch.runs)
            passing("group.written")
            # Before the sync: followers write and sync while this disk does.
            if self._written is not None:
                self._on_loop(self._written, batch)

        passing("group.taken")
        return _outcome(write)

    def _sync(self) -> Exception | None:
        """Syncs what was written if each group must be; returns the error, if any."""
        error = _outcome(self._log.sync) if self._sync_each else None
        if error is None:
            passing("group.safe")
        return error


def _outcome(step: Callable[[], None]) -> Exception | None:
    try:
        step()
    except (OSError, StoreFull) as error:
        return error
    except Exception as error:  # a programming error must poison the store, not leave every sender without an answer
        log.exception("the store's writer failed")
        return error
    return None
