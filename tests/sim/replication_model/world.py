"""Three replicas (the real core), their disks, the network between them, and the group record: the world of the model.

Everything that may happen is a method with explicit arguments, so that a random walk and an exhaustive search play the
same world. Offsets count records. After each move the invariants I1 to I7 are judged from the disks and logs alone;
a broken one, and a replica that fences itself, is a `Violation`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from evenq_broker.core.replication.actions import (
    Action,
    AppendEpochStart,
    AppendRecords,
    CommitAdvanced,
    CompareAndSet,
    Fence,
    PersistEpoch,
    ReadRecord,
    Reset,
    Send,
    SendEpochs,
    SendRecords,
    Serve,
    StopServing,
    Truncate,
)
from evenq_broker.core.replication.config import LastStop, Mode, ReplicationConfig, Timing, keeps_identity
from evenq_broker.core.replication.epoch_table import EpochTable
from evenq_broker.core.replication.membership import CopyChange
from evenq_broker.core.replication.messages import Envelope, FollowerProgress
from evenq_broker.core.replication.record import (
    NO_LEADER,
    GroupRecord,
    Pair,
    RecordRefused,
    Seen,
    record_fields,
    record_of,
)
from evenq_broker.core.replication.replica import PARTS, Replica
from evenq_broker.core.replication.rules import LEADING
from evenq_proofs.commit_waits import CommitWaits

BROKERS = (0, 1, 2)
MIN_ISR = 2
NET_MAX = 40
CALLS_MAX = 12


class Violation(Exception):
    """An invariant does not hold."""


class Log(NamedTuple):
    """One record of a log."""

    epoch: int
    session: int
    number: int


class Append(NamedTuple):
    """A client's record on its way to the writer."""

    epoch: int
    number: int


Write: TypeAlias = PersistEpoch | AppendEpochStart | AppendRecords | Truncate | Reset | Append
WRITES = (PersistEpoch, AppendEpochStart, AppendRecords, Truncate, Reset)


@dataclass(frozen=True, slots=True)
class Rules:
    """What the world itself does wrong, for mutants of rules that are kept outside the core."""

    parts: Mapping[type, type] = field(default_factory=dict)
    """Class of a part of a replica -> the subclass that replaces it."""
    keeps_store_id: bool = False
    """R10: a wiped disk passes for the old one."""
    forgets_epochs: bool = False
    """R3: the highest epoch is not synced."""


class Node:
    """One broker: its disk, and its process if it runs."""

    __slots__ = (
        "epoch_seen",
        "id",
        "log",
        "queue",
        "replica",
        "session",
        "shown",
        "store_id",
        "synced",
        "waits",
        "writer_epoch",
    )

    def __init__(self, id_: int) -> None:
        self.id = id_
        self.store_id = store_id(id_, 0)
        self.log: list[Log] = []
        self.synced = 0
        self.epoch_seen = 0
        self.replica: Replica | None = None
        self.queue: list[Write] = []
        self.session = 0
        self.writer_epoch = 0
        self.shown = 0
        self.waits = CommitWaits()


def store_id(broker_id: int, nth: int) -> str:
    return f"{broker_id:016x}{nth:016x}"


