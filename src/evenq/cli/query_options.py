"""The grammar of `evenq offset`, `evenq message` and `evenq client`."""

from __future__ import annotations

import argparse
from typing import Any

from evenq.cli.grammar import add_group_name, add_topic_name, command, noun
from evenq.cli.values import OFFSET_MAX, between, positive

_OFFSET = """\
examples:
  evenq offset show billing                               offsets of the group in each queue
  evenq offset reset billing --topic orders --to 2h       the plan to move back two hours
  evenq offset reset billing --topic orders --to 2h --yes
  evenq offset skip billing --topic orders --count 1 --queue broker-a/0 --yes
  evenq offset clone audit --from billing --yes

All act on all brokers and on running consumers. Without --yes they print the plan and change nothing.
"""
_RESET = """\
examples:
  evenq offset reset billing --to earliest                            the plan, for all topics of the group
  evenq offset reset billing --topic orders --to latest --yes
  evenq offset reset billing --topic orders --to 2026-01-31T08:00 --yes
  evenq offset reset billing --topic orders --to 90m --yes            90 minutes ago
  evenq offset reset billing --topic orders --to-offset 1000 --queue broker-a/0 --yes

Deliveries in flight are dropped: their messages are redelivered unless the new offset is beyond them, and late
acknowledgements are ignored. Running consumers continue at the new offset without a restart, once their listener has
finished its current message. Consumers in broadcasting mode keep their own offsets.
"""
_SKIP = """\
examples:
  evenq offset skip billing --topic orders                            the plan: all messages stored so far
  evenq offset skip billing --topic orders --yes
  evenq offset skip billing --topic orders --count 1 --queue broker-a/0 --yes    one message that cannot be processed
"""
_CLONE = """\
examples:
  evenq offset clone audit --from billing                 the plan: audit gets the offsets of billing
  evenq offset clone audit --from billing --topic orders --yes
"""
_MESSAGE = """\
examples:
  evenq message find orders --key 42                      by a key of the message
  evenq message find orders --from 1h --limit 20          by the time it was stored
  evenq message get 01A2B3C4 --topic orders               one message with its body
  evenq message tail orders --follow                      new messages, without a group
  evenq message trace 01A2B3C4                            which consumer got it, when, and in which attempt
  evenq message scheduled calls                           delayed messages that are not due yet
  evenq message recall calls d1.broker-a.0f3c...          cancel a delayed message

All except `recall` and `check` are read-only: they need no group, deliver nothing and change no offsets.
"""
_FIND = """\
examples:
  evenq message find orders --key 42
  evenq message find orders --from 2026-01-31T08:00 --to 2026-01-31T09:00 --limit 100
  evenq message find orders --queue broker-a/0 --offset 1000 --limit 5
  evenq message find orders --key 42 --newest --json
"""
_GET = """\
examples:
  evenq message get 01A2B3C4                              search in all topics
  evenq message get 01A2B3C4 --topic orders --body hex
  evenq message get --topic orders --queue broker-a/0 --offset 1000
  evenq message get 01A2B3C4 --topic orders --json
"""
_TAIL = """\
examples:
  evenq message tail orders                               the newest ten
  evenq message tail orders --limit 100 --queue broker-a/0
  evenq message tail orders --follow --json               continue until Ctrl-C
"""
_TRACE = """\
examples:
  evenq message trace 01A2B3C4
  evenq message trace 01A2B3C4 --topic orders --group billing --json

The state is always exact. Each broker keeps the newest deliveries in memory (setting `trace_bytes`: 4 MiB, about
50,000 deliveries); a restart loses this history.
"""
_RECALL = """\
examples:
  evenq produce calls --body ring --delay 10m             prints the recall handle
  evenq message recall calls d1.broker-a.0f3c...

Producers receive the handle with the result of a send (`recall_handle`). A message that is due cannot be recalled.
"""
_SCHEDULED = """\
examples:
  evenq message scheduled                                 of all topics
  evenq message scheduled calls --wide                    with the handles to recall them
  evenq message scheduled payments --json                 open transactions too

Shows those that are due next, at most --limit.
"""
_CHECK = """\
examples:
  evenq message tail TRANS_CHECK_MAX_TIME_TOPIC           transactions that were given up, with their places
  evenq message check --queue broker-a/0 --offset 3

The message becomes an open transaction again, with its first id: brokers call a producer of its topic for the outcome.
Start such a producer, with its checker, before.
"""
_CLIENT = """\
examples:
  evenq client list
  evenq client list --group billing
  evenq client show host@1@0@abc
  evenq client stack host@1@0@abc                         stack traces of its threads, if its SDK reports them
  evenq client access                                     the user of this command, and its grants

Most SDKs form ids as host@process@number@time.
"""


def add_queries(commands: Any) -> None:
    _add_offset(commands)
    _add_message(commands)
    _add_client(commands)


def _add_offset(commands: Any) -> None:
    actions = noun(commands, "offset", "show and move the progress of consumer groups", _OFFSET)
    show = command(
        actions, "show", "show the offsets of a group in each queue", "offsets", "show", wide=True, examples=_OFFSET
    )
    add_group_name(show, "group", metavar="GROUP")
    add_topic_name(show, "--topic", metavar="NAME", default="", help="only this topic")
    reset = command(
        actions, "reset", "move a group to a time or an offset", "offsets", "reset", wide=True, examples=_RESET
    )
    target = reset.add_mutually_exclusive_group(required=True)
    target.add_argument(
        "--to",
        metavar="WHERE",
        help="earliest, latest, a time (ISO 8601 or ms since the epoch) or an age (90m, 2h, 7d)",
    )
    target.add_argument(
        "--to-offset", type=between(0, OFFSET_MAX), metavar="N", help="this offset, in each selected queue"
    )
    _add_move(reset)
    skip = command(
        actions, "skip", "skip messages that a group should not read", "offsets", "skip", wide=True, examples=_SKIP
    )
    skip.add_argument("--count", type=positive, metavar="N", help="N messages in each queue (default: all)")
    _add_move(skip)
    clone = command(
        actions, "clone", "copy the offsets of another group", "offsets", "clone", wide=True, examples=_CLONE
    )
    add_group_name(clone, "--from", dest="source", required=True, metavar="GROUP2", help="the group to copy from")
    _add_move(clone)


