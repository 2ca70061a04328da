"""Durations in RocketMQ 5's buckets."""

from evenq.serving.latency import BOUNDS_MS, MethodStats


def test_a_call_falls_into_the_bucket_of_its_duration():
    stats = MethodStats()
    for duration_ms in (0, 1, 2, 10, 11, 3_000, 3_001):
        stats.add(duration_ms)
    assert dict(zip((*BOUNDS_MS, "more"), stats.buckets, strict=True)) == {
        1: 2, 3: 1, 5: 0, 7: 0, 10: 1, 100: 1, 1_000: 0, 2_000: 0, 3_000: 1, "more": 1,
    }  # fmt: skip
    assert (stats.finished, stats.total_ms) == (7, 6_025)


def test_two_doors_with_one_method_are_counted_together():
    one, other = MethodStats(), MethodStats()
    for stats, duration_ms, code in ((one, 2, 40402), (one, 2, 42900), (other, 5_000, 40402)):
        stats.add(duration_ms)
        stats.failed(code)
        stats.running += 1
    one.include(other)
    assert (one.finished, one.total_ms, one.running) == (3, 5_004, 3)
    assert one.errors == {40402: 2, 42900: 1}
    assert other.finished == 1
