"""Calls for the rows of a page: one per row, a few at a time, within a bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import suppress
from typing import TypeVar

from evenq.errors import Error

AT_A_TIME = 8
WAIT_MS_MAX = 4_000

Row = TypeVar("Row", bound=Hashable)
Value = TypeVar("Value")


class BoundedCalls:
    """At most `AT_A_TIME` calls over all users of a console, so that many open pages do not load the cluster."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(AT_A_TIME)

    async def of_rows(self, calls: Mapping[Row, Callable[[], Awaitable[Value]]]) -> dict[Row, Value]:
        """Returns the results, without those of calls that failed or did not end within `WAIT_MS_MAX`."""
        results: dict[Row, Value] = {}

        async def one(row: Row, call: Callable[[], Awaitable[Value]]) -> None:
            async with self._slots:
                with suppress(Error):
                    results[row] = await call()

        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_MS_MAX / 1_000):
                await asyncio.gather(*(one(row, call) for row, call in calls.items()))
        return results
