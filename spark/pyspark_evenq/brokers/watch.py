"""Addresses and ends of the queues, as known to the runner.

Called by `stream` on each trigger. Spark triggers a query without data some 88 times a second, so a trigger without new
messages waits here for growth, with one parked call per broker. The call stays parked between triggers, so growth is
known immediately; an answer that arrived between two triggers is requested again, because it may be outdated. A broker
that does not answer delays no other: its queues keep their last known end, and are named in `unavailable`. A broker
that refuses the query's user for `readTimeoutMs` ends the query: otherwise it would stall without an error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from evenq import errors
from evenq.model.queue import MessageQueue
from pyspark_evenq.brokers import cluster
from pyspark_evenq.options.source import ReadOptions
from pyspark_evenq.plan.marks import Place
from pyspark_evenq.plan.offsets import Positions
from pyspark_evenq.plan.planner import Bounds
from pyspark_evenq.plan.positions import QueueState

log = logging.getLogger(__name__)
ROUTE_S = 30.0  # how long a new queue may stay unseen
ROUTE_AWAY_S = 3.0  # the same while some queues have no broker
LOOK_S = 6.0  # longer than the timeout of a call to a broker that hangs
POLL_MS = 3_000  # of a parked call: it outlasts many triggers, so an idle query makes few calls
GRACE_S = 0.02  # for brokers that reported growth before the trigger: time to report the newest end
BROKERS_MAX = 64
Answer = dict[MessageQueue, QueueState]


class QueueWatch:
    """Routes and bounds of all queues of the topics subscribed to."""

    def __init__(self, options: ReadOptions, *, now: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._now = now
        self._route: dict[MessageQueue, str] = {}
        self._routed = False
        self._routed_at = 0.0
        self._away: dict[MessageQueue, str] = {}
        self._followers: dict[str, tuple[str, ...]] = {}
        """Broker name -> addresses, as last reported."""
        self._silent: dict[str, str] = {}
        """Address of a broker that did not answer last time -> reason."""
        self._refused: dict[str, float] = {}
        """Address of a broker that refuses the query's user ("": the route is refused) -> time of the first refusal."""
        self._pool: ThreadPoolExecutor | None = None
        self._parked: dict[tuple[str, frozenset[MessageQueue]], Future[Answer]] = {}
        """(address, queues) -> call. A query that shares its group may request other queues from time to time."""
        self.bounds: dict[MessageQueue, Bounds] = {}
        """The last answers of the brokers."""
        self.seen: dict[tuple[MessageQueue, str], int] = {}
        """(queue, uid) -> the highest end that was ever reported."""
        self.missing: dict[str, errors.TopicNotFound] = {}

    def route(self) -> cluster.Route:
        """Returns addresses, at most 30 s old if the access point answers. Raises without any answer, or if refused."""
        options = self._options
        if not self._routed:
            located = cluster.persist(
                "the route",
                lambda: cluster.located(options).must_exist(),
                timeout_ms=options.read_timeout_ms,
            )
            self._take(located)
        elif self._now() - self._routed_at > (ROUTE_AWAY_S if self.unavailable or self.missing else ROUTE_S):
            self._routed_at = self._now()
            try:
                self._take(cluster.located(options, {queue.topic for queue in self._route} | self.missing.keys()))
                self._refused.pop("", None)
            except errors.Error as failure:
                self._may_be_refused("", failure)
                log.warning("the route could not be refreshed, continuing with the last one: %s", failure)
        return self._route

    def located(self) -> cluster.Located:
        """Returns brokers of the queues and their followers, at most as old as `route`."""
        return cluster.Located(addresses=dict(self.route()), away=self._away, followers=self._followers)

    @property
    def unavailable(self) -> dict[MessageQueue, str]:
        """Queues that no broker serves now, or whose broker did not answer last time -> reason."""
        silent = {queue: self._silent[address] for queue, address in self._route.items() if address in self._silent}
        return silent | self._away

    def survey(self, *, wait_for_away: bool, suits: cluster.Suits | None = None) -> cluster.Survey:
        """Queries every broker and waits for all, at most `read_timeout_ms`. `suits`: as in `cluster.survey`."""
        group = self._options.group
        survey = cluster.survey(self._options, group=group, wait_for_away=wait_for_away, suits=suits)
        self._take(survey.located)
        self._silent = {
            self._route[queue]: why for queue, why in survey.unavailable.items() if queue in survey.located.addresses
        }
        self._learn(survey.states)
        return survey

    def look(self) -> None:
        """Queries every broker once, without waiting for growth."""
        pool = self._threads()
        for address, queues in cluster.by_address(self.route()).items():
            key = address, frozenset(queues)
            if key not in self._parked:
                self._parked[key] = pool.submit(cluster.query, address, queues)
        self._collect(wait(self._parked.values(), timeout=LOOK_S).done)

    def progress(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        """Returns the group's committed offset of each queue, -1 for none, without queues of silent brokers."""
        progress: dict[MessageQueue, int] = {}
        here = {queue: self._route[queue] for queue in queues if queue in self._route}
        for address, some in cluster.by_address(here).items():
            try:
                states = cluster.query(address, some, group=self._options.group)
            except errors.Error as failure:
                log.warning("no progress of group %s from %s: %s", self._options.group, address, failure)
            else:
                progress |= {queue: state.committed for queue, state in states.items()}
        return progress

    def marks(self, places: Collection[Place]) -> dict[Place, str]:
        """Returns marks of the messages at these places (`cluster.marks`), without those of silent brokers."""
        unavailable = self.unavailable
        positions: dict[str, list[Place]] = {}
        for queue, offset in places:
            if queue in self._route and queue not in unavailable:
                positions.setdefault(self._route[queue], []).append((queue, offset))
        marks: dict[Place, str] = {}
        for address, here in positions.items():
            try:
                marks |= cluster.marks(address, here)
            except errors.Error as failure:
                log.warning("no marks from %s, they are compared at the next batch: %s", address, failure)
        return marks

    def stored_after(self, queue: MessageQueue, store_ms: int) -> int:
        """Returns the first offset that was stored later. Raises the errors of the call."""
        timestamp_ms = store_ms + 1
        states = cluster.query(self._route[queue], [queue], timestamp_ms=timestamp_ms)
        return states[queue].times[timestamp_ms]

    def ask(self, queues: Collection[MessageQueue]) -> None:
        """Queries the bounds of some queues now, as far as their brokers answer."""
        for address, some in cluster.by_address({queue: self._route[queue] for queue in queues}).items():
            try:
                self._learn(cluster.query(address, some))
            except errors.Error as failure:
                log.warning("no offsets from %s: %s", address, failure)

    def reroute(self) -> None:
        """Schedules an early refresh of the route, because it lacks some queues."""
        self._routed_at = min(self._routed_at, self._now() - ROUTE_S + ROUTE_AWAY_S)

    def refresh(self, known: Positions, *, only: Collection[MessageQueue] | None = None) -> None:
        """Queries new bounds, of all queues or `only` of some, until one exceeds `known` or `idle_wait_ms` passed."""
        deadline = self._now() + self._options.idle_wait_ms / 1000
        ready = {key: future for key, future in self._parked.items() if future.done()}
        self._collect(set(ready.values()))  # answered between triggers: there may be more by now, so queried again
        pool = self._threads()
        slack = 0.0
        route = self.route()
        if only is not None:
            route = {queue: address for queue, address in route.items() if queue in only}
        for address, queues in cluster.by_address(route).items():
            key = address, frozenset(queues)
            if key not in self._parked:
                new = not all(queue in self.bounds for queue in queues)
                slack = 1.0 if new else slack  # brokers answer calls without a wait immediately; bounds one that hangs
                wait_ms = 0 if new else max(self._options.idle_wait_ms, POLL_MS)
                self._parked[key] = pool.submit(self._ask, address, queues, known, wait_ms)
        while self._parked:
            left = deadline - self._now() + slack
            done = wait(self._parked.values(), timeout=max(0.0, left), return_when=FIRST_COMPLETED).done
            failed = self._collect(done)
            if not done or self._grown(known, only) or self._now() >= deadline:
                break
            if failed and not self._parked:
                time.sleep(max(0.0, deadline - self._now()))  # all refused immediately: do not spin
        again = [future for key, future in self._parked.items() if key in ready]
        if again:
            self._collect(wait(again, timeout=GRACE_S).done)

    def close(self) -> None:
        if self._pool is not None:
            # Parked calls last up to `POLL_MS`, but a stopped query must end within 2 s.
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _threads(self) -> ThreadPoolExecutor:
        self._pool = self._pool or ThreadPoolExecutor(max_workers=BROKERS_MAX, thread_name_prefix="evenq-watch")
        return self._pool

    @staticmethod
    def _ask(address: str, queues: list[MessageQueue], known: Positions, wait_ms: int) -> Answer:
        return cluster.query(address, queues, wait_ms=wait_ms, known=known)

    def _collect(self, done: set[Future[Answer]]) -> bool:
        failed = False
        for key, future in list(self._parked.items()):
            if future not in done:
                continue
            del self._parked[key]
            address = key[0]
            try:
                self._learn(future.result())
                self._silent.pop(address, None)
                self._refused.pop(address, None)
            except errors.Error as failure:
                failed = True
                self._may_be_refused(address, failure)
                if address not in self._silent:
                    log.warning("no offsets from %s, its queues are not read now: %s", address, failure)
                self._silent[address] = f"{address} does not answer: {failure.message}"
                if not failure.retryable:
                    self._routed_at = min(self._routed_at, self._now() - ROUTE_S)  # the queues may have moved
        return failed

    def _may_be_refused(self, address: str, failure: errors.Error) -> None:
        """Raises Forbidden or Unauthorized if it lasts: grants may be restored, and keys are replaced in steps."""
        if not isinstance(failure, errors.Forbidden | errors.Unauthorized):
            return
        refused_s = self._now() - self._refused.setdefault(address, self._now())
        if refused_s * 1_000 >= self._options.read_timeout_ms:
            raise type(failure)(
                f"{address or 'the route'} is refused to this query for {refused_s:.0f} s (readTimeoutMs is "
                f"{self._options.read_timeout_ms} ms): {failure.message}; give its user the permission to consume, and "
                "start it again with its checkpoint"
            ) from failure

    def _take(self, located: cluster.Located) -> None:
        self._routed, self._routed_at = True, self._now()
        # Queues without a broker keep their last address. A new dict, because the committer's thread may read the old.
        kept = {queue: address for queue, address in self._route.items() if queue in located.away or not located.whole}
        self._route = kept | located.addresses
        self._away, self.missing = located.away, located.missing
        self._followers = self._followers | located.followers
        gone = [queue for queue in self.bounds if queue not in self._route]
        for queue in gone:  # forgotten, closed or deleted; if it returns, its bounds are queried again
            del self.bounds[queue]
        self._silent = {address: why for address, why in self._silent.items() if address in self._route.values()}

    def _learn(self, states: Answer) -> None:
        for queue, state in states.items():
            self.bounds[queue] = state.bounds
            key = queue, state.bounds.uid
            self.seen[key] = max(self.seen.get(key, 0), state.bounds.high)

    def _grown(self, known: Positions, only: Collection[MessageQueue] | None = None) -> bool:
        return any(
            bound.high > known.get(queue, -1) for queue, bound in self.bounds.items() if only is None or queue in only
        )
