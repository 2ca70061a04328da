"""Dividing for a whole group at once, and how fast: in time of the processor, which a busy machine leaves as it is."""

from __future__ import annotations

import math
import time

import pytest

from evenq.allocation import Averagely, ByCircle, ConsistentHash, Context, MachineRoom, Nearby, Sticky, divide
from evenq.model import MessageQueue

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
    ids, best_s = sorted(IDS), math.inf
    for _ in range(5):
        begun = time.process_time()
        strategy.allocate("g", ids[50], QUEUES, ids)
        best_s = min(best_s, time.process_time() - begun)
    assert best_s <= 0.02, f"{strategy.name} took {best_s:.3f} s at best; a few ms are usual"


@pytest.mark.parametrize("strategy", [Averagely(), ByCircle(), Sticky()], ids=lambda s: s.name)
def test_ten_thousand_queues_are_divided_among_a_thousand_members_in_some_ms(strategy) -> None:
    best_s = math.inf
    queues = [MessageQueue("T", f"b{broker:02}", index) for broker in range(20) for index in range(500)]
    ids = [f"c{number:04}" for number in range(1000)]
    owners = {queue: own for own, share in divide(strategy, "g", queues, ids[1:]).items() for queue in share}
    for _ in range(8):
        begun = time.process_time()
        divide(strategy, "g", queues, ids, Context(owners=owners))
        best_s = min(best_s, time.process_time() - begun)
    assert best_s <= 0.1, f"{strategy.name} took {best_s:.3f} s at best; 5 to 20 ms are usual"


def test_a_strategy_without_context_is_asked_as_ever() -> None:
    queues, ids = QUEUES[:7], ["r0@a", "r1@b"]
    context = Context(owners=dict.fromkeys(queues, "r1@b"), moves_max=1)
    assert divide(Averagely(), "g", queues, ids, context) == divide(Averagely(), "g", queues, ids)


@pytest.mark.parametrize("strategy", [Averagely(), ByCircle(), ConsistentHash(), MachineRoom(frozenset({"r0"}))])
def test_an_id_that_comes_twice_has_one_share(strategy) -> None:
    ids = ["r0@a", "r0@a", "r0@b"]
    each = {own: strategy.allocate("g", own, QUEUES[:9], ids) for own in ids}
    assert divide(strategy, "g", QUEUES[:9], ids) == each
