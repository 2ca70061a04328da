"""The log of one replica and its single writer: a copy while the broker follows, its own store while it leads.

Problem: a folder holds one log, and two parts of a broker write it in turn. A follower writes records of its leader
(`LogCopy`). A leader writes records of clients (`MessageStore`) and may acknowledge only records that all copies in
sync confirmed. A change between the two must not lose, repeat or acknowledge a record wrongly.

Idea: all changes of the log are steps in one queue (`_entries`), executed in order; each returns its answer to the
core. Following, a term (`serve` to `stop_serving`) and cuts are such steps, so nothing writes beside them. During a
term, the store appends, and reports written and synced ends to the core. The core counts the followers'
acknowledgements and returns `CommitAdvanced`; then `committed` lets the store show and acknowledge records. The
`AppendGate` rejects appends while the core does not allow them.

Invariants:
- The folder is open once: `_copy` is set, or a term owns it, or a step is between the two.
- An end that is confirmed to the leader was synced (REPL_SYNC) or written (REPL_MEMORY) before.
- The store commits nothing above what it has written, and nothing above the core's committed end.
- `stop_serving` cuts a deposed leader off immediately, not in its turn: its store then appends and acknowledges
  nothing.
- An epoch is synced before any record of it is written (R3): both are steps of the same queue.
- A cut removes only records that were never acknowledged, but for an unclean election (R20), which keeps them aside.

Example, REPL_SYNC, copies 0 to 2, two in sync needed: copy 0 leads epoch 4 and its log ends at 9,000. A client sends
200 bytes: the store writes them (9,200) and reports it. Copy 1 reads, writes and syncs the record, and confirms 9,200.
As soon as all copies in sync confirm it, and the own sync ends, the core's committed end is 9,200: `committed(9200)`
acknowledges the send. If copy 2 begins epoch 5 before that, `stop_serving` fails the send with PersistenceTimeout: the
record may or may not be kept. Copy 0 closes its store, opens the folder as a copy, and cuts it where epoch 4 ends for
copy 2.

References: `docs/internals/replication.md` (R1 to R23); decisions 0055, 0062, 0078, 0089, 0094 and 0098. The protocol
is primary-backup replication with an in-sync set, as in Kafka (KIP-101, KIP-279) and PacificA (Lin et al., 2008).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

from evenq.errors import RecordsDamaged, StoreCorrupted, StoreError, StoreFull
from evenq.runtime.clock import Clock
from evenq.runtime.failpoints import passing
from evenq.store import MessageStore
from evenq.store.copies.copy_index import CopyIndex
from evenq.store.copies.log_copy import LogCopy
from evenq.store.log import log_damage
from evenq.store.log.frame_walk import AnnouncedEpochs
from evenq.store.log.log_damage import Repairs
from evenq.store.log.record import HEADER_BYTES
from evenq_broker.core.replication.actions import (
    Action,
    AppendEpochStart,
    AppendRecords,
    PersistEpoch,
    Reset,
    Truncate,
)
from evenq_broker.core.replication.config import Mode
from evenq_broker.core.replication.epoch_table import EpochStart, EpochTable
from evenq_broker.core.replication.messages import LastRecord
from evenq_broker.core.replication.replica import Replica
from evenq_broker.core.replication.rules import Role
from evenq_broker.loops.replication.append_gate import AppendGate
from evenq_broker.loops.replication.follower_disk import FollowerDisk
from evenq_broker.loops.replication.follower_reads import FollowerReads
from evenq_broker.loops.replication.follower_replay import FetchSnapshot, FollowerReplay
from evenq_broker.loops.replication.identity import ReplicaIdentity
from evenq_broker.loops.replication.other_history import compare, cut, keep_lost
from evenq_broker.loops.replication.replica_parts import LeaderTerm, Pieces

log = logging.getLogger(__name__)

SYNC_MS = 500
"""REPL_MEMORY: between two syncs of written records."""
START_MS = 1_000
"""Between two checks of the log's start."""
NO_END = (1 << 62) - 1
AT_ONCE_BYTES = 64 << 10
"""REPL_SYNC: up to this much is written, synced and reported in one step. Of more, the leader learns before the sync
that it was written, so that it reads on meanwhile: more records are likely to follow.
"""
UNSYNCED_BYTES = 4 << 20
"""REPL_SYNC: up to this much is written before one sync, while more records have arrived already."""
READ_LATELY = 8
BEGINS_MAX = 100
"""Of one term: each begin may meet damage that was not met before."""
EMPTY_BATCH = b"\x01"
"""A journal record without operations: the first record of an epoch."""

