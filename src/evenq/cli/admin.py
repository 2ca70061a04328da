"""Calls of a cluster, one loop and one `Admin` per command, with retries for new brokers and with shared warnings."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from evenq.cli.output import progress_console
from evenq.client.async_admin import Admin
from evenq.client.rpc.transport import AccessPointSilent
from evenq.errors import ConnectionFailed, Error, Forbidden, GroupNotFound, TlsFailed, TopicNotFound, Unauthorized
from evenq.runtime.clock import Clock, SystemClock

Result = TypeVar("Result")

NEWCOMER_MS_MAX = 45_000
"""Longest time until the name of a new broker resolves, ms: cluster DNS caches "no such name" for 30 s."""
AGAIN_MS = 1_000


async def on_every_broker(work: Callable[[], Awaitable[Result]], *, clock: Clock | None = None) -> Result:
    """Repeats `work`, which must be idempotent, until all live brokers answer, for at most NEWCOMER_MS_MAX.

    Raises the error of the last attempt.
    """
    clock = clock or SystemClock()
    deadline_ms = clock.monotonic_ms() + NEWCOMER_MS_MAX
    shown = ""
    while True:
        try:
            return await work()
        except (AccessPointSilent, TlsFailed):
            raise
        except ConnectionFailed as error:
            if clock.monotonic_ms() >= deadline_ms:
                raise
            if str(error) != shown:
                shown = str(error)
                progress_console().print(f"{shown}; trying again")
        await clock.sleep_ms(AGAIN_MS)


def with_admin(options: argparse.Namespace, work: Callable[[Admin], Awaitable[Result]]) -> Result:
    """Runs `work` with an `Admin` for the command's options."""
    return asyncio.run(_with_admin(options, work))


async def _with_admin(options: argparse.Namespace, work: Callable[[Admin], Awaitable[Result]]) -> Result:
    async with Admin(endpoint=options.endpoint, timeout_ms=options.timeout * 1000) as admin:
        try:
            return await work(admin)
        except TopicNotFound as error:
            raise TopicNotFound(_with_hint(error, "evenq topic list")) from error
        except GroupNotFound as error:
            raise GroupNotFound(_with_hint(error, "evenq group list")) from error


def warn_silent(options: argparse.Namespace, silent: Sequence[str], missing: str) -> None:
    """Warns about brokers that did not answer, on standard error; the exit code is then 1."""
    if silent:
        options.incomplete = True
        progress_console().print(f"No answer from {', '.join(silent)}: the result lacks {missing}.")


async def warn_missing(
    options: argparse.Namespace, admin: Admin, undone: str, *, later: str = "Run the command again when it is back"
) -> None:
    """Warns about missing brokers of the cluster, also with exit code 1. `undone`: the operation that they lack."""
    try:
        names = sorted(one.name for one in await admin.list_missing_brokers())
    except (Forbidden, Unauthorized):
        return  # the caller has no right to list brokers
    if names:
        options.incomplete = True
        progress_console().print(
            f"Broker {', '.join(names)} is missing: {undone} there. {later}; if it is gone for good: "
            "evenq broker forget NAME --yes"
        )


def _with_hint(error: Error, command: str) -> str:
    return str(error) if command in str(error) else f"{error}; `{command}` shows what exists"
