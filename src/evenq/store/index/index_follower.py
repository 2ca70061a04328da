"""The loop's side of the message index: follows the log in the background in short steps, and answers `find`.

A step takes about a millisecond on the index's own thread. While the store takes many messages, steps are far apart:
senders lose a few per cent at most, and the index falls behind; with less load it catches up. A failure of the index is
logged and counted, tried again in the next round, and never stops the store.
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

log = logging.getLogger(__name__)

BUSY_BYTES_PER_MS: Final = 1024  # the log grows by 1 MiB/s: senders go first
BUSY_PAUSE_MS: Final = 48
PAUSE_MS: Final = 1
BEHIND_MAX: Final = 4 << 30  # log bytes; with a larger lag it does not yield, so that `find` never waits for hours
TRIES_MAX: Final = 16  # damaged files that one `find` rebuilds

T = TypeVar("T")


class IndexFollower:
    """Driver of one `MessageIndex`, on the loop thread; only `jobs` use the index itself."""

    def __init__(
        self,
        index: MessageIndex,
        state: LogState,
        *,
        clock: Clock,
        jobs: Jobs,
        interval_ms: int,
        log_start: Callable[[], int],
        sync: Callable[[], Awaitable[object]],
    ) -> None:
        """`log_start` returns where the log begins now; `sync` brings the log to disk."""
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
        cls,
        disk: Disk,
        files: ReadFiles,
        state: LogState,
        *,
        clock: Clock,
        options: StoreOptions,
        segment_bytes: int,
        queues: dict[tuple[int, int], ConsumeQueue],
        keys_of: KeysOf,
        log_start: Callable[[], int],
        sync: Callable[[], Awaitable[object]],
    ) -> IndexFollower:
        """Loads the existing files and begins to follow. Raises StoreError for an unknown version."""

        def min_offset(topic_id: int, queue_id: int) -> int:
            queue = queues.get((topic_id, queue_id))  # on the index's thread: reads one number
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
            index,
            state,
            clock=clock,
            jobs=jobs,
            interval_ms=options.flush_interval_ms,
            log_start=log_start,
            sync=sync,
        )
        follower.start()
        return follower

    def start(self) -> None:
        self._task = spawn(self._run(), name="store-index")

    async def stop(self) -> None:
        """Ends the task and the thread; waits for the running step."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._jobs.close()

    async def find(self, query: IndexQuery) -> list[StoredMessage]:
        end = self._state.stats.log_end
        try:
            for _ in range(TRIES_MAX):
                await self._catch_up(end)
                span = self._span()
                goal = Span(span.start, end, span.synced_end)
                page = await self._job(lambda: self._index.find(query, goal))  # noqa: B023  # awaited immediately
                self._count()
                if page is not None:
                    return page
        except Error:
            raise
        except Exception as error:  # a failure of the index's own files must not stop the store
            log.exception("reading the message index failed")
            self._trouble()
            raise StoreError(f"reading the message index failed now: {error!r}; try again") from error
        raise StoreError(
            f"more than {TRIES_MAX} files of the message index were damaged and are rebuilt: try again, and check the "
            "disk"
        )

    async def round(self) -> None:
        """Follows the log to its end, and yields to senders."""
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
            except Exception:  # of any kind: the store must continue, and the next round may succeed
                log.exception("updating the message index failed, trying again later")
                self._trouble()
            await self._clock.sleep_ms(self._interval_ms)

    async def _catch_up(self, end: int) -> None:
        """Follows the log to `end` without pauses."""
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
