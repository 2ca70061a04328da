"""The query as one member among others: the SDK's membership with its division, locks and hand-overs, and no pulls.

Lives in the runner, as `member` does, in a thread with an event loop of its own. What is the query's is decided by the
rebalancer, or by the members themselves, as for every other consumer. A queue that is to leave waits while a batch
reads it: the SDK asks `_finish` before it stores progress and lets go of the lock. Each time that the query gets a
queue is a tenure of its own, which begins at the group's progress; what was read under another one is never reported
under it.
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
from pyspark_evenq.options import ReadOptions

if TYPE_CHECKING:
    from evenq.client.core.reading.process_queue import ProcessQueue
    from evenq.client.loops.clients.background import Background
    from evenq.client.loops.groups.membership import Membership
    from evenq.client.rpc.sessions import RpcConsumerCalls

__all__ = ["Reached", "SharedMember", "Tenure"]

log = logging.getLogger(__name__)
REPORT_MS = 1_000
REPORT_WAIT_S = 0.2
"""How long a batch waits at most for the report of the one before. It is on its way since the trigger began."""
LOOK_S = 0.25
"""How often it is looked whether the batch is done that reads a queue which is to leave."""


@dataclass(frozen=True, slots=True, eq=False)
class Tenure:
    """One time that a queue is the query's."""

    snapshot: ProcessQueue
    """The SDK's, which lives as long."""
    begins: int
    """The group's progress when the query got the queue."""
    sure: bool
    """False: it may have been lost, or its broker did not learn where it begins; it is not planned now."""

    def is_same(self, other: Tenure | None) -> bool:
        return other is not None and other.snapshot is self.snapshot


Reached = Mapping[MessageQueue, tuple[Tenure, int]]
"""Progress, with the tenures under which it was made."""


