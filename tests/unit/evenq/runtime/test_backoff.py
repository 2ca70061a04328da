"""Longer after each failure, never over the bound, never in step."""

import random

from evenq.runtime.backoff import Backoff


def test_delays_double_up_to_the_bound_within_a_fifth():
    backoff = Backoff(random.Random(1), first_ms=100, max_ms=1_000)
    for wanted in (100, 200, 400, 800, 1_000, 1_000):
        assert 0.8 * wanted - 1 <= backoff.next_ms() <= 1.2 * wanted


def test_a_success_starts_over():
    backoff = Backoff(random.Random(1), first_ms=100)
    for _ in range(5):
        backoff.next_ms()
    backoff.reset()
    assert backoff.next_ms() <= 120


def test_peers_do_not_march_in_step_and_nobody_waits_for_nothing():
    assert len({Backoff(random.Random(seed)).next_ms() for seed in range(20)}) > 10
    assert Backoff(random.Random(1), first_ms=0).next_ms() == 1
