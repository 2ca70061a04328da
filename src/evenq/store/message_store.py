"""The store's interface for its owner: append, read, snapshot, close. Called from one asyncio loop thread only.

Behind it are one writer thread, one flush thread and a small read pool; with a disk that never blocks (memory, tests)
all of it runs inline on the loop, and so do small writes to a fast disk. The parts: `Appender` (places and groups),
`Writer` (the only writer of the log), `Flusher` (syncs, checkpoints, space), `QueueReads` (memory, then files),
`opening` (recovery and periodic work), `LeaderSide` (for the leader of several copies), `BackupSide`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from evenq.errors import Error, StoreError, StoreFull
from evenq.runtime.clock import Clock
from evenq.runtime.failpoints import passing
from evenq.store.copies.backup_side import BackupSide
from evenq.store.copies.leader_side import LeaderSide
from evenq.store.index.index_follower import IndexFollower
from evenq.store.index.message_index import IndexQuery, KeysOf
from evenq.store.io.disk import Disk, Usage
from evenq.store.io.files import ReadFiles
from evenq.store.io.jobs import Jobs
from evenq.store.log.appender import Appender
from evenq.store.log.commit_log import CommitLog
from evenq.store.log.lock import Identity
from evenq.store.log.log_state import LogState
from evenq.store.log.messages import (
    Append,
    AppendBlock,
    OnDispatched,
    OnSnapshot,
    OnState,
    ReadResult,
    StoredMessage,
    StoredTimer,
    TimerAppend,
)
from evenq.store.log.options import FlushMode, StoreOptions, StoreStats
from evenq.store.log.writer import Writer
from evenq.store.opening import owned_folder
from evenq.store.opening.checkpoint import Checkpoint
from evenq.store.opening.cleaner import Cleaner, RetentionOf, TableEnds
from evenq.store.opening.flusher import Flusher
from evenq.store.opening.recovery import Recovery
from evenq.store.opening.snapshotter import SnapshotOf, Snapshotter
from evenq.store.queues.queue_reads import QueueReads
from evenq.store.queues.reader import LogReader
from evenq.store.queues.record_blocks import Kept, RecordBlock
from evenq.store.timers import OnDue, PendingTimers, TimerKeeper, TimerService, deliver

TIME_MAX_MS = (1 << 63) - 1
GATHER_TURNS = 16  # measured: unary sends cost a fifth less CPU than with 0; a single sender waits 50 microseconds more


class MessageStore(LeaderSide, BackupSide):
    """The only owner of a data folder, or of memory. Created by `open`."""

    def __init__(
        self,
        disk: Disk,
        options: StoreOptions,
        identity: Identity,
        recovery: Recovery,
        clock: Clock,
        flush_jobs: Jobs,
        snapshot_of: SnapshotOf | None = None,
        topic_retention_ms: RetentionOf | None = None,
        *,
        tables: TableEnds | None = None,
        epoch: int = 1,
        replicated: bool = False,
    ) -> None:
        self.identity = identity
        self._disk = disk
        self._options = options
        self._clock = clock
        self._queues = recovery.queues
        self._flush_jobs = flush_jobs
        self._files = ReadFiles(disk, options.open_files_max)
        self._reader = LogReader(disk, self._files, identity.segment_bytes)
        self._log = CommitLog(disk, identity.segment_bytes, recovery.log_end)
        self._state = LogState(log_end=recovery.log_end, last_store_ms=recovery.last_store_ms, replicated=replicated)
        self._appender = Appender(
            self._queues,
            self._state,
            options,
            clock=clock,
            segment_bytes=identity.segment_bytes,
            gather_turns=GATHER_TURNS if disk.blocks and options.flush is FlushMode.ASYNC else 0,
            epoch=epoch if replicated else max(epoch, identity.epoch_floor),
        )
        self._flusher = Flusher(
            self._state,
            self._log,
            disk,
            options,
            clock=clock,
            jobs=flush_jobs,
            queues=self._queues,
            filed={key: (queue.min_offset, queue.filed) for key, queue in self._queues.items()},
        )
        self._writer = Writer(
            self._log,
            sync_each=options.flush is FlushMode.SYNC,
            threaded=disk.blocks,
            done=self._appender.complete,
            clock=clock,
            disk_is_busy=lambda: flush_jobs.running > 0,
            written=self._appender.written if replicated else None,
        )
        self._snapshotter = self._made_snapshotter(recovery, snapshot_of)
        self._reads = QueueReads(disk, self._reader, self._queues, self._state.stats, threads=options.read_threads)
        self._timers = self._made_timers(recovery)
        self._firing: TimerService | None = None
        self._snapshotter.timers, self._appender.on_timers = self._timers, self._timers.apply
        self._flusher.log_start = recovery.log_start
        self._cleaner = self._made_cleaner(topic_retention_ms, tables)
        self._flusher.duties += [self._snapshotter.tick, self._cleaner.tick]
        self._appender.writer, self._appender.on_growth = self._writer, self._flusher.grown
        self._state.stats.recovered_records = recovery.records
        self._state.stats.recovered_cut_bytes = recovery.cut_bytes
        self.opened_ms = recovery.last_message_ms
        """Store time of the last message or timer in the log at the opening, ms since the epoch."""
        self._index: IndexFollower | None = None
        self._closing: asyncio.Future[None] | None = None

    def _made_snapshotter(self, recovery: Recovery, snapshot_of: SnapshotOf | None) -> Snapshotter:
        return Snapshotter(
            self._state,
            self._flusher,
            self._disk,
            self._options,
            clock=self._clock,
            queues=self._queues,
            settled=self._appender.settled,
            assigned_end=lambda: self._appender.assigned_end,
            owner=snapshot_of,
            newest=recovery.newest_snapshot,
            log_start=recovery.log_start,
            read=recovery.records,
        )

    def _made_timers(self, recovery: Recovery) -> TimerKeeper:
        timers = TimerKeeper(
            recovery.timers.pending if recovery.timers is not None else PendingTimers(),
            self._disk,
            clock=self._clock,
            read_timers=self._reads.timers,
            append=self.append,
            on_failure=self._state.poison,
            move=partial(self._appender.append_group, state=b"", moves=True),
            segment_bytes=self.identity.segment_bytes,
        )
        # Not while the disk is full: a damaged timer would then refuse all messages.
        timers.awaits_repair = lambda: self._reads.repairs is not None and self._state.full is None
        if recovery.timers is not None:
            timers.keep_until_unnamed(recovery.timers.unneeded)
        return timers

    def _made_cleaner(self, topic_retention_ms: RetentionOf | None, tables: TableEnds | None) -> Cleaner:
        return Cleaner(
            self._state,
            self._flusher,
            self._snapshotter,
            self._disk,
            self._files,
            self._reader,
            self._options,
            clock=self._clock,
            queues=self._queues,
            segment_bytes=self.identity.segment_bytes,
            topic_retention_ms=topic_retention_ms,
            tables=tables,
        )

    @classmethod
    async def open(
        cls,
        path: Path | None,
        options: StoreOptions,
        *,
        clock: Clock,
        disk: Disk | None = None,
        broker_name: str,
        on_state: OnState,
        on_snapshot: OnSnapshot,
        snapshot_of: SnapshotOf | None = None,
        topic_retention_ms: RetentionOf | None = None,
        tables: TableEnds | None = None,
        keys_of: KeysOf | None = None,
        epoch: int = 1,
        replicated: bool = False,
    ) -> MessageStore:
        """Locks the folder, recovers it, and returns the open store. `path` None is the memory engine; `disk` replaces
        the folder in tests.

        `on_snapshot` gets the newest good snapshot, if any; then `on_state` gets (log offset, payload) of each later
        state record, in order; both on the loop. `snapshot_of` returns the owner's state whenever the store takes a
        snapshot: then a start never reads more than `snapshot_log_bytes`, and old files can be deleted. It may be
        called between any two steps of the loop; `save_snapshot` describes its payload. `topic_retention_ms` returns
        how long a topic's messages are kept (None: as the options say, 0: for ever); those that `tables` reports as not
        exported are kept longer, for `table_wait_ms`.

        `keys_of` maps head and system of a message to the keys by which `find` finds it; None: no index. It runs on a
        thread, long after the append, and must always return the same for the same bytes.

        `epoch` is that of the leader that appends, for the records' headers. With `replicated`, appended records wait
        for `commit` before they are answered and shown. The recovered log is shown immediately, so the owner must not
        serve it before its first record is committed; until then no derived file covers it.

        Raises StoreLocked (another process), StoreCorrupted (damage, with file and place), StoreError (another broker's
        folder, unknown format, not writable), SettingsError (sizes that do not fit the volume).
        """
        if disk is None:
            disk = owned_folder.disk_of(path, options)
        jobs = Jobs(threads=1, name="evenq-store-flush", threaded=disk.blocks)
        with owned_folder.owned(disk, jobs):
            identity = owned_folder.identified(disk, broker_name=broker_name, options=options)
            recovery = await owned_folder.recovered(disk, jobs, identity, on_snapshot=on_snapshot, on_state=on_state)
            store = cls(
                disk,
                options,
                identity,
                recovery,
                clock,
                jobs,
                snapshot_of,
                topic_retention_ms,
                tables=tables,
                epoch=epoch,
                replicated=replicated,
            )
        await store._begin(keys_of, recovery.checkpoint)
        return store

    async def _begin(self, keys_of: KeysOf | None, checkpoint: Checkpoint) -> None:
        state = self._state
        state.dirty.update(dict.fromkeys(self._queues.values()))
        state.unfiled = sum(queue.max_offset - queue.filed for queue in self._queues.values())
        try:
            await self._flusher.begin(checkpoint)
            await self._flusher.watch_space()
            if keys_of is not None:
                self._index = await IndexFollower.open(
                    self._disk,
                    self._files,
                    self._state,
                    clock=self._clock,
                    options=self._options,
                    segment_bytes=self.identity.segment_bytes,
                    queues=self._queues,
                    keys_of=keys_of,
                    log_start=lambda: self._flusher.log_start,
                    sync=self._flusher.sync,
                )
            passing("recovery.ready")
        except BaseException:
            await self.close()
            raise
        self._timers.kick()
        self._flusher.start()

    # -- writing ------------------------------------------------------------------------------------------------------

    def append(
        self,
        entries: Sequence[Append],
        *,
        state: bytes = b"",
        timers: Sequence[TimerAppend] = (),
        ended: Sequence[int] = (),
        blocks: Sequence[AppendBlock] = (),
    ) -> asyncio.Future[None]:
        """Stores messages; the future is done when the flush mode says that they are safe (CL-5), in a replicated store
        also committed. Then they are consumable.

        Fills in queue_offset (dense, in call order), log_offset and store_ms immediately. The messages of one call are
        neighbours in the log and survive together or not at all; so do its timers, ends of timers (`ended`: their ids)
        and state record. `blocks` of messages come before `entries`, only together with ends or state; their messages
        get places, and are not kept in memory. Raises StoreFull, TooManyRequests, StorePoisoned or BodyTooLarge before
        anything gets a place; the future fails with StoreFull (nothing was stored) or StorePoisoned (unknown). State
        and ends alone may use the disk's reserve.
        """
        if state or timers or ended:
            return self._appender.append_group(entries, state=state, timers=timers, ended=ended, blocks=blocks)
        assert not blocks, "blocks come with ends or state"
        return self._appender.append(entries)

    def append_state(self, payload: bytes) -> asyncio.Future[None]:
        """Stores one opaque record in the same log, in order with messages; it may use the disk's reserve."""
        return self._appender.append_state(payload)

    async def save_snapshot(self, payload: bytes) -> None:
        """Keeps the owner's state as of this call, so that earlier records are not replayed. Returns when it is on
        disk. The two newest are kept.

        The payload must include every record that is safe at the call. So the owner changes its state in the same step
        of the loop in which it appends the record, not when the append is answered: the record is safe a moment
        earlier. A record that was not safe at the call is replayed over a payload that includes it already, and
        replaying must tolerate that. If its append fails, so does this call. Raises StoreFull, StorePoisoned.
        """
        await self._snapshotter.save(payload)

    # -- timers -------------------------------------------------------------------------------------------------------

    def fire_timers(self, on_due: OnDue = deliver) -> None:
        """Fires due timers from now on: `on_due` (on the loop) returns what each becomes; its messages and the timers'
        end are one group (RD-18). By default a timer becomes the same message in its topic and queue (RD-17). Before
        this call timers are kept and none fires.
        """
        assert self._firing is None, "timers fire already"
        state = self._state
        self._firing = TimerService(
            self._timers, self._clock, self.append, on_due, refused=lambda: state.refusal is not None
        )
        self._firing.start()

    async def read_timers(self, timer_ids: Sequence[int]) -> list[StoredTimer | None]:
        """Returns timers by their ids, in order, pending or not; None where there is none. Raises StoreCorrupted."""
        return await self._timers.frames(timer_ids)

    async def cancel_timers(self, timer_ids: Iterable[int]) -> list[int]:
        """Ends timers (by the log offsets that `append` filled in). Returns those that were pending: they never fire.
        The others have fired, are firing now, or never existed. Raises StoreFull, StorePoisoned, StoreCorrupted.
        """
        return await self._timers.cancel(timer_ids)

    # -- reading ------------------------------------------------------------------------------------------------------

    def queues(self) -> list[tuple[int, int]]:
        """Returns topic and queue id of all queues that ever had a message, also of deleted topics."""
        return sorted(self._queues)

    def queue_range(self, topic_id: int, queue_id: int) -> tuple[int, int]:
        """Returns the first offset, and the one after the last consumable one (CL-12); (0, 0) for an unknown queue."""
        queue = self._queues.get((topic_id, queue_id))
        return (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)

    def read_hot(
        self,
        topic_id: int,
        queue_id: int,
        start: int,
        *,
        count_max: int,
        bytes_max: int,
        tag_hashes: frozenset[int] | None = None,
    ) -> ReadResult | None:
        """Reads from memory without waiting; returns None if the disk is needed.

        `bytes_max` limits the payloads; only a first message may exceed it. A start under the queue's minimum reads
        from the minimum; one at or over its maximum finds nothing. With `tag_hashes`, other messages are skipped:
        continue at `next_offset`.
        """
        return self._reads.hot(
            topic_id, queue_id, start, count_max=count_max, bytes_max=bytes_max, tag_hashes=tag_hashes
        )

    async def read(
        self,
        topic_id: int,
        queue_id: int,
        start: int,
        *,
        count_max: int,
        bytes_max: int,
        tag_hashes: frozenset[int] | None = None,
    ) -> ReadResult:
        """Does the same as `read_hot`, also from the disk. May return fewer than there are: continue at `next_offset`.
        Does not always yield to other tasks. Raises StoreCorrupted if a frame there is damaged.
        """
        return await self._reads.read(
            topic_id, queue_id, start, count_max=count_max, bytes_max=bytes_max, tag_hashes=tag_hashes
        )

    async def read_block(
        self, topic_id: int, queue_id: int, start: int, *, count_max: int, bytes_max: int, kept: Kept
    ) -> RecordBlock:
        """Returns records as they are in the log, for readers that parse them: of at most `count_max` messages and
        `bytes_max` of payload, but at least one. Bounds and errors as in `read`.
        """
        return await self._reads.block(topic_id, queue_id, start, count_max=count_max, bytes_max=bytes_max, kept=kept)

    async def read_at(self, topic_id: int, queue_id: int, offsets: Sequence[int]) -> list[StoredMessage]:
        """Returns exactly these offsets, in order, without those out of the queue's range. Raises StoreCorrupted."""
        return await self._reads.at(topic_id, queue_id, offsets)

    async def offset_at(self, topic_id: int, queue_id: int, timestamp_ms: int) -> int:
        """Returns the first offset stored at `timestamp_ms` (ms since the epoch) or later; the maximum without one."""
        return await self._reads.offset_at(topic_id, queue_id, timestamp_ms)

    async def find(
        self,
        topic_id: int,
        key: bytes,
        *,
        begin_ms: int = 0,
        end_ms: int = TIME_MAX_MS,
        count_max: int = 64,
        bytes_max: int = 8 << 20,
    ) -> list[StoredMessage]:
        """Returns messages of a topic with this key, newest first, up to `count_max` of them and `bytes_max` of
        payload, which a first one may exceed (CL-14).

        Complete up to this call: what the index has not read yet is read first, so it waits longest after heavy load or
        while an index is rebuilt; it may be cancelled. Only messages stored from `begin_ms` to `end_ms`, both included
        (ms since the epoch); continue with the last one's store time as `end_ms`. For a search by time alone, use
        `offset_at` for both ends and `read` between them. Messages under their queue's minimum are not found.

        Raises StoreCorrupted if a message found is damaged, StoreError if the store keeps no index, or the index cannot
        be written or read now (the store continues).
        """
        if self._index is None:
            raise StoreError("this store keeps no message index: open it with keys_of")
        if not key or count_max < 1:
            return []
        query = IndexQuery(
            topic_id=topic_id, key=key, begin_ms=begin_ms, end_ms=end_ms, count_max=count_max, bytes_max=bytes_max
        )
        return await self._reads.repairing(partial(self._index.find, query))

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def on_dispatched(self) -> OnDispatched | None:
        """Called on the loop with (topic id, queue id, new maximum) of each group that became consumable."""
        return self._appender.on_dispatched

    @on_dispatched.setter
    def on_dispatched(self, callback: OnDispatched | None) -> None:
        self._appender.on_dispatched = callback

    @property
    def on_failure(self) -> Callable[[Error], None] | None:
        """Called once on the loop when the store stops permanently: the program should end and recover by a restart."""
        return self._state.on_failure

    @on_failure.setter
    def on_failure(self, callback: Callable[[Error], None] | None) -> None:
        self._state.on_failure = callback

    @property
    def on_full(self) -> Callable[[], None]:
        """Called on the loop when messages begin to be refused (`full`), and when they are accepted again."""
        return self._state.on_full

    @on_full.setter
    def on_full(self, callback: Callable[[], None]) -> None:
        self._state.on_full = callback

    @property
    def failure(self) -> Error | None:
        """Why the store stopped (StorePoisoned, or the error of `abandon`); None while it works. Reads continue."""
        return self._state.failure

    @property
    def full(self) -> StoreFull | None:
        """Reason why messages are refused for now; None if they are accepted."""
        return self._state.full

    @property
    def timers(self) -> TimerKeeper:
        """The pending timers; `timers.stats` counts them."""
        return self._timers

    @property
    def stats(self) -> StoreStats:
        """Counters; read them, do not keep them."""
        stats = self._state.stats
        stats.fsyncs = self._log.fsyncs
        stats.damaged_reads = self._reads.damaged
        stats.log_bytes = stats.log_end - self._flusher.log_start
        return stats

    @property
    def usage(self) -> Usage:
        """Usage of the disk, as of the last flush round."""
        return self._flusher.usage

    @property
    def free_min_bytes(self) -> int:
        """Messages are refused while less is free on the disk."""
        return self._flusher.free_min_bytes

    @property
    def last_store_ms(self) -> int:
        """Store time of the last record, ms since the epoch; never falls, even if the clock did."""
        return self._state.last_store_ms

    async def flush(self) -> None:
        """Returns when every append so far is committed, and on disk in any mode. Raises StoreFull, StorePoisoned."""
        await self._appender.settled()
        await self._flusher.sync()

    async def clean(self) -> None:
        """Deletes now what retention allows, without waiting for the next round. Raises StoreFull, StorePoisoned."""
        await self._flusher.checkpoint()
        await self._cleaner.clean()

    async def checkpoint(self) -> None:
        """Moves the checkpoint to the end of the (committed) log, to shorten the next start. Raises StorePoisoned."""
        await self._flusher.checkpoint()

    async def abandon(self, error: Error) -> None:
        """Gives the log up immediately, because another copy leads: every waiting and later append fails with this
        error. No commit, checkpoint, snapshot or clean stop follows; what is written stays, for a follower to continue.
        Returns when folder, files and threads are released; `on_failure` is not called.
        """
        self._state.abandon(error)
        await self.close()

    async def close(self, *, close_wait_ms: int = 0) -> None:
        """Waits for appends, syncs, marks a clean stop, unlocks. A poisoned store only unlocks. May be called again.

        A replicated store waits for commits, for at most `close_wait_ms`. Records that are not committed then fail with
        PersistenceTimeout; the written ones stay in the log, and no clean stop is marked.
        """
        if self._closing is not None:
            await asyncio.shield(self._closing)
            return
        self._closing = asyncio.get_running_loop().create_future()
        if self._firing is not None:
            await self._firing.stop()
        self._state.close()
        passing("close.begun")
        try:
            with contextlib.suppress(Error):  # its senders got the error; no clean stop is marked then
                await self._settle(close_wait_ms)
                await self._flusher.stop()
                passing("close.settled")
                await self._flusher.checkpoint(clean=self._appender.assigned_end == self._state.stats.log_end)
                passing("close.marked")
        finally:
            if self._index is not None:
                await self._index.stop()
            await self._flusher.stop()
            self._writer.close()
            await self._timers.close()
            self._flush_jobs.close()
            self._reads.jobs.close()
            self._files.close()
            self._log.close()
            self._disk.unlock()
            self._closing.set_result(None)

    async def _settle(self, wait_ms: int) -> None:
        if self._state.replicated:
            await self._settle_and_leave(wait_ms)
            return
        with contextlib.suppress(StoreFull):
            await self._appender.settled()
