"""The grammar of `evenq group explain`, `simulate` and `doctor`, and their examples. Part of `parser`, imports nothing
heavy.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from evenq.cli.values import duration_ms, positive

__all__ = ["add_group_reports"]

_EXPLAIN = """\
examples:
  evenq group explain billing                             owner of each queue, since when, and why
  evenq group explain billing --topic orders --json

Without a rebalancer brokers know which member holds which lock, but not why.
"""
_SIMULATE = """\
examples:
  evenq group simulate billing --members 12               how twelve members would share the queues
  evenq group simulate billing --queues 24 --topic orders
  evenq group simulate billing --strategy STICKY --rows   list each queue that would move
  evenq group simulate billing --lose-zone b

Nothing is changed: the rebalancer only computes the result. Needs a rebalancer.
"""
_DOCTOR = """\
examples:
  evenq group doctor billing
  evenq group doctor billing --stuck 10s --json

Exit code 0: healthy; 1: problems were found, or something could not be checked. Problems that a rebalance shows for a
moment are checked twice, --watch apart.
"""


def add_group_reports(actions: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the three actions. `command` makes one."""
    explain = command(
        actions,
        "explain",
        "show the owner of each queue, since when and why",
        "group_reports",
        "explain",
        examples=_EXPLAIN,
    )
    explain.add_argument("name")
    explain.add_argument("--topic", metavar="NAME", default="", help="only this topic")
    simulate = command(
        actions,
        "simulate",
        "show what other members, queues or strategies would change",
        "group_reports",
        "simulate",
        examples=_SIMULATE,
    )
    simulate.add_argument("name")
    simulate.add_argument("--topic", metavar="NAME", default="", help="only this topic (default: all of the group)")
    simulate.add_argument("--members", type=positive, default=0, metavar="N", help="assume N members")
    simulate.add_argument("--queues", type=positive, default=0, metavar="N", help="assume N queues on each broker")
    simulate.add_argument("--strategy", default="", metavar="NAME", help="assume this strategy")
    simulate.add_argument(
        "--lose-zone", default="", metavar="ZONE", help="assume that this zone's members and brokers are gone"
    )
    simulate.add_argument("--rows", action="store_true", help="list the queues that would move")
    doctor = command(actions, "doctor", "check a group for problems", "group_reports", "doctor", examples=_DOCTOR)
    doctor.add_argument("name")
    doctor.add_argument(
        "--watch",
        dest="watch_ms",
        type=duration_ms,
        default=0,
        metavar="TIME",
        help="time between the two checks, at most 10s (default 1500ms)",
    )
    doctor.add_argument(
        "--stuck",
        dest="stuck_ms",
        type=duration_ms,
        default=0,
        metavar="TIME",
        help="report queues whose oldest message is unfinished for this time (default: the broker's setting, 60s)",
    )
