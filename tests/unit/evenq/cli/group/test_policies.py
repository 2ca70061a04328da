"""Sharing beyond the strategy, as `evenq group create` takes it."""

import argparse

import pytest

from evenq.cli.group.policies import add_balance, add_retry, balance_policy, balance_text, retry_policy
from evenq.errors import BadRequest
from evenq.model import BalancePolicy, Weight
from evenq.model.retry import RetryPolicy


def policy_of(*words: str, before: BalancePolicy | None = None) -> BalancePolicy | None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_balance(parser)
    return balance_policy(parser.parse_args(words), before)


def test_what_is_asked_is_what_is_shown() -> None:
    policy = policy_of("--weight", "lag", "--moves-max", "50", "--hold", "30s", "--hold-lag-max", "10000")
    assert policy == BalancePolicy(weight=Weight.LAG, moves_max=50, hold_ms=30_000, hold_lag_max=10_000)
    assert balance_text(policy) == "weight LAG, at most 50 moves, hold 30s or 10000 messages"
    assert balance_text(BalancePolicy()) == "even"


def test_nothing_asked_changes_nothing() -> None:
    assert policy_of() is None


def test_what_is_not_told_stays() -> None:
    before = BalancePolicy(weight=Weight.CAPACITY, hold_ms=5_000, hold_lag_max=9)
    assert policy_of("--moves-max", "3", before=before) == BalancePolicy(
        weight=Weight.CAPACITY, moves_max=3, hold_ms=5_000, hold_lag_max=9
    )
    assert policy_of("--weight", "EVEN", "--hold", "0s", before=before) == BalancePolicy()


def test_numbers_out_of_range_are_refused_with_the_range() -> None:
    with pytest.raises(BadRequest, match="1 hour"):
        policy_of("--hold", "2h")
    with pytest.raises(BadRequest, match="give hold_ms too"):
        policy_of("--hold-lag-max", "5")


def pauses_of(*words: str) -> RetryPolicy | None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_retry(parser)
    return retry_policy(parser.parse_args(words))


def test_pauses_are_shown_as_they_are_given() -> None:
    for words, text in (
        (["--retry-delays", "500ms 10s, 2h"], "500ms 10s 2h"),
        (["--retry-initial", "5s"], "5s x2 to 2h"),
        (["--retry-initial", "1d", "--retry-multiplier", "1.5"], "1d x1.5 to 1d"),
        (["--retry-initial", "1s", "--retry-max", "1m"], "1s x2 to 1m"),
        (["--retry-classic"], "classic"),
    ):
        policy = pauses_of(*words)
        assert policy is not None
        assert str(policy) == text


def test_no_pauses_given_changes_nothing() -> None:
    assert pauses_of() is None


@pytest.mark.parametrize(
    "words",
    [["--retry-classic", "--retry-initial", "1s"], ["--retry-max", "1m"], ["--retry-multiplier", "3"]],
)
def test_options_that_exclude_each_other_are_refused(words: list[str]) -> None:
    with pytest.raises(BadRequest, match="--retry-initial"):
        pauses_of(*words)


@pytest.mark.parametrize(
    "words", [["--retry-delays", "8d"], ["--retry-initial", "5s", "--retry-max", "1s"], ["--retry-delays", ""]]
)
def test_pauses_out_of_range_are_refused_with_the_range(words: list[str]) -> None:
    with pytest.raises(BadRequest, match=r"7 days|1 to 64"):
        pauses_of(*words)


def test_a_time_without_a_unit_is_no_time() -> None:
    with pytest.raises(argparse.ArgumentError, match="500ms, 10s"):
        pauses_of("--retry-delays", "10")
