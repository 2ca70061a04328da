"""Rounds are counted by how long they took."""

from evenq_rebalancer.stats import DURATION_BOUNDS_MS, RebalancerStats


def test_a_round_falls_into_the_bucket_of_its_duration() -> None:
    stats = RebalancerStats()
    for duration_ms in (0, 5, 6, DURATION_BOUNDS_MS[-1], DURATION_BOUNDS_MS[-1] + 1):
        stats.rebalanced(duration_ms)
    assert stats.duration_buckets == [2, 1, 0, 0, 0, 0, 0, 0, 1, 1]
    assert stats.duration_total_ms == 11 + 2 * DURATION_BOUNDS_MS[-1] + 1
