"""The grammar of `evenq topic scale | permit` and `evenq broker drain | resume`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

__all__ = ["add_draining", "add_resizing"]

_SCALE = """\
examples:
  evenq topic scale orders --queues 16                 more: open at once
  evenq topic scale orders --queues 4                  fewer: says what is in the others, and changes nothing
  evenq topic scale orders --queues 4 --yes            does it: waits until all groups have read them
  evenq topic scale orders --queues 4 --yes --no-wait  closes them for writing; run it again to go on
  evenq topic scale orders --queues 0 --broker broker-b --yes    leaves it once all groups have read what is there
"""
_SCALE_IN = """\
examples:
  evenq broker check-scale-in broker-c                 before the broker is taken away
  evenq broker check-scale-in broker-b broker-c --yes  what nobody has read does not count
"""
_DRAIN = """\
examples:
  evenq broker drain broker-b --wait 3600              no new messages; returns when it may be stopped
  evenq broker resume broker-b                         let it take messages again
"""


def add_resizing(actions: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add to the actions of `evenq topic`."""
    scale = command(actions, "scale", "give a topic more or fewer queues, safely", "resizing", "scale", examples=_SCALE)
    scale.add_argument("name")
    scale.add_argument(
        "--queues",
        type=_natural,
        required=True,
        metavar="N",
        help="message queues per broker, 1 to 4096; 0 with --broker: the topic leaves that broker",
    )
    _one_broker(scale)
    _waiting(scale, 300)
    scale.add_argument("--force", action="store_true", help="close queues although groups have messages to read there")
    scale.add_argument(
        "--yes",
        action="store_true",
        help="fewer queues, or none: do it, also with messages that no group has read "
        "(without: only say what is in those to be closed)",
    )
    scale.add_argument("--dry-run", action="store_true", help="only say what it would do, and exit with 0")
    permit = command(actions, "permit", "open or close a topic for writing and reading", "resizing", "permit")
    permit.add_argument("name")
    permit.add_argument(
        "permission", choices=("read-write", "read", "write", "none"), help="what is allowed from now on"
    )
    _one_broker(permit)


def add_draining(actions: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add to the actions of `evenq broker`."""
    drain = command(
        actions,
        "drain",
        "let a broker take no new messages until it is read empty",
        "resizing",
        "drain",
        examples=_DRAIN,
    )
    drain.add_argument("name")
    _waiting(drain, 600)
    resume = command(actions, "resume", "let a drained broker take messages again", "resizing", "resume")
    resume.add_argument("name")
    check = command(
        actions,
        "check-scale-in",
        "say whether brokers may be taken away: exit code 0 if nothing of theirs would be missed",
        "scale_in",
        "check",
        examples=_SCALE_IN,
    )
    check.add_argument("names", nargs="+", metavar="NAME")
    check.add_argument(
        "--yes", action="store_true", help="messages that no group has read and dead letters may be missed"
    )
    forget = command(actions, "forget", "let the others forget a broker that is gone for good", "scale_in", "forget")
    forget.add_argument("name")
    forget.add_argument("--yes", action="store_true", help="do it")


def _one_broker(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--broker", default="", metavar="NAME", help="only there (default: every broker)")


def _waiting(parser: argparse.ArgumentParser, seconds: int) -> None:
    parser.add_argument(
        "--wait",
        type=_positive,
        default=seconds,
        metavar="SECONDS",
        help="longest wait for groups to read what is left (default %(default)s)",
    )
    parser.add_argument("--no-wait", action="store_true", help="begin, and do not wait")


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is below 0")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value
