"""Debounced rounds: waits a few milliseconds for more changes, settles the engine once, and publishes new decisions.

A storm of changes costs bounded work. A round begins when nothing has changed for `debounce_ms`, or `debounce_max_ms`
after the first change. After longer work the loop rests for the same time, up to `REST_MAX_MS`, so that queries are
answered meanwhile. `poke` reports a possible change; `watch` pokes after changes by time alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from evenq.runtime.clock import Clock
from evenq_rebalancer.core.assignment_engine import AssignmentEngine
from evenq_rebalancer.core.decisions import Decision, gaps, idle
from evenq_rebalancer.stats import RebalancerStats

log = logging.getLogger(__name__)

TICK_MS = 100
REST_MAX_MS = 1_000
LOGGED_MAX = 100
"""Decisions of one round that are logged one by one."""
GAPS_KEPT_MAX = 10_000
"""Pairs of group and topic whose gaps are remembered, so that each is logged once."""


class Debouncer:
    """The rounds of one term."""

    def __init__(
        self,
        engine: AssignmentEngine,
        *,
        clock: Clock,
        stats: RebalancerStats,
        debounce_ms: int,
        publish: Callable[[Sequence[Decision]], None],
        debounce_max_ms: int = 50,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._stats = stats
        self._debounce_ms = debounce_ms
        self._debounce_max_ms = max(debounce_ms, debounce_max_ms)
        self._publish = publish
        self._poked = asyncio.Event()
        self._poked_at_ms = 0
        self._poked_last_ms = 0
        self._gaps: dict[tuple[str, str], tuple[str, str]] = {}

    def poke(self) -> None:
        """Requests a round, because something may have changed."""
        self._poked_last_ms = self._clock.monotonic_ms()
        if not self._poked.is_set():
            self._poked_at_ms = self._poked_last_ms
            self._poked.set()

    async def run(self) -> None:
        """Settles after each poke. Never ends."""
        while True:
            await self._poked.wait()
            started_ms = self._poked_at_ms
            await self._quiet(started_ms)
            self._poked.clear()
            began_ms = self._clock.monotonic_ms()
            self._settle(started_ms)
            worked_ms = self._clock.monotonic_ms() - began_ms
            if worked_ms > self._debounce_ms:
                await self._clock.sleep_ms(min(worked_ms, REST_MAX_MS))

    async def _quiet(self, started_ms: int) -> None:
        """Waits for `debounce_ms` without a poke, until `debounce_max_ms` after the first one."""
        while True:
            due_ms = min(self._poked_last_ms + self._debounce_ms, started_ms + self._debounce_max_ms)
            left_ms = due_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                return
            await self._clock.sleep_ms(left_ms)

    async def watch(self) -> None:
        """Pokes when time alone brings a change. Never ends."""
        while True:
            await self._clock.sleep_ms(TICK_MS)
            due_ms = self._engine.next_event_ms()
            if due_ms is not None and due_ms <= self._clock.monotonic_ms():
                self.poke()

    def _settle(self, started_ms: int) -> None:
        engine, now_ms = self._engine, self._clock.monotonic_ms()
        for broker in engine.facts.expire(now_ms):
            log.warning("broker %s removed: it did not report within grace_ms", broker, extra={"broker": broker})
        decisions = engine.settle(now_ms=now_ms, wall_ms=self._clock.now_ms())
        for (group, topic), problem in engine.take_problems().items():
            self._stats.problems += 1
            log.warning(
                "group %s, topic %s not rebalanced: %s", group, topic, problem, extra={"group": group, "topic": topic}
            )
        if not decisions:
            return
        self._publish(decisions)
        self._stats.rebalanced(self._clock.monotonic_ms() - started_ms)
        for decision in decisions[:LOGGED_MAX]:
            log.info("group %s, topic %s rebalanced", decision.group, decision.topic, extra=_fields(decision))
            self._tell_gaps(decision)
        if len(decisions) > LOGGED_MAX:
            log.info("%d more groups and topics rebalanced", len(decisions) - LOGGED_MAX)

    def _tell_gaps(self, decision: Decision) -> None:
        """Logs unread queues and idle members once, and again when they have changed."""
        key, report = (decision.group, decision.topic), (gaps(decision), idle(decision))
        before = self._gaps.pop(key, ("", ""))
        if any(report):
            self._gaps[key] = report
            if len(self._gaps) > GAPS_KEPT_MAX:
                del self._gaps[next(iter(self._gaps))]
        for text, old, level in zip(report, before, (logging.WARNING, logging.INFO), strict=True):
            if text and text != old:
                log.log(level, "group %s, topic %s: %s", *key, text, extra={"group": key[0], "topic": key[1]})
            elif old and not text and level == logging.WARNING:
                log.info("group %s, topic %s: every queue has a reader again", *key, extra=_fields(decision))


def _fields(decision: Decision) -> dict[str, object]:
    return {
        "group": decision.group,
        "topic": decision.topic,
        "generation": f"{decision.generation.epoch}.{decision.generation.counter}",
        "strategy": decision.strategy,
        "members": len(decision.inputs.members),
        "queues": len(decision.inputs.queues),
        "moves": decision.moves,
        "held": decision.held,
        "reason": decision.reason,
    }