class SharedMember:
    """One query's membership. All methods are for the main thread of the runner."""

    def __init__(self, options: ReadOptions, reached: Callable[[], Reached | None]) -> None:
        """`reached`: the progress of the batch that was planned last if it is known to be done; called in a thread."""
        self._options, self._reached = options, reached
        name = options.membership.query_name or options.group
        self.client_id = f"{os.uname().nodename}@{os.getpid()}@spark-{name}@{time.time_ns() // 1_000_000:x}"
        self._background: Background | None = None
        self._life: _SharedMemberLoop | None = None
        self._left = False

    def read(self, topics: Collection[str]) -> None:
        """Join, or tell which topics are read from now on."""
        background, life = self._begun()
        background.run(life.read(set(topics)))

    def done(self, reached: Reached) -> None:
        """No batch runs now, and Spark has logged so far: it is reported, and what is to leave leaves."""
        background, life = self._begun()
        background.run(life.done(reached))

    def last(self, reached: Reached) -> None:
        """As `done`, before `leave`: raises nothing, and does not wait for brokers."""
        if self._background is not None and self._life is not None and not self._left:
            with suppress(errors.Error, TimeoutError):
                self._background.run(self._life.done(reached), timeout_ms=REPORT_MS)

    def note(self, reached: Reached) -> None:
        """So far was logged by an earlier run."""
        background, life = self._begun()
        background.run(life.note(reached))

    def claim(self) -> dict[MessageQueue, Tenure]:
        """What is the query's now; none of it leaves before `planned`."""
        background, life = self._begun()
        return background.run(life.claim())

    def planned(self, tenures: Collection[Tenure]) -> bool:
        """The next batch reads these, until `done`; all else may leave. False: one of them is to leave or may have been
        lost since it was claimed; then nothing was planned.
        """
        background, life = self._begun()
        return background.run(life.planned(tenures))

    def until_changed(self, timeout_ms: int) -> None:
        """Wait until the query gets or gives up a queue, up to a limit."""
        background, life = self._begun()
        background.run(life.until_changed(timeout_ms))

    def until_balanced(self, timeout_ms: int) -> bool:
        """Wait until the query has what it is to have; False: it did not get that in time."""
        background, life = self._begun()
        return background.run(life.until_balanced(timeout_ms))

    def report(self) -> None:
        """Store the progress of `done` now, if brokers take it."""
        if self._background is not None and self._life is not None and not self._left:
            with suppress(errors.Error, TimeoutError):
                self._background.run(self._life.report(), timeout_ms=REPORT_MS)

    def leave(self, *, timeout_ms: int) -> None:
        """Report, let go of everything, say goodbye."""
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
    """What runs in the member's own loop."""

    def __init__(self, options: ReadOptions, client_id: str, reached: Callable[[], Reached | None]) -> None:
        self._options = options
        self._client_id = client_id
        self._reached = reached
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        """Set whenever something stops being read."""
        self._busy: set[ProcessQueue] = set()
        """What a batch reads, or one that is being planned may."""
        self._greeted: set[ProcessQueue] = set()
        self._reporting: asyncio.Task[None] | None = None
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
        held = {one.queue: one for one in self._membership.ownership.processes()}
        for queue, (tenure, offset) in reached.items():
            if held.get(queue) is tenure.snapshot:
                self._membership.progress.table.advance(queue, QueueOffset(offset))
        # At once, beside the next batch: what a member that is killed leaves unreported is read again by others.
        if self._membership.progress.table.due() and (self._reporting is None or self._reporting.done()):
            self._reporting = asyncio.get_running_loop().create_task(self.report(), name="evenq-report")

    async def claim(self) -> dict[MessageQueue, Tenure]:
        ownership, sure = self._membership.ownership, self._membership.sessions.sure
        self._changed.clear()
        mine = [one for queue in ownership.owned() if (one := ownership.process(queue)) is not None]
        # Before the first await: from here on nothing of it leaves until `planned`.
        self._busy = set(mine)
        await asyncio.gather(*(self._greet(one) for one in mine if one not in self._greeted))
        self._greeted &= set(mine)
        return {one.queue: Tenure(one, one.next, one in self._greeted and sure(one.queue.broker_name)) for one in mine}

    async def planned(self, tenures: Collection[Tenure]) -> bool:
        if self._reporting is not None:  # so that who is killed leaves no more than one batch unreported
            await asyncio.wait({self._reporting}, timeout=REPORT_WAIT_S)
        sure = self._membership.sessions.sure
        if all(not one.snapshot.dropped and sure(one.snapshot.queue.broker_name) for one in tenures):
            self._free({one.snapshot for one in tenures})
            return True
        self._free()
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
        """What a batch reads of the queue is ours until it is logged; Spark's next call says that it is, or before that
        its checkpoint.
        """
        self._changed.set()
        while process in self._busy:
            busy = self._busy
            self._idle.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), LOOK_S)
            if self._busy is busy and not self._idle.is_set():
                reached = await asyncio.to_thread(self._reached)
                if reached is not None and self._busy is busy:  # else Spark was faster, and plans again
                    await self.done(reached)
        if self._reporting is not None:  # once this queue is another's, its broker would refuse all of that report
            await asyncio.wait({self._reporting})

    async def _greet(self, process: ProcessQueue) -> None:
        """A broker believes a member whose group was moved once it reads from there; so each tenure begins with a word
        about where. Without an answer the queue waits for the next batch.
        """
        queue = process.queue
        try:
            await self._calls.pull(
                await self._membership.routes.address(queue.topic, queue.broker_name), self._options.group, queue,
                process.next, batch_max=1, bytes_max=1, wait_ms=0, expression=FilterExpression(),
                generation=self._membership.generation(queue.topic), committed=-1, owner=True,
            )  # fmt: skip
        except errors.IllegalOffset:  # the batch says what is lost
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
            group=options.group, subscriptions={}, model=MessageModel.CLUSTERING, assignment="auto", strategy="AVG",
            start_from="FIRST", start_timestamp_ms=0,
            options=PullOptions(
                auto_commit=False, instance=options.membership.query_name, capacity=options.membership.weight,
                zone=os.environ.get("EVENQ_ZONE", ""), drain_ms=0,
            ),
        )  # fmt: skip
        # All that makes it differ from the SDK's own consumers (decision 39).
        plan = replace(
            plan, chosen=False, fetches=False, finish=self._finish, retry_topic=options.include_retry,
            refuses_resets=not options.membership.follows_resets,
        )  # fmt: skip
        calls = RpcConsumerCalls(context.open_net(), endpoint=options.endpoints[0], client_id=self._client_id)
        return calls, Membership(
            calls, plan=plan, client_id=self._client_id, clock=clock, rng=rng, tell=self._tell,
            arrived=lambda _: None,
        )  # fmt: skip
