"""The query as one member of a shared group: the SDK's membership with assignments, locks and hand-overs, but no pulls.

Problem: a query may share its group with other queries and with Python and Java consumers, so the group may take any
queue from it at any time. But executors read a planned batch long after the plan, and Spark reports that a batch is
done only with the next trigger. A queue that is released in between would be read twice, or progress would be lost.

Idea: the query uses the SDK's `Membership` without pulls, so the rebalancer, or the members themselves, assign queues
as for every other consumer. The SDK calls `_finish` before it stores progress and releases a lock, and `_finish` waits
while a batch reads the queue. Each ownership of a queue is a separate tenure: the SDK's `ProcessQueue` of that time.

A batch has three steps, all called by the runner's main thread and run in the loop of the member's own thread:
- `claim` returns the owned queues. None of them is released before `planned`.
- `planned` keeps only the queues that the batch reads. It fails if one of them is leaving or may be lost.
- `done` reports the batch and frees its queues, after Spark has logged it. Spark calls at the next trigger; `_finish`
  also checks the checkpoint every 0.25 s (decision 43), since the next trigger may be far away.

Invariants:
- A queue in `_busy` is not released; it can only be lost with its lock. `_busy` is replaced in one step of the loop.
- A tenure begins at the group's progress. Progress is reported only under the tenure in which it was made.
- `done` advances the progress table in the same step in which it frees the queues. So the SDK, which continues after
  `_finish`, stores the progress of the finished batch before it releases the lock.

Example: the query owns queues 0 and 1, both at 100. `claim` returns both, the batch reads [100, 150) of queue 0 and
`planned` frees queue 1. Two consumers join and get one queue each. Queue 1 is released immediately, at 100.
Queue 0 waits in `_finish` until `done` reports 150, and is released there. If the query gets queue 0 again at 180, that
is a new tenure: a late report of 150 under the old one is ignored.

References: decisions 39 (shared groups), 43 (Spark's commit log) and 8 (hand-overs); docs/internals/promises.md.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from evenq import errors
from evenq.model import FilterExpression, QueueOffset
from evenq.model.queue import MessageQueue
from evenq.runtime.clock import SystemClock
from pyspark_evenq.options.source import ReadOptions

if TYPE_CHECKING:
    from evenq.client.core.reading.process_queue import ProcessQueue
    from evenq.client.loops.clients.background import Background
    from evenq.client.loops.groups.membership import Membership
    from evenq.client.rpc.sessions import RpcConsumerCalls

log = logging.getLogger(__name__)
REPORT_MS = 1_000
REPORT_WAIT_S = 0.2
"""Maximum time for which a batch waits for the report of the previous one, which was sent when the trigger began."""
LOOK_S = 0.25
"""Interval of checks whether the batch that reads a leaving queue is done."""


@dataclass(frozen=True, slots=True, eq=False)
class Tenure:
    """One ownership of a queue by the query."""

    snapshot: ProcessQueue
    """The SDK's object of this ownership; its identity is the tenure's."""
    begins: int
    """The group's progress when the query got the queue."""
    sure: bool
    """False: the lock may be lost, or the broker does not have the tenure's start; not planned now."""

    def is_same(self, other: Tenure | None) -> bool:
        return other is not None and other.snapshot is self.snapshot


Reached = Mapping[MessageQueue, tuple[Tenure, int]]
"""Queue -> (tenure in which it was read, offset up to which it was read)."""


