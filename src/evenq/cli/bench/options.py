"""The grammar of `evenq bench`."""

from __future__ import annotations

import argparse
from typing import Any

from evenq.cli.grammar import add_topic_name, command
from evenq.cli.values import between

SIZE_MIN, SIZE_MAX = 24, 4 << 20
_BENCH = """\
examples:
  evenq bench                            ten seconds, 1 KiB, as fast as it goes
  evenq bench --rate 500 --seconds 60    how late are 500 messages per second?
  evenq bench --senders 4 --receivers 4 --size 200
  evenq bench --count 100000 --receivers 0 -o json     only send
  evenq bench --wait-each --senders 8    one message at a time for each sender

It creates a topic and a group of its own, named evenq-bench-..., and deletes
them at the end, also after Ctrl-C.
send: from the call until the cluster has stored the message; with --rate from
the time at which it was due, so a stall counts for every message that it
delays. receive: from the same moment until the listener has the message.
Senders and receivers run in this one process: on a fast cluster its processor
is the limit. Run it on several machines.
Exit code 1: sends failed, or messages did not arrive within --drain.
"""


def add_bench(commands: Any) -> None:
    bench = command(
        commands,
        "bench",
        "measure rate and latency of sends and receives, on a topic of its own",
        "bench.commands",
        "run",
        examples=_BENCH,
        wide=True,
    )
    length = bench.add_mutually_exclusive_group()
    length.add_argument(
        "--seconds",
        type=between(1, 86_400),
        default=10,
        metavar="S",
        help="duration of the sends (default %(default)s)",
    )
    length.add_argument(
        "--count", type=between(1, 1_000_000_000), metavar="N", help="number of messages instead of a duration"
    )
    bench.add_argument(
        "--rate",
        type=between(1, 10_000_000),
        metavar="R",
        help="messages per second of all senders together (default: as fast as it goes)",
    )
    bench.add_argument(
        "--size",
        type=between(SIZE_MIN, SIZE_MAX),
        default=1_024,
        metavar="BYTES",
        help=f"size of a body, {SIZE_MIN} to {SIZE_MAX} bytes (default %(default)s)",
    )
    bench.add_argument(
        "--senders",
        type=between(1, 256),
        default=1,
        metavar="N",
        help="producers with connections of their own, 1 to 256 (default %(default)s)",
    )
    bench.add_argument(
        "--receivers",
        type=between(0, 256),
        default=1,
        metavar="N",
        help="members of the group, 0 to 256; 0 = only send (default %(default)s)",
    )
    bench.add_argument(
        "--wait-each",
        action="store_true",
        help="each sender waits for the answer before it sends the next message (default: sends in batches)",
    )
    bench.add_argument(
        "--drain",
        type=between(1, 3_600),
        default=30,
        metavar="S",
        help="longest wait for the last messages to arrive, seconds (default %(default)s)",
    )
    _add_topic(bench)


def _add_topic(bench: argparse.ArgumentParser) -> None:
    bench.add_argument(
        "--queues", type=between(1, 4_096), default=8, metavar="N", help="queues of the topic (default %(default)s)"
    )
    add_topic_name(
        bench, "--topic", metavar="NAME", help="name of the topic to create and delete (default: evenq-bench-...)"
    )
    bench.add_argument(
        "--use-existing",
        action="store_true",
        help="run on the existing --topic: its groups get the messages, and they are not deleted (default: refuse)",
    )
