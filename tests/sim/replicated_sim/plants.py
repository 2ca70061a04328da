"""Faults planted on purpose: the causes of bugs that RocketMQ had, put into our code, and rules switched off.

A name with a number is an issue of apache/rocketmq; what is planted is its cause, not its code. A simulation that does
not find them proves nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from evenq_broker.core.delivery.fence import DeliveryFence
from evenq_broker.core.delivery.progress import Pending, Progress, QueueProgress, SettleStatus
from evenq_broker.core.replication.actions import Action
from evenq_broker.core.replication.copies import Copies
from evenq_broker.core.replication.election import Election
from evenq_broker.core.replication.epoch_table import EpochTable
from evenq_broker.core.replication.record import NO_LEADER, GroupRecord, Pair
from evenq_broker.core.replication.replica import Replica
from evenq_broker.core.replication.rules import STANDING, LogView, OwnCopy, RecordView
from evenq_broker.core.state.records import Op, TopicPut, encode_op
from evenq_broker.loops.delivery.taking import MessageTaker
from evenq_broker.loops.replication import identity, replica_log
from evenq_broker.loops.replication.identity import ReplicaIdentity
from evenq_broker.loops.replication.replica_log import ReplicaLog
from evenq_broker.loops.state.journal import Journal
from evenq_broker.rpc.delivery.transact import TransactHandler

from evenq.store import Append, MessageStore
from evenq.store.copies.log_copy import LogCopy
from evenq.store.io.disk import Disk
from evenq.store.log import log_damage
from evenq.store.log.commit_log import CommitLog
from evenq.store.log.log_damage import LogScan
from evenq.store.log.segment import path_of, segment_of
from replicated_sim.scenario import TRANSACTING

Change = tuple[Any, str, Any]
NO_FLOOR = 1


def _two_of_them(self: Copies) -> int:
    """What any two copies have is committed, no matter which is in sync as the record says."""
    ends = sorted([self.log.confirmed_end(), *self.acks.values()])
    return max(self.log.hw, ends[-2]) if len(ends) > 1 else self.log.hw


def _alone(self: RecordView) -> tuple[Pair, ...]:
    return (self.own.pair,)


def _nothing_pending(_: RecordView) -> tuple[Pair, ...]:
    return ()


def _whatever_was_said(self: Copies, pair: Pair, _: int) -> None:
    _CONFIRM(self, pair, self.log.end)


def _seen_when_written(self: ReplicaLog, store: MessageStore) -> None:
    _ATTACH(self, store)
    result = store.on_written

    def written(end: int) -> None:
        result(end)
        if self._store is store:
            store.commit(end)

    store.on_written = written


def _kept_beside(_: Journal, __: Iterable[bytes]) -> asyncio.Future[None]:
    """Acknowledgements reach the other copies by another way, some day."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


def _recorded(self: Journal, *ops: Op) -> asyncio.Future[None]:
    """Everything else."""
    self._ops.extend(map(encode_op, ops))
    return self._gathering()


def _without_topics(self: Journal, *ops: Op) -> asyncio.Future[None]:
    """What topics there are reaches the other copies by another way, some day."""
    return self.record_encoded(encode_op(op) for op in ops if not isinstance(op, TopicPut))


async def _at_once(*_: Any) -> bool:
    return True


def _anybody(self: OwnCopy, record: GroupRecord) -> bool:
    """Once there are copies; a group that was just founded has one."""
    return _MAY_STAND(self, record) or len(record.isr) > 1


def _nothing_checked(_: Replica) -> None:
    """The broker would stop itself (I3)."""


def _never_over(_: OwnCopy, __: int) -> bool:
    return False


def _cut_at_committed(self: LogView, _: EpochTable, their_end: int) -> int:
    return min(self.hw, their_end)


def _written(self: LogView) -> int:
    return self.end


def _any_size(_: RecordView, size: int) -> bool:
    return size >= NO_FLOOR


def _admits(_: Copies, __: Pair) -> bool:
    return True


def _another(self: OwnCopy, record: GroupRecord) -> bool:
    """An epoch is entered from a higher one, too."""
    return record.epoch != self.known_epoch


def _entered(self: OwnCopy, epoch: int) -> bool:
    self.max_epoch = epoch
    return _PERSISTED(self, epoch)


def _forgets_epochs(self: ReplicaIdentity, epoch: int, record: GroupRecord | None = None) -> None:
    if not self.epoch:  # a folder without any is taken for that of a broker that was alone
        _PERSIST(self, epoch, record)


def _as_before(
    disk: Disk, *, broker_id: int, new_store_id: Callable[[], str] | None = None, **more: Any
) -> ReplicaIdentity:
    """A disk that was replaced has the name of the old one."""
    del new_store_id
    identity: ReplicaIdentity = _LOAD(disk, broker_id=broker_id, new_store_id=lambda: f"{broker_id:032x}", **more)
    return identity


