"""The grammar of the command line and its help.

No grammar imports a heavy module (gRPC, rich, pydantic). `run` of the parsed options imports its module when called.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from evenq.cli.auth.options import add_auth
from evenq.cli.backup.options import add_backup
from evenq.cli.bench.options import add_bench
from evenq.cli.broker.options import add_broker, add_cluster
from evenq.cli.console_options import add_console
from evenq.cli.contexts.options import add_context
from evenq.cli.dlq.options import add_dead_letters
from evenq.cli.grammar import HelpFormatter, add_group_name, add_topic_name, command, message_property
from evenq.cli.group.options import add_group
from evenq.cli.query_options import add_queries
from evenq.cli.schedule.options import add_schedule
from evenq.cli.store.options import add_store
from evenq.cli.table.options import add_query, add_table
from evenq.cli.top.options import add_top
from evenq.cli.topic.options import add_topic
from evenq.cli.up.options import add_up
from evenq.cli.values import natural, positive
from evenq.cli.verify_options import add_verify

_TOP = """\
  evenq up                                   start a whole cluster here, in memory
  evenq topic create orders --queues 8       create a topic
  evenq produce orders --body hello          send a message
  evenq consume orders --group billing --from first --max 1
  evenq group show billing                   members, queues and lag of a group
  evenq message find orders --from 1h        search stored messages; `message trace ID` shows deliveries
  evenq offset reset billing --to 2h         print the plan to read two hours again; --yes applies it
  evenq console                              the cluster in a browser
  evenq top                                  rates, lag and members, live
  evenq bench                                rates and latencies of this cluster, on a topic of its own
  evenq verify --seconds 60                  test whether this cluster loses, repeats or reorders messages
  evenq table export orders --to /tables     the history of a topic as Parquet files
  evenq query "select count(*) from orders" --tables /tables

Commands call a running cluster: --endpoint HOST:PORT, otherwise EVENQ_ENDPOINT, otherwise the context (see
`evenq context`), otherwise 127.0.0.1:8081. Only `up`, `context`, `completion`, `auth`, `store`, `backup
list|verify|restore` and `table list|expire` call none.
"""
_PRODUCE = """\
examples:
  evenq produce orders --body "first order" --tag new --key 42
  evenq produce orders --count 1000          1,000 numbered messages, with a progress bar
  evenq produce orders --file orders.txt     one message a line
  cat orders.txt | evenq produce orders      the same from a pipe
  evenq produce orders --file order.json --whole --property region=eu
  evenq produce calls --body ring --delay 10m    prints the handle to recall it
  evenq produce calls --body ring --at 2026-12-01T08:00Z
"""
_CONSUME = """\
examples:
  evenq consume orders --group billing                   wait for new messages
  evenq consume orders --group audit --from first --max 100
  evenq consume orders --group new --filter "new || paid"
  evenq consume orders --group eu --sql "region = 'eu' AND amount >= 10"
  evenq consume orders --group export --from first --idle 3 --json > orders.jsonl
"""


_COMPLETION = """\
examples:
  source <(evenq completion bash)                     this shell
  evenq completion bash > ~/.local/share/bash-completion/completions/evenq
  evenq completion zsh > "${fpath[1]}/_evenq"
  evenq completion fish > ~/.config/fish/completions/evenq.fish

Names of topics, groups and brokers come from the cluster that the line would
call (--endpoint, --context, EVENQ_CONTEXT ...), within 1.5 seconds; without an
answer only commands and options are completed.
"""


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="evenq",
        description="evenq: a message queue that keeps the load even.",
        epilog=_TOP,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    add_up(commands)
    add_console(commands)
    add_context(commands)
    add_topic(commands)
    add_group(commands)
    add_broker(commands)
    add_cluster(commands)
    add_top(commands)
    _add_produce(commands)
    _add_consume(commands)
    add_dead_letters(commands)
    add_schedule(commands)
    add_queries(commands)
    add_auth(commands)
    add_store(commands)
    add_backup(commands)
    add_table(commands)
    add_query(commands)
    add_verify(commands)
    add_asyncapi(commands)
    add_bench(commands)
    _add_completion(commands)
    return parser


class _Parser(argparse.ArgumentParser):
    """A parser whose error for an unknown command names the nearest one."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:  # noqa: SLF001  # no other way
            from difflib import get_close_matches

            near = get_close_matches(str(value), list(action.choices), n=1)
            guess = f"did you mean `{self.prog} {near[0]}`?" if near else f"it is one of {', '.join(action.choices)}"
            self.error(f"there is no command `{self.prog} {value}`; {guess}")
        super()._check_value(action, value)


