"""Reports to the rebalancer: groups, members, holders, topics, lags; first everything, then changes.

Owned by `loops/assignment/rebalancer_link.py`. A change names its group or topic, and only named ones are examined
again, so that a thousand quiet groups cost nothing while one moves. Holders change with each lock. Only the next leader
needs them, and the queues that wait for successors: both are in the first report of a stream, with holders encoded
before it in slices between other work. Messages are assembled from parts that stay encoded, two for each member: itself
and its holdings. Invariant: after a change, a reported group is reported again, or as gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evenq.model import Generation, MessageQueue
from evenq.model.balance import EVEN_BALANCE, Weight
from evenq_broker.core.assignment.local import Answer
from evenq_broker.core.groups.members import Member
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.assignment import DecisionNews, TopicHolds, TopicMode
from evenq_broker.loops.wire.reports import (
    ReportHead,
    generation_field,
    group_field,
    group_head,
    held_field,
    holder_field,
    holds_field,
    lag_field,
    member_field,
)
from evenq_broker.loops.wire.translation import counts_of

LAGS_MS = 5_000
ROWS_MAX = 40_000
"""Most holders, and most lags, in one report: about 4 MB."""
ROW_BYTES = 100
SLICE_ROWS = 200
"""Holders that are encoded in one step, which takes about 2 ms."""
ROWS_PER_MS = 20
"""Rows for each millisecond of pause after a report: its reader needs about as long."""
MODES_MAX = 1_000
"""Of one group."""
HELD_TOPICS_MAX = 1_000
"""Of one group."""
HELD_BYTES_MAX = 256 * 1024
"""Of one (group, topic): 256 places and 20,000 queues take less. Larger ones are not kept."""


@dataclass(slots=True)
class _MemberShare:
    """One member's share of its group's message."""

    member: Member
    encoded: bytes
    locks: int = 0
    """Version of the locks in `held`."""
    answers: Sequence[Answer] = ()
    held: bytes = b""
    rows: int = 0


class BrokerReports:
    """Reports of one broker. Times are monotonic ms."""

    def __init__(self, kernel: Kernel, *, membership: GroupTables) -> None:
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._membership = membership
        self._groups: dict[str, None] = {}
        self._topics: dict[str, None] = {}
        self._unencoded: dict[str, None] = {}
        """Groups whose holders are still to be encoded for the first report."""
        self._held_unsent: dict[str, None] = {}
        """Groups whose holders did not fit into the first report."""
        self._modes: dict[str, dict[str, TopicMode]] = {}
        """Request modes by group and topic, from decisions."""
        self._holds = ReportedHolds()
        self._look_at_all = True
        self._reported_groups: dict[str, int] = {}
        """Name to the hash of the reported message."""
        self._reported_topics: dict[str, int] = {}
        self._reported_lags: dict[str, int] = {}
        self._parts: dict[str, dict[str, _MemberShare]] = {}
        """Group to client id to its part."""
        self._lags_due_ms = 0
        self._rows = 0
        self.silence_ms = 0
        """Pause after the last report."""

    # --- events

    def decided(self, decision: DecisionNews) -> None:
        """Keeps the request mode and the holds of a decision for the next leader, whose memory is empty."""
        if decision.group not in self._reported_groups:
            return
        self._holds.decided(decision)
        mode = decision.mode
        if mode is not None:
            modes = self._modes.setdefault(decision.group, {})
            if decision.topic in modes or len(modes) < MODES_MAX:
                modes[decision.topic] = mode

    def changed(self, *, group: str = "", topic: str = "") -> None:
        """Notes a changed group or topic; neither named: anything may have changed."""
        if group:
            self._groups[group] = None
        if topic:
            self._topics[topic] = None
        self._look_at_all = self._look_at_all or not (group or topic)

    # --- reports

    def next_ms(self) -> int:
        """Returns when the next report is due without a change."""
        return 0 if self._held_unsent else self._lags_due_ms

    def prepare(self) -> None:
        """Prepares the first report of a stream: the caller repeats `encode_some`, then calls `everything`."""
        self._unencoded = dict.fromkeys(sorted(self._group_names()))

    def encode_some(self) -> bool:
        """Encodes changed holdings of some members; True: more is left, and other work should run first."""
        rows = 0
        while self._unencoded and rows < SLICE_ROWS:
            group = next(iter(self._unencoded))
            rows = self._encode_held(group, rows)
            if rows < SLICE_ROWS:
                del self._unencoded[group]
        return bool(self._unencoded)

    def everything(self, now_ms: int) -> bytes:
        """Returns the first report of a stream."""
        self._reported_groups.clear()
        self._reported_topics.clear()
        self._reported_lags.clear()
        self._held_unsent.clear()
        self._look_at_all = True
        return self._report(now_ms, full=True)

    def changes(self, now_ms: int) -> bytes:
        """Returns the changes since the last report; empty without any."""
        return self._report(now_ms, full=False)

    # --- inside

    def _report(self, now_ms: int, *, full: bool) -> bytes:
        groups, topics = list(self._groups | self._held_unsent), list(self._topics)
        if self._look_at_all:
            groups = sorted({*groups, *self._group_names(), *self._reported_groups})
            topics = sorted({*topics, *(topic.name for topic in self._catalog.topics.all()), *self._reported_topics})
        self._groups, self._topics, self._look_at_all, self._rows = {}, {}, False, 0
        settings = self._runtime.settings
        live = {settings.broker_name, *(view.name for view in self._catalog.routes.brokers())} if full else ()
        head = ReportHead(settings.broker_name, settings.zone, full=full, brokers=sorted(live))
        parts = [part for name in groups if (part := self._group(name, head, full=full))]
        for name in topics:
            self._topic(name, head)
        if now_ms >= self._lags_due_ms or full:
            self._lags_due_ms = now_ms + LAGS_MS
            parts += self._lags()
        self.silence_ms = self._rows // ROWS_PER_MS
        if not (full or parts) and head.empty:
            return b""
        return head.encoded() + b"".join(parts)

    def _topic(self, name: str, head: ReportHead) -> None:
        topic = self._catalog.topics.get(name)
        if topic is None:
            if self._reported_topics.pop(name, None) is not None:
                head.topic_gone(name)
            return
        counts = counts_of(self._runtime.settings.broker_name, topic)
        self._reported_topics[name] = head.topic(name, counts, self._reported_topics.get(name))

    def _group(self, name: str, head: ReportHead, *, full: bool) -> bytes:
        config, members = self._catalog.groups.get(name), self._membership.members.members(name)
        with_held = full or name in self._held_unsent
        self._held_unsent.pop(name, None)
        if config is None and not members:
            self._parts.pop(name, None)
            self._modes.pop(name, None)
            self._holds.forget(name)
            if self._reported_groups.pop(name, None) is not None:
                head.group_gone(name)
            return b""
        parts = self._parts_of(name, members)
        group = b"".join(
            (group_head(name, config, self._modes.get(name, {}).values()), *(part.encoded for part in parts))
        )
        self._rows += len(parts)
        # Only the fact of a change matters: the messages of ten thousand groups need not be kept for that.
        digest = hash(group)
        if self._reported_groups.get(name) == digest and not with_held:
            return b""
        self._reported_groups[name] = digest
        return group_field(group + (self._held_of(name, parts) if with_held else b""))

    def _held_of(self, group: str, parts: Sequence[_MemberShare]) -> bytes:
        holds = self._holds.of_group(group)
        rows = sum(part.rows for part in parts) + sum(
            1 + len(topic_holds.encoded) // ROW_BYTES for topic_holds in holds
        )
        # The first group is always sent, whatever its size: otherwise it would wait for ever.
        if self._rows and self._rows + rows > ROWS_MAX:
            self._held_unsent[group] = None
            return b""
        self._rows += rows
        return b"".join((*(part.held for part in parts), *map(holds_field, holds)))

    def _parts_of(self, group: str, members: list[Member]) -> list[_MemberShare]:
        before = self._parts.get(group, {})
        after: dict[str, _MemberShare] = {}
        for member in members:
            part = before.get(member.client_id)
            if part is None or part.member is not member:
                encoded = member_field(member)
                if part is None:
                    part = _MemberShare(member, encoded)
                part.member, part.encoded = member, encoded
            after[member.client_id] = part
        self._parts[group] = after
        return list(after.values())

    def _encode_held(self, group: str, rows: int) -> int:
        """Encodes locks here and answers given, also of other brokers' queues, until `rows` fills a slice."""
        locks, answers = self._membership.locks, self._membership.answers.of_group(group)
        for part in self._parts_of(group, self._membership.members.members(group)):
            client_id = part.member.client_id
            version, answered = locks.version(group, client_id), answers.get(client_id, ())
            if (part.locks, part.answers) == (version, answered):
                continue
            holder = holder_field(client_id)
            held = [held_field(queue, holder + generation_field(at)) for queue, at in locks.holdings(group, client_id)]
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
        lags: dict[str, list[tuple[MessageQueue, int]]] = {group.name: [] for group in groups.values()}
        rows = 0
        for at in self._ledger.progress.queues():
            group, topic = groups.get(at.group_id), self._catalog.topics.by_id(at.topic_id)
            if group is None or topic is None or rows >= ROWS_MAX:
                continue
            rows += 1
            low, high = self._ledger.store.queue_range(at.topic_id, at.queue_id)
            queue = MessageQueue(topic.name, self._runtime.settings.broker_name, at.queue_id)
            lag = self._ledger.progress.lag(at.group_id, at.topic_id, at.queue_id, low, high)
            lags[group.name].append((queue, lag))
        parts = []
        for name, rows_of_group in lags.items():
            encoded = lag_field(name, rows_of_group)
            if self._reported_lags.get(name) != hash(encoded):
                self._reported_lags[name] = hash(encoded)
                parts.append(encoded)
        return parts

    def _group_names(self) -> set[str]:
        return {group.name for group in self._catalog.groups.all()} | set(self._membership.members.groups())


