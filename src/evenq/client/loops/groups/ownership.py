"""Which queues are ours: the rebalance service and the carrying out of its commands (CS-3, RB-2 to RB-34).

The table (`core.rebalance`) decides, this loop does: locks, start offsets, pull loops, draining, commits, unlocks.
The hand-over is clean: a queue that leaves stops pulling at once, what listeners have seen is finished
(`loops.drains`), the offset is committed, the user's callback has heard of it, and only then is the lock let go.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from evenq.client.core.calls import ConsumerCalls, LockAnswer
from evenq.client.core.groups import rebalance
from evenq.client.core.groups.overlaps import OVERLAP_MS, Overlaps
from evenq.client.core.groups.rebalance import RebalanceTable
from evenq.client.core.reading.past_deliveries import PastDeliveries
from evenq.client.core.reading.process_queue import ProcessQueue
from evenq.client.core.reading.thresholds import Thresholds
from evenq.client.loops.clients.troubles import Troubles
from evenq.client.loops.clients.wakeup import Wakeup
from evenq.client.loops.groups.assignment_source import AssignmentSource
from evenq.client.loops.groups.drains import Drains
from evenq.client.loops.groups.locks import Locks
from evenq.client.loops.groups.rebalance_listener import RebalanceListener
from evenq.client.loops.groups.sessions import BrokerSessions
from evenq.client.loops.groups.topic_order import TopicOrder
from evenq.client.loops.reading.progress import GroupProgress
from evenq.client.loops.reading.pulling import Pulling
from evenq.client.loops.reading.read_plan import ReadPlan
from evenq.client.loops.reading.starting import Starting
from evenq.client.loops.routes.leader_watch import LeaderWatch
from evenq.client.loops.routes.route_book import RouteBook
from evenq.errors import Error, PreconditionFailed
from evenq.model import MessageQueue, QueueOffset
from evenq.model.names import RETRY_PREFIX
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

__all__ = ["Ownership"]

log = logging.getLogger(__name__)

SETTLE_MS = 1_000
"""How long the first round waits for all brokers to take us in, so that it does not divide among half of the
members."""


class Ownership:
    """The rebalance service of one consumer."""

    def __init__(
        self,
        read_plan: ReadPlan,
        *,
        calls: ConsumerCalls,
        routes: RouteBook,
        leaders: LeaderWatch,
        sessions: BrokerSessions,
        progress: GroupProgress,
        assignment: AssignmentSource,
        rebalance_listener: RebalanceListener,
        clock: Clock,
        rng: random.Random,
        arrived: Callable[[ProcessQueue], None],
        troubles: Troubles,
    ) -> None:
        """`arrived` hears of each answered pull."""
        self._calls = calls
        self._routes = routes
        self._leaders = leaders
        self._sessions = sessions
        self._progress = progress
        self._assignment = assignment
        self._rebalance_listener = rebalance_listener
        self._clock = clock
        self._rng = rng
        self._troubles = troubles
        self._group, self._options, self._subscriptions = read_plan.group, read_plan.options, read_plan.subscriptions
        self._clustering = read_plan.clustering
        self._order = TopicOrder(read_plan, routes)
        self._auto_commit = read_plan.auto_commit
        self._any_copy = read_plan.any_copy
        self._starting = Starting(
            read_plan, calls=calls, progress=progress, address=self._address, routes=routes, troubles=troubles,
            generation=assignment.generation, clock=clock,
        )  # fmt: skip
        self._locks = Locks(
            read_plan, calls=calls, sessions=sessions, address=self._address, generation=assignment.generation,
            on_answer=self._table_locked, spawn=self._spawn, troubles=troubles,
        )  # fmt: skip
        self._arrived = arrived
        self._drains = Drains(group=read_plan.group, options=read_plan.options, sessions=sessions, clock=clock)
        self.paused = False
        """CS-9: no pulls. Rounds go on: what others are to read is handed over."""
        self._table = RebalanceTable(locks=read_plan.clustering)
        self._pulls: dict[MessageQueue, Pulling] = {}
        self._pull_tasks: dict[MessageQueue, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wakeup = Wakeup(clock)
        self._attempts_max, self._finish = read_plan.attempts_max, read_plan.finish
        self._past: dict[MessageQueue, PastDeliveries] = {}
        """Of queues that are ours in a moment."""
        self._overlaps = Overlaps()
        self._retry_soon = False
        self._unknown: set[str] = set()
        self._relocking: set[str] = set()
        self._rounds = 0
        self._started_ms = clock.monotonic_ms()
        self._closing = False

    def wake(self) -> None:
        """Rebalance now (CS-3: also if given before the wait)."""
        self._wakeup.wake()

    async def run(self) -> None:
        """Rebalance at the start, at each wake-up and every 20 s, for ever (CS-3, CS-5)."""
        self.wake()
        while not self._closing:
            await self._wakeup.wait(self._options.rebalance_interval_ms)
            if not self._closing:
                await self._round()

    @property
    def balanced(self) -> bool:
        """True if every topic's share is known and worked on (RB-3, RB-4, RB-10, RB-15)."""
        return not self._unknown and self._table.balanced() and self._rounds > 0

    def owned(self) -> list[MessageQueue]:
        """Queues that are being pulled, sorted."""
        return sorted(self._table.working())

    def settled(self, process: ProcessQueue) -> None:
        """A chunk of a queue ended: progress in memory (CC-7), room, maybe the end of draining."""
        pulling = self._pulls.get(process.queue)
        if pulling is None or pulling.process is not process:
            return
        if self._auto_commit:
            self._progress.table.advance(process.queue, process.committable)
        pulling.settled()

    def processes(self) -> list[ProcessQueue]:
        """The snapshots of all queues, also of those that leave."""
        return [pulling.process for pulling in self._pulls.values()]

    def process(self, queue: MessageQueue) -> ProcessQueue | None:
        """The snapshot of a queue that is ours."""
        pulling = self._pulls.get(queue)
        return None if pulling is None or pulling.process.dropped else pulling.process

    def pause(self, queues: Iterable[MessageQueue] | None = None, *, paused: bool = True) -> None:
        """Stop the pulls of these queues, or of all that are ours now and later (CS-9); or go on."""
        if queues is None:
            self.paused = paused
        for queue in list(self._pulls) if queues is None else queues:
            pulling = self._pulls.get(queue)
            if pulling is not None:
                pulling.process.paused = paused
                pulling.process.last_pull_ms = self._clock.monotonic_ms()  # a pause is no stall (RB-20)
                pulling.settled()
        if not paused:
            self.wake()

    def seek(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Read an owned queue from `offset` on; what is in hand is forgotten. Raises PreconditionFailed."""
        pulling = self._pulls.get(queue)
        if pulling is None or pulling.process.dropped:
            raise PreconditionFailed(
                f"queue {queue} is not owned by this consumer now; seek only in the queues that `queues` returns"
            )
        paused = pulling.process.paused
        self._pull_tasks.pop(queue).cancel()
        pulling.process.drop()
        self._progress.table.rewind(queue, offset, later=not self._auto_commit)
        fresh = self._pulling(queue, offset)
        fresh.process.paused = paused
        self._pulls[queue] = fresh
        self._pull_tasks[queue] = spawn(fresh.run(), name=f"evenq-pull-{queue}")

    def limits(self, topic: str) -> Thresholds:
        """Flow control per queue at the present number of the topic's queues (RB-39, RB-40)."""
        options = self._options
        base = Thresholds(
            messages=options.pull_threshold_queue, bytes=options.pull_threshold_bytes_queue, span=options.span_max
        )
        return base.spread(
            messages_topic=options.pull_threshold_topic,
            bytes_topic=options.pull_threshold_bytes_topic,
            queues=sum(queue.topic == topic for queue in self._pulls),
        )

    def relock(self, broker_name: str) -> None:
        """The broker may have forgotten our locks (it restarted, or a pull was refused): take them again."""
        if self._clustering and broker_name not in self._relocking:
            self._relocking.add(broker_name)
            self._spawn(self._relock(broker_name), f"evenq-relock-{broker_name}")

    def asked_for(self, queue: MessageQueue) -> None:
        """Somebody waits for a queue that its broker thinks is ours: let go, if it is not."""
        if self._clustering and not self._table.known(queue):
            self._spawn(self._locks.release(queue), f"evenq-unlock-{queue}")

    def reset(self, queues: Iterable[MessageQueue]) -> None:
        """An operator moved the group's offsets: what is in hand is left, and the queues are taken anew from there."""
        for queue in queues:
            log.warning("group %s: an operator changed the offset of %s, reading starts there", self._group, queue)
            self._perform(self._table.lost(queue))

    def broker_leaves(self, broker_name: str) -> None:
        """The broker is closing: finish and commit what we hold of its queues while it still answers; once it is back
        they are taken again at the committed offset.
        """
        queues = [queue for queue in self._pulls if queue.broker_name == broker_name]
        if self._clustering and queues:
            log.info("group %s: broker %s stops, releasing its %d queues", self._group, broker_name, len(queues))
            self._perform(self._table.vacate(queues))

    async def close(self) -> None:
        """Hand everything over; bounded by `drain_ms` and a few calls."""
        self._closing = True
        self._drains.close(self._pulls.values())
        self._perform(self._table.close())
        deadline_ms = self._clock.monotonic_ms() + self._options.drain_ms + 2 * self._options.timeout_ms
        while self._pulls and self._clock.monotonic_ms() < deadline_ms:
            await self._clock.sleep_ms(10)
        for task in list(self._tasks) + list(self._pull_tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._pull_tasks.values(), return_exceptions=True)

    async def _round(self) -> None:
        brokers: dict[str, str] = {}
        for topic in list(self._subscriptions):
            try:
                brokers.update((await self._routes.get(topic)).addresses)
            except Error as error:
                if not topic.startswith(RETRY_PREFIX):  # RB-2: made with its first message
                    self._troubles.failed(f"topic {topic}", error)
                    self._soon()
        # A broker that left the route must still hear of progress and of what is let go; and as long as its queues are
        # ours it is thought to restart: the line waits for it.
        for name in self._table.brokers():
            if address := self._routes.met(name):
                brokers.setdefault(name, address)
        if brokers:
            self._sessions.want(brokers)
        for broker_name in self._sessions.suspect():
            self.relock(broker_name)
        for queue in self._locks.owed(self._table.known):
            self.asked_for(queue)
        waited_ms = self._clock.monotonic_ms() - self._started_ms
        if self._clustering and not self._sessions.settled and waited_ms < SETTLE_MS:
            self._soon()  # the last Welcome wakes us earlier
            return
        self._unknown.clear()
        for topic in list(self._subscriptions):
            if self._clustering and self._assignment.asks:
                # The answer may take as long as a restarted broker looks about.
                self._perform(self._table.retake(topic, reachable=self._sessions.up))
            assigned: list[MessageQueue] | None = None
            try:
                assigned = await self._assignment.assigned(topic)
            except Exception as error:  # RB-2, RB-12: this topic stays as it is, whatever its strategy raised
                if not isinstance(error, Error):
                    log.exception(
                        "group %s: applying the assignment of topic %s failed, its queues stay as they are (%s)",
                        self._group, topic, self._assignment.who,
                    )  # fmt: skip
                elif not topic.startswith(RETRY_PREFIX):
                    self._troubles.failed(f"topic {topic}", error)
            if assigned is not None:
                self._troubles.well(f"topic {topic}")
            if assigned is None:
                self._unknown.update(() if topic.startswith(RETRY_PREFIX) else (topic,))
            elif not self._closing:
                commands = self._table.assign(topic, assigned, stalled=self._stalled)
                self._overlaps.assigned(topic, assigned)
                if commands:  # RB-14
                    self._assignment.log_share(topic, assigned)
                self._perform(commands)
        if self._assignment.undecided:
            self._assignment.undecided = False
            self._soon()  # the decision wakes us earlier, if there is a rebalancer to make it
        self._rounds += 1
        if not self._closing:
            self._perform(self._table.keep_topics(self._subscriptions))

    def _stalled(self, queue: MessageQueue) -> bool:
        """RB-20, but a queue whose pulls are put off by flow control is slow, not stalled."""
        process = self._pulls[queue].process
        idle = process.stalled(now_ms=self._clock.monotonic_ms(), idle_ms=self._options.pull_idle_ms)
        return idle and not process.full(self.limits(queue.topic))

    def _perform(self, commands: Sequence[rebalance.Command]) -> None:
        locks: dict[str, list[MessageQueue]] = {}
        for command in commands:
            match command:
                case rebalance.Lock(queue):
                    locks.setdefault(queue.broker_name, []).append(queue)
                case rebalance.FindStart(queue):
                    self._spawn(self._find_start(queue), f"evenq-start-{queue}")
                case rebalance.Start(queue, offset, first):
                    self._start(queue, offset, first=first)
                case rebalance.Stop(queue, fenced, stalled):
                    self._stop(queue, fenced=fenced, stalled=stalled)
                case rebalance.Unlock(queue):
                    self._spawn(self._locks.release(queue), f"evenq-unlock-{queue}")
                case rebalance.RetrySoon():
                    self._soon()
        for broker_name, queues in locks.items():
            self._spawn(self._locks.take(broker_name, queues), f"evenq-lock-{broker_name}")

    def _table_locked(self, queue: MessageQueue, locked: LockAnswer | None) -> None:
        self._past.pop(queue, None)
        if locked is not None or not self._sessions.up(queue.broker_name):
            self._overlaps.over(queue)
        elif self._overlaps.refused(queue, self._clock.monotonic_ms()):
            self._assignment.log_overlap(queue, OVERLAP_MS)
        if locked is not None and self._attempts_max is not None and (locked.given_until or locked.counts):
            self._past[queue] = PastDeliveries(locked.given_until, dict(locked.counts), self._attempts_max())
        committed = -1 if locked is None else locked.committed
        if locked is not None:
            self._progress.table.identify(queue, locked.uid)
            if committed >= 0:
                self._starting.has_begun(queue)
        self._perform(self._table.locked(queue, granted=locked is not None, committed=committed))

    async def _relock(self, broker_name: str) -> None:
        # Before the question: after another silence meanwhile its answer is worth nothing (`LockTrust.confirm`).
        suspicions = self._sessions.suspicions(broker_name)
        try:
            unclear = await self._ask_again(broker_name)
        finally:
            self._relocking.discard(broker_name)
        if unclear or not self._sessions.confirm(broker_name, suspicions):
            self._soon()
            return
        for process in self.processes():  # what was held back until now
            if process.queue.broker_name == broker_name and not process.dropped:
                self._arrived(process)

    async def _ask_again(self, broker_name: str) -> bool:
        """Take the locks of our queues there anew, and leave those that are ours no more; True: it was not answered."""
        queues = [queue for queue in sorted(self._table.working()) if queue.broker_name == broker_name]
        return await self._locks.renew(queues, self._renewed)

    def _renewed(self, locked: LockAnswer) -> None:
        known = self._progress.table.uid(locked.queue)
        if known and locked.uid and locked.uid != known:
            self._replaced(locked.queue)
        elif not locked.granted or self._passed(locked.queue, locked.committed):
            log.warning("group %s: queue %s was lost to %s", self._group, locked.queue, locked.holder or "no member")
            self._perform(self._table.lost(locked.queue))

    def _passed(self, queue: MessageQueue, committed: int) -> bool:
        """True if another member had the queue meanwhile and came further than we did."""
        process, table = self.process(queue), self._progress.table
        if process is None or table.rewound(queue):
            return False
        return committed > max(process.committable, table.memory(queue))

    def _replaced(self, queue: MessageQueue) -> None:
        """What is in hand and its offsets are of a topic that was deleted: the new one's queue is taken anew."""
        log.warning(
            "group %s: topic %s was deleted and created again, %s is read anew", self._group, queue.topic, queue
        )
        self._perform(self._table.lost(queue))

    async def _find_start(self, queue: MessageQueue) -> None:
        offset, first = await self._starting.find(queue)
        self._perform(self._table.start_found(queue, offset, first=first))

    def _start(self, queue: MessageQueue, offset: QueueOffset, *, first: bool) -> None:
        self._progress.table.begin(queue, offset, stored=not first or not self._auto_commit)
        pulling = self._pulls[queue] = self._pulling(queue, offset)
        self._pull_tasks[queue] = spawn(self._begin(pulling, first=first), name=f"evenq-pull-{queue}")
        log.debug("group %s: queue %s gained at offset %d", self._group, queue, offset)
        if self._clustering and self._sessions.closing(queue.broker_name):  # it was granted just before
            self._perform(self._table.vacate([queue]))

    def _pulling(self, queue: MessageQueue, offset: QueueOffset) -> Pulling:
        now_ms, past = self._clock.monotonic_ms(), self._past.pop(queue, None)
        ordered, uid = self._order.kept_in(queue.topic), self._progress.table.uid(queue)
        process = ProcessQueue(queue, offset, now_ms=now_ms, ordered=ordered, past=past, uid=uid)
        process.paused = self.paused
        return Pulling(
            process,
            calls=self._calls,
            routes=self._routes,
            leaders=self._leaders,
            clock=self._clock,
            rng=self._rng,
            group=self._group,
            options=self._options,
            expression=self._subscriptions[queue.topic],
            generation=lambda: self._assignment.generation(queue.topic),
            limits=lambda: self.limits(queue.topic),
            committed=lambda: self._progress.table.memory(queue) if self._clustering and self._auto_commit else -1,
            arrived=self._arrived,
            fenced=lambda: self.relock(queue.broker_name),
            replaced=lambda: self._replaced(queue),
            owner=self._clustering,
            troubles=self._troubles,
            any_copy=self._any_copy,
        )

    async def _begin(self, pulling: Pulling, *, first: bool) -> None:
        """The user hears of the queue before its first message. `first`: a reader of chosen queues, or of all, keeps
        its start before it reads, if it can.
        """
        if first:
            await self._progress.now(pulling.process.queue)
        if not pulling.process.queue.topic.startswith(RETRY_PREFIX):
            await self._rebalance_listener.gained(pulling.process.queue)
        self._sessions.beat()  # RB-38
        await pulling.run()

    def _stop(self, queue: MessageQueue, *, fenced: bool, stalled: bool) -> None:
        if stalled:
            idle_ms = self._options.pull_idle_ms
            log.error("group %s: queue %s was not pulled for %d ms, it is locked anew", self._group, queue, idle_ms)
        pulling = self._pulls[queue]
        self._pull_tasks.pop(queue).cancel()
        pulling.process.drop(fenced=fenced)
        self._spawn(self._leave(pulling, fenced=fenced), f"evenq-leave-{queue}")

    async def _leave(self, pulling: Pulling, *, fenced: bool) -> None:
        process, queue = pulling.process, pulling.process.queue
        self._arrived(process)  # what lies below finished messages must still run
        await self._drains.finished(pulling)
        if not fenced:
            if self._finish is not None:
                await self._finish(process)
            if self._attempts_max is not None and process.given_until:
                await self._leave_unfinished(process)
            if self._auto_commit:
                self._progress.table.advance(queue, process.committable)
            # A lost commit would repeat messages at the next owner; a broker that is away must not keep us from
            # leaving.
            for pause_ms in (50, 200, 0):
                if await self._progress.now(queue):
                    break
                await self._clock.sleep_ms(pause_ms)
        self._progress.table.forget(queue)
        log.debug("group %s: queue %s handed over at offset %d", self._group, queue, process.committable)
        if not queue.topic.startswith(RETRY_PREFIX):
            await self._rebalance_listener.lost(queue)
        if self._clustering and not fenced:
            # Last: the next owner starts at the committed offset in the moment that it has the lock (decision 8).
            await self._locks.release(queue)
        del self._pulls[queue]
        self._sessions.beat()  # RB-38
        self._perform(self._table.left(queue))

    async def _leave_unfinished(self, process: ProcessQueue) -> None:
        """Listeners had what the next owner is given again: that was a delivery."""
        with suppress(Error):  # reported
            await self.count_deliveries(process, {}, given_until=process.given_until)

    async def count_deliveries(self, process: ProcessQueue, counts: Mapping[int, int], *, given_until: int = 0) -> None:
        """Let the queue's broker note how often messages were delivered. Raises what the call does, and reports it; a
        refusal makes us ask whose the queue is.
        """
        try:
            await self._locks.count_deliveries(process, counts, given_until=given_until)
        except PreconditionFailed:
            self.relock(process.queue.broker_name)
            raise

    async def _address(self, queue: MessageQueue) -> str:
        return await self._routes.address(queue.topic, queue.broker_name)

    def _soon(self) -> None:
        if not self._retry_soon:
            self._retry_soon = True
            self._spawn(self._wake_later(), "evenq-rebalance-soon")

    async def _wake_later(self) -> None:
        await self._clock.sleep_ms(self._options.lock_retry_ms)
        self._retry_soon = False
        self.wake()

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        task = spawn(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("group %s: %s failed with an unexpected error", self._group, task.get_name(), exc_info=error)
            self.wake()