class SharedMember:
    """One query's membership, for the main thread of the runner."""

    def __init__(self, options: ReadOptions, reached: Callable[[], Reached | None]) -> None:
        """`reached` returns the progress of the last planned batch, None unless it is done; called in a thread."""
        self._options, self._reached = options, reached
        name = options.membership.query_name or options.group
        self.client_id = f"{os.uname().nodename}@{os.getpid()}@spark-{name}@{time.time_ns() // 1_000_000:x}"
        self._background: Background | None = None
        self._life: _SharedMemberLoop | None = None
        self._left = False

    def read(self, topics: Collection[str]) -> None:
        """Joins the group, or changes the topics that are read from now on."""
        background, life = self._begun()
        background.run(life.read(set(topics)))

    def done(self, reached: Reached) -> None:
        """Reports a logged batch, and frees its queues. No batch runs now."""
        background, life = self._begun()
        background.run(life.done(reached))

    def last(self, reached: Reached) -> None:
        """Does the same before `leave`: raises nothing, and does not wait for brokers."""
        if self._background is not None and self._life is not None and not self._left:
            with suppress(errors.Error, TimeoutError):
                self._background.run(self._life.done(reached), timeout_ms=REPORT_MS)

    def note(self, reached: Reached) -> None:
        """Reports progress that an earlier run logged."""
        background, life = self._begun()
        background.run(life.note(reached))

    def claim(self) -> dict[MessageQueue, Tenure]:
        """Returns the owned queues. None of them is released before `planned`."""
        background, life = self._begun()
        return background.run(life.claim())

    def planned(self, tenures: Collection[Tenure]) -> bool:
        """Keeps queues of the next batch until `done`. False: one leaves or may be lost; then nothing is planned."""
        background, life = self._begun()
        return background.run(life.planned(tenures))

    def until_changed(self, timeout_ms: int) -> None:
        background, life = self._begun()
        background.run(life.until_changed(timeout_ms))

    def until_balanced(self, timeout_ms: int) -> bool:
        """Waits until the query owns its assigned queues; False: not in time."""
        background, life = self._begun()
        return background.run(life.until_balanced(timeout_ms))

    def report(self) -> None:
        """Stores the progress of `done` now, if brokers accept it."""
        if self._background is not None and self._life is not None and not self._left:
            with suppress(errors.Error, TimeoutError):
                self._background.run(self._life.report(), timeout_ms=REPORT_MS)

    def leave(self, *, timeout_ms: int) -> None:
        if self._background is None or self._life is None or self._left or self._background.process_id != os.getpid():
            return
        self._left = True
        try:
            self._background.run(self._life.leave(), timeout_ms=timeout_ms)
        except (errors.Error, TimeoutError) as late:
            log.warning("group %s could not be left, brokers drop this member later: %s", self._options.group, late)
        self._background.close()

    def _begun(self) -> tuple[Background, _SharedMemberLoop]:
        if self._background is None or self._life is None or self._background.process_id != os.getpid():
            from evenq.client.loops.clients.background import Background

            self._background = Background()
            self._life = self._background.run(_live(self._options, self.client_id, self._reached))
        return self._background, self._life


async def _live(options: ReadOptions, client_id: str, reached: Callable[[], Reached | None]) -> _SharedMemberLoop:
    return _SharedMemberLoop(options, client_id, reached)


