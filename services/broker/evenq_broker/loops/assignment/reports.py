"""What this broker tells the rebalancer: groups, members, holders, topics, lags; first everything, then what changed.

Owned by `loops/assignment/rebalancer_link.py`. Whoever changes a group or a topic says its name, and only named ones
are looked at again, so that a thousand quiet groups cost nothing while one moves. Holders change with each lock, and
only the next leader needs them, and what waits for successors: they are told in the first report of a stream, holders
encoded before it in slices between other work. Messages are put together from parts that stay encoded, two for each
member: itself, and what it holds. Always true: a group that was told is told again, or told to be gone, after it was
named as changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from evenq.model import NO_GENERATION, Generation, GroupConfig, MessageQueue
from evenq.model.balance import EVEN_BALANCE, Weight
from evenq.wire.stubs.evenq.v1 import assignment_pb2, common_pb2
from evenq_broker.core.assignment.local import Answer
from evenq_broker.core.groups.members import Member
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.core.state.frames import field, text_field
from evenq_broker.loops.assignment.inherited_holds import ReportedHolds
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.loops.wire.translation import balance_message, counts_of, entry_of, member_message, queue_message
from evenq_broker.runtime import Runtime

__all__ = ["BrokerReports"]

LAGS_MS = 5_000
ROWS_MAX = 40_000
"""Most holders, and most lags, in one report: about 4 MB."""
ROW_BYTES = 100
"""About so many bytes in a row."""
SLICE_ROWS = 200
"""So many holders are encoded at a time: some 2 ms."""
ROWS_PER_MS = 20
"""So many rows buy a millisecond of silence after a report: whoever reads it needs about as long."""
MODES_MAX = 1_000
"""Of one group."""
_GROUPS, _LAGS = 3, 8  # fields of BrokerReport
_MEMBERS, _HELD, _HOLDS = 4, 5, 8  # fields of GroupFacts


@dataclass(slots=True)
class _MemberShare:
    """One member's share of its group's message."""

    member: Member
    encoded: bytes
    locks: int = 0
    """Version of the locks that `held` tells."""
    answers: Sequence[Answer] = ()
    """The answers that `held` tells."""
    held: bytes = b""
    rows: int = 0


class BrokerReports:
    """See the module. Times are monotonic ms."""

    def __init__(self, runtime: Runtime, catalog: Catalog, ledger: Ledger, *, membership: GroupTables) -> None:
        self._runtime, self._catalog, self._ledger = runtime, catalog, ledger
        self._membership = membership
        self._groups: dict[str, None] = {}
        self._topics: dict[str, None] = {}
        self._unencoded: dict[str, None] = {}
        """Groups whose holders are still to be encoded for the first report."""
        self._untold: dict[str, None] = {}
        """Groups whose holders found no room in the first report."""
        self._modes: dict[str, dict[str, assignment_pb2.TopicMode]] = {}
        """Request modes by group and topic, as decisions told them."""
        self._holds = ReportedHolds()
        self._look_at_all = True
        self._told_groups: dict[str, int] = {}
        """Name to the hash of what was told."""
        self._told_topics: dict[str, int] = {}
        self._told_lags: dict[str, int] = {}
        self._parts: dict[str, dict[str, _MemberShare]] = {}
        """Group to client id to its part."""
        self._lags_due_ms = 0
        self._rows = 0
        self.silence_ms = 0
        """How long to keep silent after the last report."""

    # --- events

    def decided(self, decision: assignment_pb2.Decision) -> None:
        """Keep the request mode in a decision, and what waits by it: they are told to the next leader, whose memory is
        empty.
        """
        if decision.group not in self._told_groups:
            return
        self._holds.decided(decision)
        if decision.HasField("set_mode"):
            modes = self._modes.setdefault(decision.group, {})
            if decision.topic in modes or len(modes) < MODES_MAX:
                modes[decision.topic] = decision.set_mode

    def changed(self, *, group: str = "", topic: str = "") -> None:
        """This group or topic is not what it was; neither named: anything may have changed."""
        if group:
            self._groups[group] = None
        if topic:
            self._topics[topic] = None
        self._look_at_all = self._look_at_all or not (group or topic)

    # --- reports

    def next_ms(self) -> int:
        """When to look again though nobody woke us."""
        return 0 if self._untold else self._lags_due_ms

    def prepare(self) -> None:
        """A stream is about to open: `encode_some` until it says that all is done, then `everything`."""
        self._unencoded = dict.fromkeys(sorted(self._group_names()))

    def encode_some(self) -> bool:
        """Encode what some members hold, where that changed; True: there is more to do, but let others work first."""
        rows = 0
        while self._unencoded and rows < SLICE_ROWS:
            group = next(iter(self._unencoded))
            rows = self._encode_held(group, rows)
            if rows < SLICE_ROWS:
                del self._unencoded[group]
        return bool(self._unencoded)

    def everything(self, now_ms: int) -> bytes:
        """The first report of a stream."""
        self._told_groups.clear()
        self._told_topics.clear()
        self._told_lags.clear()
        self._untold.clear()
        self._look_at_all = True
        return self._report(now_ms, full=True)

    def changes(self, now_ms: int) -> bytes:
        """What changed since the last report; empty if nothing did."""
        return self._report(now_ms, full=False)

    # --- inside

    def _report(self, now_ms: int, *, full: bool) -> bytes:
        groups, topics = list(self._groups | self._untold), list(self._topics)
        if self._look_at_all:
            groups = sorted({*groups, *self._group_names(), *self._told_groups})
            topics = sorted({*topics, *(topic.name for topic in self._catalog.topics.all()), *self._told_topics})
        self._groups, self._topics, self._look_at_all, self._rows = {}, {}, False, 0
        settings = self._runtime.settings
        head = assignment_pb2.BrokerReport(broker_name=settings.broker_name, full=full, zone=settings.zone)
        if full:
            head.brokers.extend(sorted({settings.broker_name, *(view.name for view in self._catalog.routes.brokers())}))
        empty = head.ByteSize()
        parts = [part for name in groups if (part := self._group(name, head, full=full))]
        for name in topics:
            self._topic(name, head)
        if now_ms >= self._lags_due_ms or full:
            self._lags_due_ms = now_ms + LAGS_MS
            parts += self._lags()
        self.silence_ms = self._rows // ROWS_PER_MS
        if not (full or parts or head.ByteSize() > empty):
            return b""
        return head.SerializeToString() + b"".join(parts)

    def _topic(self, name: str, head: assignment_pb2.BrokerReport) -> None:
        topic = self._catalog.topics.get(name)
        if topic is None:
            if self._told_topics.pop(name, None) is not None:
                head.topics_gone.append(name)
            return
        entry = entry_of(name, counts_of(self._runtime.settings.broker_name, topic))
        digest = hash(entry.SerializeToString())
        if self._told_topics.get(name) != digest:
            self._told_topics[name] = digest
            head.topics.append(entry)

    def _group(self, name: str, head: assignment_pb2.BrokerReport, *, full: bool) -> bytes:
        config, members = self._catalog.groups.get(name), self._membership.members.members(name)
        with_held = full or name in self._untold
        self._untold.pop(name, None)
        if config is None and not members:
            self._parts.pop(name, None)
            self._modes.pop(name, None)
            self._holds.forget(name)
            if self._told_groups.pop(name, None) is not None:
                head.groups_gone.append(name)
            return b""
        parts = self._parts_of(name, members)
        group = b"".join((_config(name, config, self._modes.get(name, {})), *(part.encoded for part in parts)))
        self._rows += len(parts)
        digest = hash(group)
        if self._told_groups.get(name) == digest and not with_held:
            return b""
        self._told_groups[name] = digest
        return field(_GROUPS, group + (self._held_of(name, parts) if with_held else b""))

    def _held_of(self, group: str, parts: Sequence[_MemberShare]) -> bytes:
        holds = self._holds.of_group(group)
        rows = sum(part.rows for part in parts) + sum(1 + topic_holds.ByteSize() // ROW_BYTES for topic_holds in holds)
        if self._rows and self._rows + rows > ROWS_MAX:
            self._untold[group] = None
            return b""
        self._rows += rows
        waiting = (field(_HOLDS, topic_holds.SerializeToString()) for topic_holds in holds)
        return b"".join((*(part.held for part in parts), *waiting))

    def _parts_of(self, group: str, members: list[Member]) -> list[_MemberShare]:
        before = self._parts.get(group, {})
        after: dict[str, _MemberShare] = {}
        for member in members:
            part = before.get(member.client_id)
            if part is None or part.member is not member:
                encoded = field(_MEMBERS, member_message(member).SerializeToString())
                if part is None:
                    part = _MemberShare(member, encoded)
                part.member, part.encoded = member, encoded
            after[member.client_id] = part
        self._parts[group] = after
        return list(after.values())

    def _encode_held(self, group: str, rows: int) -> int:
        """By the locks of this broker, and by the answers it gave: those tell of other brokers' queues too, and of
        what members were promised and do not have yet. Ends when `rows`, which it counts on, is a slice's.
        """
        locks, answers = self._membership.locks, self._membership.answers.of_group(group)
        for part in self._parts_of(group, self._membership.members.members(group)):
            client_id = part.member.client_id
            version, answered = locks.version(group, client_id), answers.get(client_id, ())
            if (part.locks, part.answers) == (version, answered):
                continue
            holder = text_field(2, client_id)
            held = [_held_row(queue, holder + _generation(at)) for queue, at in locks.holdings(group, client_id)]
            held += _answered_rows(holder, answered)
            part.locks, part.answers, part.held, part.rows = version, answered, b"".join(held), len(held)
            rows += 1 + len(held)
            if rows >= SLICE_ROWS:
                break
        return rows

    def _lags(self) -> list[bytes]:
        groups = {
            group.group_id: group
            for group in self._catalog.groups.all()
            if group.balance != EVEN_BALANCE and (group.balance.weight is Weight.LAG or group.balance.hold_lag_max)
        }
        if not groups:
            return []
        lags = {group.name: assignment_pb2.GroupLag(group=group.name) for group in groups.values()}
        rows = 0
        for at in self._ledger.progress.queues():
            group, topic = groups.get(at.group_id), self._catalog.topics.by_id(at.topic_id)
            if group is None or topic is None or rows >= ROWS_MAX:
                continue
            rows += 1
            low, high = self._ledger.store.queue_range(at.topic_id, at.queue_id)
            queue = MessageQueue(topic.name, self._runtime.settings.broker_name, at.queue_id)
            lag = self._ledger.progress.lag(at.group_id, at.topic_id, at.queue_id, low, high)
            lags[group.name].queues.add(queue=queue_message(queue), lag=lag)
        parts = []
        for name, message in lags.items():
            encoded = message.SerializeToString()
            if self._told_lags.get(name) != hash(encoded):
                self._told_lags[name] = hash(encoded)
                parts.append(field(_LAGS, encoded))
        return parts

    def _group_names(self) -> set[str]:
        return {group.name for group in self._catalog.groups.all()} | set(self._membership.members.groups())


def _config(name: str, config: GroupConfig | None, modes: Mapping[str, assignment_pb2.TopicMode]) -> bytes:
    facts = assignment_pb2.GroupFacts(group=name, modes=modes.values())
    if config is not None:
        facts.ordered, facts.strategy = config.ordered, config.strategy
        if config.balance != EVEN_BALANCE:
            facts.balance.CopyFrom(balance_message(config.balance))
    return facts.SerializeToString()


def _answered_rows(holder: bytes, answers: Sequence[Answer]) -> Iterator[bytes]:
    for answer in answers:
        if answer.epoch:  # what was computed here is nobody's decision
            rest = holder + _generation(Generation(answer.epoch, answer.counter))
            for queue in answer.queues:
                if queue.queue_id >= 0:
                    yield _held_row(queue, rest)


def _held_row(queue: MessageQueue, holder_and_generation: bytes) -> bytes:
    return field(_HELD, _queue(queue) + holder_and_generation)


@lru_cache(maxsize=1 << 16)
def _queue(queue: MessageQueue) -> bytes:
    return field(1, queue_message(queue).SerializeToString())


@lru_cache(maxsize=4_096)
def _generation(generation: Generation) -> bytes:
    if generation == NO_GENERATION:
        return b""
    encoded = common_pb2.Generation(epoch=generation.epoch, counter=generation.counter)
    return field(3, encoded.SerializeToString())
