"""The grammar of `evenq auth`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from evenq.cli.formats import add_output
from evenq.cli.grammar import command, noun

_AUTH = """\
examples:
  evenq auth check shop SendMessage orders --users users.toml
  evenq auth check shop ReceiveMessage topic:orders group:shop-1
  evenq auth calls

They read a users file as the servers do and call no server: no call returns
users or grants.
"""
_CHECK = """\
examples:
  evenq auth check shop SendMessage orders --users users.toml
  evenq auth check shop ReceiveMessage topic:orders group:shop-1
  evenq auth check shop Admin/ListTopics        about the cluster: names nothing
  evenq auth check shop DeadLetters/Replay billing to_topic=orders
  evenq auth check team-a SendMessage team-a%orders     a namespace: full names

Exit code 0: allowed. 1: forbidden; the table names the missing rights. It
decides by grants only: a server also checks the signature, the date of the
call, and whose client id it has.
"""


def add_auth(commands: Any) -> None:
    actions = noun(commands, "auth", "check what a users file allows", _AUTH)
    check = command(
        actions,
        "check",
        "check whether a user may make a call, and by which grant",
        "auth.commands",
        "check",
        examples=_CHECK,
        remote=False,
    )
    check.add_argument("user", metavar="USER", help="user of the file, as in [users.USER]")
    check.add_argument("call", metavar="CALL", help="RPC, as in `evenq auth calls`: SendMessage, Admin/CreateTopic")
    check.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="names in the request: topic:NAME, group:NAME, FIELD=NAME, or NAME if the call has one kind",
    )
    variable = os.environ.get("EVENQ_BROKER_AUTH__USERS")
    check.add_argument(
        "--users",
        type=Path,
        metavar="FILE",
        default=Path(variable) if variable else None,
        help="the servers' users file, auth.users (default: EVENQ_BROKER_AUTH__USERS)",
    )
    add_output(check)
    calls = command(
        actions, "calls", "list the calls with the right that each needs", "auth.commands", "calls", remote=False
    )
    calls.add_argument("--internal", action="store_true", help="also calls that only servers make")
    add_output(calls)
