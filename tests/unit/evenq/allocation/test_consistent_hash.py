"""CONSISTENT_HASH beyond the tables of tests/spec/test_allocation.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenq.allocation import ConsistentHash, md5_hash


@given(st.text())
@pytest.mark.slow
def test_the_hash_is_an_unsigned_32_bit_number_for_any_text_that_utf_8_can_hold(text) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    assert 0 <= md5_hash(text) < 1 << 32


def test_an_empty_group_divides_into_nothing() -> None:
    assert ConsistentHash().divide("g", [], []) == {}
