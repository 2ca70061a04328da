"""The grammar of `evenq top`."""

from __future__ import annotations

import argparse
from typing import Any

from evenq.cli.grammar import add_namespace, command
from evenq.cli.values import between

SORT_KEYS = ("name", "in", "out", "lag", "members")
_TOP = """\
examples:
  evenq top                              live: q ends it, n i o l m sort
  evenq top --sort in --interval 1
  evenq top --once                       two polls, then the tables: for scripts
  evenq top --once -o json --interval 10     rates of ten seconds

Keys: q quit; sort by n name, i in/s, o out/s, l lag, m members; r reverse;
t, g and b show or hide topics, groups and brokers.

in/s and out/s are messages per second that were stored, and that groups have
finished, from the difference of two polls at most 10 seconds apart. A group
that commits rarely shows its rate in steps. lag: stored and not finished.
oldest: age of the oldest message that a group has not finished. `-`: not known
yet, or not polled (see --limit).
"""


def add_top(commands: Any) -> None:
    top = command(
        commands, "top", "show rates, lag and members of topics and groups, live", "top.commands", "run", examples=_TOP
    )
    top.add_argument("--once", action="store_true", help="print the tables of one interval and end, for scripts")
    top.add_argument(
        "--interval", type=_interval, default=2.0, metavar="SECONDS", help="time between two polls (default 2)"
    )
    top.add_argument(
        "--sort",
        choices=SORT_KEYS,
        default="lag",
        help="column to sort by, the largest first; members: brokers by connections (default lag)",
    )
    top.add_argument(
        "--limit",
        type=between(1, 1_000),
        default=100,
        metavar="N",
        help="rates of at most N topics and N groups, those with most messages and lag: each costs a call per poll, 1 "
        "to 1000 (default %(default)s)",
    )
    add_namespace(top)


def _interval(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0.2 <= value <= 60:
        raise argparse.ArgumentTypeError(f"{text} is outside 0.2 to 60 seconds")
    return value
