"""The grammar of `evenq dlq`: list, show and replay what a group could not handle."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

__all__ = ["add_dead_letters"]

_DLQ = """\
examples:
  evenq dlq list                                      which groups have dead letters
  evenq dlq list billing --waiting                    the newest that were not replayed
  evenq dlq show billing 01A2B3C4                     one letter whole, with its properties and body
  evenq dlq replay billing                            how many there are to send, and where to; sends nothing
  evenq dlq replay billing --rate 50/s --yes
  evenq dlq replay billing --filter "DLQ_REASON = 'attempts' AND region = 'eu'" --to orders-late --yes
"""


def add_dead_letters(commands: Any, noun: Callable[..., Any], command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the noun and its actions."""
    actions = noun(commands, "dlq", "list, show and replay dead letters", _DLQ)
    listing = command(
        actions, "list", "list a group's newest dead letters; without a group, how many each has", "dead_letters",
        "list_all", examples=_DLQ,
    )  # fmt: skip
    listing.add_argument("group", nargs="?", metavar="GROUP")
    listing.add_argument("--max", type=int, default=100, metavar="N", help="letters of each broker (default 100)")
    listing.add_argument("--waiting", action="store_true", help="only those that were not replayed")
    show = command(actions, "show", "show dead letters whole", "dead_letters", "show", examples=_DLQ)
    show.add_argument("group", metavar="GROUP")
    show.add_argument("message_id", nargs="?", default="", metavar="ID", help="only this message (default: the newest)")
    replay = command(
        actions, "replay", "send dead letters once more, each at most once", "dead_letters", "replay", examples=_DLQ
    )
    replay.add_argument("group", metavar="GROUP")
    replay.add_argument(
        "--filter", default="*", metavar="EXPRESSION", help='tags ("new || paid"), or SQL over properties'
    )
    replay.add_argument("--to", default="", metavar="TOPIC", help="send all there (default: where each came from)")
    replay.add_argument("--rate", type=_rate, default=0.0, metavar="N/s", help="e.g. 50/s or 10/m (default: no limit)")
    replay.add_argument("--max", type=int, default=0, metavar="N", help="stop after N letters (default: all)")
    replay.add_argument("--yes", action="store_true", help="do it (without: only say what would be sent)")
    replay.add_argument("--dry-run", action="store_true", help="only say what would be sent, and exit with 0")


def _rate(text: str) -> float:
    number, slash, unit = text.partition("/")
    seconds = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(unit) if slash else 1.0
    try:
        rate = float(number) / (seconds or 0.0)
    except (ValueError, ZeroDivisionError):
        rate = 0.0
    if not 0 < rate <= 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate: write 50/s, 10/m or 5/h")
    return rate
