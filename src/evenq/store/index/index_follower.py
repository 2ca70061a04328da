"""The message index as the loop sees it: follows the log in the background in short steps, answers `find`.

A step is about a millisecond on the index's own thread. While the store takes many messages, steps are far apart, so
that senders lose a few per cent at most and the index falls behind; with less to do it catches up. Trouble with the
index is logged and counted, tried again at the next round, and never stops the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from evenq.errors import Error, StoreError
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn
from evenq.store.index.message_index import IndexQuery, KeysOf, MessageIndex, Span
from evenq.store.io.disk import Disk
from evenq.store.io.files import ReadFiles
from evenq.store.io.jobs import Jobs
from evenq.store.log.consume_queue import ConsumeQueue
from evenq.store.log.log_state import LogState
from evenq.store.log.messages import StoredMessage
from evenq.store.log.options import StoreOptions

__all__ = ["IndexFollower"]

log = logging.getLogger(__name__)

BUSY_BYTES_PER_MS: Final = 1024  # the log grows by 1 MiB/s: senders go first
BUSY_PAUSE_MS: Final = 48
PAUSE_MS: Final = 1
BEHIND_MAX: Final = 4 << 30  # log bytes; further behind it does not give way, so that `find` never waits for hours
TRIES_MAX: Final = 16  # files found damaged and built anew by one `find`

T = TypeVar("T")


class IndexFollower:
    """Drives one `MessageIndex`. On the loop thread; the index itself is touched by `jobs` only."""

    def __init__(
        self, index: MessageIndex, state: LogState, *, clock: Clock, jobs: Jobs, interval_ms: int,
        log_start: Callable[[], int], sync: Callable[[], Awaitable[object]],
    ) -> None:  # fmt: skip
        """`log_start`: where the log begins now. `sync`: bring the log to disk."""
        self._index = index
        self._state = state
        self._clock = clock
        self._jobs = jobs
        self._interval_ms = interval_ms
        self._log_start = log_start
        self._sync = sync
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._count()

    @classmethod
    async def open(
        cls, disk: Disk, files: ReadFiles, state: LogState, *, clock: Clock, options: StoreOptions,
        segment_bytes: int, queues: dict[tuple[int, int], ConsumeQueue], keys_of: KeysOf,
        log_start: Callable[[], int], sync: Callable[[], Awaitable[object]],
    ) -> IndexFollower:  # fmt: skip
        """Take the files there are and begin to follow. Raises StoreError for a version that this program does not
        know.
        """

        def min_offset(topic_id: int, queue_id: int) -> int:
            queue = queues.get((topic_id, queue_id))  # on the index's thread: one look at one number
            return queue.min_offset if queue is not None else 0

        jobs = Jobs(threads=1, name="evenq-store-index", threaded=disk.blocks)
        index = MessageIndex(disk, files, segment_bytes=segment_bytes, keys_of=keys_of, min_offset=min_offset)
        start, end = log_start(), state.stats.log_end
        try:
            await jobs.run(lambda: index.load(start, end))
        except BaseException:
            jobs.close()
            raise
        follower = cls(
            index, state, clock=clock, jobs=jobs, interval_ms=options.flush_interval_ms, log_start=log_start,
            sync=sync,
        )  # fmt: skip
        follower.start()
        return follower

    def start(self) -> None:
        self._task = spawn(self._run(), name="store-index")

    async def stop(self) -> None:
        """End the task and the thread; the step that runs is waited for."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._jobs.close()

    async def find(self, query: IndexQuery) -> list[StoredMessage]:
        """See `MessageStore.find`."""
        end = self._state.stats.log_end
        try:
            for _ in range(TRIES_MAX):
                await self._catch_up(end)
                span = self._span()
                goal = Span(span.start, end, span.synced_end)
                page = await self._job(lambda: self._index.find(query, goal))  # noqa: B023  # awaited at once
                self._count()
                if page is not None:
                    return page
        except Error:
            raise
        except Exception as error:  # of the index's own files: it is ours, and the store lives on
            log.exception("reading the message index failed")
            self._trouble()
            raise StoreError(f"reading the message index failed now: {error!r}; try again") from error
        raise StoreError(
            f"more than {TRIES_MAX} files of the message index were damaged and are built anew: try again, and look "
            "after the disk"
        )

    async def round(self) -> None:
        """Follow up to here, giving way to senders."""
        stats = self._state.stats
        await self._job(self._index.retry)
        while True:
            log_end, start_ms = stats.log_end, self._clock.monotonic_ms()
            if not await self._step():
                return
            await self._clock.sleep_ms(PAUSE_MS)
            grown = stats.log_end - log_end
            busy = grown > BUSY_BYTES_PER_MS * max(1, self._clock.monotonic_ms() - start_ms)
            if busy and stats.log_end - stats.index_end < BEHIND_MAX:
                await self._clock.sleep_ms(BUSY_PAUSE_MS)

    async def _run(self) -> None:
        while True:
            try:
                await self.round()
            except Exception:  # whatever it is, the store must live and the next round may go better
                log.exception("updating the message index failed, trying again later")
                self._trouble()
            await self._clock.sleep_ms(self._interval_ms)

    async def _catch_up(self, end: int) -> None:
        """As `round`, at once."""
        synced = False
        while self._index.position < end:
            if await self._step():
                continue
            if synced:
                raise StoreError(
                    f"the message index is {end - self._index.position} bytes behind because its files cannot be "
                    "written: see the log, and free space; it then continues by itself"
                )
            with contextlib.suppress(StoreError):
                await self._sync()
            await self._job(self._index.retry)
            synced = True

    async def _step(self) -> bool:
        span = self._span()
        try:
            return await self._job(lambda: self._index.step(span))
        except FileNotFoundError:
            if self._log_start() > span.start:  # retention was faster
                return True
            raise
        finally:
            self._count()

    def _span(self) -> Span:
        state = self._state
        return Span(self._log_start(), state.stats.log_end, state.synced_end if state.certain else 0)

    async def _job(self, job: Callable[[], T]) -> T:
        if self._closed:
            raise StoreError("the store is closed")
        return await self._jobs.run(job)

    def _count(self) -> None:
        stats = self._state.stats
        stats.index_end = self._index.position
        stats.index_files = self._index.file_count
        stats.index_failures = self._index.failures

    def _trouble(self) -> None:
        self._index.failures += 1
        self._count()
