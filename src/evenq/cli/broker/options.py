"""The grammar of `evenq broker` and `evenq cluster`."""

from __future__ import annotations

import argparse
from typing import Any

from evenq.cli.grammar import add_broker_name, add_waiting, command, noun
from evenq.cli.values import natural

_CLUSTER_SHOW = """\
examples:
  evenq cluster show
  evenq cluster show --json                    for programs: see broker_groups and copies
  evenq cluster show --endpoint db2:8083       without a leader: the address of one copy in replication.members
"""
_DRAIN = """\
examples:
  evenq broker drain broker-b --wait 3600              accept no new messages; returns when all are read
  evenq broker resume broker-b                         accept messages again
"""
_SCALE_IN = """\
examples:
  evenq broker check-scale-in broker-c                 may the broker be removed?
  evenq broker check-scale-in broker-b broker-c --yes  ignore schedules, and what no group has read
"""
_IGNORED = "ignore messages that no group has read, dead letters, and schedules"
_MOVE_LEADER = """\
examples:
  evenq broker move-leader broker-a            the best copy in sync becomes leader
  evenq broker move-leader broker-a --to 2     copy 2 becomes leader; refused if not in sync
"""
NO_LEADER = (
    ". A broker group without a leader serves no client: call one of its copies at its address in replication.members"
)
"""Added to the error of an access point that does not answer."""
_ADD = """\
example:
  evenq broker add-replica broker-a --copy 3 --at db4:8083

The copy is a broker process with an empty folder, the settings of the group, and replication.broker_id=3. Start it
before or after the command. It counts once it is in sync: `evenq cluster show` shows its progress.
"""
_REMOVE = """\
example:
  evenq broker remove-replica broker-a --copy 0

If the copy leads, another copy becomes leader first. The command is refused if too few of the remaining copies are in
sync. It does not stop the process of the copy.
"""
_REPLACE = """\
example:
  evenq broker replace broker-a --copy 0 --by 3 --at db4:8083

Adds copy 3, waits until it is in sync, then removes copy 0: the number of copies never falls. A lost disk needs no
command: start the copy with an empty folder.
"""
_GROW = """\
example:
  evenq broker grow broker-a --members 0=db1:8083,1=db2:8083,2=db3:8083 --min-in-sync 2

Adds missing copies, waits until all are in sync, and only then raises the minimum. It removes and lowers nothing, and
does not change a group that has all of them.
"""
_MINIMUM = """\
examples:
  evenq broker set-min-in-sync broker-a 2
  evenq broker set-min-in-sync broker-a 1      continue with one copy; its disk then has the only data
"""
_UNCLEAN = """\
examples:
  evenq broker elect-unclean broker-a --endpoint db3:8083                                what would be lost
  evenq broker elect-unclean broker-a --endpoint db3:8083 --copy 2 --accept-data-loss    copy 2 leads

The last resort, when all copies that may lead are lost for good: acknowledged messages that only they had are lost.
Call any copy at its address in replication.members. The election is refused while the group has a leader, or while a
copy answers that may lead or has more records.
"""


def add_broker(commands: Any) -> None:
    actions = noun(commands, "broker", "list, show and drain brokers; change the leader and copies of a broker group")
    command(actions, "list", "list all brokers", "broker.commands", "list_all", wide=True)
    show = command(
        actions, "show", "show one broker; without a name: all brokers", "broker.commands", "show", wide=True
    )
    add_broker_name(show, "name", nargs="?")
    _add_draining(actions)
    _add_copies(actions)


def add_cluster(commands: Any) -> None:
    actions = noun(commands, "cluster", "show the cluster")
    for name, text in (
        ("show", "show brokers, their copies, nameservers and rebalancer"),
        ("list", "the same as show"),
    ):
        show = command(actions, name, text, "broker.commands", "cluster", wide=True, examples=_CLUSTER_SHOW)
        show.set_defaults(silent_hint=NO_LEADER)


