"""The grammar of `evenq dlq`."""

from __future__ import annotations

import argparse
from typing import Any

from evenq.cli.grammar import add_group_name, add_topic_name, command, noun
from evenq.cli.values import natural, positive

_DLQ = """\
examples:
  evenq dlq list                                      which groups have dead letters
  evenq dlq list billing --waiting                    the newest ones that were not replayed
  evenq dlq show billing 01A2B3C4                     one dead letter with its properties and body
  evenq dlq replay billing                            the plan: how many would be sent, and to which topics
  evenq dlq replay billing --rate 50/s --yes
  evenq dlq replay billing --filter "DLQ_REASON = 'attempts' AND region = 'eu'" --to orders-late --yes
"""


def add_dead_letters(commands: Any) -> None:
    actions = noun(commands, "dlq", "list, show and replay dead letters", _DLQ)
    listing = command(
        actions,
        "list",
        "list a group's newest dead letters, or count those of all groups",
        "dlq.commands",
        "list_all",
        examples=_DLQ,
        wide=True,
    )
    add_group_name(listing, "group", nargs="?", metavar="GROUP")
    listing.add_argument(
        "--max", type=positive, default=100, metavar="N", help="at most N dead letters per broker (default 100)"
    )
    listing.add_argument("--waiting", action="store_true", help="only those that were not replayed")
    show = command(actions, "show", "show dead letters with properties and body", "dlq.commands", "show", examples=_DLQ)
    add_group_name(show, "group", metavar="GROUP")
    show.add_argument("message_id", nargs="?", default="", metavar="ID", help="only this message (default: the newest)")
    replay = command(
        actions, "replay", "send dead letters again, each at most once", "dlq.commands", "replay", examples=_DLQ
    )
    add_group_name(replay, "group", metavar="GROUP")
    replay.add_argument(
        "--filter", default="*", metavar="EXPRESSION", help='tags ("new || paid") or SQL over properties'
    )
    add_topic_name(
        replay, "--to", default="", metavar="TOPIC", help="send all to this topic (default: the original topics)"
    )
    replay.add_argument("--rate", type=_rate, default=0.0, metavar="N/s", help="e.g. 50/s or 10/m (default: no limit)")
    replay.add_argument("--max", type=natural, default=0, metavar="N", help="stop after N dead letters (default: all)")
    replay.add_argument("--yes", action="store_true", help="send them (default: only print what would be sent)")
    replay.add_argument("--dry-run", action="store_true", help="only print what would be sent, with exit code 0")


def _rate(text: str) -> float:
    number, slash, unit = text.partition("/")
    seconds = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(unit) if slash else 1.0
    try:
        rate = float(number) / (seconds or 0.0)
    except (ValueError, ZeroDivisionError):
        rate = 0.0
    if not 0 < rate <= 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate: write 50/s, 10/m or 5/h")
    return rate
