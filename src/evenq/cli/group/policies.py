"""Options of `evenq group create` that form the balance policy and the retry policy."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from evenq.cli.values import duration_ms, duration_text

if TYPE_CHECKING:
    from evenq.model import BalancePolicy
    from evenq.model.retry import RetryPolicy

_OPTIONS = ("weight", "moves_max", "hold_ms", "hold_lag_max")


def add_balance(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("balance: how a rebalancer divides the queues, in addition to the strategy")
    group.add_argument(
        "--weight",
        type=str.upper,
        choices=("EVEN", "LAG", "CAPACITY"),
        help="divide by number of queues, by lag, or by capacity of members (default EVEN)",
    )
    group.add_argument(
        "--moves-max", type=_count, metavar="N", help="most queues moved by one decision (default 0, no limit)"
    )
    group.add_argument(
        "--hold",
        dest="hold_ms",
        type=duration_ms,
        metavar="TIME",
        help="hold the queues of a member that is being replaced for this time, e.g. 30s (default 0s, no hold)",
    )
    group.add_argument(
        "--hold-lag-max", type=_count, metavar="N", help="end a queue's hold when its lag reaches N (default: no limit)"
    )


def balance_policy(options: argparse.Namespace, before: BalancePolicy | None) -> BalancePolicy | None:
    """Returns `before` with the given options, None if none is given. Raises BadRequest for numbers out of range."""
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
    """Returns a short text of the policy."""
    parts = [f"weight {balance.weight.value}"] if balance.weight else []
    if balance.moves_max:
        parts.append(f"at most {balance.moves_max} moves")
    if balance.hold_ms:
        until = f" or {balance.hold_lag_max} messages" if balance.hold_lag_max else ""
        parts.append(f"hold {duration_text(balance.hold_ms)}{until}")
    return ", ".join(parts) or "even"


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a count; give 0 or more")
    return int(text)


def add_retry(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("retry: pauses between the deliveries of a failed message")
    group.add_argument("--retry-classic", action="store_true", help="10s, 30s, 1m ... 2h, 16 pauses (the default)")
    group.add_argument(
        "--retry-delays", type=_times, metavar='"1s 30s 5m"', help="these pauses; the last one is repeated"
    )
    group.add_argument("--retry-initial", type=duration_ms, metavar="TIME", help="first of growing pauses, e.g. 5s")
    group.add_argument("--retry-max", type=duration_ms, metavar="TIME", help="longest of growing pauses (default 2h)")
    group.add_argument("--retry-multiplier", type=float, metavar="X", help="factor of growth, 1 to 100 (default 2)")


def retry_policy(options: argparse.Namespace) -> RetryPolicy | None:
    """Returns the policy of the options, None if none is given. Raises BadRequest for a conflict or a bad value."""
    from evenq.errors import BadRequest

    grows = options.retry_initial is not None
    if sum((options.retry_classic, options.retry_delays is not None, grows)) > 1:
        raise BadRequest("--retry-classic, --retry-delays and --retry-initial exclude each other; give one of them")
    if not grows and (options.retry_max is not None or options.retry_multiplier is not None):
        raise BadRequest("--retry-max and --retry-multiplier belong to --retry-initial; give it, for example 5s")
    try:
        return _policy(options)
    except ValueError as error:
        raise BadRequest(str(error)) from error


def _policy(options: argparse.Namespace) -> RetryPolicy | None:
    from evenq.model.retry import RetryKind, RetryPolicy

    if options.retry_classic:
        return RetryPolicy()
    if options.retry_delays is not None:
        return RetryPolicy(kind=RetryKind.CUSTOMIZED, delays_ms=tuple(options.retry_delays))
    if options.retry_initial is not None:
        return RetryPolicy(
            kind=RetryKind.EXPONENTIAL,
            initial_ms=options.retry_initial,
            max_ms=options.retry_max if options.retry_max is not None else max(options.retry_initial, 7_200_000),
            multiplier=2.0 if options.retry_multiplier is None else options.retry_multiplier,
        )
    return None


def _times(text: str) -> list[int]:
    return [duration_ms(part) for part in text.replace(",", " ").split()]