class _SharedMemberLoop:
    """The part of the member that runs in its event loop."""

    def __init__(self, options: ReadOptions, client_id: str, reached: Callable[[], Reached | None]) -> None:
        self._options = options
        self._client_id = client_id
        self._reached = reached
        self._changed = asyncio.Event()
        """Set when a queue is gained, lost or leaving; cleared by `claim` and `until_balanced`."""
        self._idle = asyncio.Event()
        """Set when `_free` replaces `_busy`."""
        self._busy: set[ProcessQueue] = set()
        """Tenures that a batch reads, or that the batch being planned may read. Replaced, never mutated: its identity
        shows whether Spark has planned since."""
        self._greeted: set[ProcessQueue] = set()
        """Owned tenures whose brokers have their start (`_greet`); only these are sure."""
        self._reporting: asyncio.Task[None] | None = None
        """The running or last report of progress; at most one runs."""
        self._started = False
        self._calls, self._membership = self._parts()

    async def read(self, topics: Collection[str]) -> None:
        options, known = self._options, self._membership.subscriptions
        expression = (
            FilterExpression.sql(options.sql_filter) if options.sql_filter else FilterExpression(options.tags or "*")
        )
        retry = self._membership.retry_topic
        for topic in sorted(set(topics) - known.keys()):
            self._membership.subscribe(topic, expression)
        for topic in sorted(known.keys() - set(topics) - {retry}):
            self._membership.unsubscribe(topic)
        if not self._started:
            self._started = True
            self._membership.start()

    async def done(self, reached: Reached) -> None:
        self._free()
        await self.note(reached)

    async def note(self, reached: Reached) -> None:
        held = {one.queue: one for one in self._membership.held.processes()}
        for queue, (tenure, offset) in reached.items():
            if held.get(queue) is tenure.snapshot:
                self._membership.progress.table.advance(queue, QueueOffset(offset))
        # Immediately, in parallel with the next batch: others repeat everything that a killed member did not report.
        if self._membership.progress.table.due() and (self._reporting is None or self._reporting.done()):
            self._reporting = asyncio.get_running_loop().create_task(self.report(), name="evenq-report")

    async def claim(self) -> dict[MessageQueue, Tenure]:
        owned, held, sure = self._membership.ownership.owned, self._membership.held, self._membership.sessions.sure
        self._changed.clear()
        mine = [one for queue in owned() if (one := held.process(queue)) is not None]
        # Before the first await: from here on none of them is released until `planned`.
        self._busy = set(mine)
        await asyncio.gather(*(self._greet(one) for one in mine if one not in self._greeted))
        self._greeted &= set(mine)
        return {one.queue: Tenure(one, one.next, one in self._greeted and sure(one.queue.broker_name)) for one in mine}

    async def planned(self, tenures: Collection[Tenure]) -> bool:
        if self._reporting is not None:  # so that a killed query leaves at most one batch unreported
            await asyncio.wait({self._reporting}, timeout=REPORT_WAIT_S)
        sure = self._membership.sessions.sure
        # No await below: no tenure can begin to leave between the check and the new `_busy`.
        if all(not one.snapshot.dropped and sure(one.snapshot.queue.broker_name) for one in tenures):
            self._free({one.snapshot for one in tenures})
            return True
        self._free()  # a queue is leaving or in doubt: the next trigger plans without it
        return False

    async def until_changed(self, timeout_ms: int) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout_ms / 1000)

    async def until_balanced(self, timeout_ms: int) -> bool:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not self._membership.balanced:
                    self._changed.clear()
                    await self.until_changed(50)
        except TimeoutError:
            return self._membership.balanced
        return True

    async def report(self) -> None:
        await self._membership.progress.report()

    async def leave(self) -> None:
        self._free()
        await self._membership.close()
        await self._calls.net.close()

    async def _finish(self, process: ProcessQueue) -> None:
        """Returns when no batch reads the queue any more; the SDK then stores its progress and releases the lock."""
        self._changed.set()
        while process in self._busy:
            busy = self._busy
            self._idle.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), LOOK_S)
            # No call of Spark: the checkpoint may show that the batch is done.
            if self._busy is busy and not self._idle.is_set():
                reached = await asyncio.to_thread(self._reached)
                if reached is not None and self._busy is busy:  # otherwise Spark was faster, and plans again
                    await self.done(reached)
        if self._reporting is not None:  # after the release, the broker would refuse the whole report
            await asyncio.wait({self._reporting})

    async def _greet(self, process: ProcessQueue) -> None:
        """Reads at the tenure's start: after a reset, the broker accepts commits only then."""
        queue = process.queue
        try:
            await self._calls.pull(
                await self._membership.routes.address(queue.topic, queue.broker_name),
                self._options.group,
                queue,
                process.next,
                batch_max=1,
                bytes_max=1,
                wait_ms=0,
                expression=FilterExpression(),
                generation=self._membership.generation(queue.topic),
                committed=-1,
                owner=True,
            )
        except errors.IllegalOffset:  # an answer as well; the batch reports the loss
            pass
        except errors.Error as failure:
            log.warning(
                "broker %s was not notified that %s begins at %d: %s", queue.broker_name, queue, process.next, failure
            )
            return
        self._greeted.add(process)

    async def _tell(self, gained: Collection[MessageQueue], lost: Collection[MessageQueue]) -> None:
        if gained or lost:
            self._changed.set()

    def _free(self, busy: Collection[ProcessQueue] = ()) -> None:
        self._busy = set(busy)
        self._idle.set()

    def _parts(self) -> tuple[RpcConsumerCalls, Membership]:
        from evenq.client.loops.groups.membership import Membership
        from evenq.client.options import PullOptions
        from evenq.client.plans import pull_plan
        from evenq.client.rpc.sessions import RpcConsumerCalls
        from evenq.client.wiring import ClientContext
        from evenq.model import MessageModel

        options, rng = self._options, random.Random()  # noqa: S311  spreads load, keeps no secret
        clock = SystemClock()
        context = ClientContext(
            clock=clock, rng=rng, credentials=options.credentials(), tls=options.tls(), endpoint=options.endpoints[0]
        )
        plan = pull_plan(
            group=options.group,
            subscriptions={},
            model=MessageModel.CLUSTERING,
            assignment="auto",
            strategy="AVG",
            start_from="FIRST",
            start_timestamp_ms=0,
            options=PullOptions(
                auto_commit=False,
                instance=options.membership.query_name,
                capacity=options.membership.weight,
                zone=os.environ.get("EVENQ_ZONE", ""),
                drain_ms=0,
            ),
        )
        # All differences to the SDK's own consumers (decision 39).
        plan = replace(
            plan,
            chosen=False,
            fetches=False,
            finish=self._finish,
            retry_topic=options.include_retry,
            refuses_resets=not options.membership.follows_resets,
        )
        calls = RpcConsumerCalls(context.open_net(), endpoint=options.endpoints[0], client_id=self._client_id)
        return calls, Membership(
            calls,
            plan=plan,
            client_id=self._client_id,
            clock=clock,
            rng=rng,
            tell=self._tell,
            arrived=lambda _: None,
        )
