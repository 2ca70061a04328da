"""The link to the leading rebalancer: facts go up, decisions come down, queries of members are forwarded.

Without a rebalancer setting nothing here runs. Of several rebalancers one leads; the others redirect the broker to it.
The report stream starts with everything and continues with changes, those of a few milliseconds together. A leader
sends a sign of life every second; the broker leaves one that is silent for `SILENCE_MS`. While no rebalancer leads,
`Assignments` repeats its last answers. It computes its own only after `STALE_MS`: by then the rebalancers are away for
long (architecture.md 6).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping

from evenq.errors import ConnectionFailed, Error
from evenq.model import Generation
from evenq.runtime.backoff import Backoff
from evenq.runtime.net import close_frames
from evenq.runtime.tasks import spawn
from evenq_broker.core.assignment.leader_search import LeaderSearch
from evenq_broker.core.assignment.local import Answer
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.loops.assignment.reports import BrokerReports
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.assignment import DecisionNews, Share, ask_assignment, assignment_of

log = logging.getLogger(__name__)

DEBOUNCE_MS = 5
QUERY_TIMEOUT_MS = 1_000
PAUSE_MS = 500
SILENCE_MS = 5_000
STALE_MS = 15_000
ABSENT_MS = 3_000
"""As STALE_MS, for a broker that has just started: no member reads by earlier answers of it."""
RETRY_MAX_MS = 1_000


OnDecision = Callable[[str, str, Generation, Mapping[str, Share]], None]


class RebalancerLink:
    """This broker's connection to the rebalancers."""

    def __init__(self, kernel: Kernel, addresses: Iterable[str], *, membership: GroupTables) -> None:
        self._runtime = kernel.runtime
        self._changes = kernel.catalog.changes.facts
        self.on_decision: OnDecision = lambda *_: None
        """Called with each decision about a group and topic, its generation and the members' shares; set at the start.
        """
        self._search = LeaderSearch(list(addresses))
        self._facts = BrokerReports(kernel, membership=membership)
        self._leader = ""
        """`host:port` of the rebalancer that accepted the reports; empty while none does."""
        self._heard_ms = 0
        self._ask_again_ms = 0
        self._away_since_ms: int | None = None
        self._logged: set[type[Error]] = set()
        """Failures in the log since a leader accepted the reports, each once."""
        self._ever_led = False
        self.found_ms = 0
        """Ms since the epoch at which the present leader, or the last one, first gave a sign of life."""
        self._turn = 0
        """Number of the present stream."""

    @property
    def connected(self) -> bool:
        """True while a leader accepts the reports."""
        return bool(self._leader)

    def changed(self, group: str, topic: str) -> None:
        """Notes a changed group or topic; both empty: anything may have changed."""
        self._facts.changed(group=group, topic=topic)

    async def run(self) -> None:
        """Finds the leader and keeps the report stream to it open. Never ends."""
        backoff = Backoff(self._runtime.rng, max_ms=RETRY_MAX_MS)
        self._away_since_ms = self._runtime.clock.monotonic_ms()
        while True:
            target = self._search.target
            at_once = False
            try:
                at_once = self._search.redirected(await self._follow(target, backoff))
            except Error as error:
                if type(error) not in self._logged:
                    self._logged.add(type(error))
                    log.warning(
                        "rebalancer %s does not answer: %s", target, error.message, extra={"rebalancer": target}
                    )
                self._search.failed()
            finally:
                self._lost()
            if not at_once:
                await self._runtime.clock.sleep_ms(backoff.next_ms())

    async def query(self, group: str, topic: str, client_id: str) -> Answer | None:
        """Queries one member's queues; None if no rebalancer leads or the leader does not know the group or topic."""
        if not self._leader or self._runtime.clock.monotonic_ms() < self._ask_again_ms:
            return None
        request = ask_assignment(group, topic, client_id)
        try:
            return assignment_of(await self.forward("/evenq.v1.Assignment/Query", request, QUERY_TIMEOUT_MS))
        except Error as error:
            log.debug("group %s: the rebalancer gave no assignment of topic %s: %s", group, topic, error.message)
            self._ask_again_ms = self._runtime.clock.monotonic_ms() + PAUSE_MS
            return None

    async def forward(self, method: str, request: bytes, timeout_ms: int) -> bytes:
        """Forwards a call to the leader unchanged. Raises ConnectionFailed, also while none leads, RequestTimeout."""
        if not self._leader:
            raise ConnectionFailed(
                f"no rebalancer of {self._runtime.settings.rebalancer} leads at the moment; try again in a second"
            )
        return await self._runtime.net.unary(self._leader, method, request, timeout_ms=timeout_ms)

    def gone(self) -> bool:
        """True if there was no leader for so long that brokers decide for themselves."""
        away_ms = self._away_since_ms
        limit_ms = STALE_MS if self._ever_led else ABSENT_MS
        return away_ms is not None and self._runtime.clock.monotonic_ms() - away_ms > limit_ms

    # ------------------------------------------------------------------------------------------------ inside

    async def _follow(self, target: str, backoff: Backoff) -> str:
        """Reports to `target` until it names another leader, which is returned. Raises when it fails or is silent."""
        clock = self._runtime.clock
        self._heard_ms = clock.monotonic_ms()
        reading = spawn(self._report(target, backoff), name=f"reports to {target}")
        try:
            while not reading.done():
                sleeper = spawn(clock.sleep_ms(SILENCE_MS / 5), name="listening for the leader")
                await asyncio.wait({reading, sleeper}, return_when=asyncio.FIRST_COMPLETED)
                sleeper.cancel()
                if not reading.done() and clock.monotonic_ms() - self._heard_ms > SILENCE_MS:
                    raise ConnectionFailed(f"rebalancer {target} gave no sign of life for {SILENCE_MS} ms")
            return str(reading.result())
        finally:
            reading.cancel()
            await asyncio.wait([reading])

    async def _report(self, target: str, backoff: Backoff) -> str:
        self._turn += 1
        reports = self._reports(self._turn)
        stream = self._runtime.net.stream(target, "/evenq.v1.Assignment/Report", reports, timeout_ms=None)
        try:
            async for data in stream:
                decision = DecisionNews(data)
                if decision.leader:
                    return decision.leader
                self._heard_ms = self._runtime.clock.monotonic_ms()
                if not self._leader:
                    self._leader_found(target)
                    backoff.reset()
                if decision.group:
                    self._facts.decided(decision)
                    self.on_decision(decision.group, decision.topic, decision.generation, decision.shares())
        finally:
            # gRPC may still request reports from the generator: the number marks its stream as ended.
            self._turn += 1
            await close_frames(stream)
        raise ConnectionFailed(f"rebalancer {target} ended the report stream; opening it again")

    def _leader_found(self, leader: str) -> None:
        log.info("reporting to rebalancer %s, which leads", leader, extra={"rebalancer": leader})
        self._search.found()
        self._leader, self._ever_led = leader, True
        self.found_ms = self._runtime.clock.now_ms()
        self._ask_again_ms, self._away_since_ms = 0, None
        self._logged.clear()

    def _lost(self) -> None:
        self._leader = ""
        if self._away_since_ms is None:
            self._away_since_ms = self._runtime.clock.monotonic_ms()

    async def _reports(self, turn: int) -> AsyncIterator[bytes]:
        clock = self._runtime.clock
        seen = self._changes.count
        self._facts.prepare()
        while self._facts.encode_some():
            await clock.sleep_ms(1)  # this loop serves clients
        if turn != self._turn:
            return
        yield self._facts.everything(clock.monotonic_ms())
        while True:
            reported_ms = clock.monotonic_ms()
            timeout_ms = max(DEBOUNCE_MS, self._facts.next_ms() - reported_ms)
            await self._changes.wait(seen, clock=clock, timeout_ms=timeout_ms)
            # Changes of a few milliseconds are sent together; a large group waits longer.
            await clock.sleep_ms(max(DEBOUNCE_MS, reported_ms + self._facts.silence_ms - clock.monotonic_ms()))
            if turn != self._turn:
                return  # an ended stream must not take changes that the present one has to report
            seen = self._changes.count
            report = self._facts.changes(clock.monotonic_ms())
            if report:
                yield report
