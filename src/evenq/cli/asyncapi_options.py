"""The grammar of `evenq asyncapi`."""

from __future__ import annotations

from typing import Any

from evenq.cli.grammar import add_topic_name, command

_EXAMPLES = """\
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
        examples=_EXAMPLES,
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
