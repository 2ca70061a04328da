"""The grammar of `evenq up`."""

from __future__ import annotations

import argparse
from typing import Any

from evenq.cli.grammar import command
from evenq.cli.values import between, folder, place, positive

_UP = """\
examples:
  evenq up                                   one broker, everything in memory, access point 127.0.0.1:8081
  evenq up --data ./queue                    keep messages and offsets in ./queue
  evenq up --brokers 3 --port 9000           brokers on 9000, 9001 and 9002
  evenq up --topic orders:8 --topic jobs:4:FIFO
  evenq up --processes --data ./queue        each service in its own process, logs in ./queue/logs
  evenq up --replicas 3 --data ./queue       three copies of each message: no loss if one process dies
  evenq up --data ./queue --tables ./tables  also Parquet files of topics that are tables
  evenq up --tls                             TLS with a temporary authority; prints the settings of clients

It prints a line that starts with `ready` when clients are served. Ctrl-C stops it in order.
"""
_PORT = between(0, 65_535)


def add_up(commands: Any) -> None:
    up = command(
        commands,
        "up",
        "start a whole cluster on this machine",
        "up.commands",
        "run",
        examples=_UP,
        remote=False,
        extras="server",
    )
    up.add_argument(
        "--port", type=_PORT, default=8081, help="first of the brokers' ports; 0 = any free ports (default %(default)s)"
    )
    up.add_argument(
        "--data", type=folder, metavar="DIR", help="keep messages and offsets here (default: in memory only)"
    )
    up.add_argument(
        "--brokers", type=positive, default=1, metavar="N", help="number of brokers, 1 to 26 (default %(default)s)"
    )
    up.add_argument(
        "--replicas",
        type=positive,
        default=1,
        metavar="N",
        help="copies of each broker, each in its own process, 1 to 9; needs --data (default %(default)s)",
    )
    up.add_argument(
        "--rebalancers", type=positive, default=1, metavar="N", help="rebalancers, 1 to 9 (default %(default)s)"
    )
    up.add_argument(
        "--tls",
        action="store_true",
        help="serve TLS only; prints the file of a temporary authority; needs evenq[tls]",
    )
    up.add_argument("--processes", action="store_true", help="start each service in its own process")
    up.add_argument(
        "--topic", action="append", default=[], metavar="NAME[:QUEUES[:TYPE]]", help="topic to create; may be repeated"
    )
    up.add_argument(
        "--no-auto-create-topics",
        dest="auto_create_topics",
        action="store_false",
        help="reject messages to unknown topics (default: the first message creates the topic)",
    )
    up.add_argument("--sync", action="store_true", help="acknowledge a message only after its fsync; needs --data")
    _add_beside(up)
    up.add_argument(
        "--log-level",
        default="WARNING",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        help="lowest level of log lines on standard error (default %(default)s)",
    )


def _add_beside(up: argparse.ArgumentParser) -> None:
    """Adds the options of what runs beside the servers."""
    up.add_argument(
        "--metrics-port",
        type=_page_port,
        metavar="PORT",
        help="/metrics, /healthz and /readyz of the first broker; -1 = none (default: 5557, or a free port)",
    )
    up.add_argument(
        "--console-port",
        type=_page_port,
        metavar="PORT",
        help="web console; -1 = none (default: 8080, or a free port, if evenq[console] is installed)",
    )
    up.add_argument(
        "--allow-changes", action="store_true", help="let the web console send messages and change the cluster"
    )
    up.add_argument(
        "--tables",
        type=place,
        metavar="DIR",
        help="run `evenq table follow --to DIR` beside it: Parquet files of all topics that are declared tables, each "
        "after 10 minutes at the latest",
    )


def _page_port(text: str) -> int:
    return -1 if text == "-1" else _PORT(text)
