"""Queues of a query that shares its topics with other members: `assignment=shared`.

Called by the runner of `stream`; `shared_member` is the member of the group. Invariants:
- Queues of a batch are claimed before it is planned, and are not released before Spark has logged the batch.
- A gained queue begins at the group's progress, and the next offset contains that start (`from`).
- An offset contains exactly the queues that the query owned when it was made. So a restart knows for which queues the
  group's progress may lack its own unreported batches.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial

from evenq import errors
from evenq.model.queue import MessageQueue
from pyspark_evenq.brokers import cluster
from pyspark_evenq.brokers.watch import QueueWatch
from pyspark_evenq.member.exclusive import differ
from pyspark_evenq.member.holding import HeldQueues
from pyspark_evenq.member.shared_member import Reached, SharedMember, Tenure
from pyspark_evenq.options.source import ReadOptions
from pyspark_evenq.plan.checkpoint import LastBatch
from pyspark_evenq.plan.losses import named
from pyspark_evenq.plan.offsets import Positions, StreamOffset
from pyspark_evenq.plan.planner import Bounds, trimmed
from pyspark_evenq.plan.positions import QueueState

log = logging.getLogger(__name__)
LEAVE_MS = 1_700  # less than the 2 s that a stopped query may take


class SharedQueues:
    """Implementation of `holding.Queues`."""

    def __init__(self, options: ReadOptions, watch: QueueWatch, last_batch: LastBatch) -> None:
        self._options, self._watch, self._last_batch = options, watch, last_batch
        self.member = SharedMember(options, self._reached)
        self.client_id = self.member.client_id
        self._new: Positions = {}
        self._frozen: Mapping[MessageQueue, Bounds] | None = None
        self._balanced = False
        self._claimed: dict[MessageQueue, Tenure] = {}
        self._tenures: dict[MessageQueue, Tenure] = {}
        """Queue in the newest offset -> its tenure."""
        self._begins: dict[MessageQueue, tuple[Tenure, int]] = {}
        """Queue -> tenure without a batch yet, and its start."""
        self._start: StreamOffset | None = None
        self._inherited: dict[MessageQueue, int] | None = None
        """Queue of the previous run -> its end there, until this run gets the queue."""
        self._replayed: Positions = {}

    def starts(self, chosen: Positions, states: Mapping[MessageQueue, QueueState]) -> dict[MessageQueue, int]:
        """Returns the group's progress, otherwise the start of the options: other members may have read further."""
        return {
            queue: states[queue].committed if states[queue].committed >= 0 else offset
            for queue, offset in chosen.items()
        }

    def pin(self, starts: Positions) -> None:
        """Keeps starts for the first batch: with a checkpoint they would be progress that the group has not made."""
        self._new = starts

    def begin(self, start: StreamOffset, *, first: bool, frozen: Mapping[MessageQueue, Bounds] | None) -> None:
        route = self._watch.route()
        if first:
            self._store(self._new, route)
        if self._inherited is None:
            self._inherited = {} if first else dict(start.ends)  # once: later offsets are of this run's tenures
        self._new, self._start, self._frozen = {}, start, frozen
        self.member.read({queue.topic for queue in route})
        # Spark requests the next batch only when the last one is logged, so its progress may be reported.
        self.member.done(self._read_up_to(start))
        if frozen is not None and not self._balanced:
            self._balanced = self.member.until_balanced(self._options.read_timeout_ms)
            if not self._balanced:
                raise cluster.BrokersAway(
                    f"group {self._options.group} gave this query no share within {self._options.read_timeout_ms} ms "
                    "(readTimeoutMs); `evenq group doctor` says why"
                )

    def wait(self, start: StreamOffset) -> None:
        known = {queue: offset for queue, (_, offset) in self._begins.items()}
        known |= {queue: start.ends[queue] for queue in self._tenures if queue in start.ends}
        if known:
            self._watch.refresh(known, only=known.keys())
        else:
            self.member.until_changed(self._options.idle_wait_ms)

    def hold(self, start: StreamOffset) -> HeldQueues:
        self._claimed, route = self.member.claim(), self._watch.route()
        if self._claimed.keys() - route.keys():
            self._watch.reroute()
        self._tenures = {queue: one for queue, one in self._tenures.items() if one.is_same(self._claimed.get(queue))}
        sure = {queue: one for queue, one in self._claimed.items() if one.sure and queue in route}
        gained = self._gained({queue: one for queue, one in sure.items() if queue not in self._tenures})
        if self._frozen is not None:
            frozen = self._frozen
            # `availableNow` ends at the ends known at its start; a queue that others have read further is not needed.
            gained = {q: offset for q, offset in gained.items() if q in frozen and offset <= frozen[q].high}
        kept = {queue: start.ends[queue] for queue in self._tenures}
        queues = frozenset((kept.keys() & sure.keys()) | gained.keys())
        return HeldQueues(queues=queues, ends={**kept, **gained}, moved=gained, is_share=True)

    def without(self, start: StreamOffset, held: HeldQueues, late: Collection[MessageQueue]) -> HeldQueues:  # noqa: ARG002
        return replace(
            held,
            ends={queue: offset for queue, offset in held.ends.items() if queue not in late},
            moved={queue: offset for queue, offset in held.moved.items() if queue not in late},
        )

    def planned(self, end: StreamOffset | None) -> bool:
        """Keeps only the queues that the batch reads from being released."""
        if end is None or self._start is None:
            self.member.planned(())
            return True
        before = self._start.ends
        ours = {queue: self._claimed[queue] for queue in end.ends}
        read = [one for queue, one in ours.items() if end.ends[queue] > end.starts.get(queue, before.get(queue, -1))]
        if not self.member.planned(read):
            return False
        self._tenures = ours
        self._begins = {queue: at for queue, at in self._begins.items() if queue not in ours}
        return True

    def has(self, queue: MessageQueue) -> bool:
        return queue in self._claimed

    def offer(self, logged: StreamOffset, but: Collection[MessageQueue] = ()) -> None:
        """Does nothing: `begin` reports."""

    def forget(self, queues: Collection[MessageQueue]) -> None:
        """Does nothing: reads under another tenure are never reported."""

    def logged(self, start: StreamOffset, end: StreamOffset) -> None:
        if self._start is None:
            self._replayed = {**start.ends, **end.starts}

    def done(self, end: StreamOffset) -> None:
        self.member.last(self._read_up_to(end))

    def flush(self) -> None:
        self.member.report()

    def close(self) -> None:
        self.member.leave(timeout_ms=LEAVE_MS)

    def _read_up_to(self, end: StreamOffset) -> dict[MessageQueue, tuple[Tenure, int]]:
        # An offset of a queue that was created again would be progress that the group has not made.
        anew = {entry.queue for entry in trimmed(end.ends, self._watch.bounds, end.uids) if entry.anew}
        return {
            queue: (tenure, end.ends[queue])
            for queue, tenure in self._tenures.items()
            if queue in end.ends and queue not in anew
        }

    def _reached(self) -> Reached | None:
        """Returns the progress of the last batch, None until it is done. Called in a thread of the member."""
        end = self._last_batch.done()
        return None if end is None else self._read_up_to(end)

    def _gained(self, new: Mapping[MessageQueue, Tenure]) -> dict[MessageQueue, int]:
        """Returns starts of gained queues: the group's progress. If the previous run came further than it reported,
        `onOffsetConflict` decides. Raises OffsetConflict.
        """
        decided = {queue: at for queue, at in self._begins.items() if at[0].is_same(self._claimed.get(queue))}
        first = {queue: one for queue, one in new.items() if queue not in decided}
        past = {} if self._inherited is None else self._inherited
        ahead = {queue: past[queue] for queue, one in first.items() if past.get(queue, -1) > one.begins}
        differing = {queue: first[queue].begins for queue in ahead if first[queue].begins != self._replayed.get(queue)}
        if differing and differ(self._options.membership.on_conflict, self._options.group, differing, ahead):
            ahead = {queue: offset for queue, offset in ahead.items() if queue not in differing}
        self._begins = decided | {queue: (one, ahead.get(queue, one.begins)) for queue, one in first.items()}
        for queue in first:
            past.pop(queue, None)  # once for each queue: before a second gain, others may have read it
        if ahead:
            self.member.note({queue: (first[queue], offset) for queue, offset in ahead.items()})
        if first and self._frozen is None:
            self._watch.ask(first)
        return {queue: offset for queue, (_, offset) in self._begins.items() if queue in new}

    def _store(self, starts: Positions, route: cluster.Route) -> None:
        here = {queue: route[queue] for queue in starts if queue in route}
        for address, queues in cluster.by_address(here).items():
            some = {queue: starts[queue] for queue in queues}
            store = partial(cluster.commit, address, self._options.group, some, client_id=self.client_id)
            try:
                cluster.persist("where the group begins", store, timeout_ms=self._options.read_timeout_ms)
            except errors.PreconditionFailed:  # other members hold the queues, and stored starts before they read
                log.info("group %s starts on %s at the offsets of other members", self._options.group, named(queues))
