"""Reads of the part of a queue that only its table has, in place of pulls from the broker (decision 154).

`loops.pulling` calls `pull` while its offset is below the start of the log; `loops.starting` and `loops.polling` look
offsets up. Reads of files block, so all reads of a consumer run in one thread, one after the other.
`evenq.tables.consuming` implements `TableRows`; `wiring` passes it in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

from evenq.errors import Unsupported
from evenq.model import FilterExpression, MessageQueue, QueueOffset, ReceivedMessage

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class TablePull:
    """Rows of a table, as the answer to a pull."""

    messages: Sequence[ReceivedMessage]
    next_offset: int
    missing: bool = False
    """True: no file has the offsets before `next_offset`, and nothing was read."""


class TableRows(Protocol):
    """Interface of a table. All methods block, and raise StoreError, NotFound if it has nothing of the queue's topic,
    and Unsupported without a `uid`, which is that of the queue's content. `end` is the start of the log: only offsets
    below it are read from files.
    """

    def pull(
        self,
        queue: MessageQueue,
        uid: str,
        start: int,
        end: int,
        expression: FilterExpression,
        batch_max: int,
        bytes_max: int,
    ) -> TablePull:
        """Returns messages from `start` on that pass the filter."""
        ...

    def first(self, queue: MessageQueue, uid: str, end: int) -> int:
        """Returns the first offset of the files; `end`: they have none below it."""
        ...

    def offset_at(self, queue: MessageQueue, uid: str, timestamp_ms: int, end: int) -> int:
        """Returns the first offset of the files that was stored at or after a time; `end`: they have none below it."""
        ...

    def close(self) -> None:
        """Closes the files."""
        ...


class TableReads:
    """The table of one consumer. Methods as in `TableRows`."""

    def __init__(self, rows: TableRows) -> None:
        self._rows = rows
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="evenq-table")

    async def pull(
        self,
        queue: MessageQueue,
        uid: str,
        start: int,
        end: int,
        *,
        expression: FilterExpression,
        batch_max: int,
        bytes_max: int,
    ) -> TablePull:
        return await self._in_thread(lambda: self._rows.pull(queue, uid, start, end, expression, batch_max, bytes_max))

    async def first(self, queue: MessageQueue, uid: str, end: int) -> QueueOffset:
        if end <= 0:  # the log has every message
            return QueueOffset(end)
        return QueueOffset(await self._in_thread(lambda: self._rows.first(queue, uid, end)))

    async def offset_at(self, queue: MessageQueue, uid: str, timestamp_ms: int, end: int) -> QueueOffset:
        if end <= 0:
            return QueueOffset(end)
        return QueueOffset(await self._in_thread(lambda: self._rows.offset_at(queue, uid, timestamp_ms, end)))

    def close(self) -> None:
        """Ends the thread after the read that runs; does not wait for it."""
        self._thread.submit(self._rows.close)
        self._thread.shutdown(wait=False)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        try:
            running = asyncio.get_running_loop().run_in_executor(self._thread, work)
        except RuntimeError as error:
            raise Unsupported(f"the table cannot be read, because the consumer or the process ends: {error}") from error
        return await running
