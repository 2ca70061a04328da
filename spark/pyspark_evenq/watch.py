"""What the runner knows of the queues: their addresses and how far they have grown.

Called by `stream` on each trigger. A query without data is triggered some 88 times a second, so a trigger that finds
nothing waits here for growth, with one parked call per broker. The call stays parked between the triggers, so growth
is told at once, and what was told meanwhile is asked again, so it is new. A broker that does not answer holds up
nobody: its queues keep their last known end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from evenq import errors
from evenq.model.queue import MessageQueue
from pyspark_evenq import cluster
from pyspark_evenq.offsets import Positions
from pyspark_evenq.options import ReadOptions
from pyspark_evenq.planner import Bounds
from pyspark_evenq.positions import QueueState

__all__ = ["QueueWatch"]

log = logging.getLogger(__name__)
ROUTE_S = 30.0  # how long a new queue may stay unseen
POLL_MS = 3_000  # a question stays parked over the triggers that find nothing: so few calls while a query is idle
GRACE_S = 0.02  # brokers that told of growth before the trigger have so long to tell the newest
BROKERS_MAX = 64
Answer = dict[MessageQueue, QueueState]


class QueueWatch:
    """Routes and bounds of all queues of the topics subscribed to."""

    def __init__(self, options: ReadOptions, *, now: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._now = now
        self._route: dict[MessageQueue, str] = {}
        self._routed_at = 0.0
        self._pool: ThreadPoolExecutor | None = None
        self._parked: dict[str, Future[Answer]] = {}
        self.bounds: dict[MessageQueue, Bounds] = {}
        """As last told by the brokers."""

    def route(self) -> cluster.Route:
        """Addresses, not older than 30 s if the access point answers. Raises only if there never was an answer."""
        options = self._options
        if not self._route:
            self._route = cluster.persist(
                "the route",
                lambda: cluster.route(options.endpoints, options.topics),
                timeout_ms=options.read_timeout_ms,
            )
            self._routed_at = self._now()
        elif self._now() - self._routed_at > ROUTE_S:
            self._routed_at = self._now()
            try:
                # A broker that is down is missing in the route; its queues keep their last address.
                # Made anew, because the committer's thread may be reading the old one.
                self._route = self._route | cluster.route(options.endpoints, options.topics)
            except errors.Error as failure:
                log.warning("the route could not be refreshed, going on with the last one: %s", failure)
        return self._route

    def states(self) -> Answer:
        """Ask every broker and wait for all of them. Raises if one does not answer within `read_timeout_ms`."""
        found = cluster.states(self.route(), self._options, group=self._options.group)
        self._learn(found)
        return found

    def refresh(self, known: Positions) -> None:
        """Learn new bounds. Returns as soon as a queue has grown past `known`, at the latest after `idle_wait_ms`."""
        deadline = self._now() + self._options.idle_wait_ms / 1000
        told = {address: future for address, future in self._parked.items() if future.done()}
        self._collect(set(told.values()))  # while nobody waited: there may be more by now, so they are asked again
        pool = self._pool = self._pool or ThreadPoolExecutor(max_workers=BROKERS_MAX, thread_name_prefix="evenq-watch")
        slack = 0.0
        for address, queues in cluster.by_address(self.route()).items():
            if address not in self._parked:
                new = not all(queue in self.bounds for queue in queues)
                slack = 1.0 if new else slack  # these answer at once; it is for one that hangs
                wait_ms = 0 if new else max(self._options.idle_wait_ms, POLL_MS)
                self._parked[address] = pool.submit(self._ask, address, queues, known, wait_ms)
        while self._parked:
            left = deadline - self._now() + slack
            done = wait(self._parked.values(), timeout=max(0.0, left), return_when=FIRST_COMPLETED).done
            failed = self._collect(done)
            if not done or self._grown(known) or self._now() >= deadline:
                break
            if failed and not self._parked:
                time.sleep(max(0.0, deadline - self._now()))  # all refused at once: no reason to spin
        again = [future for address, future in self._parked.items() if address in told]
        if again:
            self._collect(wait(again, timeout=GRACE_S).done)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    @staticmethod
    def _ask(address: str, queues: list[MessageQueue], known: Positions, wait_ms: int) -> Answer:
        return cluster.query(address, queues, wait_ms=wait_ms, known=known)

    def _collect(self, done: set[Future[Answer]]) -> bool:
        """Take the answers in; True if one was a failure."""
        failed = False
        for address, future in list(self._parked.items()):
            if future not in done:
                continue
            del self._parked[address]
            try:
                self._learn(future.result())
            except errors.Error as failure:
                failed = True
                log.warning("no offsets from %s, its queues stand still: %s", address, failure)
        return failed

    def _learn(self, answer: Answer) -> None:
        self.bounds.update((queue, state.bounds) for queue, state in answer.items())

    def _grown(self, known: Positions) -> bool:
        return any(bound.high > known.get(queue, -1) for queue, bound in self.bounds.items())
