"""Three ways to say how long a failed message waits; only one at a time."""

import argparse

import pytest

from evenq.cli.retry_options import add_retry, retry_policy
from evenq.errors import BadRequest
from evenq.model.retry import RetryPolicy


def policy_of(*words: str) -> RetryPolicy | None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_retry(parser)
    return retry_policy(parser.parse_args(words))


def test_what_is_asked_is_what_is_shown() -> None:
    for words, text in (
        (["--retry-delays", "500ms 10s, 2h"], "500ms 10s 2h"),
        (["--retry-initial", "5s"], "5s x2 to 2h"),
        (["--retry-initial", "1d", "--retry-multiplier", "1.5"], "1d x1.5 to 1d"),
        (["--retry-initial", "1s", "--retry-max", "1m"], "1s x2 to 1m"),
        (["--retry-classic"], "classic"),
    ):
        policy = policy_of(*words)
        assert policy is not None
        assert str(policy) == text


def test_nothing_asked_changes_nothing() -> None:
    assert policy_of() is None


@pytest.mark.parametrize(
    "words",
    [["--retry-classic", "--retry-initial", "1s"], ["--retry-max", "1m"], ["--retry-multiplier", "3"]],
)
def test_options_that_exclude_each_other_are_refused(words: list[str]) -> None:
    with pytest.raises(BadRequest, match="--retry-initial"):
        policy_of(*words)


@pytest.mark.parametrize(
    "words", [["--retry-delays", "8d"], ["--retry-initial", "5s", "--retry-max", "1s"], ["--retry-delays", ""]]
)
def test_pauses_out_of_range_are_refused_with_the_range(words: list[str]) -> None:
    with pytest.raises(BadRequest, match=r"7 days|1 to 64"):
        policy_of(*words)


def test_a_time_without_a_unit_is_no_time() -> None:
    with pytest.raises(argparse.ArgumentError, match="500ms, 10s"):
        policy_of("--retry-delays", "10")
