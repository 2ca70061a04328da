"""The grammar of `evenq verify`."""

from __future__ import annotations

import argparse
from typing import Any, Protocol

__all__ = ["add_verify"]

KINDS = ("normal", "fifo", "delay", "transaction", "priority", "lite")

_EXAMPLES = """\
examples:
  evenq verify                                       a minute of every kind at 50 messages a second each
  evenq verify --seconds 3600 --rate 200             an hour, faster; restart brokers meanwhile
  evenq verify --kinds fifo,delay --tolerance 250    order, and times to a quarter of a second
  evenq verify --endpoints "10.0.0.1:8081;10.0.0.2:8081" --json

It numbers what it sends, to topics of its own, and follows each number until it came. The table says of each kind:
  sent, expected   messages that were answered OK; the same without those that were rolled back
  received         different ones that came
  lost             answered OK, and never came
  unsure           no answer until the end: may be stored or not (only when a broker stays away)
  again            deliveries beyond the first, and why: resent (the send was tried twice and both were stored), outage
                   (a broker was away before the acknowledgement was answered), timeout (not acknowledged in its
                   invisible time), after ack and unexplained (neither may happen)
  disorder         an older message of a message group or lite topic, or a higher priority of one answer, came later
  early, late      delayed messages; late is beyond --tolerance while all brokers were there, excused while one was away
                   (and lite topics in disorder: they move to another broker meanwhile, what is stored stays)
  wrong            transactions: came although rolled back, or before the commit

Exit code 0: every promise was kept. 1: one was broken, or nothing could be sent. Repeats for the first three reasons,
unsure and excused ones are what at-least-once delivery allows. Its topics and groups are removed at the end.
"""


class Command(Protocol):
    """`parser._command`."""

    def __call__(
        self, commands: Any, name: str, text: str, module: str, function: str, *, examples: str = ""
    ) -> argparse.ArgumentParser: ...


def add_verify(commands: Any, command: Command) -> None:
    """Add the command."""
    text = "send and receive messages of every kind, and tell what was lost, repeated, out of order or late"
    verify = command(commands, "verify", text, "verify", "run", examples=_EXAMPLES)
    verify.add_argument(
        "--endpoints", dest="endpoint", metavar="LIST", default=argparse.SUPPRESS,
        help='several access points, "host:port;host:port": one that is away is no obstacle',
    )  # fmt: skip
    verify.add_argument("--seconds", type=int, default=60, metavar="S", help="how long to send (default %(default)s)")
    verify.add_argument(
        "--kinds", type=_kinds, default=KINDS, metavar="LIST", help=f"some of {','.join(KINDS)} (default: all)"
    )
    verify.add_argument(
        "--rate", type=int, default=50, metavar="R", help="messages a second of each kind (default %(default)s)"
    )
    verify.add_argument(
        "--tolerance", type=int, default=1_000, metavar="MS", help="later than this is late, ms (default %(default)s)"
    )
    verify.add_argument(
        "--consumers", type=int, default=2, metavar="C", help="members of each group (default %(default)s)"
    )
    verify.add_argument(
        "--streams", type=int, default=8, metavar="M",
        help="message groups of fifo, lite topics of lite (default %(default)s)",
    )  # fmt: skip
    verify.add_argument(
        "--body-bytes", type=int, default=128, metavar="B", help="size of a body, bytes (default %(default)s)"
    )
    verify.add_argument(
        "--drain",
        type=int,
        default=90,
        metavar="S",
        help="longest wait for the last ones, seconds (default %(default)s)",
    )


def _kinds(text: str) -> tuple[str, ...]:
    kinds = [part.strip().lower() for part in text.split(",") if part.strip()]
    unknown = [part for part in kinds if part not in KINDS]
    if unknown or not kinds:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown) or text!r} is no kind; choose from {','.join(KINDS)}")
    return tuple(dict.fromkeys(kinds))
