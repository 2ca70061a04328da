"""Dividing for a whole group at once, and how fast."""

from __future__ import annotations

import pytest

from evenq.allocation import Averagely, ByCircle, ConsistentHash, MachineRoom, Nearby, divide
from evenq.model import MessageQueue
from evenq.runtime.clock import SystemClock

STRATEGIES = [Averagely(), ByCircle(), MachineRoom(frozenset({"r0", "r1"})), Nearby(), ConsistentHash()]
QUEUES = [MessageQueue("T", f"r{room}@b", index) for room in range(4) for index in range(250)]
IDS = [f"r{number % 3}@c{number:03}" for number in range(100)]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_dividing_for_all_is_the_same_as_asking_for_each(strategy) -> None:
    ids = sorted(IDS[:7])
    each = {own: strategy.allocate("g", own, QUEUES[:40], ids) for own in ids}
    assert divide(strategy, "g", QUEUES[:40], ids) == each


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_a_thousand_queues_and_a_hundred_members_take_a_few_ms(strategy) -> None:
    clock, ids, best_ms = SystemClock(), sorted(IDS), 1_000_000
    for _ in range(5):
        start_ms = clock.monotonic_ms()
        strategy.allocate("g", ids[50], QUEUES, ids)
        best_ms = min(best_ms, clock.monotonic_ms() - start_ms)
    assert best_ms <= 20, f"{strategy.name} took {best_ms} ms at best; a few ms are usual"