class _Version(argparse.Action):
    """The option `--version`; only it imports the package metadata."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        from evenq.cli.output import print_lines
        from evenq.runtime.accelerator import accelerator

        print_lines(f"evenq {version('evenq')} (native accelerator: {accelerator().state})")
        parser.exit()


def _add_completion(commands: Any) -> None:
    completion = command(
        commands,
        "completion",
        "print the script with which a shell completes evenq's commands",
        "completion",
        "run",
        examples=_COMPLETION,
        remote=False,
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="your shell: bash, zsh or fish")


def _add_produce(commands: Any) -> None:
    produce = command(commands, "produce", "send messages", "produce", "run", examples=_PRODUCE)
    add_topic_name(produce, "topic")
    source = produce.add_mutually_exclusive_group()
    source.add_argument("--body", help="text of the message; with --count it is repeated, and `{n}` becomes its number")
    source.add_argument(
        "--file", type=Path, metavar="FILE", help="one message a line, without empty lines; `-` is standard input"
    )
    produce.add_argument(
        "--whole", action="store_true", help="the whole file or pipe is one message, with its line breaks, up to 64 MiB"
    )
    produce.add_argument("--count", type=positive, metavar="N", help="number of messages")
    produce.add_argument("--tag", help="tag of the messages, for filters")
    produce.add_argument(
        "--key", action="append", default=[], help="key of the messages, for searches; may be repeated"
    )
    produce.add_argument(
        "--property",
        action="append",
        default=[],
        type=message_property,
        metavar="NAME=VALUE",
        help="property of the messages, for SQL filters and consumers; may be repeated",
    )
    produce.add_argument("--message-group", metavar="NAME", help="ordering key, for FIFO topics")
    produce.add_argument(
        "--priority", type=natural, metavar="N", help="0 or more; higher is delivered sooner; for PRIORITY topics"
    )
    produce.add_argument("--lite-topic", metavar="NAME", help="lite topic of the message, for LITE topics")
    due = produce.add_mutually_exclusive_group()
    due.add_argument(
        "--delay", type=_delay, metavar="TIME", help="deliver after this time, e.g. 90s; for DELAY and MIXED topics"
    )
    due.add_argument(
        "--at",
        dest="deliver_at",
        metavar="TIME",
        help="deliver at this time: ISO 8601 (2026-12-01T08:00Z; without a zone: local time) or ms since the epoch",
    )


def _add_consume(commands: Any) -> None:
    consume = command(commands, "consume", "receive messages and acknowledge them", "consume", "run", examples=_CONSUME)
    add_topic_name(consume, "topic")
    add_group_name(
        consume, "--group", required=True, metavar="G", help="consumer group; its members share the topic's queues"
    )
    consume.add_argument(
        "--from",
        dest="start_from",
        choices=("first", "last"),
        type=str.lower,
        help="where a group starts that has never read the topic (default: the group's setting, otherwise last: only "
        "new messages)",
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


def _delay(text: str) -> int:
    from evenq.cli.values import duration_ms

    return duration_ms(text)


_ASYNCAPI_EXAMPLES = """\
examples:
  evenq asyncapi > cluster.json                      all topics and groups of the cluster
  evenq asyncapi --topic orders --topic refunds --title "Shop events" --document-version 2.1.0
  evenq asyncapi -o yaml > cluster.yaml

Servers are the brokers, channels the topics, and each group that reads a topic is an operation `receive`. Queues,
message type, filters and attempts, for which AsyncAPI has no words, are in the extension `x-evenq`.
A cluster stores bytes, so the messages have no schema; add payloads in the file.
"""


def add_asyncapi(commands: Any) -> None:
    """Adds the command."""
    parser = command(
        commands,
        "asyncapi",
        "write an AsyncAPI 3.0 document of the cluster (JSON or YAML)",
        "asyncapi",
        "run",
        examples=_ASYNCAPI_EXAMPLES,
    )
    add_topic_name(
        parser,
        "--topic",
        action="append",
        default=[],
        metavar="NAME",
        help="only this topic; may be repeated (default: all)",
    )
    parser.add_argument("--title", metavar="TEXT", help="title of the document (default: the name of the cluster)")
    parser.add_argument(
        "--document-version",
        default="1.0.0",
        metavar="TEXT",
        help="version of what the document describes (default %(default)s)",
    )
