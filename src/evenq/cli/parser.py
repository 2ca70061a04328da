"""The grammar of the command line and its help. Imports nothing but argparse; each command names the function that
runs it.

`run` of the parsed options is a function that imports its module only when called.
"""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evenq.cli.backup_options import add_backup
from evenq.cli.balance_options import add_balance
from evenq.cli.copy_options import NO_LEADER, add_copies
from evenq.cli.dead_letter_options import add_dead_letters
from evenq.cli.group_report_options import add_group_reports
from evenq.cli.query_options import add_queries
from evenq.cli.resizing_options import add_draining, add_resizing
from evenq.cli.retry_options import add_retry
from evenq.cli.store_options import add_store
from evenq.cli.tls_options import add_tls
from evenq.cli.values import folder, natural, positive
from evenq.cli.verify_options import add_verify

__all__ = ["DEFAULT_ENDPOINT", "make_parser"]

DEFAULT_ENDPOINT = "127.0.0.1:8081"
MESSAGE_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY", "LITE")

_TOP = """\
  evenq up                                   start a whole cluster here, in memory
  evenq topic create orders --queues 8       create a topic
  evenq produce orders --body hello          send a message
  evenq consume orders --group billing --from first --max 1
  evenq group show billing                   members, queues and lag of a group
  evenq message find orders --from 1h        look at stored messages; `message trace ID` shows their deliveries
  evenq offset reset billing --to 2h         show the plan to read two hours again; --yes applies it
  evenq verify --seconds 60                  test whether this cluster loses, repeats or reorders messages

Every command but `up`, `store` and `backup list|verify|restore` talks to a running cluster: --endpoint HOST:PORT, or
EVENQ_ENDPOINT, or 127.0.0.1:8081.
"""
_UP = """\
examples:
  evenq up                                   one broker, everything in memory, access point 127.0.0.1:8081
  evenq up --data ./queue                    keep messages and offsets in ./queue
  evenq up --brokers 3 --port 9000           brokers on 9000, 9001 and 9002
  evenq up --topic orders:8 --topic jobs:4:FIFO
  evenq up --processes --data ./queue        each service its own process, logs in ./queue/logs
  evenq up --replicas 3 --data ./queue       three copies of each message: kill one process, nothing is lost
  evenq up --tls                             TLS with a throw-away authority; prints how each client uses it

It prints one line that starts with `ready` once clients are served. Ctrl-C stops it cleanly.
"""
_PRODUCE = """\
examples:
  evenq produce orders --body "first order" --tag new --key 42
  evenq produce orders --count 1000          1,000 numbered messages, with a progress bar
  evenq produce orders --file orders.txt     one message a line
  cat orders.txt | evenq produce orders      the same from a pipe
  evenq produce calls --body ring --delay 10m    prints the handle to recall it with
"""
_CONSUME = """\
examples:
  evenq consume orders --group billing                   wait for new messages
  evenq consume orders --group audit --from first --max 100
  evenq consume orders --group new --filter "new || paid"
  evenq consume orders --group eu --sql "region = 'eu' AND amount >= 10"
  evenq consume orders --group export --from first --idle 3 --json > orders.jsonl
"""
_TOPIC = """\
examples:
  evenq topic create orders --queues 8
  evenq topic create jobs --queues 4 --type FIFO
  evenq topic create orders --type MIXED       takes delayed, ordered and transactional messages, too
  evenq topic create audit --broker broker-a:8 --broker broker-b:2
  evenq topic list
  evenq topic show orders --json
  evenq topic scale orders --queues 12
  evenq topic permit orders read
"""
_GROUP = """\
examples:
  evenq group create billing --max-attempts 5
  evenq group create ledger --ordered --strategy AVG
  evenq group create calls --retry-delays "1s 10s 1m" --max-attempts 5
  evenq group create feeds --retry-initial 500ms --retry-max 10m
  evenq group create rides --strategy STICKY --weight LAG --moves-max 50 --hold 30s --hold-lag-max 10000
  evenq group create rides --strategy NONE     members divide the queues themselves again
  evenq group list
  evenq group show billing
  evenq group explain billing              why each member has its queues
  evenq group simulate billing --members 12
  evenq group doctor billing               what is wrong, with one fix for each problem
"""
_CLUSTER_SHOW = """\
examples:
  evenq cluster show
  evenq cluster show --json                    for programs: see broker_groups and copies
  evenq cluster show --endpoint db2:8083       without a leader: the address of one copy in replication.members
"""


