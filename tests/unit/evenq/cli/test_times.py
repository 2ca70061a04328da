"""Durations are read and shown alike."""

import argparse

import pytest

from evenq.cli.times import duration_ms, duration_text


@pytest.mark.parametrize("text", ["500ms", "10s", "5m", "2h", "1d", "0ms"])
def test_what_is_read_is_what_is_shown(text: str) -> None:
    assert duration_text(duration_ms(text)) == text


@pytest.mark.parametrize("text", ["10", "s", "-1s", "1.5s", "ten s"])
def test_anything_else_is_no_time(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no time: write 500ms"):
        duration_ms(text)
