"""The grammar of `evenq topic scale | permit` and `evenq broker drain | resume`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from evenq.cli.values import natural, positive

__all__ = ["add_draining", "add_resizing"]

_SCALE = """\
examples:
  evenq topic scale orders --queues 16                 more: open at once
  evenq topic scale orders --queues 4                  fewer: prints what the closed queues hold, changes nothing
  evenq topic scale orders --queues 4 --yes            closes them when all groups have read them
  evenq topic scale orders --queues 4 --yes --no-wait  closes them for writing; run it again to continue
  evenq topic scale orders --queues 0 --broker broker-b --yes    removes it from broker-b when all groups have read it
"""
_SCALE_IN = """\
examples:
  evenq broker check-scale-in broker-c                 may the broker be removed?
  evenq broker check-scale-in broker-b broker-c --yes  ignore messages that no group has read
"""
_DRAIN = """\
examples:
  evenq broker drain broker-b --wait 3600              accept no new messages; returns when all is read
  evenq broker resume broker-b                         accept messages again
"""


_IGNORED = "ignore messages that no group has read, and dead letters"


def add_resizing(actions: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add to the actions of `evenq topic`."""
    scale = command(actions, "scale", "give a topic more or fewer queues, safely", "resizing", "scale", examples=_SCALE)
    scale.add_argument("name")
    scale.add_argument(
        "--queues",
        type=natural,
        required=True,
        metavar="N",
        help="message queues per broker, 1 to 4096; 0 with --broker removes the topic from that broker",
    )
    _one_broker(scale)
    _waiting(scale, 300)
    scale.add_argument("--force", action="store_true", help="close queues although groups have unread messages there")
    scale.add_argument(
        "--yes",
        action="store_true",
        help="close the queues, also those with messages that no group has read "
        "(default: only print what the queues to be closed hold)",
    )
    scale.add_argument("--dry-run", action="store_true", help="only print what would be done, with exit code 0")
    permit = command(actions, "permit", "allow or forbid sending to and reading from a topic", "resizing", "permit")
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
        "accept no new messages at a broker, and wait until groups have read all of its messages",
        "resizing",
        "drain",
        examples=_DRAIN,
    )
    drain.add_argument("name")
    _waiting(drain, 600)
    drain.add_argument("--yes", action="store_true", help=_IGNORED)
    resume = command(actions, "resume", "let a drained broker accept messages again", "resizing", "resume")
    resume.add_argument("name")
    check = command(
        actions,
        "check-scale-in",
        "check whether brokers may be removed: exit code 0 if no unread message would be lost",
        "scale_in",
        "check",
        examples=_SCALE_IN,
    )
    check.add_argument("names", nargs="+", metavar="NAME")
    check.add_argument("--yes", action="store_true", help=_IGNORED)
    forget = command(actions, "forget", "declare a missing broker gone for good", "scale_in", "forget")
    forget.add_argument("name")
    forget.add_argument("--yes", action="store_true", help="do it")


def _one_broker(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--broker", default="", metavar="NAME", help="only on this broker (default: on every broker)")


def _waiting(parser: argparse.ArgumentParser, seconds: int) -> None:
    parser.add_argument(
        "--wait",
        type=positive,
        default=seconds,
        metavar="SECONDS",
        help="longest wait for groups to read the remaining messages (default %(default)s)",
    )
    parser.add_argument("--no-wait", action="store_true", help="start it, and do not wait for the end")
