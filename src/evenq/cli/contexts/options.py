"""The grammar of `evenq context`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evenq.cli.completers import complete, context_name
from evenq.cli.formats import add_output
from evenq.cli.grammar import command, noun
from evenq.cli.tls_options import add_tls

_CONTEXT = """\
examples:
  evenq context add local --endpoint 127.0.0.1:8081
  evenq context add prod --endpoint q.example.com:8081 --tls --use
  evenq context add team-a --endpoint q.example.com:8081 --namespace team-a
  evenq context list
  evenq context use local
  evenq topic list --context prod              one command with another context
  EVENQ_CONTEXT=prod evenq topic list          a shell with another context

A value comes from the first of these that has it: an option of the command, the
context of --context, an environment variable (EVENQ_ENDPOINT ...), the context
of EVENQ_CONTEXT or of `context use`, the default. Where --endpoint or
EVENQ_ENDPOINT names the cluster, the context of EVENQ_CONTEXT or `context use`
is not used, nor are its keys.
"""
_ADD = """\
examples:
  evenq context add local --endpoint 127.0.0.1:8081
  evenq context add prod --endpoint q.example.com:8081 --tls --use
  evenq context add prod --endpoint q:8081 --credentials ~/keys/prod.toml
  evenq context add prod --endpoint q:8081 --access-key shop    prompts for the key
  cat key | evenq context add ci --endpoint q:8081 --access-key ci --secret -
  evenq context add prod --endpoint other.example.com:8081 --replace

The secret key is stored in $XDG_CONFIG_HOME/evenq/contexts.json (otherwise in
~/.config/evenq), readable only for you. The key itself is not an option:
all users of the machine can see the arguments of a command.
"""


def add_context(commands: Any) -> None:
    actions = noun(commands, "context", "keep clusters, keys and TLS files under short names", _CONTEXT)
    _add_add(actions)
    use = command(
        actions, "use", "set the context of later commands", "contexts.commands", "use", examples=_CONTEXT, remote=False
    )
    complete(use.add_argument("name", nargs="?", metavar="NAME"), context_name)
    use.add_argument("--none", action="store_true", help="use no context: EVENQ_ENDPOINT, otherwise 127.0.0.1:8081")
    listing = command(
        actions, "list", "list all contexts, without secrets", "contexts.commands", "list_all", remote=False
    )
    show = command(
        actions, "show", "show one context, or that of the next command", "contexts.commands", "show", remote=False
    )
    complete(show.add_argument("name", nargs="?", metavar="NAME"), context_name)
    remove = command(actions, "remove", "remove a context with its keys", "contexts.commands", "remove", remote=False)
    complete(remove.add_argument("name", metavar="NAME"), context_name)
    for parser in (use, listing, show, remove):
        add_output(parser)


def _add_add(actions: Any) -> None:
    add = command(
        actions, "add", "add a context, or replace one", "contexts.commands", "add", examples=_ADD, remote=False
    )
    add.add_argument("name", metavar="NAME", help="1 to 64 letters, digits, '.', '_' and '-'")
    add.add_argument(
        "--endpoint",
        dest="address",
        required=True,
        metavar="HOST:PORT",
        help="any broker of the cluster, or several, comma-separated; evenqs:// = TLS; end it with ?one-address if "
        "only this address can be reached",
    )
    add.add_argument(
        "--credentials", dest="key_file", type=Path, metavar="FILE", help="TOML file with access_key and secret_key"
    )
    add.add_argument(
        "--access-key", metavar="USER", help="user of the cluster; prompts for the secret key, or see --secret"
    )
    add.add_argument(
        "--secret",
        metavar="FILE",
        help="file whose first line is the secret key of --access-key; `-` is standard input (default: ask)",
    )
    add.add_argument(
        "--namespace",
        dest="prefix",
        default="",
        metavar="NAME",
        help="namespace of topics and groups: `orders` then means `NAME%%orders` in every command",
    )
    add_tls(add)
    add.add_argument("--use", action="store_true", help="also set it as the context of later commands")
    add.add_argument("--replace", action="store_true", help="replace a context of this name (default: refuse)")
    add_output(add)
