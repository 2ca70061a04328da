"""What the owner of a log with copies asks of its store, beside what every owner does: the part of `MessageStore` for
the leader of a broker group (docs/internals/replication.md).

The owner hears what is written and synced, asks the copies, and says what is committed; until then no sender is
answered and nothing is shown. It may have everything refused for a while, and give the log up when it was deposed. What
is not committed may be read for an answer that waits until it is (`read_ahead`).
On the loop only. Callbacks may call `commit` at once.
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

__all__ = ["LeaderSide"]


class LeaderSide:
    """Mixed into `MessageStore`, which makes the parts."""

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
        """Called on the loop with `stats.written_end` after each group that was written, before its sync ends if each
        group is synced; of a replicated store only.
        """
        return self._appender.on_written

    @on_written.setter
    def on_written(self, callback: Callable[[int], None]) -> None:
        self._appender.on_written = callback

    @property
    def on_synced(self) -> Callable[[int], None]:
        """Called on the loop with the log offset up to which the disk confirmed, whenever it has moved: behind
        `on_written` if each group is synced, else after the syncs in the background.
        """
        return self._state.on_synced

    @on_synced.setter
    def on_synced(self, callback: Callable[[int], None]) -> None:
        self._state.on_synced = callback

    def commit(self, end: int) -> None:
        """Every in-sync copy has all below this log offset, any one: the groups that end there or before are answered
        and shown. A lower offset than before changes nothing, neither does a call after the store has stopped. Raises
        AssertionError for an offset behind what is written here: a leader never commits what it does not have.
        """
        self._appender.commit(end)

    @property
    def on_gathering(self) -> OnGathering:
        """Called on the loop with (topic id, queue id, end) of the queues of the group that gathers, when messages have
        joined it; of a replicated store only. They are not committed, and may not even be written. True: somebody takes
        some of them (`read_ahead`) in the next turn, so the group waits for what is appended then.
        """
        return self._appender.on_gathering

    @on_gathering.setter
    def on_gathering(self, callback: OnGathering) -> None:
        self._appender.on_gathering = callback

    @property
    def on_taken_back(self) -> OnDispatched:
        """Called on the loop with (topic id, queue id, end) of queues, of which the disk was too full to keep more: the
        places from there on are free again, and their next messages are others. Before the appends that had them fail.
        """
        return self._appender.on_taken_back

    @on_taken_back.setter
    def on_taken_back(self, callback: OnDispatched) -> None:
        self._appender.on_taken_back = callback

    def read_ahead(
        self, topic_id: int, queue_id: int, start: int, *, count_max: int, bytes_max: int
    ) -> list[StoredMessage]:
        """Messages from `start` on, at or behind the end of what is consumable: those that wait for their commit, as
        far as they are in memory. Of a replicated store; none where appends are refused. Nobody may hear of them
        before something that was appended behind this call is committed. Bounds as in `read_hot`.
        """
        queue = self._queues.get((topic_id, queue_id))
        if queue is None or self._state.stopped:
            return []
        return queue.ahead(start, count_max=count_max, bytes_max=bytes_max)

    def placed_end(self, topic_id: int, queue_id: int) -> int:
        """The offset behind the last message that has a place, whether it is committed, or even written; 0 for an
        unknown queue. Of a replicated store.
        """
        queue = self._queues.get((topic_id, queue_id))
        return 0 if queue is None else queue.next_offset

    def recent(self, start: int, end: int) -> bytes | None:
        """The log from `start` up to `end`, where the newest written group ends, as it lies in the file; None: not all
        of it is kept in memory, so read the file. Only groups that were written just now are kept, 256 KiB at most.
        """
        return self._appender.recent.read(start, end)

    def repair_by(self, repairs: Repairs) -> None:
        """From now on a read that meets damage waits for its repair by another copy, and is tried again."""
        self._reads.repairs, self._reads.write_entries = repairs, self._write_entries

    async def rewrite(self, start: int, data: bytes) -> None:
        """Put whole records, checked by `log_damage.fault_of`, where the log has damaged ones; all of it is committed
        and lies in one file. On disk when it returns. Raises StoreError if retention let them go,
        there is no space, or `log_damage.rewrite` refuses, StorePoisoned.
        """
        await self._written(lambda: log_damage.rewrite(self._disk, self.identity.segment_bytes, start, data))

    async def _write_entries(self, right: Filing) -> None:
        await self._written(lambda: write_files(self._disk, right))

    async def _written(self, write: Callable[[], None]) -> None:
        """By the thread that files entries and deletes files. What a lack of space, or a file that went, leaves as it
        was harms nobody but who wanted it.
        """

        def tried() -> OSError | StoreError | None:
            try:
                write()
            except StoreError as error:
                return error
            except OSError as error:
                # Given back and not raised: what is raised on that thread stops the store.
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
        """Bring all that is written now to disk, committed or not. Returns the log offset behind it, at least; what
        waits for the writer is not in it. Raises StoreFull, StorePoisoned, and what `abandon` was given.
        """
        return await self._flusher.sync()

    def refuse(self, error: Error | None) -> None:
        """Refuse every append of messages, blocks, timers and state with such an error from now on, before anything is
        written; None takes them again. What was appended before goes on. Timers fire later meanwhile.
        """
        self._state.refuse(error)

    def give_up(self, error: Error, *, later: Error | None = None) -> None:
        """The first half of `MessageStore.abandon`, at once: from now on nothing is appended, committed or answered.
        What waits fails with such an `error`; of later appends nothing is kept for certain, and they fail with `later`.
        `close` gives the rest back.
        """
        self._state.abandon(error, later=later)

    async def settle(self, within_ms: int) -> None:
        """Wait until everything that was appended has its outcome, `within_ms` at most."""
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
        """Who waits for a commit for more than `wait_ms` learns that the record may or may not survive."""
        await self.settle(wait_ms)
        self._appender.leave(
            PersistenceTimeout(
                f"not every in-sync copy confirmed the record within {wait_ms} ms of the broker's stop: it may or may "
                "not be stored, send it again"
            )
        )