def _said_to_be_safe(self: Journal, ops: Iterable[bytes]) -> asyncio.Future[None]:
    """Whether the copies have it is not waited for."""
    _RECORD(self, ops)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


def _nothing_open(_: Journal) -> None:
    return None


async def _not_synced(self: LogCopy) -> int:
    return self.end


def _no_sync(_: CommitLog) -> None:
    return


async def _goes_on(self: ReplicaLog, epoch: int) -> list[Action]:
    """The log's loop takes its own cancellation for that of a term that was deposed while it began."""
    try:
        return await _BEGIN_TERM(self, epoch)
    except asyncio.CancelledError:
        if not self._cut_off:
            raise
        return []


def _fits_always(*_: Any, **__: Any) -> str:
    return ""


def _as_it_lies(disk: Disk, segment_bytes: int, start: int, end: int) -> bytes:
    file_start, position = segment_of(start, segment_bytes)
    file = disk.open(path_of(file_start))
    try:
        return file.pread(end - start, position)
    finally:
        file.close()


def _by_the_record_alone(self: Election, now_ms: int) -> list[Action]:
    """A leader is silent while the record does not change, whether anybody can read or write it or not."""
    timing, record = self.own.config.timing, self.group.record
    if self.own.role not in STANDING or record is None:
        return []
    if record.leader in {NO_LEADER, self.own.broker_id}:
        return self.stand()
    quiet_ms = timing.suspect_ms + self.follower.rank * timing.backoff_ms
    return self.stand() if now_ms - self.sign_ms >= quiet_ms else []


def _results_alone(self: Journal, messages: Sequence[Append], _: Iterable[bytes]) -> asyncio.Future[None]:
    """The acks of a transaction are in memory only."""
    return _APPEND(self, messages, ())


def _whoever_had_it(_: Progress, queue: QueueProgress | None, offset: int, __: int, *, now_ms: int) -> SettleStatus:
    """A handle counts until the message is finished, whether its delivery has ended or not."""
    del now_ms
    if queue is None or offset >= queue.next:
        return SettleStatus.INVALID
    return SettleStatus.DONE if offset in queue.pending else SettleStatus.ALREADY


def _open_to_others(_: DeliveryFence, queue: QueueProgress, offset: int, __: Callable[[], bool]) -> Pending:
    return queue.pending[offset]


def _finished_if_stored(self: DeliveryFence, queue: QueueProgress, offset: int, entry: Pending, *, stored: bool) -> int:
    if stored and queue.pending.get(offset) is entry:
        self._finish(queue, offset)
    return 0


def _whether_ended_or_not(*_: Any) -> None:
    """Each transaction is taken for a first try whose deliveries run."""


async def _what_runs(self: TransactHandler, acks: Sequence[Any], keys: Any, entries: Any) -> None:
    await _STORE(self, [ack for ack in acks if ack.status is SettleStatus.DONE], keys, entries)


_CONFIRM = Copies.confirm
_MAY_STAND = OwnCopy.may_stand
_PERSISTED = OwnCopy.persisted
_PERSIST = ReplicaIdentity.persist_epoch
_LOAD = ReplicaIdentity.load
_RECORD = Journal.record_encoded
_ATTACH = ReplicaLog._attach
_BEGIN_TERM = ReplicaLog._begin_term
_APPEND = Journal.append
_STORE = TransactHandler._store

