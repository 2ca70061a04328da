"""The grammar of `evenq verify`."""

from __future__ import annotations

import argparse
from typing import Any, Protocol

from evenq.cli.grammar import command

KINDS = ("normal", "fifo", "delay", "transaction", "priority", "lite")

_EXAMPLES = """\
examples:
  evenq verify                                       one minute, every kind at 50 messages per second
  evenq verify --seconds 3600 --rate 200             one hour, faster; restart brokers meanwhile
  evenq verify --kinds fifo,delay --tolerance 250    order, and delivery times within a quarter of a second
  evenq verify --endpoints "10.0.0.1:8081;10.0.0.2:8081" --json

It sends numbered messages to topics of its own and waits for each message. The table shows for each kind:
  sent, expected   messages whose send succeeded; the same without those that were rolled back
  received         distinct messages that were received
  lost             the send succeeded, but the message was never received
  unsure           the send had no answer: the message may be stored or not (only if a broker stays down)
  again            repeated deliveries, by cause: resent (a send was retried and both attempts were stored), outage (a
                   broker was down before it answered the ack), timeout (no ack within the invisible duration),
                   after ack and unexplained (neither may happen)
  disorder         received later than a newer message of its message group or lite topic, or than a lower priority
                   of the same response
  early, late      delayed messages; late: by more than --tolerance while all brokers were up; excused: while one was
                   down (also disorder of lite topics, which move to another broker then)
  wrong            transactions: received although rolled back, or before the commit

Exit code 0: every promise was kept. 1: one was broken, or nothing could be sent. At-least-once delivery allows unsure
and excused messages, and repeats for the first three causes. The topics and groups are removed at the end.
"""


class Command(Protocol):
    """The signature of `grammar.command`."""

    def __call__(
        self, commands: Any, name: str, text: str, module: str, function: str, *, examples: str = ""
    ) -> argparse.ArgumentParser: ...


def add_verify(commands: Any) -> None:
    text = "send and receive messages of every kind, and report what was lost, repeated, out of order or late"
    verify = command(commands, "verify", text, "verify", "run", examples=_EXAMPLES)
    verify.add_argument(
        "--endpoints",
        dest="endpoint",
        metavar="LIST",
        default=argparse.SUPPRESS,
        help='several access points, "host:port;host:port"; some may be down',
    )
    verify.add_argument(
        "--seconds", type=int, default=60, metavar="S", help="duration of the sends (default %(default)s)"
    )
    verify.add_argument(
        "--kinds", type=_kinds, default=KINDS, metavar="LIST", help=f"some of {','.join(KINDS)} (default: all)"
    )
    verify.add_argument(
        "--rate", type=int, default=50, metavar="R", help="messages per second of each kind (default %(default)s)"
    )
    verify.add_argument(
        "--tolerance", type=int, default=1_000, metavar="MS", help="allowed delay of messages, ms (default %(default)s)"
    )
    verify.add_argument(
        "--consumers", type=int, default=2, metavar="C", help="members of each group (default %(default)s)"
    )
    verify.add_argument(
        "--streams", type=int, default=8, metavar="M", help="message groups and lite topics (default %(default)s)"
    )
    verify.add_argument(
        "--body-bytes", type=int, default=128, metavar="B", help="size of a body, bytes (default %(default)s)"
    )
    verify.add_argument(
        "--drain", type=int, default=90, metavar="S", help="longest wait at the end, seconds (default %(default)s)"
    )


def _kinds(text: str) -> tuple[str, ...]:
    kinds = [part.strip().lower() for part in text.split(",") if part.strip()]
    unknown = [part for part in kinds if part not in KINDS]
    if unknown or not kinds:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown) or text!r} is not a kind; choose from {','.join(KINDS)}")
    return tuple(dict.fromkeys(kinds))
