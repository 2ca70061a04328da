"""Completion of names: topics, groups and brokers from the cluster, contexts from their file.

argcomplete calls these functions with the words before the cursor. They have LIMIT_S to answer, and any failure (no
cluster, no right, no keys) means no proposals: a shell must not show errors while a user types. No heavy module is
imported here: the grammar attaches the functions to its arguments.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evenq.client.async_admin import Admin

LIMIT_S = 1.5
NAMES_MAX = 500
Completer = Callable[..., list[str]]


def complete(action: argparse.Action, completer: Completer) -> None:
    """Attaches a completer, where argcomplete looks for it."""
    action.completer = completer  # type: ignore[attr-defined]  # an attribute of argcomplete, which is not imported


def topic_name(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    async def names(admin: Admin) -> list[str]:
        return [one.topic for one in await admin.list_topics()]

    return _names(prefix, parsed_args, names)


def group_name(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    async def names(admin: Admin) -> list[str]:
        return [one.group for one in await admin.list_groups()]

    return _names(prefix, parsed_args, names)


def broker_name(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    async def names(admin: Admin) -> list[str]:
        return [one.name for one in await admin.list_brokers()]

    return _names(prefix, parsed_args, names, qualified=False)


def context_name(prefix: str, **_: Any) -> list[str]:
    with contextlib.suppress(Exception):
        from evenq.cli.contexts.file import environment_contexts

        return [name for name in sorted(environment_contexts().contexts) if name.startswith(prefix)]
    return []


def _names(
    prefix: str, options: argparse.Namespace, names: Callable[[Admin], Any], *, qualified: bool = True
) -> list[str]:
    with contextlib.suppress(Exception):
        import asyncio

        from evenq.cli.contexts.settling import settle
        from evenq.cli.tls_options import use_tls

        if not hasattr(options, "endpoint"):
            options.endpoint = None
        options.names = ()  # what was typed so far stays as it is
        settle(options)
        use_tls(options)
        found = asyncio.run(_within_limit(options.endpoint, names))
        namespace = getattr(options, "namespace", None) if qualified else None
        if namespace:
            start = f"{namespace}%"
            found = [name.removeprefix(start) for name in found if name.startswith(start)]
        return sorted(name for name in found if name.startswith(prefix))[:NAMES_MAX]
    return []


async def _within_limit(endpoint: str, names: Callable[[Admin], Any]) -> list[str]:
    import asyncio

    from evenq.client.async_admin import Admin

    async with asyncio.timeout(LIMIT_S), Admin(endpoint=endpoint, timeout_ms=int(LIMIT_S * 1000)) as admin:
        return list(await names(admin))
