"""The rebalance service of one consumer: takes, reads and hands over its queues (CS-3, RB-2 to RB-34).

**Problem.** The members of a group share the queues of its topics, and the shares change: members come and go, brokers
restart, topics get queues. A planned move must lose nothing, repeat nothing, and never have two members process one
queue at the same time.

**Idea.** `core.rebalance` keeps the state of each queue and returns commands. This loop executes them and reports the
results. `loops.member_queues` has the pull loops. A round fetches routes and assignments; rounds run at the start, at
each wake-up and every 20 s (CS-3, CS-5). The lock of a queue at its broker is the right to read it (decision 17). A
queue leaves in this order:

    1. pulls stop; messages that no listener got are released
    2. running listener calls end, within a limit (`loops.hand_over`)
    3. deliveries without a result are counted, and the offset is committed, in at most three tries
    4. the user's `on_rebalance` returns
    5. the lock is released; the next owner starts at the committed offset (decision 8)

If another member may hold the lock already (fenced), steps 3 and 5 are left out.

**Invariants.**
- An unknown or failed assignment changes nothing for its topic (RB-12).
- When locks become suspect, held messages wait until `_relock` has confirmed the locks. Lost queues leave fenced.
- A release without an answer is repeated in later rounds, unless the queue is assigned again (`Locks.owed`).

**Example.** Member A owns queues 0 to 7 when B joins. A's next round gets queues 0 to 3. The listener works on a
message of queue 4 for another 0.8 s, within `drain_ms` (3 s). Then A commits offset 4,711, calls `on_rebalance`
and releases the lock. B's lock request has waited at the broker (`lock_wait_ms`, 3 s). Its answer contains 4,711, and
B pulls from there.

References: RB-15 (balanced), RB-20 (stalled), RB-38, CS-9 (pause); decisions 8, 17, 22 and 23;
docs/internals/consumers.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from evenq.client.core.calls import LockAnswer
from evenq.client.core.groups import rebalance
from evenq.client.core.groups.rebalance import OVERLAP_MS, Overlaps, RebalanceTable
from evenq.client.core.reading.process_queue import ProcessQueue
from evenq.client.loops.clients.troubles import Troubles
from evenq.client.loops.clients.wakeup import Wakeup
from evenq.client.loops.groups.assignment_source import AssignmentSource
from evenq.client.loops.groups.hand_over import HandOver
from evenq.client.loops.groups.locks import Locks
from evenq.client.loops.groups.member_queues import MemberQueues
from evenq.client.loops.groups.rebalance_listener import RebalanceListener
from evenq.client.loops.groups.sessions import BrokerSessions
from evenq.client.loops.reading.progress import GroupProgress
from evenq.client.loops.reading.pulling import PullLoop
from evenq.client.loops.reading.read_plan import ReadPlan
from evenq.client.loops.reading.starting import StartOffsets
from evenq.client.loops.routes.route_book import RouteBook
from evenq.errors import Error
from evenq.model import MessageQueue, QueueOffset
from evenq.model.names import RETRY_PREFIX
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

if TYPE_CHECKING:
    from evenq.client.rpc.sessions import RpcConsumerCalls

log = logging.getLogger(__name__)

SETTLE_MS = 1_000
"""Longest time for which the first round waits for all sessions, so that it divides among all members."""


class Ownership:
    def __init__(
        self,
        read_plan: ReadPlan,
        *,
        calls: RpcConsumerCalls,
        pull_loop: Callable[..., PullLoop],
        routes: RouteBook,
        sessions: BrokerSessions,
        progress: GroupProgress,
        assignment: AssignmentSource,
        rebalance_listener: RebalanceListener,
        clock: Clock,
        arrived: Callable[[ProcessQueue], None],
        troubles: Troubles,
    ) -> None:
        """`arrived` is called after each answered pull."""
        self._plan, self._routes, self._sessions, self._progress = read_plan, routes, sessions, progress
        self._assignment, self._clock, self._troubles, self._arrived = assignment, clock, troubles, arrived
        self._group = read_plan.group
        self._starting = StartOffsets(
            read_plan,
            calls=calls,
            progress=progress,
            address=self._address,
            routes=routes,
            troubles=troubles,
            generation=assignment.generation,
            clock=clock,
        )
        self.locks = Locks(
            read_plan,
            calls=calls,
            sessions=sessions,
            address=self._address,
            generation=assignment.generation,
            on_answer=self._table_locked,
            spawn=self._spawn,
            fenced=self.relock,
            troubles=troubles,
        )
        self._hand_over = HandOver(
            read_plan, sessions=sessions, progress=progress, locks=self.locks, listener=rebalance_listener, clock=clock
        )
        self.held = MemberQueues(
            read_plan,
            routes=routes,
            pull_loop=partial(pull_loop, read_plan=read_plan, fenced=self.relock, replaced=self._replaced),
            progress=progress,
            hand_over=self._hand_over,
            clock=clock,
        )
        self._table = RebalanceTable(locks=read_plan.clustering)
        """The states of all queues; each of its commands is executed once, by `_perform`."""
        self._tasks: set[asyncio.Task[None]] = set()
        """All other running tasks; `close` cancels those that are left."""
        self._wakeup = Wakeup(clock)
        self._overlaps = Overlaps()
        self._retry_soon = False
        """True while a wake-up after `lock_retry_ms` is scheduled, so there is at most one."""
        self._unknown: set[str] = set()
        """Topics without a known assignment in the last round, retry topics aside."""
        self._relocking: set[str] = set()
        """Brokers at which the locks are being requested again, at most once at a time."""
        self._rounds = 0
        """Complete rounds; `balanced` needs one."""
        self._started_ms = clock.monotonic_ms()
        self._closing = False

    def wake(self) -> None:
        """Starts a round now (CS-3: also if called before the wait)."""
        self._wakeup.wake()

    async def run(self) -> None:
        """Rebalances at the start, at each wake-up and every `rebalance_interval_ms` (20 s), for ever (CS-3, CS-5)."""
        self.wake()
        while not self._closing:
            await self._wakeup.wait(self._plan.options.rebalance_interval_ms)
            if not self._closing:
                await self._round()

    @property
    def balanced(self) -> bool:
        """True if every topic's share is known and read (RB-3, RB-4, RB-10, RB-15)."""
        return not self._unknown and self._table.balanced() and self._rounds > 0

    def owned(self) -> list[MessageQueue]:
        """Returns the active queues, sorted."""
        return sorted(self._table.working())

    def pause(self, queues: Iterable[MessageQueue] | None = None, *, paused: bool = True) -> None:
        """Pauses or resumes the pulls of these queues; None: of all present and later ones (CS-9)."""
        self.held.pause(queues, paused=paused)
        if not paused:
            self.wake()

    def relock(self, broker_name: str) -> None:
        """Requests the locks again that the broker may have dropped (it restarted, or rejected a pull)."""
        if self._plan.clustering and broker_name not in self._relocking:
            self._relocking.add(broker_name)
            self._spawn(self._relock(broker_name), f"evenq-relock-{broker_name}")

    def asked_for(self, queue: MessageQueue) -> None:
        """Releases a lock that another member waits for and the broker attributes to this one, unless it is in use."""
        if self._plan.clustering and not self._table.known(queue):
            self._spawn(self.locks.release(queue), f"evenq-unlock-{queue}")

    def reset(self, queues: Iterable[MessageQueue]) -> None:
        """Drops held messages after an operator moved the group's offsets, and takes the queues anew."""
        for queue in queues:
            log.warning("group %s: an operator changed the offset of %s, reading starts there", self._group, queue)
            self._perform(self._table.lost(queue))

    def broker_leaves(self, broker_name: str) -> None:
        """Hands over the queues of a closing broker while it still answers; they are taken anew when it is back."""
        queues = [queue for queue in self.held.pulls if queue.broker_name == broker_name]
        if self._plan.clustering and queues:
            log.info("group %s: broker %s stops, releasing its %d queues", self._group, broker_name, len(queues))
            self._perform(self._table.vacate(queues))

    async def close(self) -> None:
        """Hands all queues over, within `drain_ms` and two deadlines of calls; then cancels all tasks."""
        self._closing = True
        self._hand_over.close(self.held.pulls.values())
        self._perform(self._table.close())
        deadline_ms = self._clock.monotonic_ms() + self._plan.options.drain_ms + 2 * self._plan.options.timeout_ms
        while self.held.pulls and self._clock.monotonic_ms() < deadline_ms:
            await self._clock.sleep_ms(10)
        tasks = [*self._tasks, *self.held.tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _round(self) -> None:
        brokers: dict[str, str] = {}
        for topic in list(self._plan.subscriptions):
            try:
                brokers.update((await self._routes.get(topic)).addresses)
            except Error as error:
                if not topic.startswith(RETRY_PREFIX):  # RB-2: a retry topic is created with its first message
                    self._troubles.failed(f"topic {topic}", error)
                    self._soon()
        # A broker that left the route must still get progress and unlocks. While its queues are owned it may be
        # restarting, so its session is kept.
        for name in self._table.brokers():
            if address := self._routes.met(name):
                brokers.setdefault(name, address)
        if brokers:
            self._sessions.want(brokers)
        for broker_name in self._sessions.suspect():
            self.relock(broker_name)
        for queue in self.locks.owed(self._table.known):
            self.asked_for(queue)
        waited_ms = self._clock.monotonic_ms() - self._started_ms
        # At the start, an incomplete list of members would give this one too many queues.
        if self._plan.clustering and not self._sessions.settled and waited_ms < SETTLE_MS:
            self._soon()  # the last Welcome starts a round earlier
            return
        self._unknown.clear()
        for topic in list(self._plan.subscriptions):
            if self._plan.clustering and self._assignment.asks:
                # Before the query, whose answer a restarted broker may delay.
                self._perform(self._table.retake(topic, reachable=self._sessions.up))
            assigned: list[MessageQueue] | None = None
            try:
                assigned = await self._assignment.assigned(topic)
            except Exception as error:  # RB-2, RB-12: the topic keeps its queues, whatever was raised
                if not isinstance(error, Error):
                    log.exception(
                        "group %s: applying the assignment of topic %s failed, its queues stay as they are (%s)",
                        self._group,
                        topic,
                        self._assignment.who,
                    )
                elif not topic.startswith(RETRY_PREFIX):
                    self._troubles.failed(f"topic {topic}", error)
            if assigned is not None:
                self._troubles.well(f"topic {topic}")
            if assigned is None:  # unknown: nothing changes
                self._unknown.update(() if topic.startswith(RETRY_PREFIX) else (topic,))
            elif not self._closing:
                commands = self._table.assign(topic, assigned, stalled=self.held.stalled)
                self._overlaps.assigned(topic, assigned)
                if commands:  # RB-14
                    self._assignment.log_share(topic, assigned)
                self._perform(commands)
        if self._assignment.undecided:
            self._assignment.undecided = False
            self._soon()  # a rebalancer's decision starts a round earlier
        self._rounds += 1
        if not self._closing:
            self._perform(self._table.keep_topics(self._plan.subscriptions))

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
                    self._spawn(self.locks.release(queue), f"evenq-unlock-{queue}")
                case rebalance.RetrySoon():
                    self._soon()
        for broker_name, queues in locks.items():
            self._spawn(self.locks.take(broker_name, queues), f"evenq-lock-{broker_name}")

    def _table_locked(self, queue: MessageQueue, locked: LockAnswer | None) -> None:
        self.held.locked(queue, locked)
        # Granted, or refused because the session is down: no other member is known to hold the queue.
        if locked is not None or not self._sessions.up(queue.broker_name):
            self._overlaps.over(queue)
        elif self._overlaps.refused(queue, self._clock.monotonic_ms()):
            self._assignment.log_overlap(queue, OVERLAP_MS)
        committed = -1 if locked is None else locked.committed
        if locked is not None:
            self._progress.table.identify(queue, locked.uid)
            if committed >= 0:
                self._starting.has_begun(queue)
        self._perform(self._table.locked(queue, granted=locked is not None, committed=committed))

    async def _relock(self, broker_name: str) -> None:
        # Before the request: another silence meanwhile makes its answer void (`LockTrust.confirm`).
        suspicions = self._sessions.suspicions(broker_name)
        try:
            queues = [queue for queue in self.owned() if queue.broker_name == broker_name]
            unclear = await self.locks.renew(queues, self._renewed)  # lost queues leave
        finally:
            self._relocking.discard(broker_name)
        if unclear or not self._sessions.confirm(broker_name, suspicions):
            self._soon()  # still suspect: a later round requests them again
            return
        for process in self.held.processes():  # messages that waited for this
            if process.queue.broker_name == broker_name and not process.dropped:
                self._arrived(process)

    def _renewed(self, locked: LockAnswer) -> None:
        known = self._progress.table.uid(locked.queue)
        if known and locked.uid and locked.uid != known:  # the topic was deleted and created again
            self._replaced(locked.queue)
        elif not locked.granted or self._passed(locked.queue, locked.committed):  # by another member
            log.warning("group %s: queue %s was lost to %s", self._group, locked.queue, locked.holder or "no member")
            self._perform(self._table.lost(locked.queue))

    def _passed(self, queue: MessageQueue, committed: int) -> bool:
        """True if another member had the queue meanwhile and committed a higher offset."""
        process, table = self.held.process(queue), self._progress.table
        if process is None or table.rewound(queue):
            return False
        return committed > max(process.committable, table.memory(queue))

    def _replaced(self, queue: MessageQueue) -> None:
        """Drops a queue whose topic was deleted and created again, and takes the new one."""
        log.warning(
            "group %s: topic %s was deleted and created again, %s is read anew", self._group, queue.topic, queue
        )
        self._perform(self._table.lost(queue))

    async def _find_start(self, queue: MessageQueue) -> None:
        offset, first = await self._starting.find(queue)
        self._perform(self._table.start_found(queue, offset, first=first))

    def _start(self, queue: MessageQueue, offset: QueueOffset, *, first: bool) -> None:
        self.held.start(queue, offset, first=first)
        if self._plan.clustering and self._sessions.closing(queue.broker_name):  # granted just before
            self._perform(self._table.vacate([queue]))

    def _stop(self, queue: MessageQueue, *, fenced: bool, stalled: bool) -> None:
        if stalled:
            idle_ms = self._plan.options.pull_idle_ms
            log.error("group %s: queue %s was not pulled for %d ms, it is locked anew", self._group, queue, idle_ms)
        pulling = self.held.stop(queue, fenced=fenced)
        self._spawn(self._leave(pulling, fenced=fenced), f"evenq-leave-{queue}")

    async def _leave(self, pulling: PullLoop, *, fenced: bool) -> None:
        queue = pulling.process.queue
        self._arrived(pulling.process)  # messages below finished ones must still run
        await self._hand_over.leave(pulling, fenced=fenced)
        del self.held.pulls[queue]
        self._sessions.beat()  # RB-38
        self._perform(self._table.left(queue))

    async def _address(self, queue: MessageQueue) -> str:
        return await self._routes.address(queue.topic, queue.broker_name)

    def _soon(self) -> None:
        if not self._retry_soon:
            self._retry_soon = True
            self._spawn(self._wake_later(), "evenq-rebalance-soon")

    async def _wake_later(self) -> None:
        await self._clock.sleep_ms(self._plan.options.lock_retry_ms)
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