def _add_draining(actions: Any) -> None:
    drain = command(
        actions,
        "drain",
        "stop accepting messages at a broker, and wait until groups have read all of its messages",
        "topic.resizing",
        "drain",
        examples=_DRAIN,
    )
    add_broker_name(drain, "name")
    add_waiting(drain, 600)
    drain.add_argument("--yes", action="store_true", help=_IGNORED)
    resume = command(actions, "resume", "let a drained broker accept messages again", "topic.resizing", "resume")
    add_broker_name(resume, "name")
    check = command(
        actions,
        "check-scale-in",
        "check whether brokers may be removed: exit code 0 if no unread message and no schedule would be lost",
        "broker.scale_in",
        "check",
        examples=_SCALE_IN,
    )
    add_broker_name(check, "names", nargs="+", metavar="NAME")
    check.add_argument("--yes", action="store_true", help=_IGNORED)
    forget = command(actions, "forget", "declare a missing broker gone for good", "broker.scale_in", "forget")
    add_broker_name(forget, "name")
    forget.add_argument("--yes", action="store_true", help="confirm that it is gone for good")


def _add_copies(actions: Any) -> None:
    def one(name: str, text: str, function: str, examples: str) -> argparse.ArgumentParser:
        parser = command(actions, name, text, "broker.copies", function, examples=examples)
        parser.set_defaults(silent_hint=NO_LEADER)
        add_broker_name(parser, "name", metavar="GROUP", help="the broker's name")
        return parser

    move = one(
        "move-leader", "make another copy in sync the leader; clients wait for a moment", "move_leader", _MOVE_LEADER
    )
    move.add_argument("--to", type=natural, metavar="COPY", help="number of the copy (default: the best copy in sync)")
    add = one("add-replica", "add a copy to a broker group while it runs", "add_replica", _ADD)
    _copy(add, "number of the new copy")
    _at(add)
    remove = one("remove-replica", "remove a copy from a broker group while it runs", "remove_replica", _REMOVE)
    _copy(remove, "number of the copy")
    replace = one("replace", "replace a copy of a broker group while it runs", "replace", _REPLACE)
    _copy(replace, "number of the old copy")
    replace.add_argument("--by", type=natural, required=True, metavar="COPY", help="number of the new copy")
    _at(replace)
    _wait(replace, "longest wait until the new copy is in sync, seconds (default %(default)s)")
    grow = one("grow", "add missing copies to a broker group, then raise the minimum in sync", "grow", _GROW)
    grow.add_argument(
        "--members", type=_members, required=True, metavar="N=HOST:PORT,...", help="as in replication.members"
    )
    grow.add_argument(
        "--min-in-sync", type=natural, default=2, metavar="N", help="minimum of copies in sync (default %(default)s)"
    )
    _wait(grow, "longest wait until all are in sync, seconds (default %(default)s)")
    minimum = one("set-min-in-sync", "set the minimum of copies in sync of a broker group", "set_min_in_sync", _MINIMUM)
    minimum.add_argument("copies", type=natural, metavar="N", help="with fewer in sync, messages are rejected")
    unclean = command(
        actions,
        "elect-unclean",
        "elect a copy that lacks acknowledged messages, when all copies that may lead are lost for good",
        "broker.unclean",
        "elect_unclean",
        examples=_UNCLEAN,
    )
    unclean.set_defaults(silent_hint=". Call a copy of the group at its address in replication.members")
    add_broker_name(unclean, "name", metavar="GROUP", help="the broker's name")
    unclean.add_argument(
        "--copy", type=natural, metavar="COPY", help="number of the copy that is to lead (default: only print the plan)"
    )
    unclean.add_argument(
        "--accept-data-loss", action="store_true", help="carry out the election (default: only print the plan)"
    )
    unclean.add_argument(
        "--despite-better", action="store_true", help="also if another copy that answers has more; needs --reason"
    )
    unclean.add_argument(
        "--reason", default="", metavar="TEXT", help="stored in the group record, at most 200 characters"
    )


def _copy(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--copy", type=natural, required=True, metavar="COPY", help=text)


def _at(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--at", required=True, metavar="HOST:PORT", help="address of the new copy for the other copies, not for clients"
    )


def _wait(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--wait", type=natural, default=600, metavar="SECONDS", help=text)


def _members(text: str) -> dict[int, str]:
    """Returns the address of each copy. Raises ArgumentTypeError."""
    members: dict[int, str] = {}
    for part in text.split(","):
        number, equals, address = part.strip().partition("=")
        if not equals or not number.isdecimal() or not address.rpartition(":")[2].isdecimal():
            raise argparse.ArgumentTypeError(f"{part!r} is not a copy; write N=HOST:PORT, as in 1=db2:8083")
        if int(number) in members or address in members.values():
            raise argparse.ArgumentTypeError(f"{part!r} repeats a copy or an address; name each once")
        members[int(number)] = address
    return members
