"""The three retry policies: exact pauses, ranges, and how they read."""

import pytest

from evenq.model.delay_levels import DelayLevels
from evenq.model.retry import CLASSIC_RETRY, RetryKind, RetryPolicy

MINUTE = 60_000


def exponential(initial_ms: int, max_ms: int, multiplier: float = 2.0) -> RetryPolicy:
    return RetryPolicy(kind=RetryKind.EXPONENTIAL, initial_ms=initial_ms, max_ms=max_ms, multiplier=multiplier)


def customized(*delays_ms: int) -> RetryPolicy:
    return RetryPolicy(kind=RetryKind.CUSTOMIZED, delays_ms=delays_ms)


def test_classic_has_the_sixteen_pauses_of_rd_4() -> None:
    """RD-4, RD-10: 10 s, 30 s, 1 to 10 min, 20, 30 min, 1 h, 2 h; 17,140 s in all."""
    pauses = CLASSIC_RETRY.pauses_ms(16)
    assert len(pauses) == 16
    assert pauses[:3] == [10_000, 30_000, MINUTE]
    assert sum(pauses) == 17_140_000
    assert CLASSIC_RETRY.delay_ms(99) == 120 * MINUTE
    assert CLASSIC_RETRY.delay_ms(0) == 10_000
    assert CLASSIC_RETRY.delay_ms(1, levels=DelayLevels.parse("1s 2s 7s 8s")) == 7_000
    assert CLASSIC_RETRY.delay_ms(9, levels=DelayLevels.parse("1s 2s")) == 2_000


def test_a_customized_list_repeats_its_last_pause() -> None:
    policy = customized(0, 100, 5_000)
    assert [policy.delay_ms(attempt) for attempt in range(1, 6)] == [0, 100, 5_000, 5_000, 5_000]
    assert policy.pauses_ms(16) == [0, 100, 5_000]
    assert policy.pauses_ms(1) == [0]


def test_exponential_grows_to_its_top_and_never_overflows() -> None:
    policy = exponential(5_000, 2 * 3_600_000)
    assert [policy.delay_ms(attempt) for attempt in (1, 2, 3)] == [5_000, 10_000, 20_000]
    assert policy.delay_ms(1_000) == 7_200_000
    assert policy.pauses_ms(1_000)[-2:] == [5_120_000, 7_200_000]
    assert exponential(500, 9_000, 1.0).pauses_ms(16) == [500]
    assert exponential(1, 3, 1.5).delay_ms(2) == 1


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (customized, "0 pauses"),
        (lambda: customized(*[1] * 65), "65 pauses"),
        (lambda: customized(-1), "-1 ms"),
        (lambda: customized(8 * 86_400_000), "7 days"),
        (lambda: exponential(0, 5), "from 0 ms"),
        (lambda: exponential(9, 5), "not above the longest"),
        (lambda: exponential(1, 5, 0.5), "multiplier of 0.5"),
        (lambda: exponential(1, 5, float("nan")), "multiplier of nan"),
    ],
)
def test_numbers_outside_their_range_are_named(make: object, given: str) -> None:
    with pytest.raises(ValueError, match=given):
        make()  # type: ignore[operator]  # a lambda


def test_a_policy_reads_as_people_write_it() -> None:
    assert str(CLASSIC_RETRY) == "classic"
    assert str(customized(0, 1_500, 60_000)) == "0ms 1500ms 1m"
    assert str(exponential(5_000, 7_200_000)) == "5s x2 to 2h"
