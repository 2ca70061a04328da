"""A copy fetches records of the log from another one, in place of those that its disk has damaged.

What comes is bounded by what was asked for, and judged by who asked (`loops.replication.record_repair`);
`rpc.replication.records` is the other side.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from evenq.errors import BadRequest, RequestTimeout
from evenq.runtime.clock import Clock
from evenq.runtime.net import Net
from evenq_broker.loops.state.signals import done_within
from evenq_broker.loops.wire.records import WantedRecords, ask_records, data_of
from evenq_broker.loops.wire.replication import Opening

__all__ = ["METHOD", "STALL_MS", "fetch_records"]

METHOD = "/evenq.v1.Replication/FetchRecords"
STALL_MS = 1_500
"""The longest time without a piece: a reader waits, and there is another copy to ask."""


async def fetch_records(net: Net, address: str, who: Opening, wanted: WantedRecords, *, clock: Clock) -> bytes:
    """What the broker `who.receiver` has there, unchecked, and no more than was asked for. Raises BadRequest (it has
    another log, or sends something else), NotFound (not there, or damaged there, too), HaNotAvailable (it does not know
    that this is committed), TooManyRequests, ConnectionFailed, RequestTimeout.
    """
    size, parts, came = wanted.end - wanted.start, [], 0
    async with aclosing(_pieces(net, address, ask_records(who, wanted), clock)) as pieces:
        async for data in pieces:
            came += len(data)
            if came > size:
                raise BadRequest(f"{address} sends more than the {size} bytes of records that were asked for")
            parts.append(data)
    return b"".join(parts)


async def _pieces(net: Net, address: str, request: bytes, clock: Clock) -> AsyncGenerator[bytes, None]:
    frames = net.stream(address, METHOD, request, timeout_ms=None)
    try:
        while True:
            step = asyncio.ensure_future(_next(frames))
            try:
                if not await done_within(step, STALL_MS, clock=clock):
                    raise RequestTimeout(f"{address} sent nothing of the records for {STALL_MS} ms")
            finally:
                step.cancel()
                await asyncio.wait({step})  # the stream can be closed only when no read of it is under way
            message = step.result()
            if message is None:
                return
            yield data_of(message)
    finally:
        close = getattr(frames, "aclose", None)
        if close is not None:
            await close()


async def _next(frames: AsyncIterator[bytes]) -> bytes | None:
    return await anext(frames, None)