class World:
    """See the module."""

    def __init__(self, rules: Rules = Rules(), *, mode: Mode = Mode.REPL_SYNC, timing: Timing = Timing(), in_order: bool = False, spares: int = 0, ahead: tuple[int, ...] = (100,)) -> None:  # fmt: skip  # noqa: B008 - immutable
        """`spares`: brokers that run and are no members yet. `ahead`: records that each takes ahead of what it has written,
        in turn; 0: it is of a version that knows nothing of that, as a follower and as a leader.
        """
        self.rules = rules
        self.brokers = (*BROKERS, *range(len(BROKERS), len(BROKERS) + spares))
        self.mode = mode
        self.in_order = in_order
        """True: messages and writes happen at once, in order; what goes to or comes from a cut node is lost."""
        self.configs = [ReplicationConfig(cluster="c", broker_id=id_, members=BROKERS, min_isr=MIN_ISR, mode=mode, timing=timing, ahead=ahead[id_ % len(ahead)]) for id_ in self.brokers]  # fmt: skip
        self.reads_late = 0
        """In order: this number of versions late is each read."""
        self.batch_max = 100
        """Records in one message."""
        self.syncs_at_once = False
        """True: what a follower copies is on disk when it says so."""
        self.now_ms = 1_000
        self.nodes = [Node(id_) for id_ in self.brokers]
        pairs = tuple(Pair(node.id, node.store_id) for node in self.nodes[: len(BROKERS)])
        self.history = [Seen(GroupRecord(version=1, epoch=0, leader=NO_LEADER, isr=pairs, min_isr=MIN_ISR, members=BROKERS), "1")]  # fmt: skip
        self.net: list[tuple[int, Envelope]] = []
        self.calls: list[tuple[int, int, CompareAndSet]] = []
        self.cut: set[tuple[int, int]] = set()
        self.sessions = 0
        self.stores = 0
        self.lost_stores = 0
        self.committed: list[Log] = []
        self.committed_in: list[int] = []
        self.committers: dict[int, tuple[int, int]] = {}
        self.bytes_at: dict[tuple[int, int], Log] = {}
        self.numbers = 0
        self.events = 0
        self.dirty = False
        self.story: list[str] | None = None
        self.prepare()
        for id_ in self.brokers:
            self.start(id_)

    def prepare(self) -> None:
        """What is there before the first process starts."""

    @property
    def record(self) -> GroupRecord:
        return self.history[-1].record

    # Processes and disks.

    def start(self, id_: int) -> None:
        """Start the process: scan the log, sync what is left of it."""
        node = self.nodes[id_]
        self.sessions += 1
        node.session, node.synced, node.shown, node.queue, node.waits = (
            self.sessions,
            len(node.log),
            0,
            [],
            CommitWaits(),
        )
        node.writer_epoch = node.epoch_seen
        node.replica = Replica(
            self.configs[id_], store_id=node.store_id, epoch_seen=node.epoch_seen, session=node.session
        )
        for part in (getattr(node.replica, name) for name in PARTS):
            part.__class__ = self.rules.parts.get(type(part), type(part))
        self.dirty = True
        self.run(node, node.replica.recovered(table_of(node.log), len(node.log), self.now_ms))

    def kill(self, id_: int) -> None:
        """kill -9: memory is lost, written records stay in the page cache."""
        node = self.nodes[id_]
        node.replica, node.queue = None, []

    def lose_power(self, id_: int, kept: int) -> None:
        """The machine stops: of what was not synced the first `kept` records stay."""
        self.kill(id_)
        node = self.nodes[id_]
        del node.log[node.synced + kept :]
        self.dirty = True
        stop = LastStop(clean=False, boot_id="before", acted=node.epoch_seen > 0)
        if not keeps_identity(self.mode, stop, boot_id="after"):
            self._new_store(node)
            self.lost_stores += id_ in self.record.members

    def wipe(self, id_: int) -> None:
        """The disk is lost; the broker comes back with an empty one."""
        self.kill(id_)
        node = self.nodes[id_]
        node.log, node.synced, node.epoch_seen = [], 0, 0
        if not self.rules.keeps_store_id:
            self._new_store(node)
        self.lost_stores += id_ in self.record.members
        self.dirty = True

    def _new_store(self, node: Node) -> None:
        self.stores += 1
        node.store_id = store_id(node.id, self.stores)

    def sync(self, id_: int, end: int | None = None) -> None:
        """All below `end` reaches the disk; None: all that is written."""
        node = self.nodes[id_]
        node.synced = len(node.log) if end is None else end
        if node.replica is not None:
            self.run(node, node.replica.synced(node.synced))

    def write(self, id_: int) -> None:
        """The writer does what is next in its queue."""
        node = self.nodes[id_]
        if node.queue and node.replica is not None:
            self.run(node, self._written(node, node.replica, node.queue.pop(0)))

    def _written(self, node: Node, replica: Replica, write: Write) -> list[Action]:
        match write:
            case PersistEpoch(epoch):
                node.writer_epoch = epoch
                if not self.rules.forgets_epochs:
                    node.epoch_seen = epoch
                return replica.epoch_persisted(epoch)
            case AppendEpochStart(epoch):
                return self._append(node, replica, epoch, 0)
            case Append(epoch, number):
                return self._append(node, replica, epoch, number)
            case AppendRecords(records):
                for one in records.payload:  # type: ignore[attr-defined]
                    self._note(len(node.log), one)
                    node.log.append(one)
                if not self.syncs_at_once:
                    return replica.copied(len(node.log))
                node.synced = len(node.log)
                return replica.copied(node.synced, synced=True)
            case Truncate(end):
                del node.log[end:]
                node.synced, self.dirty = min(node.synced, end), True
                return replica.truncated(end)
            case Reset(start):
                if start:
                    raise Violation(f"broker {node.id} would begin at {start}, and nothing was removed by retention")
                node.log, node.synced, self.dirty = [], 0, True
                return replica.emptied(start)

    def _append(self, node: Node, replica: Replica, epoch: int, number: int) -> list[Action]:
        if epoch < node.writer_epoch:
            return []
        one = Log(epoch, node.session, number)
        self._note(len(node.log), one)
        node.log.append(one)
        if number:
            node.waits.park(number, epoch=epoch, end=len(node.log))
        return replica.appended(epoch, len(node.log))

    def _note(self, offset: int, one: Log) -> None:
        if self.bytes_at.setdefault((one.epoch, offset), one) != one:
            raise Violation(f"I4: offset {offset} of epoch {one.epoch} is {one} and {self.bytes_at[one.epoch, offset]}")

    # Clients.

    def append(self, id_: int) -> bool:
        """A client's record, if the broker takes one."""
        node = self.nodes[id_]
        if node.replica is None or not node.replica.leader.may_append():
            return False
        self.numbers += 1
        node.queue.append(Append(node.replica.max_epoch, self.numbers))
        if self.in_order:
            self.write(id_)
        return True

    # The record.

    def call(self, index: int, answer: str) -> None:
        """A compare-and-set arrives at the coordinator; `answer`: known, unknown or lost."""
        id_, session, call = self.calls.pop(index)
        expected = call.expected
        token = self.history[-1].token if self.history else None
        done = (None if expected is None else expected.token) == token
        if done:
            try:
                record_of(record_fields(call.proposed))  # no coordinator writes what could not be read again
            except RecordRefused as error:
                raise Violation(f"broker {id_} proposes what is no record: {error}") from error
            self.history.append(Seen(call.proposed, str(call.proposed.version)))
            self.dirty = True
        node = self.nodes[id_]
        if node.replica is None or node.session != session or answer == "lost":
            return
        if answer == "unknown":
            self.run(node, node.replica.cas_unknown(call.number))
        elif done:
            self.run(node, node.replica.cas_done(call.number, self.history[-1], self.now_ms))
        else:
            self.run(node, node.replica.cas_conflict(call.number, self.history[-1], self.now_ms))

    def observe(self, id_: int, back: int = 0) -> None:
        """A read or a watch tells of the record; `back`: this number of versions late."""
        node = self.nodes[id_]
        if node.replica is not None:
            seen = self.history[max(0, len(self.history) - 1 - back)]
            self.run(node, node.replica.observed(seen, self.now_ms))

    # Replicas.

    def stand(self, id_: int) -> None:
        node = self.nodes[id_]
        if node.replica is not None:
            self.run(node, node.replica.election.stand())

    def propose(self, id_: int, isr: tuple[Pair, ...]) -> None:
        node = self.nodes[id_]
        if node.replica is not None:
            self.run(node, node.replica.leader.propose(isr))

    def change_copies(self, id_: int, change: CopyChange) -> None:
        node = self.nodes[id_]
        if node.replica is not None:
            self.run(node, node.replica.leader.change_copies(change))

    def drain(self, id_: int) -> None:
        node = self.nodes[id_]
        if node.replica is not None:
            self.run(node, node.replica.leader.drain(self.now_ms))

    def resume(self, id_: int) -> None:
        node = self.nodes[id_]
        if node.replica is not None:
            self.run(node, node.replica.leader.resume())

    def tick(self, id_: int) -> None:
        node = self.nodes[id_]
        if node.replica is not None:
            self.run(node, node.replica.tick(self.now_ms))

    def deliver(self, index: int, *, keep: bool = False) -> None:
        """A message arrives; `keep`: it will come again."""
        to, envelope = self.net[index] if keep else self.net.pop(index)
        node = self.nodes[to]
        if node.replica is not None:
            self.run(node, node.replica.receive(envelope, self.now_ms))

    def run(self, node: Node, actions: Iterable[Action]) -> None:
        """Carry out what a replica asked for."""
        self.events += 1
        replica = node.replica
        assert replica is not None
        if self.story is not None:
            self.story.append(f"  broker {node.id} {replica.role} e{replica.max_epoch} end {replica.log.end} synced {replica.log.durable} committed {replica.log.hw}: {list(actions)}")  # fmt: skip
        if replica.log.hw != node.shown:
            self._commit(node, replica)
        for action in actions:
            if isinstance(action, Send | SendEpochs):
                self._post(node.id, action.to, action.envelope)
            elif isinstance(action, WRITES):
                node.queue.append(action)
            elif isinstance(action, SendRecords):
                self._send(node, replica, action)
            elif isinstance(action, CompareAndSet):
                if len(self.calls) < CALLS_MAX:
                    self.calls.append((node.id, node.session, action))
            elif isinstance(action, ReadRecord):
                if self.in_order:
                    self.observe(node.id, self.reads_late)
            elif isinstance(action, Serve):
                self._serve(node, replica, action.epoch)
            elif isinstance(action, CommitAdvanced):
                self._answer(node, node.waits.committed(action.end).tickets)
            elif isinstance(action, StopServing):
                node.waits.stop()
            elif isinstance(action, Fence):
                self.fenced(node, action)
        if self.in_order:
            while node.queue and node.replica is not None:
                self.write(node.id)

    def _send(self, node: Node, replica: Replica, action: SendRecords) -> None:
        """Records, message by message, until enough is on its way."""
        more = [action]
        while more:
            start, end = more[0].start, min(more[0].end, more[0].start + self.batch_max)
            envelope = replica.leader.records(more[0], end, tuple(node.log[start:end]))
            if envelope is not None:
                self._post(node.id, action.to, envelope)
            more = replica.leader.more_for(action.to) if end > start else []

    def fenced(self, node: Node, action: Fence) -> None:
        """A replica wants its process to end."""
        raise Violation(f"broker {node.id} fenced itself: {action.error}")

    def _post(self, from_: int, to: int, envelope: Envelope) -> None:
        if (from_, to) in self.cut:
            return
        body = envelope.body
        if isinstance(body, FollowerProgress) and not self.configs[to].ahead:
            envelope = replace(envelope, body=FollowerProgress(body.end, body.confirmed, body.wants))
        if self.in_order:
            receiver = self.nodes[to].replica
            if receiver is not None:
                self.run(self.nodes[to], receiver.receive(envelope, self.now_ms))
        elif len(self.net) < NET_MAX:
            self.net.append((to, envelope))

    # Judges.

    def _commit(self, node: Node, replica: Replica) -> None:
        end, before, committed = replica.log.hw, node.shown, self.committed
        if end < before:
            raise Violation(f"I5: broker {node.id} knew {before} committed, now {end}")
        node.shown = end
        log = node.log
        if len(log) < end:
            raise Violation(f"I1: broker {node.id} knows {end} committed, its log ends at {len(log)}")
        known = min(end, len(committed))
        if log[before:known] != committed[before:known]:
            raise Violation(f"I2: committed is {committed}, but broker {node.id} has {log[:end]} for committed")
        if end <= len(committed):
            return
        if replica.role not in LEADING:
            raise Violation(f"I2: broker {node.id} knows {end} committed, but {len(committed)} are")
        who = (node.id, node.session)
        if self.committers.setdefault(replica.max_epoch, who) != who:
            raise Violation(f"I7: {who} and {self.committers[replica.max_epoch]} commit in epoch {replica.max_epoch}")
        self.committed_in += [replica.max_epoch] * (end - len(committed))
        committed += log[len(committed) : end]
        self.dirty = True

    def _serve(self, node: Node, replica: Replica, epoch: int) -> None:
        earlier = [offset for offset, by in enumerate(self.committed_in) if by < epoch]
        if earlier and earlier[-1] >= replica.log.hw:
            raise Violation(f"R11: broker {node.id} shows {replica.log.hw}, epochs before {epoch} committed {earlier[-1] + 1}")  # fmt: skip
        node.waits.serve(epoch)

    def _answer(self, node: Node, tickets: tuple[int, ...]) -> None:
        done = {one.number for one in self.committed}
        missing = [ticket for ticket in tickets if ticket not in done]
        if missing:
            raise Violation(f"R12: broker {node.id} answers for {missing}, which are not committed")

    def judge(self) -> None:
        """I1, I3 and I6, after each move that may change them."""
        if not self.dirty:
            return
        self.dirty = False
        committed, sync = self.committed, self.mode is Mode.REPL_SYNC
        count = len(committed)
        if not count:
            return
        copies = 0
        record = self.record
        for node in self.nodes:
            end = node.synced if sync else len(node.log)
            whole = end >= count and node.log[:count] == committed
            copies += whole and node.id in record.members
            if not whole and record.store_of(node.id) == node.store_id:
                raise Violation(
                    f"I1: broker {node.id} may be elected, but has {node.log[:end]} of committed {committed}"
                )
        if copies < record.min_isr - self.lost_stores:
            raise Violation(f"I6: {committed} is on {copies} disks, and {self.lost_stores} were lost")
        if record.leader >= 0:
            self._judge_leader(self.nodes[record.leader], record, committed)

    def _judge_leader(self, leader: Node, record: GroupRecord, committed: list[Log]) -> None:
        replica = leader.replica
        if replica is None or replica.role not in LEADING or replica.max_epoch != record.epoch:
            return
        if leader.log[: len(committed)] != committed:
            raise Violation(f"I3: leader {leader.id} of epoch {record.epoch} has {leader.log} of {committed}")


def table_of(log: list[Log]) -> EpochTable:
    """The table that a scan of the log gives."""
    table = EpochTable()
    for offset, one in enumerate(log):
        table = table.appended(one.epoch, offset)
    return table
