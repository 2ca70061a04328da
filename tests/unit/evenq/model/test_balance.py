"""A balance policy checks itself."""

import pytest

from evenq.model import EVEN_BALANCE, BalancePolicy, Weight


def test_nothing_told_is_even_without_limits_and_holds():
    assert BalancePolicy() == EVEN_BALANCE
    assert (EVEN_BALANCE.weight, EVEN_BALANCE.moves_max, EVEN_BALANCE.hold_ms) == (Weight.EVEN, 0, 0)


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        ({"moves_max": -1}, "moves_max is -1, the range is 0 .no limit. to 1000000"),
        ({"hold_ms": 3_600_001}, "a hold of 3600001 ms is outside 0 .none. to 3600000 ms"),
        ({"hold_ms": 1, "hold_lag_max": -5}, "hold_lag_max is -5 messages"),
        ({"hold_lag_max": 7}, "hold_lag_max 7 limits a hold, but hold_ms is 0"),
    ],
)
def test_numbers_have_bounds(result, sentence):
    with pytest.raises(ValueError, match=sentence):
        BalancePolicy(**result)
