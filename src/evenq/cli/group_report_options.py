"""The grammar of `evenq group explain`, `simulate` and `doctor`, and their examples. Part of `parser`, imports nothing
heavy.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from evenq.cli.times import duration_ms

__all__ = ["add_group_reports"]

_EXPLAIN = """\
examples:
  evenq group explain billing                             who has each queue, since when and why; who has none and why
  evenq group explain billing --topic orders --json

Without a rebalancer brokers know who holds which lock, and not why.
"""
_SIMULATE = """\
examples:
  evenq group simulate billing --members 12               what twelve members would have
  evenq group simulate billing --queues 24 --topic orders
  evenq group simulate billing --strategy STICKY --rows   with each queue that would move
  evenq group simulate billing --lose-zone b

Nothing changes: the rebalancer divides once more over what you say. Needs a rebalancer.
"""
_DOCTOR = """\
examples:
  evenq group doctor billing
  evenq group doctor billing --stuck 10s --json

Exit code 0: healthy; 1: something was found, or could not be looked at. What a hand-over shows for a moment is looked
at twice, --watch apart.
"""


def add_group_reports(actions: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the three actions. `command` makes one."""
    explain = command(
        actions, "explain", "say why each queue is where it is", "group_reports", "explain", examples=_EXPLAIN
    )
    explain.add_argument("name")
    explain.add_argument("--topic", metavar="NAME", default="", help="only this topic")
    simulate = command(actions, "simulate", "say what would change if", "group_reports", "simulate", examples=_SIMULATE)
    simulate.add_argument("name")
    simulate.add_argument("--topic", metavar="NAME", default="", help="only this topic (default: all of the group)")
    simulate.add_argument("--members", type=_positive, default=0, metavar="N", help="if there were so many members")
    simulate.add_argument("--queues", type=_positive, default=0, metavar="N", help="if brokers had so many queues each")
    simulate.add_argument("--strategy", default="", metavar="NAME", help="if another strategy divided")
    simulate.add_argument("--lose-zone", default="", metavar="ZONE", help="if a zone's members and brokers were gone")
    simulate.add_argument("--rows", action="store_true", help="list the queues that would move")
    doctor = command(
        actions, "doctor", "look for what is wrong with a group", "group_reports", "doctor", examples=_DOCTOR
    )
    doctor.add_argument("name")
    doctor.add_argument(
        "--watch",
        dest="watch_ms",
        type=duration_ms,
        default=0,
        metavar="TIME",
        help="what lasts so long counts, at most 10s (default 1500ms)",
    )
    doctor.add_argument(
        "--stuck",
        dest="stuck_ms",
        type=duration_ms,
        default=0,
        metavar="TIME",
        help="an oldest message unfinished for so long is stuck (default: the server's, 60s)",
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no count; give 1 or more")
    return int(text)