Entry: TypeAlias = PersistEpoch | AppendEpochStart | AppendRecords | Truncate | Reset
T = TypeVar("T")
Step: TypeAlias = Callable[[], Awaitable[list[Action]]]


class ReplicaLog:
    """The log of one replica. See the module."""

    repairs: Repairs | None = None

    def __init__(
        self,
        replica: Replica,
        identity: ReplicaIdentity,
        *,
        open_copy: Callable[[], Awaitable[LogCopy]],
        pieces: Pieces,
        term: LeaderTerm,
        clock: Clock,
        tell: Callable[[list[Action]], None],
        fetch: FetchSnapshot,
        growth_bytes: int,
        group: str,
        refusal: Callable[[], str] = lambda: "",
        index: CopyIndex | None = None,
    ) -> None:
        """`open_copy` opens the folder to follow; `fetch` fetches the leader's snapshot. `growth_bytes`: growth of the
        log after which a leader takes a snapshot. `group`: the broker's name, for log lines. `refusal`: why readers see
        nothing here; empty: nothing hinders. `index`: builds the message index while this broker follows.
        """
        self._replica, self._identity, self._group = replica, identity, group
        self._open_copy, self._pieces, self._term = open_copy, pieces, term
        self._clock, self._tell, self._fetch = clock, tell, fetch
        self._copy: LogCopy | None = None
        """The folder while the broker follows; None during a term, and before `open`."""
        self.disk = FollowerDisk(clock, group=group)
        """While the broker follows."""
        self.holds_records: bool | None = None
        """At its opening; None: it was not opened yet, or could not be."""
        self._store: MessageStore | None = None
        """Of the term; None before it is open and after it was abandoned."""
        self._beginning: asyncio.Task[None] | None = None
        """Opens the broker of a term; only `stop_serving` cancels it, and `close` waits for it."""
        self._entries: deque[Step] = deque()
        """Steps to do, in order. Only `run` takes them."""
        self._wanted = asyncio.Event()
        """Set when a step is added."""
        self._sync_each = replica.config.mode is Mode.REPL_SYNC
        self._cut_off = False
        """True from `stop_serving` to the next `serve`: no term may begin or continue."""
        self.gate = AppendGate(replica)
        self.matched_end = 0
        """Place of a running cut to the leader's log; otherwise 0. See CommittedLog."""
        self._replay = FollowerReplay(
            replica,
            copy=lambda: self._copy,
            fetch=fetch,
            trim=lambda start: self._add(lambda: self._trim(start)),
            clock=clock,
            growth_bytes=growth_bytes,
            group=group,
            index=index,
        )
        self.reads = FollowerReads(
            replica, copy=lambda: self._copy, refusal=refusal, clock=clock, growth_bytes=growth_bytes, group=group
        )
        """The view of readers while the broker follows."""
        self._read_lately: deque[int] = deque(maxlen=READ_LATELY)
        """Where followers read last: one that reads there again may have rejected damaged records."""

    @property
    def replay_lag(self) -> int:
        """See FollowerReplay."""
        return self._replay.lag

    async def open(self) -> None:
        """Opens the copy and reports its end to the core. Raises StoreLocked, StoreCorrupted, StoreError."""
        copy = self._copy = await self._open_copy()
        self._segment_bytes = copy.identity.segment_bytes
        config = self._replica.config
        holds = self.holds_records = copy.end > copy.start
        # A new copy with records of a backup, which is not the first one of the restored group.
        if config.restored_epoch and self._identity.is_new and holds and not config.founds:
            self._identity.forget()  # epochs of two logs could have the same numbers
            raise StoreError(
                "the data folder holds messages of a backup; the copies of a group begin with empty ones, and a backup "
                f"is restored into the folder of copy {config.members[0]} alone"
            )
        # Records without an epoch: a broker without copies wrote them (a copy syncs its epoch before it writes, R3).
        was_alone = holds and self._identity.epoch == 0
        if was_alone and not config.adopts:
            self._identity.forget()
            raise StoreError(
                "the data folder holds messages of a broker that was alone; the copies of a group begin with empty "
                "ones. To make it the first copy of a new group, set replication.from_one_copy"
            )
        entries = tuple(EpochStart(epoch, offset) for epoch, offset in copy.epochs)
        table = EpochTable(copy.start, entries)
        self._tell(self._replica.recovered(table, copy.end, self._clock.monotonic_ms()))

    async def run(self) -> None:
        """Executes steps, for ever."""
        while True:
            while self._entries:
                self._tell(await self._entries.popleft()())
            self._wanted.clear()
            if not self._entries:
                await self._wanted.wait()

    async def sync_often(self) -> None:
        """REPL_MEMORY: syncs copied records periodically, for ever."""
        while True:
            await self._clock.sleep_ms(SYNC_MS)
            copy = self._copy
            if copy is not None and copy.synced_end < copy.end and not self._entries:
                self._add(self._synced)

    async def close(self, *, clean: bool) -> None:
        """Gives the folder back after `run` has ended. `clean`: all is synced, so the store keeps its identity."""
        self.stop_serving("the broker stops")
        if self._beginning is not None:  # `run` was cancelled while a term began
            await asyncio.gather(self._beginning, return_exceptions=True)
        await self._term.end()
        if self._copy is None and clean and self.holds_records is not None:
            self._copy = await self._open_copy()  # an abandoned store leaves records after its last sync
        self.reads.close()
        if self._copy is not None:
            await self._copy.close()
            self._copy = None
            if clean:
                await asyncio.to_thread(self._identity.mark_clean)

    # Actions of the driver.

    def do(self, action: Entry) -> None:
        """See LogActions."""
        self._add(lambda: self._do(action))

    def remember(self) -> None:
        """See LogActions."""
        self._add(self._remember)

    def serve(self, epoch: int) -> None:
        """See LogActions."""
        self._cut_off = False
        self._add(lambda: self._begin_term(epoch))

    def stop_serving(self, reason: str) -> None:
        """See LogActions."""
        self._cut_off = True
        if self._beginning is not None and not self._beginning.cancelling():
            self._beginning.cancel()
        # Immediately: a running write may take seconds, and until then a deposed leader could acknowledge.
        store, self._store = self._store, None
        self.gate.close(store, reason)
        self._add(self._end_term)

    def committed(self, end: int) -> None:
        """See LogActions."""
        if self._store is not None:
            # The store may be shorter than the core's log (`_attach`), and commits nothing that it does not have.
            self._store.commit(min(end, self._store.stats.written_end))

    async def settle(self, within_ms: int) -> None:
        """See LogActions."""
        await self.gate.settle(self._store, within_ms)

    def settled(self) -> None:
        """See LogActions."""
        self.gate.settled(self._store)

    @property
    def full(self) -> bool:
        """True: this broker leads and rejects messages because its disk is full."""
        return self._store is not None and self._store.full is not None

    def at_hand(self, start: int, end: int) -> bytes | None:
        """See LogActions."""
        return None if self._store is None else self._store.recent(start, end)

    async def read(self, start: int, end: int, bytes_max: int) -> bytes:
        """See LogActions. A second read of a place is checked in full: the follower may have rejected the first."""
        if start in self._read_lately:
            return await self._repairing(lambda: self._read_checked(start, end, bytes_max))
        self._read_lately.append(start)
        return await self._repairing(lambda: self._read(start, end, bytes_max))

    async def last_record(self, end: int) -> LastRecord | None:
        """See LogActions."""
        known = await self._pieces.record_before(end)
        return None if known is None else LastRecord(known[0], end, known[1])

    async def _read(self, start: int, end: int, bytes_max: int) -> bytes:
        if self._copy is not None:
            return await self._copy.read(start, end, bytes_max)
        return await self._pieces.read(start, end, bytes_max)

    async def _read_checked(self, start: int, end: int, bytes_max: int) -> bytes:
        data = await self._read(start, end, bytes_max)
        await asyncio.to_thread(log_damage.check_records, data, start, segment_bytes=self._segment_bytes)
        return data

    async def _repairing(self, read: Callable[[], Awaitable[T]]) -> T:
        """Reads, and again each time that the damage it met was repaired. Raises StoreCorrupted."""
        while True:
            repairs = self.repairs
            seen = 0 if repairs is None else repairs.version
            try:
                return await read()
            except StoreCorrupted as error:
                if repairs is None or not await repairs.repair(error, seen):
                    raise

    def repair_by(self, repairs: Repairs) -> None:
        """Sets the repair of damaged records from another copy. Before `open`."""
        self.repairs = self.reads.repairs = self._replay.repairs = repairs

    async def rewrite(self, start: int, data: bytes) -> None:
        """Writes committed records of another copy over damaged ones. Raises StoreError and the owner's errors."""
        owner = self._copy or self._store
        if owner is None:
            raise StoreError("the log changes its owner now; try again")
        await owner.rewrite(start, data)

    def look(self) -> None:
        """Updates the gate from the core; readers see what is committed now."""
        self.reads.changed()
        self.gate.look(self._store)

    # The steps.

    def _add(self, step: Step) -> None:
        self._entries.append(step)
        self._wanted.set()

    async def _do(self, action: Entry) -> list[Action]:
        replica = self._replica
        if isinstance(action, PersistEpoch):
            # A step of this queue, so that no append of an older epoch is written behind it (R3).
            await asyncio.to_thread(self._identity.persist_epoch, action.epoch, replica.record)
            passing("replica.epoch_safe")
            return replica.epoch_persisted(action.epoch)
        copy = self._copy
        if copy is None:
            raise StoreError(f"{type(action).__name__} while the broker leads: only a follower's log takes it")
        match action:
            case AppendEpochStart(epoch):  # elected: the first record of the own epoch
                start, now_ms = copy.end, self._clock.now_ms()
                end = await copy.append_epoch_start(epoch, EMPTY_BATCH, now_ms)
                passing("replica.epoch_begun")
                log.info("replica %s: epoch %d begins at log offset %d", self._group, epoch, start)
                return await self._also_synced(replica.appended(epoch, end))
            case AppendRecords():  # following: records of the leader
                return await self._append(copy, action)
            case Truncate(end, start, unclean, last):  # the leader's log parts from this one at `end`
                await compare(last, self.last_record, copy, group=self._group)
                if end < copy.end:
                    log.warning(
                        "replica %s: the log is cut from %d to %d: the leader does not have the rest",
                        self._group,
                        copy.end,
                        end,
                    )
                    await keep_lost(copy, end, unclean, group=self._group)
                if not await copy.can_cut(end):  # state up to `end` cannot be rebuilt here
                    log.warning(
                        "replica %s: no snapshot from before %d is left, where the log is cut: all is copied anew",
                        self._group,
                        end,
                    )
                    return await self._begin_anew(copy, start)
                await self._cut(copy, end)
                passing("replica.cut")
                return replica.truncated(end)
            case Reset(start, unclean):  # nothing in common with the leader's log, which begins at `start`
                if copy.end > copy.start or start != copy.start:  # an empty log that stays as it is is not logged
                    log.warning(
                        "replica %s: the log begins anew at %d: the leader has none of its records", self._group, start
                    )
                await keep_lost(copy, copy.start, unclean, group=self._group)
                return await self._begin_anew(copy, start)

    async def _cut(self, copy: LogCopy, end: int) -> None:
        """Cuts the log, after repairs: with damage below the place, each try to follow would fail (decision 94)."""
        self.matched_end = end
        try:
            await self._repairing(lambda: cut(copy, end, group=self._group))
        finally:
            self.matched_end = 0

    async def _remember(self) -> list[Action]:
        record = self._replica.record
        if record is not None and self._identity.forgets(record):
            await asyncio.to_thread(self._identity.remembered.keep, record)
        return []

    async def _begin_anew(self, copy: LogCopy, start: int) -> list[Action]:
        await copy.reset(start)
        # Without a snapshot, a log that begins above 0 lacks queues and state.
        if start:
            await self._fetch_for(copy, start)
        return self._replica.emptied(start)

    async def _append(self, copy: LogCopy, action: AppendRecords) -> list[Action]:
        records = action.records
        more = bool(self._replica.follower.queued)  # one sync for all of it follows the last
        at_once = self._sync_each and not more and records.end - records.start <= AT_ONCE_BYTES
        data, start = records.payload, records.start
        assert isinstance(data, bytes)
        announced = AnnouncedEpochs(records.previous_epoch, records.epochs)
        try:
            end = await self.disk.write(
                start,
                lambda: copy.append(data, start=start, then_sync=at_once, announced=announced),
                is_free=self._has_time,
            )
        except (RecordsDamaged, StoreFull) as error:  # nothing of it was written; the core repeats its request
            self.disk.refused(start, error.message)
            actions = self._replica.not_copied()
            return await self._also_synced(actions) if self._sync_each and copy.synced_end < copy.end else actions
        if at_once:
            passing("replica.copied_safe")
        actions = self._replica.copied(end, synced=at_once)
        if at_once or not self._sync_each:  # synced already, or synced periodically
            return actions
        # More records are being passed on: one sync covers them, up to a bound.
        if self._replica.follower.writing is not None and copy.end - copy.synced_end < UNSYNCED_BYTES:
            return actions
        return await self._also_synced(actions)

    def _has_time(self) -> bool:
        return not self._entries and self._replica.role is Role.FETCHING

    async def _fetch_for(self, copy: LogCopy, start: int) -> None:
        """Installs the leader's snapshot: a log that begins above 0 needs it. Raises Error: the next start retries."""
        known = await self._fetch(-1, NO_END)
        if known is None or known.log_start < start or not known.data:
            raise StoreError(f"the leader has no snapshot for a log that begins at {start}")
        await copy.install(known.data, origin=known.origin)

    async def _also_synced(self, actions: list[Action]) -> list[Action]:
        self._tell(actions)
        return await self._synced()

    async def _synced(self) -> list[Action]:
        if self._copy is None:
            return []
        end = await self._copy.sync()
        passing("replica.copied_safe")
        return self._replica.synced(end)

    # Terms.

    async def _begin_term(self, epoch: int) -> list[Action]:
        begins = 0
        while not self._cut_off:
            # A cut removes files, and the copy made others by the same names: close those of an earlier term.
            self._pieces.renew()
            assert self._copy is not None
            # The folder has one owner: the copy is closed before the store opens it, and nothing is copied in between.
            copy, self._copy = self._copy, None
            seen, begins = 0 if self.repairs is None else self.repairs.version, begins + 1
            self.reads.close()
            await copy.close()
            passing("replica.term_opening")
            beginning = self._beginning = asyncio.ensure_future(self._term.begin(epoch, self._attach))
            await asyncio.wait({beginning})  # not its outcome: a cancellation raised here is this loop's own
            self._beginning = None
            try:
                if not (beginning.cancelled() and self._cut_off):  # otherwise deposed: `_end_term` follows
                    beginning.result()
            except StoreCorrupted as error:  # damage met by the opening: begun again after its repair
                if begins == BEGINS_MAX or not await self._is_repaired(error, seen):
                    raise
                continue
            break
        return []

    async def _is_repaired(self, error: StoreCorrupted, seen: int) -> bool:
        """Repairs damage that prevented a term, in the folder as a copy. False: it cannot. Raises Error."""
        if self.repairs is None or not 0 <= error.log_offset < self._replica.log.hw:
            return False
        await self._term.end()
        self._copy = await self._open_copy()
        return await self.repairs.repair(error, seen)

    def _attach(self, store: MessageStore) -> None:
        replica = self._replica
        epoch, end = replica.max_epoch, store.stats.written_end
        if not 0 <= end - replica.log.end < HEADER_BYTES:
            raise StoreError(f"the store ends at {end}, its copy ended at {replica.log.end}")
        if end > replica.log.end:  # no header fits into the rest of the file: the store continues in the next one
            self._tell([*replica.appended(epoch, end), *replica.synced(end)])
        self._store = store
        if self.repairs is not None:
            store.repair_by(self.repairs)
        log.info(
            "replica %s: epoch %d: the log is open, %d records of it were read",
            self._group,
            epoch,
            store.stats.recovered_records,
        )
        # Records committed before this epoch are consumable immediately; others wait for the epoch-start record (R11).
        store.commit(min(replica.log.hw, replica.log.end))
        store.on_written = lambda end: self._tell(replica.appended(epoch, end))
        store.on_synced = lambda end: self._tell(replica.synced(min(end, replica.log.end)))
        self.look()

    async def _end_term(self) -> list[Action]:
        if self._copy is not None:  # no term was open
            return []
        await self._term.end()
        passing("replica.term_ended")
        copy = await self._open_copy()
        if copy.end > self._replica.log.end:  # written by the old term's last group, which was never acknowledged
            await copy.truncate(self._replica.log.end)
        if copy.end != self._replica.log.end:
            raise StoreError(f"the log ends at {copy.end}, {self._replica.log.end} was written")
        self._copy = copy
        return self._replica.synced(await copy.sync())

    async def look_after_start(self) -> None:
        """Reports to the core, as a leader, where retention moved the log's start; followers then trim theirs."""
        while True:
            await self._clock.sleep_ms(START_MS)
            store, replica = self._store, self._replica
            if store is not None:
                start = store.stats.log_end - store.stats.log_bytes
                if start > replica.log.table.start:
                    self._tell(replica.trimmed(start))

    async def _trim(self, start: int) -> list[Action]:
        copy = self._copy
        # The leader trims committed records; this copy may not know yet that they are, and then its core rejects it.
        if copy is None or start > self._replica.log.hw:
            return []
        await copy.trim(start)
        return self._replica.trimmed(copy.start) if copy.start > self._replica.log.table.start else []

    def spawned(self) -> list[Coroutine[Any, Any, None]]:
        """Returns the loops to run."""
        loops = [self.run(), self.look_after_start(), self._replay.run(), self.reads.run()]
        return loops if self._sync_each else [*loops, self.sync_often()]
