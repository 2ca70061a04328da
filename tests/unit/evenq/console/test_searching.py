"""Parts of the search of messages that need no cluster."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenq.console.searching import _positions, _positions_text, time_ms
from evenq.errors import BadRequest
from evenq.model import MessageQueue

NOW_MS = 1_790_000_000_000
BROKERS = st.text("abc-_%@", min_size=1, max_size=8)


@given(st.dictionaries(st.tuples(BROKERS, st.integers(0, 4_096)), st.integers(0, 1 << 59), max_size=20))
def test_positions_come_back_from_a_link(numbers: dict[tuple[str, int], int]) -> None:
    positions = {MessageQueue("t", broker, queue): offset for (broker, queue), offset in numbers.items()}
    assert _positions("t", _positions_text(positions)) == positions


@given(st.text("ab~.0123456789²٣", max_size=30))
def test_positions_of_a_stranger_are_read_or_refused(text: str) -> None:
    try:
        positions = _positions("t", text)
    except BadRequest:
        return
    assert all(queue.queue_id >= 0 and offset >= 0 for queue, offset in positions.items())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("90m", NOW_MS - 5_400_000),
        ("2 h ago", NOW_MS - 7_200_000),
        ("999999999999d", 0),
        ("1790000000000", NOW_MS),
        ("2026-01-31T08:00", 1_769_846_400_000),
        ("2026-01-31T08:00+01:00", 1_769_842_800_000),
        ("1960-01-01", 0),
        ("0001-01-01T00:00+23:00", 0),
    ],
)
def test_a_time_is_an_age_a_date_in_utc_or_ms(text: str, expected: int) -> None:
    assert time_ms(text, now_ms=NOW_MS) == expected


@pytest.mark.parametrize("text", ["soon", "5", "9" * 30, "2026-13-01", "٣m"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="is not a time"):
        time_ms(text, now_ms=NOW_MS)
