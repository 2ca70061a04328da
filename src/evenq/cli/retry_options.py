"""The `--retry-...` options of `evenq group create`: three ways to say how long a failed message waits."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from evenq.cli.values import duration_ms

if TYPE_CHECKING:
    from evenq.model.retry import RetryPolicy

__all__ = ["add_retry", "retry_policy"]


def add_retry(parser: argparse.ArgumentParser) -> None:
    """Add the options to a command."""
    group = parser.add_argument_group("pauses between the deliveries of a failed message")
    group.add_argument("--retry-classic", action="store_true", help="10s, 30s, 1m ... 2h, 16 pauses (the default)")
    group.add_argument("--retry-delays", type=_times, metavar='"1s 30s 5m"', help="own pauses; the last one repeats")
    group.add_argument("--retry-initial", type=duration_ms, metavar="TIME", help="first one of growing pauses, e.g. 5s")
    group.add_argument("--retry-max", type=duration_ms, metavar="TIME", help="longest of growing pauses (default 2h)")
    group.add_argument(
        "--retry-multiplier",
        type=float,
        metavar="X",
        help="how fast pauses grow, 1 to 100 (default 2)",
    )


def retry_policy(options: argparse.Namespace) -> RetryPolicy | None:
    """What the options say; None: nothing. Raises BadRequest if they exclude each other or are out of range."""
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
