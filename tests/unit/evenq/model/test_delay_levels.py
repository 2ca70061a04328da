"""Delay levels are read from their text, and a wrong text is refused with the part that is wrong."""

from __future__ import annotations

import pytest

from evenq.errors import BadRequest
from evenq.model.delay_levels import CLASSIC, DelayLevels


@pytest.mark.spec("RD-9", "RD-11", "XO-12")
def test_there_are_18_levels_and_level_5_is_one_minute():
    """RD-9, RD-11, XO-12."""
    assert CLASSIC.highest == 18
    assert CLASSIC.delay_ms(1) == 1_000
    assert CLASSIC.delay_ms(5) == 60_000
    assert CLASSIC.delay_ms(18) == 7_200_000


@pytest.mark.spec("RD-10")
def test_the_pauses_between_retries_are_levels_3_to_18():
    """RD-10."""
    delays = [CLASSIC.delay_ms(CLASSIC.retry_level(attempt)) // 1_000 for attempt in range(1, 18)]
    assert delays == [10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200, 7200]


def test_no_level_is_no_delay_and_a_level_too_high_is_the_highest():
    assert CLASSIC.delay_ms(0) == CLASSIC.delay_ms(-1) == 0
    assert CLASSIC.delay_ms(99) == 7_200_000


def test_other_levels_can_be_given():
    assert DelayLevels.parse(" 2d  3h ").delays_ms == (172_800_000, 10_800_000)


@pytest.mark.parametrize("text", ["", "1", "s", "1s 0s", "1s,2s", "1s -5s", "1.5s", "1w", "1s " * 65])
def test_a_wrong_text_is_refused(text):
    with pytest.raises(BadRequest, match="delay"):
        DelayLevels.parse(text)
