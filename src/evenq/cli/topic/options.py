"""The grammar of `evenq topic`."""

from __future__ import annotations

import argparse
from typing import Any

from evenq.cli.grammar import add_broker_name, add_namespace, add_topic_name, add_waiting, command, noun
from evenq.cli.values import duration_ms, natural, positive

MESSAGE_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY", "LITE")
_TOPIC = """\
examples:
  evenq topic create orders --queues 8
  evenq topic create jobs --queues 4 --type FIFO
  evenq topic create orders --type MIXED       also for delayed, ordered and transactional messages
  evenq topic create audit --broker broker-a:8 --broker broker-b:2
  evenq topic list
  evenq topic show orders --json
  evenq topic scale orders --queues 12
  evenq topic permit orders read
"""
_SCALE = """\
examples:
  evenq topic scale orders --queues 16                 more: open immediately
  evenq topic scale orders --queues 4                  fewer: prints the plan, changes nothing
  evenq topic scale orders --queues 4 --yes            closes queues once all groups have read them
  evenq topic scale orders --queues 4 --yes --no-wait  closes queues for sends; run it again to continue
  evenq topic scale orders --queues 0 --broker broker-b --yes    removes it from broker-b once all have read it
"""


def add_topic(commands: Any) -> None:
    actions = noun(commands, "topic", "create, list, show, resize and delete topics", _TOPIC)
    create = command(
        actions, "create", "create a topic on all brokers, or add queues", "topic.commands", "create", examples=_TOPIC
    )
    add_topic_name(create, "name")
    create.add_argument(
        "--queues", type=positive, default=0, metavar="N", help="message queues per broker (default: broker setting)"
    )
    create.add_argument(
        "--type",
        type=str.upper,
        choices=MESSAGE_TYPES,
        metavar="TYPE",
        help=f"message type: {', '.join(MESSAGE_TYPES)}; MIXED accepts NORMAL, FIFO, DELAY and TRANSACTION, and an "
        "existing topic of these can become MIXED (default NORMAL, or unchanged)",
    )
    create.add_argument(
        "--broker",
        action="append",
        default=[],
        type=_broker_queues,
        metavar="NAME[:QUEUES]",
        help="only on this broker, with its own number of queues; may be repeated (default: on every broker)",
    )
    create.add_argument(
        "--retention", type=_retention, metavar="TIME", help="time to keep messages: 90m, 24h, 7d, forever or default"
    )
    create.add_argument(
        "--table",
        action="store_true",
        help="the topic gets a table (`evenq table follow`): retention waits for its exporter from now on",
    )
    listing = command(actions, "list", "list all topics", "topic.commands", "list_all")
    add_namespace(listing)
    listing.add_argument("--all", action="store_true", help="also system topics")
    listing.add_argument("--lite", action="store_true", help="also the lite topics of LITE topics")
    show = command(
        actions, "show", "show a topic's queues and readers, or all topics", "topic.commands", "show", wide=True
    )
    add_topic_name(show, "name", nargs="?")
    show.set_defaults(all=False, lite=False)
    _add_resizing(actions)
    delete = command(
        actions, "delete", "delete a topic with all its messages and schedules", "topic.commands", "delete"
    )
    add_topic_name(delete, "name")
    delete.add_argument("--yes", action="store_true", help="confirm the deletion")


def _add_resizing(actions: Any) -> None:
    scale = command(
        actions, "scale", "change the number of queues of a topic", "topic.resizing", "scale", examples=_SCALE
    )
    add_topic_name(scale, "name")
    scale.add_argument(
        "--queues",
        type=natural,
        required=True,
        metavar="N",
        help="message queues per broker, 1 to 4096; 0 with --broker removes the topic from that broker",
    )
    _one_broker(scale)
    add_waiting(scale, 300)
    scale.add_argument("--force", action="store_true", help="close queues even if groups have unread messages there")
    scale.add_argument(
        "--yes",
        action="store_true",
        help="close queues, also those with messages that no group has read (default: only print the plan)",
    )
    scale.add_argument("--dry-run", action="store_true", help="only print the plan, with exit code 0")
    permit = command(
        actions, "permit", "allow or forbid sending to and reading from a topic", "topic.resizing", "permit"
    )
    add_topic_name(permit, "name")
    permit.add_argument(
        "permission", choices=("read-write", "read", "write", "none"), help="the operations that are allowed"
    )
    _one_broker(permit)


def _one_broker(parser: argparse.ArgumentParser) -> None:
    add_broker_name(
        parser, "--broker", default="", metavar="NAME", help="only on this broker (default: on every broker)"
    )


def _broker_queues(text: str) -> tuple[str, int]:
    """Returns a broker's name and its queues; 0: not given."""
    name, colon, number = text.partition(":")
    if not name or (colon and not (number.isdecimal() and 1 <= int(number) <= 4_096)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a broker: write NAME or NAME:QUEUES, with 1 to 4096 queues")
    return name, int(number or 0)


def _retention(text: str) -> int:
    """Returns ms; 0: for ever, -1: the broker's setting."""
    named = {"forever": 0, "default": -1}
    if text in named:
        return named[text]
    if text[-1:] not in {"s", "m", "h", "d"} or not text[:-1].isdecimal() or not text[:-1].strip("0"):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a retention time: write 30s, 90m, 24h, 7d, forever or default"
        )
    return duration_ms(text)
