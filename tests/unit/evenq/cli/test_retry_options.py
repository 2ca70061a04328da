"""Three ways to say how long a failed message waits; only one at a time."""

import argparse

import pytest

from evenq.cli.retry_options import add_retry, retry_asked, retry_text
from evenq.errors import BadRequest
from evenq.wire.stubs.evenq.v1 import groups_pb2


def asked(*words: str) -> groups_pb2.RetryPolicy | None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_retry(parser)
    return retry_asked(parser.parse_args(words))


def test_what_is_asked_is_what_is_shown() -> None:
    for words, text in (
        (["--retry-delays", "500ms 10s, 2h"], "500ms 10s 2h"),
        (["--retry-initial", "5s"], "5s x2 to 2h"),
        (["--retry-initial", "1d", "--retry-multiplier", "1.5"], "1d x1.5 to 1d"),
        (["--retry-initial", "1s", "--retry-max", "1m"], "1s x2 to 1m"),
        (["--retry-classic"], "classic"),
    ):
        policy = asked(*words)
        assert policy is not None
        assert retry_text(policy) == text


def test_nothing_asked_changes_nothing() -> None:
    assert asked() is None


@pytest.mark.parametrize(
    "words",
    [["--retry-classic", "--retry-initial", "1s"], ["--retry-max", "1m"], ["--retry-multiplier", "3"]],
)
def test_options_that_exclude_each_other_are_refused(words: list[str]) -> None:
    with pytest.raises(BadRequest, match="--retry-initial"):
        asked(*words)


def test_a_time_without_a_unit_is_no_time() -> None:
    with pytest.raises(argparse.ArgumentError, match="500ms, 10s"):
        asked("--retry-delays", "10")
