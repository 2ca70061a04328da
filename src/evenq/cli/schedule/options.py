"""The grammar of `evenq schedule`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from evenq.cli.grammar import add_broker_name, add_topic_name, command, message_property, noun
from evenq.cli.values import between, duration_ms

MISSED = ("one", "skip", "all")
_SCHEDULE = """\
examples:
  evenq schedule create reports nightly --schedule "0 6 * * MON-FRI Europe/Berlin" --body run
  evenq schedule create jobs refresh --every 10m --body '{"what": "cache"}' --tag refresh
  evenq schedule list                        of all topics; `list reports` for one
  evenq schedule show reports nightly
  evenq schedule pause reports nightly
  evenq schedule resume reports nightly      counts from now
  evenq schedule run reports nightly         sends its message now
  evenq schedule move reports nightly --to broker-b
  evenq schedule delete reports nightly
"""


def add_schedule(commands: Any) -> None:
    actions = noun(commands, "schedule", "create, list, pause and delete recurring messages", _SCHEDULE)
    create = command(
        actions,
        "create",
        "send a message again and again, or change that; the same definition again changes nothing",
        "schedule.commands",
        "create",
        examples=_SCHEDULE,
    )
    _add_names(create)
    rule = create.add_mutually_exclusive_group(required=True)
    rule.add_argument(
        "--schedule",
        default="",
        metavar="CRON",
        help="minute, hour, day of month, month, day of week, and a time zone (without one: UTC)",
    )
    rule.add_argument("--every", type=duration_ms, metavar="TIME", help="interval: 90s, 10m, 2h or 1d; 1 s or more")
    content = create.add_mutually_exclusive_group(required=True)
    content.add_argument("--body", help="text of the message")
    content.add_argument("--file", type=Path, metavar="FILE", help="file with the body of the message")
    create.add_argument("--tag", help="tag of the messages, for filters")
    create.add_argument("--key", action="append", default=[], help="key of the messages; may be repeated")
    create.add_argument(
        "--property",
        action="append",
        default=[],
        type=message_property,
        metavar="NAME=VALUE",
        help="property of the messages; may be repeated",
    )
    create.add_argument("--message-group", metavar="NAME", help="ordering key, for FIFO topics")
    create.add_argument(
        "--missed",
        choices=MISSED,
        default="one",
        help="times that pass while it cannot fire: one fires the last, skip fires the last if it is 60 s late at "
        "most, all fires up to --missed-max (default %(default)s)",
    )
    create.add_argument(
        "--missed-max", type=between(1, 100), default=0, metavar="N", help="with --missed all: 1 to 100 (default 100)"
    )
    listing = command(
        actions, "list", "list the schedules of a topic, or of all", "schedule.commands", "list_all", wide=True
    )
    add_topic_name(listing, "topic", nargs="?", default="", metavar="TOPIC")
    for name, text in (
        ("show", "show a schedule and its message"),
        ("pause", "stop the firings of a schedule"),
        ("resume", "let a schedule fire again; it counts from now"),
        ("run", "send the message of a schedule now, besides its firings"),
        ("delete", "delete a schedule"),
    ):
        _add_names(command(actions, name, text, "schedule.commands", name, examples=_SCHEDULE))

    move = command(
        actions,
        "move",
        "make another broker keep a schedule; after any failure run it again",
        "schedule.commands",
        "move",
        examples=_SCHEDULE,
    )
    _add_names(move)
    add_broker_name(move, "--to", default="", metavar="BROKER", help="default: the one that would keep a new schedule")


def _add_names(parser: argparse.ArgumentParser) -> None:
    add_topic_name(parser, "topic", metavar="TOPIC")
    parser.add_argument("name", metavar="NAME", help="name of the schedule, unique in its topic")
