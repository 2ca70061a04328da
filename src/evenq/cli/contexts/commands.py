"""`evenq context add | use | list | show | remove`. No output contains a secret key."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from evenq.cli.contexts.file import (
    ClusterContext,
    Contexts,
    change_contexts,
    check_name,
    contexts_path,
    read_contexts,
    with_context,
    without_context,
)
from evenq.cli.contexts.settling import chosen_context
from evenq.cli.output import Column, Listing, Page, Scalar, print_page, progress_console
from evenq.client.core.routes.access_points import ENDPOINT_VARIABLE, access_points
from evenq.errors import BadRequest
from evenq.runtime.private_files import read_secret
from evenq.wire.credentials import Credentials

SECRET_BYTES_MAX = 64 << 10
_COLUMNS = (
    Column("context", "context"),
    Column("current", "current"),
    Column("endpoint", "endpoint"),
    Column("user", "user"),
    Column("tls", "tls"),
    Column("namespace", "namespace"),
)


def add(options: argparse.Namespace) -> None:
    path = contexts_path(os.environ)
    name, context = check_name(options.name), _context_of(options)

    def change(contexts: Contexts) -> Contexts:
        if name in contexts.contexts and not options.replace:
            raise BadRequest(f"there is a context {name} already; add --replace to replace it, or choose another name")
        return with_context(contexts, name, context, current=options.use)

    now = change_contexts(path, change)
    next_step = (
        f"Commands use it from now on{_unless()}."
        if now.current == name
        else f"To use it: evenq context use {name}, or --context {name}."
    )
    sentence = f"Context {name} is saved. {next_step}"
    print_page(Page(facts=_facts(name, context, now), sentence=sentence), options.output)


def use(options: argparse.Namespace) -> None:
    if bool(options.name) == options.none:
        raise BadRequest("give the NAME of a context, or --none; `evenq context list` shows the contexts")
    name = options.name or ""

    def change(contexts: Contexts) -> Contexts:
        if name:
            contexts.get(name)
        return Contexts(contexts=contexts.contexts, current=name)

    now = change_contexts(contexts_path(os.environ), change)
    sentence = "Commands use no context from now on."
    if name:
        sentence = f"Commands use context {name} ({now.get(name).endpoint}) from now on{_unless()}."
    print_page(Page(facts={"context": name}, sentence=sentence), options.output)


def list_all(options: argparse.Namespace) -> None:
    contexts = read_contexts(contexts_path(os.environ))
    rows = [_row(name, one, contexts) for name, one in sorted(contexts.contexts.items())]
    empty = "No contexts yet. Add one: evenq context add NAME --endpoint HOST:PORT"
    print_page(
        Page(facts={}, listings=[Listing(key="contexts", columns=_COLUMNS, rows=rows, empty=empty)]), options.output
    )


def show(options: argparse.Namespace) -> None:
    contexts = read_contexts(contexts_path(os.environ))
    name, source = (options.name, "") if options.name else chosen_context(None)
    if not name:
        reason = f"{ENDPOINT_VARIABLE} is set" if source == ENDPOINT_VARIABLE else "none is set"
        page = Page(
            facts={"context": ""},
            sentence=f"No context is used: {reason}. To see all: evenq context list; to set one: evenq context use "
            "NAME",
        )
        print_page(page, options.output)
        return
    print_page(Page(facts=_facts(name, contexts.get(name), contexts)), options.output)
    if source and not options.output.for_programs:
        progress_console().print(f"Commands use it: {source}.")


def remove(options: argparse.Namespace) -> None:
    before = read_contexts(contexts_path(os.environ)).current
    change_contexts(contexts_path(os.environ), lambda contexts: without_context(contexts, options.name))
    sentence = f"Context {options.name} is removed."
    if before == options.name:
        sentence += " It was the current one: commands use no context from now on."
    print_page(Page(facts={"removed": options.name}, sentence=sentence), options.output)


def _context_of(options: argparse.Namespace) -> ClusterContext:
    """Returns the context of the options of `add`. Raises BadRequest, SettingsError, OSError."""
    access_points(options.address)  # raises for a text that is not an access point
    if options.key_file is not None and (options.access_key or options.secret):
        raise BadRequest("give --credentials or --access-key, not both")
    if options.secret and not options.access_key:
        raise BadRequest("--secret is the secret key of --access-key; give both")
    if options.key_file is not None:
        Credentials.of_file(options.key_file.expanduser())  # a mistake in it shows now, not in a later command
    secret = _secret(options) if options.access_key else ""
    if secret:
        Credentials(access_key=options.access_key, secret_key=secret)
    return ClusterContext(
        endpoint=options.address,
        access_key=options.access_key or "",
        secret_key=secret,
        credentials=_absolute(options.key_file),
        tls=options.tls,
        tls_ca=_absolute(options.tls_ca),
        tls_certificate=_absolute(options.tls_certificate),
        tls_key=_absolute(options.tls_key),
        tls_server_name=options.tls_server_name or "",
        tls_insecure=options.tls_insecure,
        namespace=_namespace(options.prefix),
    )


def _secret(options: argparse.Namespace) -> str:
    """Reads the secret key from a file, a pipe or the terminal. Raises BadRequest for an empty one."""
    if options.secret not in {None, "-"}:
        text = read_secret(Path(options.secret).expanduser(), bytes_max=SECRET_BYTES_MAX).decode(errors="replace")
    elif options.secret is None and sys.stdin.isatty():
        from getpass import getpass

        text = getpass(f"Secret key of {options.access_key}: ")
    elif options.secret is None:
        raise BadRequest("the secret key is missing: give --secret FILE, or --secret - to read it from a pipe")
    else:
        text = sys.stdin.readline()
    secret = text.partition("\n")[0].strip()
    if not secret:
        raise BadRequest(f"the secret key of {options.access_key} is empty; give it as the first line of the file")
    return secret


def _namespace(text: str) -> str:
    if text and (len(text) > 64 or not text.replace("-", "").replace("_", "").isalnum() or not text.isascii()):
        raise BadRequest(f"the namespace {text!r} is not 1 to 64 letters, digits, '_' and '-'")
    return text


def _absolute(path: str | Path | None) -> str:
    return str(Path(path).expanduser().absolute()) if path else ""


def _unless() -> str:
    """Returns the variable that hides the current context, if it is set."""
    hiding = next((name for name in (ENDPOINT_VARIABLE, "EVENQ_CONTEXT") if os.environ.get(name)), "")
    return f" (not in this shell, where {hiding} is set)" if hiding else ""


def _user(context: ClusterContext) -> str:
    return context.access_key or context.credentials


def _uses_tls(context: ClusterContext) -> bool:
    files = (context.tls_ca, context.tls_certificate, context.tls_server_name)
    return context.tls or context.tls_insecure or any(files) or context.endpoint.lower().startswith("evenqs://")


def _row(name: str, one: ClusterContext, contexts: Contexts) -> tuple[Scalar, ...]:
    return name, name == contexts.current, one.endpoint, _user(one), _uses_tls(one), one.namespace


def _facts(name: str, context: ClusterContext, contexts: Contexts) -> dict[str, Scalar | list[str]]:
    shown: dict[str, Scalar | list[str]] = {**context.values()}
    shown.pop("secret_key", None)
    if context.secret_key:
        shown["secret_key_is_set"] = True
    return {"context": name, "current": name == contexts.current, **shown}
