"""The grammar of `evenq broker` for groups of copies: which one leads, and which there are."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from evenq.cli.values import natural

__all__ = ["NO_LEADER", "add_copies"]

_MOVE_LEADER = """\
examples:
  evenq broker move-leader broker-a            the best copy in sync leads from now on
  evenq broker move-leader broker-a --to 2     copy 2 does; refused if it is not in sync
"""
NO_LEADER = (
    ". A broker group without a leader serves no client: ask one of its copies at its address in replication.members"
)
"""Behind what is said of an access point that does not answer."""
_ADD = """\
example:
  evenq broker add-replica broker-a --copy 3 --at db4:8083

The copy is a broker of its own with an empty folder, the settings of the group, and replication.broker_id=3. It may be
started before or after the command. It copies, and counts once it has everything: `evenq cluster show` says how far.
"""
_REMOVE = """\
example:
  evenq broker remove-replica broker-a --copy 0

If the copy leads, another one leads first. It is refused if too few of those that stay are in sync. The process of the
copy is not stopped.
"""
_REPLACE = """\
example:
  evenq broker replace broker-a --copy 0 --by 3 --at db4:8083

Adds copy 3, waits until it is in sync, then removes copy 0: at no time there are fewer copies than before. A disk that
was lost needs no command: start the copy with an empty folder.
"""
_GROW = """\
example:
  evenq broker grow broker-a --members 0=db1:8083,1=db2:8083,2=db3:8083 --min-in-sync 2

Adds the copies that the group lacks, waits until all are in sync, and only then raises how many must be. Nothing is
removed or lowered; a group that has all of it is left alone.
"""
_MINIMUM = """\
examples:
  evenq broker set-min-in-sync broker-a 2
  evenq broker set-min-in-sync broker-a 1      go on with one copy; what only that one has is lost with its disk
"""
_UNCLEAN = """\
examples:
  evenq broker elect-unclean broker-a --endpoint db3:8083                                what would be lost
  evenq broker elect-unclean broker-a --endpoint db3:8083 --copy 2 --accept-data-loss    copy 2 leads

The last resort, when all copies that may lead are lost for good: acknowledged messages that only they had are lost.
Ask any copy at its address in replication.members. It is refused while the group has a leader, while a copy answers
that may lead, and while another copy answers that has more.
"""


def add_copies(actions: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add to the actions of `evenq broker`."""

    def one(name: str, text: str, function: str, examples: str) -> argparse.ArgumentParser:
        parser = command(actions, name, text, "broker_groups", function, examples=examples)
        parser.set_defaults(silent_hint=NO_LEADER)
        parser.add_argument("name", metavar="GROUP", help="the broker's name")
        return parser

    move = one(
        "move-leader",
        "let another copy of a broker group lead, one that is in sync; clients wait for a moment",
        "move_leader",
        _MOVE_LEADER,
    )
    move.add_argument(
        "--to", type=natural, metavar="COPY", help="number of the copy (default: the best of those in sync)"
    )
    add = one("add-replica", "add a copy to a broker group while it runs", "add_replica", _ADD)
    _copy(add, "number of the new copy")
    _at(add)
    remove = one("remove-replica", "remove a copy from a broker group while it runs", "remove_replica", _REMOVE)
    _copy(remove, "number of the copy")
    replace = one("replace", "replace a copy of a broker group while it runs", "replace", _REPLACE)
    _copy(replace, "number of the copy that goes")
    replace.add_argument("--by", type=natural, required=True, metavar="COPY", help="number of the copy that comes")
    _at(replace)
    _wait(replace, "longest wait until the new copy is in sync (default %(default)s)")
    grow = one("grow", "add the copies that a broker group lacks, then raise the minimum", "grow", _GROW)
    grow.add_argument(
        "--members",
        type=_members,
        required=True,
        metavar="N=HOST:PORT,...",
        help="all its copies, as in replication.members",
    )
    grow.add_argument(
        "--min-in-sync",
        type=natural,
        default=2,
        metavar="N",
        help="fewest copies in sync; with fewer, messages are refused (default %(default)s)",
    )
    _wait(grow, "longest wait until all are in sync (default %(default)s)")
    minimum = one(
        "set-min-in-sync", "set how many copies of a broker group must be in sync", "set_min_in_sync", _MINIMUM
    )
    minimum.add_argument("copies", type=natural, metavar="N", help="with fewer in sync, messages are refused")
    unclean = command(
        actions,
        "elect-unclean",
        "let a copy lead that lacks acknowledged messages, when all that may lead are lost for good",
        "unclean",
        "elect_unclean",
        examples=_UNCLEAN,
    )
    unclean.set_defaults(silent_hint=". Ask a copy of the group at its address in replication.members")
    unclean.add_argument("name", metavar="GROUP", help="the broker's name")
    unclean.add_argument(
        "--copy", type=natural, metavar="COPY", help="number of the copy that is to lead (default: only look)"
    )
    unclean.add_argument("--accept-data-loss", action="store_true", help="do it; without this only the plan is printed")
    unclean.add_argument(
        "--despite-better", action="store_true", help="also if another copy answers that has more; needs --reason"
    )
    unclean.add_argument(
        "--reason", default="", metavar="TEXT", help="kept in the group record, at most 200 characters"
    )


def _copy(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--copy", type=natural, required=True, metavar="COPY", help=text)


def _at(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--at", required=True, metavar="HOST:PORT", help="where the other copies reach the new one, not its clients"
    )


def _wait(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--wait", type=natural, default=600, metavar="SECONDS", help=text)


def _members(text: str) -> dict[int, str]:
    """Copy -> address. Raises ArgumentTypeError, which argparse shows with the option's name."""
    members: dict[int, str] = {}
    for part in text.split(","):
        number, equals, address = part.strip().partition("=")
        if not equals or not number.isdecimal() or not address.rpartition(":")[2].isdecimal():
            raise argparse.ArgumentTypeError(f"{part!r} is no copy; write N=HOST:PORT, as in 1=db2:8083")
        if int(number) in members or address in members.values():
            raise argparse.ArgumentTypeError(f"{part!r} names a copy or an address again; each stands there once")
        members[int(number)] = address
    return members
