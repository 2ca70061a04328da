"""Keys order by due time, then id, and give back what went in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from evenq.store.timers.keys import due_of, id_of, key_of, keys_in, kind_of, limit_of

DUE = st.integers(0, (1 << 63) - 1)
TIMER = st.tuples(DUE, st.integers(0, (1 << 64) - 1), st.integers(0, 255))


@given(timers=st.lists(TIMER))
def test_bytes_sort_like_due_time_and_id_and_are_cut_from_a_block(timers):
    keys = [key_of(*timer) for timer in timers]
    assert [(due_of(key), id_of(key), kind_of(key)) for key in sorted(keys)] == sorted(timers)
    assert keys_in(b"".join(keys)) == keys


@given(timer=TIMER, now=st.integers(-5, (1 << 63) - 2))
def test_exactly_what_is_due_lies_under_the_limit(timer, now):
    assert (key_of(*timer) < limit_of(now)) == (timer[0] <= now)