def _answered_rows(holder: bytes, answers: Sequence[Answer]) -> Iterator[bytes]:
    for answer in answers:
        if answer.epoch:  # an answer that was computed here is not a rebalancer's decision
            rest = holder + generation_field(Generation(answer.epoch, answer.counter))
            for queue in answer.queues:
                if queue.queue_id >= 0:
                    yield held_field(queue, rest)


class ReportedHolds:
    """Queues that wait for successors of members that left, by group and topic: the next leader continues the wait.

    Keeps the newest decision of each (group, topic), also one without waiting queues: the next leader gets reports of
    several brokers and so recognizes holds that ended. The leader alone decides when a hold ends.
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, TopicHolds]] = {}

    def decided(self, decision: DecisionNews) -> None:
        """Keeps the holds of this decision, unless a newer one came."""
        topics = self._groups.get(decision.group, {})
        known = topics.get(decision.topic)
        if known is None and not decision.holds_any:
            return
        if known is not None and known.generation > decision.generation:
            return
        current = decision.holds(HELD_BYTES_MAX)
        if known is None and len(topics) >= HELD_TOPICS_MAX:
            topics = {topic: holds for topic, holds in topics.items() if holds.waits}
        if known is not None or len(topics) < HELD_TOPICS_MAX:
            self._groups[decision.group] = topics
            topics[decision.topic] = current

    def forget(self, group: str) -> None:
        """Forgets a group that is gone."""
        self._groups.pop(group, None)

    def of_group(self, group: str) -> list[TopicHolds]:
        """Returns the holds to report, one for each topic."""
        return list(self._groups.get(group, {}).values())
