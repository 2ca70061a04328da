"""The source of tables: queues of a topic with their offsets, and ranges of stored records, from the leaders.

Used by `evenq.tables`. It reads without a group; an exporter reports the ends of its files as offsets of one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from evenq.client.core.reading.extents import QueueExtent, RecordMark
from evenq.client.faces import AsyncFace, SdkClient
from evenq.client.wiring import ClientContext, new_client_id
from evenq.errors import Error, InternalError
from evenq.model import NO_GENERATION, QueueOffset
from evenq.runtime.clock import Clock
from evenq.runtime.net import frames_within

if TYPE_CHECKING:
    from evenq.client.rpc.scanning import ScanCalls

STALL_MS: Final = 60_000
"""Longest silence of a scan."""


class TopicSource(AsyncFace, SdkClient):
    """Reader of a topic's history, used as `async with`; arguments as in `evenq.aio.Admin`. All methods raise the
    errors of a call, among them TopicNotFound, Forbidden and ConnectionFailed.
    """

    def __init__(self, *, endpoint: str = "", timeout_ms: int = 10_000, context: ClientContext | None = None) -> None:
        self._context = ClientContext.of(context, None, endpoint=endpoint)
        self._calls = self._in_loop(_scan_calls, self._context, timeout_ms)

    @property
    def clock(self) -> Clock:
        return self._context.clock

    async def queues(self, topic: str) -> list[QueueExtent]:
        """Returns the readable queues of live brokers, by broker and id."""
        route = await self._calls.query_route(topic)
        found: list[QueueExtent] = []
        for name in sorted({queue.broker_name for queue in route.readable}):
            queues = [queue for queue in route.readable if queue.broker_name == name]
            found += await self._calls.extents(route.address_of(name), queues)
        return found

    async def mark(self, extent: QueueExtent, offset: int) -> RecordMark:
        """Returns the mark of the message at an offset."""
        return RecordMark(text=await self._calls.mark(extent.address, extent.queue, offset + 1))

    async def offset_at(self, extent: QueueExtent, timestamp_ms: int) -> int:
        """Returns the first offset stored at or after a time, otherwise the end of the queue."""
        queried = await self._calls.query_offsets(extent.address, "", extent.queue, timestamp_ms=timestamp_ms)
        return queried.at_timestamp

    async def scan(self, extent: QueueExtent, start: int, end: int, *, verifies: bool) -> AsyncGenerator[bytes, None]:
        """Yields encoded blocks of a range. Ends early if messages are gone; the reader checks. `verifies`: the reader
        compares checksums, so the broker does not. A queue with another uid is refused with PreconditionFailed.
        """
        frames = self._calls.scan(extent.address, extent.queue, start, end, uid=extent.uid, verifies=verifies)
        sent = f"broker {extent.queue.broker_name} sent"
        silence = f"{sent} nothing of {extent.queue}"
        async with aclosing(frames_within(frames, stall_ms=STALL_MS, silence=silence, clock=self.clock)) as blocks:
            async for data in blocks:
                if not data:
                    raise InternalError(f"{sent} an empty block of {extent.queue}")
                yield data

    async def report(self, group: str, ends: Sequence[tuple[QueueExtent, int]]) -> None:
        """Commits offsets for a group that has no members. Tries all brokers, then raises the last error."""
        failure: Error | None = None
        for address in sorted({extent.address for extent, _ in ends}):
            here = [(extent, end) for extent, end in ends if extent.address == address]
            try:
                await self._calls.commit(
                    address,
                    group,
                    {extent.queue: QueueOffset(end) for extent, end in here},
                    generation=NO_GENERATION,
                    uids={extent.queue: extent.uid for extent, _ in here},
                )
            except Error as error:
                failure = error
        if failure is not None:
            raise failure

    async def close(self) -> None:
        await self._context.let_go(self._calls.net)


def _scan_calls(context: ClientContext, timeout_ms: int) -> ScanCalls:
    from evenq.client.rpc.scanning import ScanCalls

    return ScanCalls(
        context.open_net(reads_ahead=False),
        endpoint=context.endpoint,
        client_id=new_client_id(context.clock),
        timeout_ms=timeout_ms,
        reads=True,  # a misspelt topic must not be created
    )
