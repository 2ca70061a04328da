"""The queues that a member holds, each with its process queue and, while it is active, its pull loop.

`loops.ownership` starts and stops them; consumers take messages from the process queues.

**Invariants.**
- A queue is in `pulls` from `start` to the end of its hand-over, and in `tasks` only until `stop`.
- A queue has one process queue at a time. `seek` replaces it, and the old one is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from evenq.client.core.calls import LockAnswer
from evenq.client.core.reading.process_queue import PastDeliveries, ProcessQueue, Thresholds
from evenq.client.loops.groups.hand_over import HandOver
from evenq.client.loops.reading.progress import GroupProgress
from evenq.client.loops.reading.pulling import PullLoop
from evenq.client.loops.reading.read_plan import ReadPlan
from evenq.client.loops.routes.route_book import RouteBook
from evenq.errors import PreconditionFailed
from evenq.model import MessageQueue, QueueOffset
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

log = logging.getLogger(__name__)


class MemberQueues:
    def __init__(
        self,
        read_plan: ReadPlan,
        *,
        routes: RouteBook,
        pull_loop: Callable[..., PullLoop],
        progress: GroupProgress,
        hand_over: HandOver,
        clock: Clock,
    ) -> None:
        """`pull_loop` makes the loop of a process queue, given `limits` and `committed`."""
        self._plan, self._routes, self._pull_loop, self._progress = read_plan, routes, pull_loop, progress
        self._hand_over, self._clock, self._auto_commit = hand_over, clock, read_plan.auto_commit
        self.paused = False
        """True: no pulls (CS-9). Rounds continue, and queues of other members are handed over."""
        self.pulls: dict[MessageQueue, PullLoop] = {}
        """Queues in the states active and leaving."""
        self.tasks: dict[MessageQueue, asyncio.Task[None]] = {}
        """Active queues only: the task that pulls."""
        self._past: dict[MessageQueue, PastDeliveries] = {}
        """From the lock's answer until the queue starts: the deliveries to its earlier owners."""
        self._warned: set[str] = set()
        """FIFO topics that are read in parallel, in spite of their order."""

    def processes(self) -> list[ProcessQueue]:
        """Returns the process queues of all queues, also of those that leave."""
        return [pulling.process for pulling in self.pulls.values()]

    def process(self, queue: MessageQueue) -> ProcessQueue | None:
        """Returns the process queue of an active queue."""
        pulling = self.pulls.get(queue)
        return None if pulling is None or pulling.process.dropped else pulling.process

    def settled(self, process: ProcessQueue) -> None:
        """Handles the end of a chunk: advances progress in memory (CC-7), and wakes the pull loop and a drain."""
        pulling = self.pulls.get(process.queue)
        if pulling is None or pulling.process is not process:
            return
        if self._auto_commit:
            self._progress.table.advance(process.queue, process.committable)
        pulling.settled()

    def locked(self, queue: MessageQueue, locked: LockAnswer | None) -> None:
        """Notes the deliveries to earlier owners; None: the lock was not granted."""
        self._past.pop(queue, None)
        attempts_max = self._plan.attempts_max
        if locked is not None and attempts_max is not None and (locked.given_until or locked.counts):
            self._past[queue] = PastDeliveries(locked.given_until, dict(locked.counts), attempts_max())

    def start(self, queue: MessageQueue, offset: QueueOffset, *, first: bool) -> None:
        """Pulls the queue. `first`: the group has no stored offset here yet."""
        self._progress.table.begin(queue, offset, stored=not first or not self._auto_commit)
        pulling = self.pulls[queue] = self._pulling(queue, offset)
        self.tasks[queue] = spawn(self._begin(pulling, first=first), name=f"evenq-pull-{queue}")
        log.debug("group %s: queue %s gained at offset %d", self._plan.group, queue, offset)

    def stop(self, queue: MessageQueue, *, fenced: bool) -> PullLoop:
        """Ends the pulls and drops messages that no listener got."""
        self.tasks.pop(queue).cancel()
        pulling = self.pulls[queue]
        pulling.process.drop(fenced=fenced)
        return pulling

    def pause(self, queues: Iterable[MessageQueue] | None, *, paused: bool) -> None:
        """Pauses or resumes the pulls of these queues; None: of all present and later ones (CS-9)."""
        if queues is None:
            self.paused = paused
        for queue in list(self.pulls) if queues is None else queues:
            pulling = self.pulls.get(queue)
            if pulling is not None:
                pulling.process.paused = paused
                pulling.process.last_pull_ms = self._clock.monotonic_ms()  # a pause is not a stall (RB-20)
                pulling.settled()

    def seek(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Reads an owned queue from `offset` on; held messages are dropped. Raises PreconditionFailed."""
        process = self.process(queue)
        if process is None:
            raise PreconditionFailed(
                f"queue {queue} is not owned by this consumer now; seek only in the queues that `queues` returns"
            )
        self.tasks.pop(queue).cancel()
        process.drop()
        self._progress.table.rewind(queue, offset, later=not self._auto_commit)
        fresh = self.pulls[queue] = self._pulling(queue, offset)
        fresh.process.paused = process.paused
        self.tasks[queue] = spawn(fresh.run(), name=f"evenq-pull-{queue}")

    def limits(self, topic: str) -> Thresholds:
        """Returns the flow control limits of each queue of the topic (RB-39, RB-40)."""
        options = self._plan.options
        base = Thresholds(
            messages=options.pull_threshold_queue, bytes=options.pull_threshold_bytes_queue, span=options.span_max
        )
        return base.spread(
            messages_topic=options.pull_threshold_topic,
            bytes_topic=options.pull_threshold_bytes_topic,
            queues=sum(queue.topic == topic for queue in self.pulls),
        )

    def stalled(self, queue: MessageQueue) -> bool:
        """True if RB-20 applies; a queue whose pulls are delayed by flow control is not stalled."""
        process = self.pulls[queue].process
        idle = process.stalled(now_ms=self._clock.monotonic_ms(), idle_ms=self._plan.options.pull_idle_ms)
        return idle and not process.full(self.limits(queue.topic))

    def _pulling(self, queue: MessageQueue, offset: QueueOffset) -> PullLoop:
        now_ms, past, uid = self._clock.monotonic_ms(), self._past.pop(queue, None), self._progress.table.uid(queue)
        ordered = self._is_ordered(queue.topic)
        process = ProcessQueue(queue, offset, now_ms=now_ms, ordered=ordered, past=past, uid=uid)
        process.paused = self.paused
        return self._pull_loop(process, limits=self.limits, committed=self._committed)

    def _committed(self, queue: MessageQueue) -> int:
        return self._progress.table.memory(queue) if self._plan.clustering and self._auto_commit else -1

    def _is_ordered(self, topic: str) -> bool:
        """True if queues of the topic have one listener call at a time: by the user's setting, otherwise if it is FIFO.

        A FIFO topic promises the order of its message groups, so parallel calls must be requested, and cause a warning.
        """
        route, plan = self._routes.peek(topic), self._plan
        fifo = route is not None and route.fifo
        if plan.ordered is None:
            return fifo
        if fifo and not plan.ordered and plan.attempts_max is not None and topic not in self._warned:
            self._warned.add(topic)
            log.warning(
                "group %s: topic %s is FIFO, and this consumer has ordered=False: messages of one message group are "
                "processed in parallel, and in any order after a failure; omit `ordered` to keep their order",
                plan.group,
                topic,
            )
        return plan.ordered

    async def _begin(self, pulling: PullLoop, *, first: bool) -> None:
        await self._hand_over.gained(pulling.process.queue, first=first)
        await pulling.run()
