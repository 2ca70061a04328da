"""The engine of a push consumer: puts the loops together, starts and ends them. Both faces drive it.

sessions  -> who is in the group          -> ownership -> pull loops -> listening -> the user's listener
dividing  -> what is ours of each topic   /                              settled  -> progress -> commits
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from evenq.allocation import Strategy
from evenq.client.core.calls import AssignmentChanged, ConsumerCalls, Join, MembersChanged, SessionEvent, Welcome
from evenq.client.core.process_queue import ProcessQueue
from evenq.client.loops.dividing import Dividing
from evenq.client.loops.listening import Listening, RunListener
from evenq.client.loops.notices import Notices, Tell
from evenq.client.loops.ownership import Ownership
from evenq.client.loops.progress import BrokerStore, FileStore, OffsetStore, Progress
from evenq.client.loops.routes import RouteBook
from evenq.client.loops.sessions import Sessions
from evenq.client.options import PushOptions
from evenq.errors import ConnectionFailed
from evenq.model import FilterExpression, MessageModel, MessageQueue, ReceivedMessage, StartFrom
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

__all__ = ["PushPlan", "Pushing"]

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 17  # RD-3: 16 retries
HALF_HOUR_MS = 30 * 60 * 1000  # RB-45


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPlan:
    """What a push consumer was asked to be."""

    group: str
    subscriptions: Mapping[str, FilterExpression]
    model: MessageModel
    strategy: Strategy
    ask_server: bool
    slots: int
    start_from: StartFrom | None
    """None: as the group is configured."""
    start_timestamp_ms: int
    """0: half an hour ago."""
    options: PushOptions


class Pushing:
    """One running push consumer; everything in one event loop."""

    def __init__(
        self,
        calls: ConsumerCalls,
        *,
        plan: PushPlan,
        client_id: str,
        clock: Clock,
        rng: random.Random,
        run_listener: RunListener,
        tell: Tell | None,
    ) -> None:
        self._calls = calls
        self._plan = plan
        self._clock = clock
        self._subscriptions = dict(plan.subscriptions)
        self._version_ms = clock.now_ms()
        self._group_attempts = MAX_ATTEMPTS
        self._group_start = StartFrom.LAST
        clustering = plan.model is MessageModel.CLUSTERING
        options = plan.options
        self._routes = RouteBook(calls, clock, refresh_ms=options.route_refresh_ms)
        self._sessions = Sessions(
            calls, clock=clock, rng=rng, join=self._join, heard=self._heard, broken=lambda _: self._ownership.wake()
        )
        self._dividing = Dividing(
            calls=calls,
            routes=self._routes,
            sessions=self._sessions,
            group=plan.group,
            client_id=client_id,
            strategy=plan.strategy,
            model=plan.model,
            ask_server=plan.ask_server,
        )
        store: OffsetStore
        if clustering:
            store = BrokerStore(calls, self._routes, plan.group, self._dividing.generation)
        else:
            store = FileStore(options.offsets_folder or Path.home() / ".evenq", plan.group)
        self._progress = Progress(store, clock, interval_ms=options.commit_interval_ms)
        self._listening = Listening(
            run=run_listener,
            clock=clock,
            slots=plan.slots,
            batch_max=options.consume_batch,
            max_attempts=self._max_attempts if clustering else lambda: 1,  # RD-1: retries in clustering only
            retry_delay_ms=self._retry_delay_ms,
            give_up=self._send_back if clustering else self._let_go,
            settled=self._settled,
        )
        self._ownership = Ownership(
            calls=calls,
            routes=self._routes,
            sessions=self._sessions,
            progress=self._progress,
            dividing=self._dividing,
            notices=Notices(tell),
            clock=clock,
            rng=rng,
            group=plan.group,
            options=options,
            subscriptions=self._subscriptions,
            clustering=clustering,
            start_policy=lambda: plan.start_from or self._group_start,
            start_timestamp_ms=plan.start_timestamp_ms or clock.now_ms() - HALF_HOUR_MS,
            arrived=self._arrived,
        )
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin; the first rebalance comes at once (CS-5)."""
        self._tasks = [
            spawn(self._ownership.run(), name=f"evenq-rebalance-{self._plan.group}"),
            spawn(self._progress.run(), name=f"evenq-commit-{self._plan.group}"),
        ]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Drain, commit, unlock, leave; bounded by `drain_ms` and a few calls."""
        await self._ownership.close()
        await self._progress.report()
        await self._listening.close()
        await self._sessions.leave()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._routes.close()

    def subscribe(self, topic: str, wanted: FilterExpression) -> None:
        """One topic more, or another filter for it (in force for queues gained from now on)."""
        self._subscriptions[topic] = wanted
        self._changed()

    def unsubscribe(self, topic: str) -> None:
        """One topic less: its queues are handed over (RB-5)."""
        self._subscriptions.pop(topic, None)
        self._changed()

    def owned(self) -> list[MessageQueue]:
        """Queues that are being read now, sorted."""
        return self._ownership.owned()

    def _changed(self) -> None:
        self._version_ms = self._clock.now_ms()  # RG-6
        self._sessions.rejoin()
        self._ownership.wake()

    def _join(self) -> Join:
        return Join(self._plan.group, self._plan.model, dict(self._subscriptions), self._version_ms)

    def _heard(self, broker_name: str, event: SessionEvent) -> None:
        match event:
            case Welcome():
                self._group_attempts = event.max_attempts or MAX_ATTEMPTS
                if event.start_from in set(StartFrom):
                    self._group_start = StartFrom(event.start_from)
                self._ownership.relock(broker_name)
                for topic in self._subscriptions:  # what changed before this line was up, nobody told us
                    self._routes.changed(topic, self._ownership.wake)
            case AssignmentChanged():  # maybe because the topic has other queues (NS-8)
                self._routes.changed(event.topic, self._ownership.wake)
            case MembersChanged():
                log.info("members changed", extra={"group": self._plan.group, "members": len(event.members)})
            case _:
                pass
        self._ownership.wake()  # CS-7; QueueWanted wants a round as well

    def _arrived(self, process: ProcessQueue) -> None:
        if process.due_ms() is not None:
            self._listening.offer(process)
        else:  # all was filtered out: progress goes on
            self._progress.table.advance(process.queue, process.committable)

    def _settled(self, process: ProcessQueue) -> None:
        self._ownership.settled(process)

    def _max_attempts(self) -> int:
        return self._plan.options.max_attempts or self._group_attempts

    def _retry_delay_ms(self, attempts: int) -> int:
        options = self._plan.options
        return min(options.retry_max_ms, options.retry_first_ms << min(attempts - 1, 30))

    async def _send_back(self, message: ReceivedMessage, attempts: int) -> None:
        """To the dead-letter topic (RD-5)."""
        route = await self._routes.get(message.queue.topic)
        address = route.addresses.get(message.queue.broker_name)
        if address is None:
            raise ConnectionFailed(f"broker {message.queue.broker_name} is not in the route of {message.topic} now")
        await self._calls.send_back(
            address, self._plan.group, message.queue, message.queue_offset, delay_level=-1, attempts=attempts
        )
        log.warning(
            "a message went to the dead-letter topic",
            extra={"group": self._plan.group, "queue": str(message.queue), "offset": message.queue_offset},
        )

    async def _let_go(self, message: ReceivedMessage, attempts: int) -> None:
        log.warning(
            "the listener failed and broadcasting has no retries (RD-1)",
            extra={"queue": str(message.queue), "offset": message.queue_offset, "attempts": attempts},
        )

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a loop of the consumer ended", exc_info=error, extra={"task": task.get_name()})
