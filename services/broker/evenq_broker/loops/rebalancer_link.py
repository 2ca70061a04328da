"""The line to the rebalancer: facts go up, decisions come down, questions of members are passed on.

Without a rebalancer setting nothing here runs. The report stream starts with everything and goes on with what changed,
changes of a few milliseconds together. When the rebalancer is away, `Assignments` repeats its last answers, and after
`STALE_MS` computes here: by then the rebalancer is not blinking but gone (architecture.md 6).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from evenq.errors import ConnectionFailed, Error
from evenq.runtime.backoff import Backoff
from evenq.wire import status
from evenq.wire.stubs.evenq.v1 import assignment_pb2
from evenq_broker.core.assignment import Answer
from evenq_broker.loops.translation import counts_of, entry_of, generation_of, member_message, queue_of

if TYPE_CHECKING:
    from evenq_broker.broker import Broker
    from evenq_broker.loops.signals import Signal

__all__ = ["RebalancerLink"]

log = logging.getLogger(__name__)

DEBOUNCE_MS = 5
QUERY_TIMEOUT_MS = 1_000
PAUSE_MS = 500
STALE_MS = 15_000


class RebalancerLink:
    """This broker's view of the one rebalancer."""

    def __init__(self, broker: Broker, address: str, changes: Signal) -> None:
        self._broker = broker
        self._address = address
        self._changes = changes
        self._groups: dict[str, bytes] = {}
        self._topics: dict[str, bytes] = {}
        self._asked_again_ms = 0
        self._away_since_ms: int | None = None
        self.connected = False
        """True while the report stream is open."""

    async def run(self) -> None:
        """Keep the report stream open. Never ends."""
        backoff = Backoff(self._broker.rng, max_ms=2_000)
        while True:
            try:
                await self._report(backoff)
            except Error as error:
                if self.connected or self._away_since_ms is None:
                    log.warning("rebalancer does not answer", extra={"rebalancer": self._address, "error": str(error)})
                self._away()
                if self.connected:
                    backoff.reset()
            self.connected = False
            await self._broker.clock.sleep_ms(backoff.next_ms())

    async def query(self, group: str, topic: str, client_id: str) -> Answer | None:
        """Ask for one member's queues; None if the rebalancer is away or does not know the group or topic."""
        now_ms = self._broker.clock.monotonic_ms()
        if now_ms < self._asked_again_ms:
            return None
        request = assignment_pb2.AssignmentRequest(group=group, topic=topic, client_id=client_id)
        try:
            answer = await self.ask(request)
            status.check(answer.status)
        except Error as error:
            log.debug("assignment query failed", extra={"error": str(error)})
            self._away()
            return None
        self._away_since_ms = None
        if not answer.known:
            return None
        queues = tuple(queue_of(assigned.queue) for assigned in answer.queues if assigned.HasField("queue"))
        return Answer(queues, answer.strategy, answer.generation.epoch, answer.generation.counter)

    async def ask(self, request: assignment_pb2.AssignmentRequest) -> assignment_pb2.AssignmentResponse:
        """One question as it is, with a short deadline. Raises what the way to the rebalancer raises."""
        return assignment_pb2.AssignmentResponse.FromString(
            await self.forward("/evenq.v1.Assignment/Query", request.SerializeToString(), QUERY_TIMEOUT_MS)
        )

    async def forward(self, method: str, request: bytes, timeout_ms: int) -> bytes:
        """Pass a call on as it is. Raises ConnectionFailed, RequestTimeout."""
        return await self._broker.net.unary(self._address, method, request, timeout_ms=timeout_ms)

    def gone(self) -> bool:
        """True if it has been away so long that brokers decide for themselves."""
        away_ms = self._away_since_ms
        return away_ms is not None and self._broker.clock.monotonic_ms() - away_ms > STALE_MS

    # ------------------------------------------------------------------------------------------------ inside

    def _away(self) -> None:
        now_ms = self._broker.clock.monotonic_ms()
        self._asked_again_ms = now_ms + PAUSE_MS
        if self._away_since_ms is None:
            self._away_since_ms = now_ms

    async def _report(self, backoff: Backoff) -> None:
        stream = self._broker.net.stream(self._address, "/evenq.v1.Assignment/Report", self._reports(), timeout_ms=None)
        async for answer in stream:
            decision = assignment_pb2.Decision.FromString(answer)
            backoff.reset()
            self._broker.cluster.sessions.assignment_changed(
                decision.group, decision.topic, generation_of(decision.generation)
            )
        raise ConnectionFailed(f"rebalancer {self._address} ended the report stream; opening it again")

    async def _reports(self) -> AsyncIterator[bytes]:
        self._groups, self._topics = {}, {}
        seen = self._changes.count
        yield self.facts(full=True).SerializeToString()
        self.connected = True
        self._asked_again_ms, self._away_since_ms = 0, None
        while True:
            await self._changes.wait(seen, clock=self._broker.clock)
            await self._broker.clock.sleep_ms(DEBOUNCE_MS)
            seen = self._changes.count
            report = self.facts(full=False)
            if report.groups or report.groups_gone or report.topics or report.topics_gone:
                yield report.SerializeToString()

    def facts(self, *, full: bool) -> assignment_pb2.BrokerReport:
        """What changed since the last report; everything if `full`."""
        groups = {name: self._group(name) for name in self._group_names()}
        topics = {
            topic.name: entry_of(topic.name, counts_of(self._broker.settings.broker_name, topic))
            for topic in self._broker.topics.all()
        }
        report = assignment_pb2.BrokerReport(broker_name=self._broker.settings.broker_name, full=full)
        told_groups = {name: group.SerializeToString() for name, group in groups.items()}
        told_topics = {name: topic.SerializeToString() for name, topic in topics.items()}
        report.groups.extend(group for name, group in groups.items() if self._groups.get(name) != told_groups[name])
        report.topics.extend(topic for name, topic in topics.items() if self._topics.get(name) != told_topics[name])
        report.groups_gone.extend(sorted(self._groups.keys() - told_groups.keys()))
        report.topics_gone.extend(sorted(self._topics.keys() - told_topics.keys()))
        self._groups, self._topics = told_groups, told_topics
        return report

    def _group_names(self) -> list[str]:
        return sorted({group.name for group in self._broker.groups.all()} | set(self._broker.members.groups()))

    def _group(self, name: str) -> assignment_pb2.GroupFacts:
        config = self._broker.groups.get(name)
        return assignment_pb2.GroupFacts(
            group=name,
            ordered=config is not None and config.ordered,
            strategy="" if config is None else config.strategy,
            members=[member_message(member) for member in self._broker.members.members(name)],
        )
