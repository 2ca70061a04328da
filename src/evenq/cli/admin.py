"""Commands that talk to a cluster: one short-lived loop and `evenq.aio.Admin` per command.

Also what several commands share: waiting for brokers that have just come, the sentences that name the next command.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from evenq.cli.output import progress_console
from evenq.client.async_admin import Admin
from evenq.client.rpc.calls import AccessPointSilent
from evenq.errors import ConnectionFailed, Error, Forbidden, GroupNotFound, TlsFailed, TopicNotFound, Unauthorized
from evenq.runtime.clock import Clock, SystemClock

__all__ = ["on_every_broker", "warn_missing", "warn_silent", "with_admin"]

Result = TypeVar("Result")

NEWCOMER_MS_MAX = 45_000
"""How long a broker may be alive before its name can be looked up: cluster DNS keeps a "no such name" for 30 s."""
AGAIN_MS = 1_000


async def on_every_broker(work: Callable[[], Awaitable[Result]], *, clock: Clock | None = None) -> Result:
    """Do `work`, which may be done twice, until no live broker was out of reach; NEWCOMER_MS_MAX at most.

    Raises what the last attempt raised.
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
    """Run one command's `work` with an `Admin` for its options."""
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
    """Say on standard error which brokers did not answer and what is missing for that; the exit code is 1 then."""
    if silent:
        options.incomplete = True
        progress_console().print(f"No answer from {', '.join(silent)}: {missing} is missing here.")


async def warn_missing(
    options: argparse.Namespace, admin: Admin, undone: str, *, later: str = "Run the command again when it is back"
) -> None:
    """The same about brokers that belong to the cluster and are missing. `undone`: what was not done there."""
    try:
        names = sorted(one.name for one in await admin.list_missing_brokers())
    except (Forbidden, Unauthorized):
        return  # a caller that may not look at the cluster knows of no other brokers
    if names:
        options.incomplete = True
        progress_console().print(
            f"Broker {', '.join(names)} is missing: {undone} there. {later}; if it is gone for good: "
            "evenq broker forget NAME --yes"
        )


def _with_hint(error: Error, command: str) -> str:
    return str(error) if command in str(error) else f"{error}; `{command}` shows what exists"
