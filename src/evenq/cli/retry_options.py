"""The `--retry-...` options of `evenq group create`: three ways to say how long a failed message waits."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evenq.wire.stubs.evenq.v1 import groups_pb2

__all__ = ["add_retry", "retry_asked", "retry_text"]

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def add_retry(parser: argparse.ArgumentParser) -> None:
    """Add the options to a command."""
    group = parser.add_argument_group("pauses between deliveries of a message that failed")
    group.add_argument("--retry-classic", action="store_true", help="10s, 30s, 1m ... 2h, 16 pauses (the default)")
    group.add_argument("--retry-delays", type=_times, metavar='"1s 30s 5m"', help="a list; its last pause repeats")
    group.add_argument("--retry-initial", type=_time, metavar="TIME", help="first pause of growing ones, e.g. 5s")
    group.add_argument("--retry-max", type=_time, metavar="TIME", help="longest of growing pauses (default 2h)")
    group.add_argument("--retry-multiplier", type=float, metavar="X", help="how fast pauses grow, 1 to 100 (default 2)")


def retry_asked(options: argparse.Namespace) -> groups_pb2.RetryPolicy | None:
    """What the options say; None: nothing. Raises BadRequest for options that exclude each other."""
    from evenq.errors import BadRequest
    from evenq.wire.stubs.evenq.v1 import groups_pb2

    grows = options.retry_initial is not None
    if sum((options.retry_classic, options.retry_delays is not None, grows)) > 1:
        raise BadRequest("--retry-classic, --retry-delays and --retry-initial exclude each other; give one of them")
    if not grows and (options.retry_max is not None or options.retry_multiplier is not None):
        raise BadRequest("--retry-max and --retry-multiplier belong to --retry-initial; give it, for example 5s")
    if options.retry_classic:
        return groups_pb2.RetryPolicy(kind="CLASSIC")
    if options.retry_delays is not None:
        return groups_pb2.RetryPolicy(kind="CUSTOMIZED", delays_ms=options.retry_delays)
    if grows:
        return groups_pb2.RetryPolicy(
            kind="EXPONENTIAL",
            initial_ms=options.retry_initial,
            max_ms=options.retry_max if options.retry_max is not None else max(options.retry_initial, 7_200_000),
            multiplier=2.0 if options.retry_multiplier is None else options.retry_multiplier,
        )
    return None


def retry_text(retry: groups_pb2.RetryPolicy) -> str:
    """A policy as the options would say it."""
    match retry.kind:
        case "CUSTOMIZED":
            return " ".join(map(_short, retry.delays_ms))
        case "EXPONENTIAL":
            return f"{_short(retry.initial_ms)} x{retry.multiplier:g} to {_short(retry.max_ms)}"
        case _:
            return "classic"


def _short(ms: int) -> str:
    unit = next((unit for unit in ("d", "h", "m", "s") if ms and ms % _UNIT_MS[unit] == 0), "ms")
    return f"{ms // _UNIT_MS[unit]}{unit}"


def _times(text: str) -> list[int]:
    return [_time(part) for part in text.replace(",", " ").split()]


def _time(text: str) -> int:
    unit = next((unit for unit in _UNIT_MS if text.endswith(unit) and text[: -len(unit)].isdecimal()), None)
    if unit is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write 500ms, 10s, 5m, 2h or 1d")
    return int(text[: -len(unit)]) * _UNIT_MS[unit]
