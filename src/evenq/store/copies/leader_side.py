"""The part of `MessageStore` for the leader of a broker group (docs/internals/replication.md).

The owner is notified of what is written and synced, collects the confirmations of the copies, and commits. Until then
no sender is answered and nothing is shown. The owner may refuse all appends for a while, and abandon the log after it
was deposed. Messages that are not committed may be read for an answer that waits for their commit (`read_ahead`).
On the loop only. Callbacks may call `commit` immediately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from evenq.errors import Error, PersistenceTimeout, StoreError
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn
from evenq.store.io.disk import Disk
from evenq.store.log import log_damage
from evenq.store.log.appender import Appender, OnGathering
from evenq.store.log.commit_log import FULL
from evenq.store.log.consume_queue import ConsumeQueue, Filing, write_files
from evenq.store.log.lock import Identity
from evenq.store.log.log_damage import Repairs
from evenq.store.log.log_state import LogState
from evenq.store.log.messages import OnDispatched, StoredMessage
from evenq.store.opening.flusher import Flusher
from evenq.store.queues.queue_reads import QueueReads


class LeaderSide:
    """Mixin of `MessageStore` for a leader; the store creates the parts."""

    _appender: Appender
    _clock: Clock
    _flusher: Flusher
    _queues: dict[tuple[int, int], ConsumeQueue]
    _state: LogState
    _disk: Disk
    _reads: QueueReads
    identity: Identity

    @property
    def on_written(self) -> Callable[[int], None]:
        """Called on the loop with `stats.written_end` after each written group, and before its sync ends if each group
        is synced. Only in a replicated store.
        """
        return self._appender.on_written

    @on_written.setter
    def on_written(self, callback: Callable[[int], None]) -> None:
        self._appender.on_written = callback

    @property
    def on_synced(self) -> Callable[[int], None]:
        """Called on the loop with the synced log offset whenever it has moved: after `on_written` if each group is
        synced, otherwise after background syncs.
        """
        return self._state.on_synced

    @on_synced.setter
    def on_synced(self, callback: Callable[[int], None]) -> None:
        self._state.on_synced = callback

    def commit(self, end: int) -> None:
        """Records that every in-sync copy has the log below `end`: groups that end there or before are answered and
        shown. A lower offset than before changes nothing, nor does a call after the store has stopped. Raises
        AssertionError for an offset after what is written here: a leader never commits what it does not have.
        """
        self._appender.commit(end)

    @property
    def on_gathering(self) -> OnGathering:
        """Called on the loop with (topic id, queue id, end) of the gathering group's queues when messages joined it.
        Only in a replicated store. The messages are not committed and perhaps not written. It returns True if some of
        them are read (`read_ahead`) in the next turn: then the group waits for what is appended there.
        """
        return self._appender.on_gathering

    @on_gathering.setter
    def on_gathering(self, callback: OnGathering) -> None:
        self._appender.on_gathering = callback

    @property
    def on_taken_back(self) -> OnDispatched:
        """Called on the loop with (topic id, queue id, end) of queues whose last messages the full disk could not keep:
        the places from `end` on are free again, for other messages. It is called before the appends fail.
        """
        return self._appender.on_taken_back

    @on_taken_back.setter
    def on_taken_back(self, callback: OnDispatched) -> None:
        self._appender.on_taken_back = callback

    def read_ahead(
        self, topic_id: int, queue_id: int, start: int, *, count_max: int, bytes_max: int
    ) -> list[StoredMessage]:
        """Returns messages from `start` on that wait for their commit and are in memory; `start` is not before the end
        of what is consumable. Only in a replicated store; none while appends are refused. No client may get them before
        a record that is appended after this call is committed. Bounds as in `read_hot`.
        """
        queue = self._queues.get((topic_id, queue_id))
        if queue is None or self._state.stopped:
            return []
        return queue.ahead(start, count_max=count_max, bytes_max=bytes_max)

    def placed_end(self, topic_id: int, queue_id: int) -> int:
        """Returns the offset after the last placed message, committed or not; 0 for an unknown queue."""
        queue = self._queues.get((topic_id, queue_id))
        return 0 if queue is None else queue.next_offset

    def recent(self, start: int, end: int) -> bytes | None:
        """Returns the log from `start` to `end`, where the newest written group ends; None if memory does not have all
        of it: then read the file. Only the last groups are kept, 256 KiB at most.
        """
        return self._appender.recent.read(start, end)

    def repair_by(self, repairs: Repairs) -> None:
        """Makes reads that meet damage wait for its repair by another copy, and then read again."""
        self._reads.repairs, self._reads.write_entries = repairs, self._write_entries

    async def rewrite(self, start: int, data: bytes) -> None:
        """Writes whole records, checked by `log_damage.fault_of`, over damaged ones; all of them are committed and lie
        in one file. They are on disk when it returns. Raises StoreError if retention deleted them, the disk is full, or
        `log_damage.rewrite` refuses; StorePoisoned.
        """
        await self._written(lambda: log_damage.rewrite(self._disk, self.identity.segment_bytes, start, data))

    async def _write_entries(self, right: Filing) -> None:
        await self._written(lambda: write_files(self._disk, right))

    async def _written(self, write: Callable[[], None]) -> None:
        """Runs a write on the flush thread. A lack of space or a deleted file fails this call only."""

        def tried() -> OSError | StoreError | None:
            try:
                write()
            except StoreError as error:
                return error
            except OSError as error:
                # Returned and not raised: an exception on that thread stops the store.
                if error.errno in FULL or isinstance(error, FileNotFoundError):
                    return error
                raise
            return None

        error = await self._flusher.blocking(tried)
        if isinstance(error, StoreError):
            raise error
        if error is not None:
            raise StoreError(f"{self._disk.describe('')} cannot be repaired now: {error}") from error

    async def sync_written(self) -> int:
        """Syncs all that is written now, committed or not; returns a log offset at or after its end. Groups that wait
        for the writer are not included. Raises StoreFull, StorePoisoned, and the error of `abandon`.
        """
        return await self._flusher.sync()

    def refuse(self, error: Error | None) -> None:
        """Refuses every new append with this error, state too; None accepts them again. Due timers wait."""
        self._state.refuse(error)

    def give_up(self, error: Error, *, later: Error | None = None) -> None:
        """Does the first half of `MessageStore.abandon` immediately: nothing is appended, committed or answered any
        more. Waiting appends fail with `error`; later ones store nothing and fail with `later`. `close` does the rest.
        """
        self._state.abandon(error, later=later)

    async def settle(self, within_ms: int) -> None:
        """Waits until every append has its outcome, for at most `within_ms`."""
        if within_ms > 0 and self._appender.assigned_end > self._state.stats.log_end:
            tasks = [
                spawn(self._appender.settled(), name="store-settled"),
                spawn(self._clock.sleep_ms(within_ms), name="store-settle-limit"),
            ]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _settle_and_leave(self, wait_ms: int) -> None:
        """Fails appends that wait for a commit for more than `wait_ms`: their records may or may not survive."""
        await self.settle(wait_ms)
        self._appender.leave(
            PersistenceTimeout(
                f"not every in-sync copy confirmed the record within {wait_ms} ms of the broker's stop: it may or may "
                "not be stored, send it again"
            )
        )
