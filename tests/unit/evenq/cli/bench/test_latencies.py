"""Percentiles of a histogram against those of the sorted values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenq.cli.bench.latencies import MAX_US, Latencies


@given(st.lists(st.floats(min_value=1, max_value=MAX_US), min_size=1, max_size=200), st.floats(0.1, 100))
def test_a_percentile_is_exact_to_one_percent(values: list[float], percent: float) -> None:
    latencies = Latencies()
    for value in values:
        latencies.add(value)
    exact = sorted(values)[max(1, math.ceil(len(values) * percent / 100)) - 1]
    found = latencies.percentile_ms(percent)
    assert found is not None
    assert abs(found * 1000 - exact) <= exact * 0.0101 + 0.51  # a bucket of 1 %, rounded to a microsecond
    assert latencies.percentile_ms(100) == pytest.approx(max(values) / 1000, rel=0.011, abs=0.001)


def test_nothing_has_no_percentile_and_bounds_hold() -> None:
    latencies = Latencies()
    assert latencies.percentile_ms(50) is None
    latencies.add(0)
    latencies.add(-5)
    latencies.add(1e18)
    assert (latencies.count, latencies.max_us) == (3, MAX_US)
    assert latencies.percentile_ms(50) == 0.001
