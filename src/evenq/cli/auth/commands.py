"""`evenq auth check | calls`: decisions from a users file, without a server."""

from __future__ import annotations

import argparse

from evenq.cli.exit_codes import ExitCode
from evenq.cli.output import Column, Listing, Page, Scalar, print_page
from evenq.errors import BadRequest, SettingsError
from evenq.runtime.private_files import read_secret
from evenq.serving.auth.calls import CALLS
from evenq.serving.auth.explaining import Explanation, explain, method_of, named_of, short_name
from evenq.serving.auth.server_auth import FILE_BYTES_MAX
from evenq.serving.rpc import Action

_NEEDS = (
    Column("action", "needs"),
    Column("resource", "on"),
    Column("allowed", "allowed"),
    Column("grants", "by", "sentence"),
)
_CALLS = (
    Column("call", "call"),
    Column("action", "needs"),
    Column("resource", "on"),
    Column("names", "names", "sentence"),
)


def check(options: argparse.Namespace) -> int:
    """Returns 0 if the call is allowed, 1 if it is forbidden."""
    if options.users is None:
        raise BadRequest("which users file? give --users FILE, the file of the servers' setting auth.users")
    method = method_of(options.call)
    named = named_of(method, options.names)
    try:
        content = read_secret(options.users, bytes_max=FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError(f"the users file {options.users} cannot be read: {error.strerror}") from error
    found = explain(content, options.user, method, named)
    rows: list[tuple[Scalar, ...]] = [
        (
            str(one.need.action),
            one.need.resource,
            bool(one.grants),
            " and ".join(one.grants) or ("the name is left out" if one.need.optional else "no grant"),
        )
        for one in found.answers
    ]
    page = Page(
        facts={"user": found.user, "call": short_name(method), "allowed": found.allowed, "note": found.note},
        listings=[Listing(key="needs", columns=_NEEDS, rows=rows, empty="It needs no grant.")],
        sentence=_sentence(found),
    )
    print_page(page, options.output)
    return ExitCode.DONE if found.allowed else ExitCode.NOT_DONE


def calls(options: argparse.Namespace) -> None:
    rows: list[tuple[Scalar, ...]] = []
    for method, row in CALLS.items():
        if row.access.action is Action.INTERNAL and not options.internal:
            continue
        paths = row.names.paths if row.names is not None else []
        named = dict.fromkeys(f"{one.place}=" if one.action is not None else f"{one.kind}:" for one in paths)
        resource = str(row.access.resource).replace("_", " ")
        rows.append((short_name(method), str(row.access.action), resource, ", ".join(named)))
    listing = Listing(key="calls", columns=_CALLS, rows=rows)
    print_page(Page(facts={}, listings=[listing]), options.output)


def _sentence(found: Explanation) -> str:
    verdict = "may" if found.allowed else "may NOT"
    text = f"User {found.user} {verdict} call {short_name(found.method)}"
    return f"{text}: {found.note}." if found.note else f"{text}."
