"""Sharing beyond the strategy, as `evenq group create` takes it."""

import argparse

import pytest

from evenq.cli.balance_options import add_balance, balance_policy, balance_text
from evenq.errors import BadRequest
from evenq.model import BalancePolicy, Weight


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