def _add_move(parser: argparse.ArgumentParser) -> None:
    add_group_name(parser, "group", metavar="GROUP")
    add_topic_name(
        parser, "--topic", metavar="NAME", default="", help="only this topic (default: all that the group has read)"
    )
    parser.add_argument(
        "--queue",
        action="append",
        default=[],
        type=_place,
        metavar="BROKER/ID",
        help="only this queue of --topic; may be repeated",
    )
    parser.add_argument("--yes", action="store_true", help="apply the plan (default: only print it)")


def _add_message(commands: Any) -> None:
    actions = noun(commands, "message", "show stored messages, and recall delayed ones", _MESSAGE)
    find = command(
        actions, "find", "find messages by key, time or offset", "messages", "find", wide=True, examples=_FIND
    )
    add_topic_name(find, "topic", metavar="TOPIC")
    find.add_argument("--key", default="", help="only messages with this key (needs the message index)")
    find.add_argument(
        "--from", dest="begin", metavar="TIME", help="stored at or after: ISO 8601, ms since the epoch, or 2h"
    )
    find.add_argument("--to", dest="end", metavar="TIME", help="stored at or before")
    find.add_argument("--newest", action="store_true", help="the newest first")
    _add_place(find)
    _add_limit(find, 32)
    get = command(actions, "get", "show one message with its body", "messages", "get", examples=_GET)
    get.add_argument("id", nargs="?", default="", metavar="ID")
    add_topic_name(get, "--topic", metavar="NAME", default="", help="search only this topic (default: all topics)")
    get.add_argument(
        "--body", choices=("text", "hex", "base64", "none"), default="text", help="form of the body (default text)"
    )
    get.add_argument(
        "--body-max", type=positive, default=4_096, metavar="BYTES", help="most bytes to print (default %(default)s)"
    )
    _add_place(get)
    tail = command(
        actions, "tail", "show the newest messages of a topic", "messages", "tail", wide=True, examples=_TAIL
    )
    add_topic_name(tail, "topic", metavar="TOPIC")
    tail.add_argument("--follow", "-f", action="store_true", help="continue with new messages until Ctrl-C")
    tail.add_argument("--queue", type=_place, metavar="BROKER/ID", help="only this queue")
    _add_limit(tail, 10)
    trace = command(actions, "trace", "show a message's state and deliveries", "messages", "trace", examples=_TRACE)
    trace.add_argument("id", metavar="ID")
    add_topic_name(trace, "--topic", metavar="NAME", default="", help="search only this topic (default: all topics)")
    add_group_name(trace, "--group", metavar="G", default="", help="only deliveries to this group")
    recall = command(
        actions, "recall", "recall a delayed message before it is due", "messages", "recall", examples=_RECALL
    )
    add_topic_name(recall, "topic", metavar="TOPIC")
    recall.add_argument("handle", metavar="HANDLE")
    scheduled = command(
        actions,
        "scheduled",
        "show delayed messages that are not due, and open transactions",
        "scheduled",
        "show",
        wide=True,
        examples=_SCHEDULED,
    )
    scheduled.add_argument("topic", nargs="?", default="", metavar="TOPIC")
    scheduled.add_argument(
        "--limit",
        type=between(1, 1_000),
        default=100,
        metavar="N",
        help="at most N messages, 1 to 1000 (default %(default)s)",
    )
    check = command(
        actions, "check", "check a transaction again that was given up", "scheduled", "check", examples=_CHECK
    )
    check.add_argument("--queue", type=_place, metavar="BROKER/ID", required=True, help="its queue")
    check.add_argument("--offset", type=between(0, OFFSET_MAX), metavar="N", required=True, help="its offset")


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--queue", type=_place, metavar="BROKER/ID", help="only this queue")
    parser.add_argument("--offset", type=between(0, OFFSET_MAX), metavar="N", help="start at this offset of --queue")


def _add_limit(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument(
        "--limit",
        type=between(1, 1_000),
        default=default,
        metavar="N",
        help="at most N messages, 1 to 1000 (default %(default)s)",
    )
    parser.add_argument(
        "--body-max", type=positive, default=60, metavar="BYTES", help="most bytes of a body (default %(default)s)"
    )


def _add_client(commands: Any) -> None:
    actions = noun(commands, "client", "show the producers and consumers of the cluster", _CLIENT)
    listing = command(actions, "list", "list all clients", "clients", "list_all", wide=True, examples=_CLIENT)
    add_group_name(listing, "--group", metavar="G", default="", help="only members of this group")
    show = command(actions, "show", "show one client: subscriptions, queues, deliveries", "clients", "show")
    show.add_argument("id", metavar="ID")
    stack = command(
        actions, "stack", "print the stack traces of a client's threads", "clients", "stack", examples=_CLIENT
    )
    stack.add_argument("id", metavar="ID")
    command(actions, "access", "show your user and its grants", "clients", "access", examples=_CLIENT)


def _place(text: str) -> tuple[str, int]:
    broker, slash, number = text.rpartition("/")
    if not slash or not broker or not number.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a queue: write BROKER/ID, e.g. broker-a/0")
    return broker, int(number)
