"""The two ends of a queue's time at one member: what happens before its first message, and before its lock is released.

Used by `loops.ownership` and `loops.member_queues`. A queue leaves in the order that `loops.ownership` describes. Its
running listener calls end first (OC-8, OC-13, RB-25). A concurrent queue waits for `drain_ms`; messages that are not
finished then are delivered twice, which such a listener must expect. An ordered queue waits until its call has ended.
Otherwise the next owner would process the same message group at the same time, and a message whose only delivery
succeeded could go to the dead letters. So that a call without end cannot keep the queue, the wait ends after the
broker's `revoke_ms`, when the broker would take the queue. The end of the consumer limits all waits to `drain_ms`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress

from evenq.client.loops.clients.wakeup import Wakeup
from evenq.client.loops.groups.locks import Locks
from evenq.client.loops.groups.rebalance_listener import RebalanceListener
from evenq.client.loops.groups.sessions import BrokerSessions
from evenq.client.loops.reading.progress import GroupProgress
from evenq.client.loops.reading.pulling import PullLoop
from evenq.client.loops.reading.read_plan import ReadPlan
from evenq.errors import Error
from evenq.model import MessageQueue
from evenq.model.names import RETRY_PREFIX
from evenq.runtime.clock import Clock

log = logging.getLogger(__name__)


class HandOver:
    """The hand-overs of one consumer."""

    def __init__(
        self,
        read_plan: ReadPlan,
        *,
        sessions: BrokerSessions,
        progress: GroupProgress,
        locks: Locks,
        listener: RebalanceListener,
        clock: Clock,
    ) -> None:
        self._plan, self._sessions, self._progress, self._locks = read_plan, sessions, progress, locks
        self._listener, self._clock = listener, clock
        self._closed_ms: int | None = None
        """Time of `close`, which limits the waits of ordered queues from then on."""

    def close(self, pulls: Iterable[PullLoop]) -> None:
        """Limits all waits, also running ones, to `drain_ms` from now: the consumer closes."""
        self._closed_ms = self._clock.monotonic_ms()
        for pulling in pulls:
            pulling.quiet.set()

    async def gained(self, queue: MessageQueue, *, first: bool) -> None:
        """Notifies the user before the first message. `first`: the start is stored before, if possible."""
        if first:
            await self._progress.now(queue)
        if not queue.topic.startswith(RETRY_PREFIX):
            await self._listener.gained(queue)
        self._sessions.beat()  # RB-38

    async def leave(self, pulling: PullLoop, *, fenced: bool) -> None:
        """Drains, commits, notifies the user and releases the lock."""
        process, queue, plan = pulling.process, pulling.process.queue, self._plan
        await self.drained(pulling)
        if not fenced:  # this member still holds the lock, so its commits are accepted
            if plan.finish is not None:
                await plan.finish(process)
            if plan.attempts_max is not None and process.given_until:
                with suppress(Error):  # deliveries without a result: the next owner repeats them
                    await self._locks.count_deliveries(process, {}, given_until=process.given_until)
            if plan.auto_commit:
                self._progress.table.advance(queue, process.committable)
            # A lost commit would repeat messages at the next owner; an unreachable broker must not block the hand-over.
            for pause_ms in (50, 200, 0):
                if await self._progress.now(queue):
                    break
                await self._clock.sleep_ms(pause_ms)
        self._progress.table.forget(queue)
        log.debug("group %s: queue %s handed over at offset %d", plan.group, queue, process.committable)
        if not queue.topic.startswith(RETRY_PREFIX):
            await self._listener.lost(queue)
        if plan.clustering and not fenced:
            # Last: the next owner starts at the committed offset as soon as it has the lock (decision 8).
            await self._locks.release(queue)

    async def drained(self, pulling: PullLoop) -> None:
        """Waits until no listener call of the queue runs, or the limit is reached."""
        began_ms, queue, drain_ms = self._clock.monotonic_ms(), pulling.process.queue, self._plan.options.drain_ms
        wakeup = Wakeup(self._clock, pulling.quiet)
        while pulling.process.busy:
            if not pulling.process.ordered:
                limit, limit_ms = "drain_ms", drain_ms
            elif self._closed_ms is None:
                limit, limit_ms = "revoke_ms of the broker", self._sessions.revoke_ms(queue.broker_name)
            else:
                limit, limit_ms = "drain_ms", drain_ms + max(0, self._closed_ms - began_ms)
            left_ms = began_ms + limit_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                log.warning(
                    "group %s: messages of %s were not finished within %d ms (%s), they may be delivered again%s",
                    self._plan.group,
                    queue,
                    limit_ms,
                    limit,
                    " while the listener still runs" * pulling.process.ordered,
                )
                return
            await wakeup.wait(left_ms)
