"""Policies of a group as JSON in the journal (`core.state.records`); the default of each is left out."""

from __future__ import annotations

from typing import Any

from evenq.model import EVEN_BALANCE, BalancePolicy, Weight
from evenq.model.retry import CLASSIC_RETRY, RetryKind, RetryPolicy


def retry_json(retry: RetryPolicy) -> list[Any] | None:
    """Returns the policy as JSON; None: the classic one."""
    if retry.kind is RetryKind.CLASSIC:
        return None
    return [str(retry.kind), list(retry.delays_ms), retry.initial_ms, retry.max_ms, retry.multiplier]


def retry_of(fields: list[Any] | None) -> RetryPolicy:
    if fields is None:
        return CLASSIC_RETRY
    kind, delays_ms, initial_ms, max_ms, multiplier = fields
    return RetryPolicy(
        kind=RetryKind(kind),
        delays_ms=tuple(delays_ms),
        initial_ms=initial_ms,
        max_ms=max_ms,
        multiplier=multiplier,
    )


def balance_json(balance: BalancePolicy) -> list[Any] | None:
    """Returns the policy as JSON; None: the even one."""
    if balance == EVEN_BALANCE:
        return None
    return [str(balance.weight), balance.moves_max, balance.hold_ms, balance.hold_lag_max]


def balance_of(fields: list[Any] | None) -> BalancePolicy:
    if fields is None:
        return EVEN_BALANCE
    weight, moves_max, hold_ms, hold_lag_max = fields
    return BalancePolicy(weight=Weight(weight), moves_max=moves_max, hold_ms=hold_ms, hold_lag_max=hold_lag_max)
