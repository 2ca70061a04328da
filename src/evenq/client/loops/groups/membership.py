"""A member of a group: its sessions, assignment, ownership and progress, for push and pull consumers (RB-1).

    sessions   -> members of the group  -> ownership -> pull loops -> arrived(queue)
    assignment -> share of each topic   /                             progress -> commits

`loops.pushing` adds a listener for the pulled messages, `loops.polling` adds `poll`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from evenq.allocation import Strategy
from evenq.client.core.calls import GroupTerms, SessionEvent, Welcome
from evenq.client.core.groups.introduction import Introduction
from evenq.client.core.reading.process_queue import ProcessQueue
from evenq.client.loops.clients.troubles import Report, Troubles
from evenq.client.loops.groups.assignment_source import AssignmentSource
from evenq.client.loops.groups.ownership import Ownership
from evenq.client.loops.groups.rebalance_listener import RebalanceCallback, RebalanceListener
from evenq.client.loops.groups.sessions import BrokerSessions
from evenq.client.loops.reading.progress import BrokerStore, FileStore, GroupProgress, OffsetStore
from evenq.client.loops.reading.pulling import PullLoop
from evenq.client.loops.reading.read_plan import Finish, ReadPlan
from evenq.client.loops.reading.table_reads import TableReads
from evenq.client.loops.routes.leader_watch import LeaderWatch
from evenq.client.loops.routes.route_book import RouteBook
from evenq.client.options import PushOptions
from evenq.model import NO_GENERATION, FilterExpression, Generation, MessageModel, MessageQueue, StartFrom
from evenq.model.names import RETRY_PREFIX
from evenq.model.session_events import (
    AssignmentChanged,
    BrokerLeaving,
    MembersChanged,
    OffsetsReset,
    QueueWanted,
    SettingsChanged,
)
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

if TYPE_CHECKING:
    from evenq.client.rpc.sessions import RpcConsumerCalls

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 17  # RD-3: 16 retries
SUSPECT_MS = 1_000
"""A decision follows its cause within milliseconds. A member that gets none for this time queries it."""
RENEW_MS = 4_000
"""Longest time over which the members of a group spread queries that are not urgent."""
RENEW_EACH_MS = 40
"""That time for each member, in a small group."""
PARKED_EACH_MS = 20
"""Share of each member in the pause between route queries: a group in long polls sends at most 50 a second."""
LATE_MS = 11_000
"""A large group learns of new and lost members up to ten seconds after the decision about them."""
HALF_HOUR_MS = 30 * 60 * 1000  # RB-45


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPlan:
    group: str
    subscriptions: Mapping[str, FilterExpression]
    model: MessageModel
    strategy: Strategy
    ask_server: bool | None
    """None: while the group has a strategy on the server."""
    start_from: StartFrom | None
    """None: by the group's setting."""
    start_timestamp_ms: int
    """0: half an hour ago."""
    options: PushOptions
    ordered: bool | None = False
    """True: one listener call at a time for each queue, in offset order; None: for queues of FIFO topics."""
    retry_topic: bool = False
    """True: the group's retry topic is read, too (RD-2)."""
    counts_deliveries: bool = False
    auto_commit: bool = True
    chosen: bool = False
    """True: the user chooses queues with `assign`; the consumer does not join the group and takes no locks."""
    any_copy: bool = False
    """True: chosen queues are read from any copy of their broker."""
    fetches: bool = True
    """False: the member owns its queues but does not pull; the user reads them by other means."""
    finish: Finish | None = None
    """As in `ReadPlan`."""
    refuses_resets: bool = False
    """True: operators cannot reset the group's offsets while this member lives."""


