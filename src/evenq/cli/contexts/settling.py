"""Where a command gets endpoint, keys, TLS files and namespace from. This is the only place that decides it.

For each value, the first of these that has it:

1. an option of the command (`--endpoint`, `--credentials`, `--tls-ca`, `--namespace` ...);
2. the context of the option `--context NAME`;
3. an environment variable (EVENQ_ENDPOINT, EVENQ_CREDENTIALS, EVENQ_ACCESS_KEY, EVENQ_TLS_CA ...);
4. the context that EVENQ_CONTEXT names, otherwise that of `evenq context use`;
5. the default: 127.0.0.1:8081, no keys, no TLS.

One rule protects keys: where `--endpoint` or EVENQ_ENDPOINT names the cluster, step 4 is left out, so that keys of one
cluster are not sent to another. Whoever gives `--context` and `--endpoint` has combined them on purpose.

Keys and TLS files go into the environment of the process, which all clients read; `use_tls` does so for TLS.
`docs/guides/command_line.md` has the same list.
"""

from __future__ import annotations

import argparse
import os

from evenq.cli.contexts.file import ClusterContext, environment_contexts
from evenq.client.core.routes.access_points import DEFAULT_ENDPOINT, ENDPOINT_VARIABLE
from evenq.model.names import DLQ_PREFIX, RETRY_PREFIX

CONTEXT_VARIABLE = "EVENQ_CONTEXT"
_KEYS = ("EVENQ_ACCESS_KEY", "EVENQ_SECRET_KEY", "EVENQ_SECURITY_TOKEN", "EVENQ_CREDENTIALS")
_TLS = {
    "tls_ca": "EVENQ_TLS_CA",
    "tls_certificate": "EVENQ_TLS_CERTIFICATE",
    "tls_key": "EVENQ_TLS_KEY",
    "tls_server_name": "EVENQ_TLS_SERVER_NAME",
}


def settle(options: argparse.Namespace) -> None:
    """Completes the options of a command that calls a cluster. Raises NotFound, SettingsError."""
    if not hasattr(options, "endpoint"):
        return
    named = bool(getattr(options, "context", None))
    name, context = _context(options)
    variable = os.environ.get(ENDPOINT_VARIABLE, "")
    if options.endpoint is None:
        given = context.endpoint if context is not None else ""
        options.endpoint = (given if named else variable or given) or DEFAULT_ENDPOINT
        options.settled_by = name  # for the error of an access point that does not answer
    if getattr(options, "credentials", None):
        _sign_with(credentials=options.credentials)
    elif context is not None:
        _take_keys(context, named=named)
    if context is not None:
        _take_tls(options, context, named=named)
    if hasattr(options, "namespace"):
        if options.namespace is None:
            options.namespace = context.namespace if context is not None else ""
        _qualify(options)


def chosen_context(option: str | None) -> tuple[str, str]:
    """Returns the name of the context that a command would use, and its source; empty: none."""
    if option:
        return option, "--context"
    if os.environ.get(ENDPOINT_VARIABLE):
        return "", ENDPOINT_VARIABLE
    if os.environ.get(CONTEXT_VARIABLE):
        return os.environ[CONTEXT_VARIABLE], CONTEXT_VARIABLE
    return environment_contexts().current, "evenq context use"


def full_name(namespace: str, name: str) -> str:
    """Returns the full name of a topic or group. A name with a `%` has its namespace already."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix + full_name(namespace, name[len(prefix) :])
    return f"{namespace}%{name}" if namespace and name and "%" not in name else name


def in_namespace(namespace: str, name: str) -> bool:
    """Returns whether a full name is in the namespace; every name is in the empty one."""
    return not namespace or name.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX).startswith(f"{namespace}%")


def _context(options: argparse.Namespace) -> tuple[str, ClusterContext | None]:
    option = getattr(options, "context", None)
    if not option and options.endpoint is not None:
        return "", None
    name, _ = chosen_context(option)
    return name, environment_contexts().get(name) if name else None


def _take_keys(context: ClusterContext, *, named: bool) -> None:
    if not named and any(os.environ.get(variable) for variable in _KEYS):
        return
    if context.credentials:
        _sign_with(credentials=context.credentials)
    elif context.access_key:
        _sign_with(access_key=context.access_key, secret_key=context.secret_key)


def _sign_with(*, credentials: str = "", access_key: str = "", secret_key: str = "") -> None:
    """Sets the only source of keys."""
    values = dict.fromkeys(_KEYS, "")
    values |= {"EVENQ_CREDENTIALS": credentials, "EVENQ_ACCESS_KEY": access_key, "EVENQ_SECRET_KEY": secret_key}
    for variable, value in values.items():
        if value:
            os.environ[variable] = value
        else:
            os.environ.pop(variable, None)


def _take_tls(options: argparse.Namespace, context: ClusterContext, *, named: bool) -> None:
    insecure = getattr(options, "tls_insecure", False)
    for name, variable in _TLS.items():
        value = getattr(context, name)
        if value and not insecure and not getattr(options, name, None) and (named or not os.environ.get(variable)):
            setattr(options, name, value)
    trusts = getattr(options, "tls_ca", None) or (not named and os.environ.get(_TLS["tls_ca"]))
    options.tls_insecure = insecure or (context.tls_insecure and not trusts)
    options.tls = getattr(options, "tls", False) or context.tls


def _qualify(options: argparse.Namespace) -> None:
    """Replaces the names of topics and groups by full names."""
    for name in getattr(options, "names", {}):
        value = getattr(options, name, None)
        if isinstance(value, str):
            setattr(options, name, full_name(options.namespace, value))
        elif isinstance(value, list):
            setattr(options, name, [full_name(options.namespace, one) for one in value])