_MADE: dict[str, Callable[[], list[Change]]] = {
    "3015": lambda: [(Copies, "confirm", _whatever_was_said)],
    "4771": lambda: [(OwnCopy, "may_stand", _anybody), (Replica, "_check_leader", _nothing_checked)],
    "4806": lambda: [(Journal, "record_encoded", _said_to_be_safe), (Journal, "safe", _nothing_open)],
    "5663": lambda: [(RecordView, "pending", _nothing_pending)],
    "6662": lambda: [(Copies, "commit_end", _two_of_them)],
    "7017": lambda: [(RecordView, "commit_pairs", _alone), (RecordView, "meets_floor", _any_size)],
    "7689": lambda: [(ReplicaLog, "_attach", _seen_when_written)],
    "7790": lambda: [(Journal, "record_encoded", _kept_beside), (Journal, "record", _recorded)],
    "9804": lambda: [(Journal, "record", _without_topics)],
    "R3 lower epochs": lambda: [
        (OwnCopy, "is_over", _never_over),
        (OwnCopy, "begins_epoch", _another),
        (OwnCopy, "persisted", _entered),
    ],
    "R3 synced epoch": lambda: [(ReplicaIdentity, "persist_epoch", _forgets_epochs)],
    "R4 cut": lambda: [(LogView, "cut_end", _cut_at_committed)],
    "R5 confirmed": lambda: [(LogView, "confirmed_end", _written), (replica_log, "AT_ONCE_BYTES", 0)],
    "R8 admission": lambda: [(Copies, "is_admissible", _admits)],
    "R10 store id": lambda: [(identity, "keeps_identity", lambda *_, **__: True)],
    "R10 replaced disk": lambda: [(ReplicaIdentity, "load", _as_before)],
    "R12 receives": lambda: [(MessageTaker, "_safe", _at_once)],
    "R12 offsets": lambda: [(Journal, "still_leads", Journal.settled), (Journal, "confirmed", Journal.safe)],
    "repair": lambda: [
        (log_damage, "fault_of", _fits_always),
        (log_damage, "read_whole_records", _as_it_lies),
        (LogScan, "again", LogScan.pass_over),
    ],
    "silence": lambda: [(Election, "stand_by", _by_the_record_alone)],
    "a stop": lambda: [(ReplicaLog, "_begin_term", _goes_on)],
    "deadlines": lambda: [(Journal, "ahead_ms", lambda _: 0)],
    "T acks": lambda: [(Journal, "append", _results_alone)],
    "T handles": lambda: [
        (TransactHandler, "_first_try", _whether_ended_or_not),
        (TransactHandler, "_store", _what_runs),
    ],
    "T fence": lambda: [
        (Progress, "status_of", _whoever_had_it),
        (DeliveryFence, "begin", _open_to_others),
        (DeliveryFence, "end", _finished_if_stored),
    ],
    "fsync": lambda: [(LogCopy, "sync", _not_synced), (CommitLog, "sync", _no_sync)],
}

PLANTS = {
    "3015": "whatever a follower says confirms all that its leader has",
    "4771": "a copy that is not in sync may be elected",
    "4806": "an acknowledgement counts although no copy has confirmed it",
    "5663": "while the in-sync set changes, only the old one is asked",
    "6662": "a leader that is cut off together with a follower goes on committing",
    "7017": "a leader that is cut off acknowledges alone",
    "7689": "messages are consumable when they are written, and may vanish and come as others",
    "7790": "acknowledgements are kept beside the log",
    "9804": "topics are kept beside the log",
    "R3 lower epochs": "what is said in lower epochs is heeded, and lower epochs are entered",
    "R3 synced epoch": "the highest epoch is not on disk",
    "R4 cut": "a log is cut at what is committed, not where epochs part",
    "R5 confirmed": "what is written is confirmed before it is synced",
    "R8 admission": "whoever was heard of becomes in sync",
    "R10 store id": "a store that lost its page cache keeps its name",
    "R10 replaced disk": "an empty disk passes for the one that it replaces",
    "R12 receives": "a leader hands messages out before their delivery is committed",
    "R12 offsets": "a leader tells and confirms the progress that it knows, whether it still leads or not",
    "repair": "damaged records are repaired with whatever another copy has there, unchecked",
    "silence": "a leader counts as silent while the record cannot be reached",
    "a stop": "a copy that is told to stop while a term of it is cancelled goes on for ever",
    "deadlines": "deadlines of deliveries are kept by the time of the broker and not by the log's",
    "T acks": "a transaction stores its results, and its acks in memory",
    "T handles": "a transaction is stored although its deliveries have ended",
    "T fence": "while a transaction is stored, another one may store results of its messages",
    "fsync": "nothing of a log is synced",
}
"""Name of a plant and what it does."""

FOUND_BY: dict[str, tuple[int, ...]] = {
    "3015": (1, 2), "4771": (2, 6), "4806": (1, 0), "5663": (90, 22), "6662": (1, 4), "7017": (1, 0), "7689": (2, 0),
    "7790": (0, 1), "9804": (5,), "R3 lower epochs": (172,), "R3 synced epoch": (5, 16),
    "R4 cut": (10,), "R5 confirmed": (10, 0), "R8 admission": (79,), "R10 store id": (18, 24),
    "R10 replaced disk": (18, 24), "R12 receives": (2, 72), "R12 offsets": (23, 27), "repair": (25, 9), "silence": (2, 0),
    "a stop": (0, 2), "deadlines": (75, 76),
    "T acks": (10_000_000, 10_000_001), "T handles": (10_000_000, 10_000_001), "T fence": (10_000_000, 10_000_001), "fsync": (0, 4),
}  # fmt: skip
"""Seeds that found a planted fault: they are tried first, since a change of the programs may make one blind."""


def first_seed(plant: str) -> int:
    """Where the seeds begin that may find it: faults of transactions need those that transact."""
    return TRANSACTING if plant.startswith("T ") else 0


def planted(plant: str) -> list[Change]:
    """What to replace (owner, name, value); nothing for an empty name."""
    return _MADE[plant]() if plant else []
