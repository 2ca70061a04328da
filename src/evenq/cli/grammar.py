"""Shared parts of the grammar. No heavy module is imported here: `evenq --help` must be instant."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from textwrap import wrap
from typing import Any

from evenq.cli.completers import Completer, broker_name, complete, context_name, group_name, topic_name
from evenq.cli.formats import add_output
from evenq.cli.tls_options import add_tls
from evenq.cli.values import positive
from evenq.client.core.routes.access_points import DEFAULT_ENDPOINT

_CONTINUED = 6
"""Indentation of a line that continues the previous one."""
_WATCHED = frozenset({"list", "show", "explain", "trace"})
"""Names of commands that have `--watch`."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help in the width of the terminal. Prose is wrapped. An example stays in one line, so that it can be copied; a
    comment that does not fit beside it goes below.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        blocks: list[str] = []
        for line in text.splitlines():
            margin = len(line) - len(line.lstrip())
            before = blocks[-1] if blocks else ""
            if (before and line and not margin and not before.startswith(" ")) or margin >= _CONTINUED:
                blocks[-1] = f"{before} {line.strip()}"
            else:
                blocks.append(line)
        return "\n".join(indent + line for block in blocks for line in self._lines(block, width - len(indent)))

    def _lines(self, block: str, width: int) -> list[str]:
        if len(block) <= width:
            return [block]
        example, gap, comment = block.strip().partition("  ")
        if example.startswith("evenq ") and block.startswith(" "):
            return [f"  {example}", *wrap(comment.strip(), width, initial_indent=" " * 6, subsequent_indent=" " * 6)]
        margin = " " * (len(block) - len(comment.lstrip())) if gap else ""
        return wrap(block, width, subsequent_indent=margin, break_long_words=False, break_on_hyphens=False)


def command(
    commands: Any,
    name: str,
    text: str,
    module: str,
    function: str,
    *,
    examples: str = "",
    remote: bool = True,
    wide: bool = False,
    extras: str = "cli",
) -> argparse.ArgumentParser:
    """Adds a command. `function` of `evenq.cli.MODULE` runs it; the module is imported only then.

    `remote` adds the options of commands that call a cluster, `wide` the option for tables wider than 80 columns.
    `extras` are those of the package that install all it needs; they include the packages of `cli`.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=examples,
        formatter_class=HelpFormatter,
    )
    parser.set_defaults(run=_later(module, function), extras=extras)
    if name in _WATCHED:
        parser.add_argument(
            "--watch",
            nargs="?",
            type=_seconds,
            const=2.0,
            metavar="SECONDS",
            help="show it again every SECONDS until Ctrl-C (default 2): drawn over the previous one at a terminal, one "
            "after the other in a pipe",
        )
    if remote:
        add_endpoint(parser)
        parser.add_argument(
            "--one-address",
            action="store_true",
            help="call all brokers at the endpoint (or end it with ?one-address)",
        )
        parser.add_argument(
            "--credentials",
            metavar="FILE",
            help="TOML file with access_key and secret_key (or set EVENQ_CREDENTIALS, or EVENQ_ACCESS_KEY and "
            "EVENQ_SECRET_KEY)",
        )
        add_tls(parser)
        add_output(parser, wide=wide)
        parser.add_argument(
            "--timeout", type=positive, default=10, metavar="SECONDS", help="deadline of a call (default %(default)s)"
        )
    return parser


def add_endpoint(parser: argparse.ArgumentParser) -> None:
    """Adds the options that name the cluster; `contexts.settling` decides between them and the environment."""
    parser.add_argument(
        "--endpoint",
        metavar="HOST:PORT",
        help="any broker of the cluster, or several, comma-separated; evenqs:// = TLS (default: EVENQ_ENDPOINT, "
        f"otherwise the context, otherwise {DEFAULT_ENDPOINT})",
    )
    context = parser.add_argument(
        "--context",
        metavar="NAME",
        help="use endpoint, keys and TLS files of this context, see `evenq context` (default: EVENQ_CONTEXT, otherwise "
        "that of `evenq context use`)",
    )
    complete(context, context_name)


def add_topic_name(parser: argparse.ArgumentParser, *flags: str, **settings: Any) -> None:
    """Adds an argument that names a topic: completed from the cluster, and qualified by the namespace."""
    _add_qualified(parser, topic_name, flags, settings)


def add_group_name(parser: argparse.ArgumentParser, *flags: str, **settings: Any) -> None:
    """Adds an argument that names a consumer group, as `add_topic_name`."""
    _add_qualified(parser, group_name, flags, settings)


def add_broker_name(parser: argparse.ArgumentParser, *flags: str, **settings: Any) -> None:
    """Adds an argument that names a broker: completed from the cluster."""
    complete(parser.add_argument(*flags, **settings), broker_name)


def add_namespace(parser: argparse.ArgumentParser) -> None:
    """Adds the option for a namespace, once."""
    if parser.get_default("names") is None:
        parser.set_defaults(names=())
        parser.add_argument(
            "--namespace",
            metavar="NAME",
            help="namespace of topics and groups: `orders` means `NAME%%orders`; '' = none (default: the context's)",
        )


def _add_qualified(
    parser: argparse.ArgumentParser, completer: Completer, flags: tuple[str, ...], settings: dict[str, Any]
) -> None:
    add_namespace(parser)
    action = parser.add_argument(*flags, **settings)
    complete(action, completer)
    parser.set_defaults(names=(*parser.get_default("names"), action.dest))


def noun(commands: Any, name: str, text: str, examples: str = "") -> Any:
    """Adds a group of commands and returns the object to which its actions are added."""
    parser = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=examples,
        formatter_class=HelpFormatter,
    )
    parser.set_defaults(help_of=parser)
    return parser.add_subparsers(metavar="ACTION", title="actions")


def add_waiting(parser: argparse.ArgumentParser, seconds: int) -> None:
    """Adds `--wait` and `--no-wait` to a command that waits until groups have read messages."""
    parser.add_argument(
        "--wait",
        type=positive,
        default=seconds,
        metavar="SECONDS",
        help="longest wait for groups to read the remaining messages, seconds (default %(default)s)",
    )
    parser.add_argument(
        "--no-wait",
        action="store_true",
        help="start it and return without waiting; exit code 1 while messages are left to read",
    )


def message_property(text: str) -> tuple[str, str]:
    """Returns name and value of a property."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not a property; write NAME=VALUE, as in region=eu")
    return name, value


def _seconds(text: str) -> float:
    """Returns a period of `--watch`."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds; write --watch=2, or --watch at the end of the line"
        ) from None
    if not 0.2 <= value <= 3_600:
        raise argparse.ArgumentTypeError(f"{text} is outside 0.2 to 3600 seconds")
    return value


def _later(module: str, function: str) -> Callable[[argparse.Namespace], Any]:
    def run(options: argparse.Namespace) -> Any:
        return getattr(importlib.import_module(f"evenq.cli.{module}"), function)(options)

    return run