def make_parser() -> argparse.ArgumentParser:
    """The whole grammar."""
    parser = _Parser(
        prog="evenq",
        description="evenq: a message queue that keeps the load even.",
        epilog=_TOP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    _add_up(commands)
    _add_topic(commands)
    _add_group(commands)
    _add_broker(commands)
    _add_cluster(commands)
    _add_produce(commands)
    _add_consume(commands)
    add_dead_letters(commands, _noun, _command)
    add_queries(commands, _noun, _command)
    add_store(commands, _noun, _command)
    add_backup(commands, _noun, _command)
    add_verify(commands, _command)
    return parser


class _Parser(argparse.ArgumentParser):
    """Says of a command that it does not know which one may be meant."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:  # noqa: SLF001  # no other way
            from difflib import get_close_matches

            near = get_close_matches(str(value), list(action.choices), n=1)
            guess = f"did you mean `{self.prog} {near[0]}`?" if near else f"it is one of {', '.join(action.choices)}"
            self.error(f"there is no command `{self.prog} {value}`; {guess}")
        super()._check_value(action, value)


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        from evenq.cli.output import print_lines

        print_lines(f"evenq {version('evenq')}")
        parser.exit()


def _later(module: str, function: str) -> Callable[[argparse.Namespace], Any]:
    def run(options: argparse.Namespace) -> Any:
        return getattr(importlib.import_module(f"evenq.cli.{module}"), function)(options)

    return run


_WIDE = {
    ("brokers", "list_all"), ("brokers", "show"), ("brokers", "cluster"), ("clients", "list_all"),
    ("dead_letters", "list_all"), ("group_reports", "explain"), ("groups", "show"), ("messages", "find"),
    ("messages", "tail"), ("offsets", "clone"), ("offsets", "reset"), ("offsets", "show"), ("offsets", "skip"),
    ("topics", "show"),
}  # fmt: skip
"""Commands whose tables have more columns than a terminal of 80 shows."""


def _command(
    commands: Any, name: str, text: str, module: str, function: str, *, examples: str = "", remote: bool = True
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_later(module, function))
    if remote:
        endpoint = os.environ.get("EVENQ_ENDPOINT") or DEFAULT_ENDPOINT
        parser.add_argument(
            "--endpoint",
            default=endpoint,
            metavar="HOST:PORT",
            help="any broker of the cluster, or several, comma-separated; evenqs:// = TLS (now: %(default)s)",
        )
        parser.add_argument(
            "--one-address",
            action="store_true",
            help="reach all brokers through the endpoint, whatever addresses they publish (or ?one-address at its end)",
        )
        parser.add_argument(
            "--credentials",
            metavar="FILE",
            help="TOML file with access_key and secret_key (or EVENQ_CREDENTIALS, or EVENQ_ACCESS_KEY and "
            "EVENQ_SECRET_KEY)",
        )
        add_tls(parser)
        parser.add_argument("--json", action="store_true", help="print JSON for programs instead of tables for people")
        if (module, function) in _WIDE:
            parser.add_argument("--wide", action="store_true", help="all columns of tables (default: what fits 80)")
        parser.add_argument(
            "--timeout",
            type=positive,
            default=10,
            metavar="SECONDS",
            help="longest wait for an answer (default %(default)s)",
        )
    return parser


def _noun(commands: Any, name: str, text: str, examples: str = "") -> Any:
    parser = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(help_of=parser)
    return parser.add_subparsers(metavar="ACTION", title="actions")


def _add_up(commands: Any) -> None:
    up = _command(commands, "up", "start a whole cluster on this machine", "up", "run", examples=_UP, remote=False)
    up.add_argument(
        "--port",
        type=_port,
        default=8081,
        help="access point; further brokers take the next ports; 0 = any free ones (default %(default)s)",
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
        help="copies of each broker's data, each a process of its own, 1 to 9; with --data (default %(default)s)",
    )
    up.add_argument(
        "--rebalancers",
        type=positive,
        default=1,
        metavar="N",
        help="number of rebalancers, of which one leads, 1 to 9 (default %(default)s)",
    )
    up.add_argument(
        "--tls",
        action="store_true",
        help="serve TLS and no plain text, with a throw-away authority whose file is printed; needs evenq[tls]",
    )
    up.add_argument("--processes", action="store_true", help="give each service its own process")
    up.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="NAME[:QUEUES[:TYPE]]",
        help="create this topic at the start; may be repeated",
    )
    up.add_argument(
        "--no-auto-create-topics",
        dest="auto_create_topics",
        action="store_false",
        help="refuse messages to topics that do not exist (default: the first message creates the topic)",
    )
    up.add_argument("--sync", action="store_true", help="with --data: confirm a message only after its fsync")
    up.add_argument(
        "--metrics-port",
        type=_page_port,
        metavar="PORT",
        help="/metrics, /healthz and /readyz of the first broker, -1 = none (default: 5557, or a free one)",
    )
    up.add_argument(
        "--log-level",
        default="WARNING",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        help="lowest level of log lines on stderr (default %(default)s)",
    )


def _add_topic(commands: Any) -> None:
    actions = _noun(commands, "topic", "create, list, show, resize and delete topics", _TOPIC)
    create = _command(
        actions, "create", "create a topic on every broker, or add queues to it", "topics", "create", examples=_TOPIC
    )
    create.add_argument("name")
    create.add_argument(
        "--queues", type=positive, default=0, metavar="N", help="message queues per broker (default: by the broker)"
    )
    create.add_argument(
        "--type",
        type=str.upper,
        choices=MESSAGE_TYPES,
        help="type of its messages; MIXED takes NORMAL, FIFO, DELAY and TRANSACTION, and an existing topic of one of "
        "these can be changed to MIXED (default NORMAL, or unchanged)",
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
        "--retention",
        type=_retention,
        metavar="TIME",
        help="how long messages are kept: 90m, 24h, 7d, forever or default",
    )
    listing = _command(actions, "list", "list all topics", "topics", "list_all")
    listing.add_argument("--all", action="store_true", help="also the system's own topics")
    listing.add_argument("--lite", action="store_true", help="also the lite topics of LITE topics")
    show = _command(actions, "show", "show a topic's queues and readers; without a name: all topics", "topics", "show")
    show.add_argument("name", nargs="?")
    show.set_defaults(all=False, lite=False)
    add_resizing(actions, _command)
    delete = _command(actions, "delete", "delete a topic with all its messages", "topics", "delete")
    delete.add_argument("name")
    delete.add_argument("--yes", action="store_true", help="really do it")


def _add_group(commands: Any) -> None:
    actions = _noun(commands, "group", "create, show, explain, check and delete consumer groups", _GROUP)
    create = _command(
        actions, "create", "create a consumer group, or change its settings", "groups", "create", examples=_GROUP
    )
    create.add_argument("name")
    create.add_argument("--ordered", action="store_true", help="deliver each message group in order")
    create.add_argument(
        "--max-attempts",
        type=positive,
        default=0,
        metavar="N",
        help="deliveries before the dead-letter topic (default 17)",
    )
    create.add_argument(
        "--strategy",
        default="",
        metavar="NAME",
        help="how queues are divided: STICKY, AVG, AVG_BY_CIRCLE ...; MACHINE_ROOM needs rooms (rebalancer's setting, "
        "or zones), CONFIG works in clients only; NONE removes the group's strategy, so that members divide the "
        "queues themselves (default for a new group)",
    )
    create.add_argument(
        "--from",
        dest="start_from",
        default="",  # not given: an existing group keeps its own
        type=str.upper,
        choices=("LAST", "FIRST"),
        help="where to begin in a queue without progress (default LAST)",
    )
    add_retry(create)
    add_balance(create)
    _command(actions, "list", "list all consumer groups", "groups", "list_all")
    show = _command(
        actions, "show", "show a group's members, queues, owners, lag; without a name: all groups", "groups", "show"
    )
    show.add_argument("name", nargs="?")
    add_group_reports(actions, _command)
    delete = _command(actions, "delete", "delete a group and its progress", "groups", "delete")
    delete.add_argument("name")
    delete.add_argument("--yes", action="store_true", help="really do it")


def _add_broker(commands: Any) -> None:
    actions = _noun(commands, "broker", "list, show and drain brokers; change the leader and copies of a broker group")
    _command(actions, "list", "list all brokers", "brokers", "list_all")
    show = _command(actions, "show", "show one broker; without a name: all brokers", "brokers", "show")
    show.add_argument("name", nargs="?")
    add_draining(actions, _command)
    add_copies(actions, _command)


def _add_cluster(commands: Any) -> None:
    actions = _noun(commands, "cluster", "show the cluster")
    for name, text in (
        ("show", "show brokers, their copies, nameservers and rebalancer"),
        ("list", "the same as show"),
    ):
        show = _command(actions, name, text, "brokers", "cluster", examples=_CLUSTER_SHOW)
        show.set_defaults(silent_hint=NO_LEADER)


def _add_produce(commands: Any) -> None:
    produce = _command(commands, "produce", "send messages", "produce", "run", examples=_PRODUCE)
    produce.add_argument("topic")
    source = produce.add_mutually_exclusive_group()
    source.add_argument("--body", help="text of the message; with --count it is repeated, and `{n}` becomes its number")
    source.add_argument("--file", type=Path, metavar="FILE", help="one message a line; `-` is standard input")
    produce.add_argument("--count", type=positive, metavar="N", help="number of messages")
    produce.add_argument("--tag", help="tag of the messages, to filter by")
    produce.add_argument(
        "--key", action="append", default=[], help="key of the messages, to find them by; may be repeated"
    )
    produce.add_argument("--message-group", metavar="NAME", help="ordering key, for FIFO topics")
    produce.add_argument(
        "--priority", type=natural, metavar="N", help="0 or more; higher is delivered sooner; for PRIORITY topics"
    )
    produce.add_argument("--lite-topic", metavar="NAME", help="lite topic of the message, for LITE topics")
    produce.add_argument(
        "--delay", type=_delay, metavar="TIME", help="deliver after this time, e.g. 90s; for DELAY and MIXED topics"
    )


def _add_consume(commands: Any) -> None:
    consume = _command(
        commands, "consume", "receive messages and acknowledge them", "consume", "run", examples=_CONSUME
    )
    consume.add_argument("topic")
    consume.add_argument(
        "--group", required=True, metavar="G", help="consumer group; its members share the topic's queues"
    )
    consume.add_argument(
        "--from",
        dest="start_from",
        choices=("first", "last"),
        type=str.lower,
        help="where a group begins that has never read the topic (default: the setting of the group, else last, which "
        "waits for new messages)",
    )
    consume.add_argument("--max", type=positive, metavar="N", help="stop after N messages (default: at Ctrl-C)")
    consume.add_argument("--idle", type=positive, metavar="SECONDS", help="stop after this time without a message")
    filters = consume.add_mutually_exclusive_group()
    filters.add_argument(
        "--filter", default="*", metavar="TAGS", help='only these tags, e.g. "new || paid" (default: all)'
    )
    filters.add_argument(
        "--sql", metavar="EXPRESSION", help="only messages that match, e.g. \"region = 'eu' AND amount >= 10\""
    )
    filters.add_argument(
        "--lite-topic", action="append", metavar="NAME", help="for LITE topics: only this lite topic; may be repeated"
    )


def _broker_queues(text: str) -> tuple[str, int]:
    """A broker's name and its queues; 0: not said."""
    name, colon, number = text.partition(":")
    if not name or (colon and not (number.isdecimal() and 1 <= int(number) <= 4_096)):
        raise argparse.ArgumentTypeError(f"{text!r} names no broker: write NAME or NAME:QUEUES, with 1 to 4096 queues")
    return name, int(number or 0)


def _retention(text: str) -> int:
    """Milliseconds; 0 for ever, -1 the broker's setting."""
    named = {"forever": 0, "default": -1}
    if text in named:
        return named[text]
    unit_ms = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}.get(text[-1:])
    if unit_ms is None or not text[:-1].isdecimal() or int(text[:-1]) == 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time to keep messages: write 90m, 24h, 7d, forever or default"
        )
    return int(text[:-1]) * unit_ms


def _delay(text: str) -> int:
    from evenq.cli.values import duration_ms

    return duration_ms(text)


def _page_port(text: str) -> int:
    return -1 if text == "-1" else _port(text)


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65_535:
        raise argparse.ArgumentTypeError(f"{value} is outside 0 to 65535")
    return value