class Membership:
    """One running member, in one event loop."""

    def __init__(
        self,
        calls: RpcConsumerCalls,
        *,
        plan: MemberPlan,
        client_id: str,
        clock: Clock,
        rng: random.Random,
        tell: RebalanceCallback | None,
        arrived: Callable[[ProcessQueue], None],
        report: Report | None = None,
        table: TableReads | None = None,
    ) -> None:
        self._plan, self._clock, self._calls, self._table = plan, clock, calls, table
        self.subscriptions = dict(plan.subscriptions)
        self.retry_topic = RETRY_PREFIX + plan.group
        self.clustering = plan.model is MessageModel.CLUSTERING
        if plan.retry_topic and self.clustering:
            self.subscriptions[self.retry_topic] = FilterExpression()
        self._group_attempts, self._group_start = MAX_ATTEMPTS, StartFrom.LAST
        self._introduction = self._introduced(rng.getrandbits(64) | 1)  # 0 means none
        self.routes = RouteBook(calls, clock, refresh_ms=plan.options.route_refresh_ms, on_moved=self._leader_moved)
        self._leaders = LeaderWatch(self.routes, clock, rng, parked_ms=self._parked_ms)
        self._troubles = Troubles(clock, who=f"group {plan.group}", report=report)
        self.sessions = BrokerSessions(
            calls,
            clock=clock,
            rng=rng,
            join=self._introduction.join,
            heard=self._heard,
            broken=lambda _: self.ownership.wake(),
            taken=self._taken,
            suspected=self._relock,
            troubles=self._troubles,
        )
        self.sessions.joins = not plan.chosen
        self._assignment = AssignmentSource(
            calls=calls,
            routes=self.routes,
            sessions=self.sessions,
            group=plan.group,
            client_id=client_id,
            strategy=plan.strategy,
            model=plan.model,
            ask_server=plan.ask_server,
            clock=clock,
            trust_ms=plan.options.rebalance_interval_ms,
        )
        if plan.chosen:
            self._assignment.chosen = {}
        self.progress = GroupProgress(self._store(), clock, interval_ms=plan.options.commit_interval_ms)
        self.ownership = Ownership(
            self._read_plan(),
            calls=calls,
            pull_loop=self._pull_loop(arrived, rng),
            routes=self.routes,
            sessions=self.sessions,
            progress=self.progress,
            assignment=self._assignment,
            rebalance_listener=RebalanceListener(tell, group=plan.group),
            clock=clock,
            arrived=arrived,
            troubles=self._troubles,
        )
        self.held = self.ownership.held
        self._tasks: list[asyncio.Task[None]] = []
        self._suspecting: asyncio.Task[None] | None = None
        self._rng = rng
        self._renewing: dict[str, asyncio.Task[None]] = {}
        """By topic: the task that will fetch its route again."""

    def _introduced(self, incarnation: int) -> Introduction:
        options = self._plan.options
        return Introduction(
            group=self._plan.group,
            model=self._plan.model,
            subscriptions=self.subscriptions,
            zone=options.zone,
            instance=options.instance,
            capacity=options.capacity,
            incarnation=incarnation,
            now_ms=self._clock.now_ms(),
            refuses_resets=self._plan.refuses_resets,
            strategy=self._plan.strategy.name,
            unordered=self._plan.counts_deliveries and self._plan.ordered is False,
        )

    def _read_plan(self) -> ReadPlan:
        plan = self._plan
        return ReadPlan(
            group=plan.group,
            options=plan.options,
            subscriptions=self.subscriptions,
            clustering=self.clustering and not plan.chosen,
            start_policy=lambda: plan.start_from or self._group_start,
            start_timestamp_ms=plan.start_timestamp_ms or self._clock.now_ms() - HALF_HOUR_MS,
            ordered=plan.ordered,
            attempts_max=self.max_attempts if plan.counts_deliveries and self.clustering else None,
            auto_commit=plan.auto_commit,
            any_copy=plan.any_copy and plan.chosen,
            finish=plan.finish,
            table=self._table,
        )

    def _pull_loop(self, arrived: Callable[[ProcessQueue], None], rng: random.Random) -> Callable[..., PullLoop]:
        return partial(
            PullLoop,
            calls=self._calls,
            routes=self.routes,
            leaders=self._leaders,
            clock=self._clock,
            rng=rng,
            generation=self._assignment.generation,
            arrived=arrived,
            troubles=self._troubles,
        )

    def _store(self) -> OffsetStore:
        if not self.clustering:  # OF-7
            return FileStore(self._plan.options.offsets_folder or Path.home() / ".evenq", self._plan.group)
        generation = self._assignment.generation
        return BrokerStore(
            self._calls, self.routes, self._plan.group, generation, fenced=self._relock, troubles=self._troubles
        )

    def start(self) -> None:
        """Starts; the first rebalance follows immediately (CS-5, CS-6)."""
        self.held.paused = not self._plan.fetches
        self._tasks = [
            spawn(self.ownership.run(), name=f"evenq-rebalance-{self._plan.group}"),
            spawn(self.progress.run(), name=f"evenq-commit-{self._plan.group}"),
        ]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Drains, commits, unlocks and leaves, within `drain_ms` and a few calls."""
        # Queues first: their locks and commits need the sessions that `leave` ends.
        await self.ownership.close()
        await self.progress.report()
        await self.sessions.leave()
        if self._suspecting is not None:
            self._tasks.append(self._suspecting)
        self._tasks += self._renewing.values()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._table is not None:
            self._table.close()
        await self._leaders.close()
        await self.routes.close()

    def subscribe(self, topic: str, expression: FilterExpression) -> None:
        """Adds a topic, or changes its filter for queues gained from now on."""
        self.subscriptions[topic] = expression
        self._changed()

    def unsubscribe(self, topic: str) -> None:
        """Removes a topic; its queues are handed over (RB-5)."""
        self.subscriptions.pop(topic, None)
        self._changed()

    def choose(self, queues: Iterable[MessageQueue], expression: FilterExpression) -> None:
        """Reads exactly these queues; only for a plan with `chosen`."""
        chosen: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            chosen.setdefault(queue.topic, []).append(queue)
        self._assignment.chosen = chosen
        for topic in [topic for topic in self.subscriptions if topic not in chosen]:
            del self.subscriptions[topic]
        self.subscriptions.update(dict.fromkeys(chosen, expression))
        self.ownership.wake()

    def owned(self) -> list[MessageQueue]:
        """Returns the queues that are read now, sorted, without those of the retry topic."""
        return [queue for queue in self.ownership.owned() if queue.topic != self.retry_topic]

    @property
    def balanced(self) -> bool:
        return self.ownership.balanced

    def generation(self, topic: str) -> Generation:
        """Returns the generation of the decision in force for the topic; brokers require it."""
        return self._assignment.generation(topic)

    def max_attempts(self) -> int:
        return self._plan.options.max_attempts or self._group_attempts

    def sent_back(self) -> None:
        """Fetches the route of the retry topic, which exists since a message was given back."""
        if not self.routes.known(self.retry_topic):
            self.routes.changed(self.retry_topic, self.ownership.wake)

    def _changed(self) -> None:
        self._introduction.changed(self._clock.now_ms())
        self.sessions.rejoin()
        self.ownership.wake()

    def _leader_moved(self) -> None:
        # A session with the next leader is urgent: it keeps the old one's members only for `session_timeout_ms`.
        self.ownership.wake()

    def _parked_ms(self) -> int:
        return PARKED_EACH_MS * len(self.sessions.members() or ())

    def _relock(self, broker_name: str) -> None:
        self.ownership.relock(broker_name)

    def _taken(self, client_id: str, why: str) -> None:
        if self._calls.client_id != client_id:
            return  # renamed already, after another broker's answer
        name = self._introduction.other_name(client_id)
        log.error(
            "group %s: client id %s is taken by another member, this one is %s now: %s",
            self._plan.group,
            client_id,
            name,
            why,
        )
        self._calls.rename(name)
        self._assignment.client_id = name
        self.sessions.rename()

    def _heard(self, broker_name: str, event: SessionEvent) -> None:
        match event:
            case Welcome():
                self._configured(event.settings)
                self.ownership.relock(broker_name)
                self._assignment.suspect()
                for topic in self.subscriptions:  # changes before this session were not reported
                    self.routes.changed(topic, self.ownership.wake)
            case SettingsChanged():
                self._configured(event.settings)
                self._assignment.suspect()
            case AssignmentChanged() if self._only_its_queues_changed(event):
                if self.routes.names(event.topic, self._assignment.decided(event.topic)):
                    self._renew_later(event.topic)
                    self._suspect_later()  # the decision about the changed queues will follow
                    return
                self.routes.changed(event.topic, self.ownership.wake)
            case AssignmentChanged():
                if not self._assignment.take(event) or not self.routes.names(event.topic, event.share or ()):
                    self.routes.changed(event.topic, self.ownership.wake)  # the topic may have other queues (NS-8)
            case MembersChanged():
                log.info("group %s has %d members now", self._plan.group, len(event.members))
                # A rebalancer pushes its decision to all members whose share changes. Otherwise 1,000 members would
                # send a query when one joins.
                if self._assignment.all_decided(self.subscriptions):
                    self._suspect_later(LATE_MS)
                    return
            case QueueWanted():
                self.ownership.asked_for(event.queue)
                self._suspect_later()
            case OffsetsReset():
                self.ownership.reset(event.queues)
            case BrokerLeaving():
                self.ownership.broker_leaves(broker_name)
            case _:
                pass
        self.ownership.wake()  # CS-7

    def _only_its_queues_changed(self, event: AssignmentChanged[tuple[MessageQueue, ...]]) -> bool:
        return event.generation == NO_GENERATION and self._assignment.all_decided([event.topic])

    def _configured(self, settings: GroupTerms) -> None:
        self._group_attempts = settings.max_attempts or MAX_ATTEMPTS
        if settings.start_from in set(StartFrom):
            self._group_start = StartFrom(settings.start_from)

    def _suspect_later(self, back_ms: int = SUSPECT_MS) -> None:
        """Queries the decisions soon, unless one was or is pushed: from `back_ms` ago until then."""
        if self._suspecting is None or self._suspecting.done():
            self._suspecting = spawn(self._suspect(self._clock.monotonic_ms() - back_ms), name="evenq-suspect")

    async def _suspect(self, since_ms: int) -> None:
        await self._clock.sleep_ms(SUSPECT_MS)
        if not self._assignment.heard_since(since_ms):
            self._assignment.suspect()
            self.ownership.wake()

    def _renew_later(self, topic: str) -> None:
        """Fetches the topic's route after a random pause: a broker may have another address, but no call waits."""
        if topic not in self._renewing:
            spread_ms = min(RENEW_MS, RENEW_EACH_MS * len(self.sessions.members() or ()))
            pause_ms = SUSPECT_MS + self._rng.randrange(1 + spread_ms)
            self._renewing[topic] = spawn(self._renew(topic, pause_ms), name=f"evenq-renew-{topic}")

    async def _renew(self, topic: str, pause_ms: int) -> None:
        await self._clock.sleep_ms(pause_ms)
        del self._renewing[topic]
        self.routes.changed(topic, self.ownership.wake)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(
                "group %s: %s ended, no messages are read any more", self._plan.group, task.get_name(), exc_info=error
            )
