"""The `--weight`, `--moves-max` and `--hold...` options of `evenq group create`: sharing beyond the strategy."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from evenq.cli.values import duration_ms, duration_text

if TYPE_CHECKING:
    from evenq.model import BalancePolicy

__all__ = ["add_balance", "balance_policy", "balance_text"]

_OPTIONS = ("weight", "moves_max", "hold_ms", "hold_lag_max")


def add_balance(parser: argparse.ArgumentParser) -> None:
    """Add the options to a command."""
    group = parser.add_argument_group("how a rebalancer divides the queues, in addition to the strategy")
    group.add_argument(
        "--weight",
        type=str.upper,
        choices=("EVEN", "LAG", "CAPACITY"),
        help="divide evenly by number of queues, by lag, or by capacity of members (default EVEN)",
    )
    group.add_argument(
        "--moves-max",
        type=_count,
        metavar="N",
        help="most queues moved for balance by one decision (default 0, no limit)",
    )
    group.add_argument(
        "--hold",
        dest="hold_ms",
        type=duration_ms,
        metavar="TIME",
        help="how long to hold the queues of a member that is being replaced, e.g. 30s (default 0s, not at all)",
    )
    group.add_argument(
        "--hold-lag-max",
        type=_count,
        metavar="N",
        help="end the hold of a queue when this many messages wait in it (default: no limit)",
    )


def balance_policy(options: argparse.Namespace, before: BalancePolicy | None) -> BalancePolicy | None:
    """The policy `before` with what the options say; None: nothing. Raises BadRequest for numbers out of range."""
    from dataclasses import replace

    from evenq.errors import BadRequest
    from evenq.model import EVEN_BALANCE, Weight

    changes = {name: getattr(options, name) for name in _OPTIONS if getattr(options, name) is not None}
    if not changes:
        return None
    if "weight" in changes:
        changes["weight"] = Weight("" if changes["weight"] == "EVEN" else changes["weight"])
    base = before or EVEN_BALANCE
    if changes.get("hold_ms", base.hold_ms) == 0:
        changes.setdefault("hold_lag_max", 0)
    try:
        return replace(base, **changes)
    except ValueError as error:
        raise BadRequest(str(error)) from error


def balance_text(balance: BalancePolicy) -> str:
    """A policy in a few words."""
    parts = [f"weight {balance.weight.value}"] if balance.weight else []
    if balance.moves_max:
        parts.append(f"at most {balance.moves_max} moves")
    if balance.hold_ms:
        until = f" or {balance.hold_lag_max} messages" if balance.hold_lag_max else ""
        parts.append(f"hold {duration_text(balance.hold_ms)}{until}")
    return ", ".join(parts) or "even"


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no count; give 0 or more")
    return int(text)
