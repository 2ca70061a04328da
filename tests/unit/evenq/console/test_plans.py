"""Values and ages of plans."""

from __future__ import annotations

import pytest

from evenq.console.plans import digest, duration_ms, duration_text, whole
from evenq.errors import BadRequest


def test_a_digest_differs_with_each_value() -> None:
    values = [(), ("a",), ("a", "b"), ("ab",), (["a"], "b"), (["a", "b"],), (1,), (True,), (None,)]
    assert len({digest(*one) for one in values}) == len(values)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("500ms", 500), ("10s", 10_000), (" 5m ", 300_000), ("2h", 7_200_000), ("1d", 86_400_000), ("0s", 0)],
)
def test_durations_are_read_and_written(text: str, ms: int) -> None:
    assert duration_ms("hold", text) == ms
    assert duration_ms("hold", duration_text(ms)) == ms


@pytest.mark.parametrize("text", ["", "5", "-1s", "1.5s", "s", "1 week", "9" * 20 + "s", "\uff11s", "1s\n2s"])
def test_other_durations_are_refused_by_the_name_of_the_field(text: str) -> None:
    with pytest.raises(BadRequest, match="the hold is"):
        duration_ms("the hold", text)


@pytest.mark.parametrize("text", ["", "0", "-1", "11", "1.0", "x", "\uff19"])
def test_a_number_out_of_its_range_is_refused_with_the_range(text: str) -> None:
    assert whole("queues", " 7 ", least=1, most=10) == 7
    with pytest.raises(BadRequest, match="from 1 to 10"):
        whole("queues", text, least=1, most=10)
