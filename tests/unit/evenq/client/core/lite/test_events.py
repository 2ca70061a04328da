"""Where a lite subscription begins, as a user says it."""

from __future__ import annotations

from typing import Any

import pytest

from evenq.client.core.lite.events import LiteStart, LiteStartKind, Suspend, starting
from evenq.errors import BadRequest


def start(
    start_from: str | None = None, at: int | str = 0, offset: int | None = None, tail: int | None = None
) -> LiteStart | None:
    return starting(start_from, at, offset, tail)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        ({"start_from": "FIRST"}, LiteStart(LiteStartKind.FIRST)),
        ({"start_from": "LAST"}, LiteStart(LiteStartKind.LAST)),
        ({"start_from": "CONSUME_FROM_LAST_OFFSET"}, LiteStart(LiteStartKind.LAST)),
        ({"start_from": "TIMESTAMP", "at": 10**12}, LiteStart(LiteStartKind.TIMESTAMP, 10**12)),
        ({"offset": 0}, LiteStart(LiteStartKind.OFFSET, 0)),
        ({"tail": 3}, LiteStart(LiteStartKind.TAIL, 3)),
    ],
)
def test_each_start_has_one_argument(given: dict[str, Any], expected: LiteStart | None) -> None:
    assert start(**given) == expected


def test_a_time_may_be_a_text() -> None:
    result = start("TIMESTAMP", "20240229143000")
    assert result is not None
    assert result.kind is LiteStartKind.TIMESTAMP
    assert result.value > 1_700_000_000_000


@pytest.mark.parametrize(
    "given",
    [{"offset": -1}, {"tail": -1}, {"offset": 1, "tail": 1}, {"start_from": "FIRST", "tail": 1}, {"start_from": "no"}],
)
def test_a_start_that_makes_no_sense_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        start(**given)


def test_a_pause_has_bounds() -> None:
    assert Suspend(10).pause_ms == 10
    for wrong in (9, 43_200_001):
        with pytest.raises(BadRequest, match="range is 10 to 43200000"):
            Suspend(wrong)
