"""A stream of one answer of another copy, which must not stand still. Read by `snapshot_fetch` and `record_fetch`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from evenq.errors import RequestTimeout
from evenq.runtime.clock import Clock
from evenq.runtime.net import Net
from evenq_broker.loops.state.signals import done_within

__all__ = ["peer_stream"]


async def peer_stream(
    net: Net, address: str, method: str, request: bytes, *, stall_ms: int, of: str, clock: Clock
) -> AsyncGenerator[bytes, None]:
    """Its messages, encoded; close it when no more are wanted. Raises RequestTimeout, which names what it is a stream
    `of`, after `stall_ms` without one, and what the call fails with.
    """
    messages = net.stream(address, method, request, timeout_ms=None)
    try:
        while True:
            step = asyncio.ensure_future(_next(messages))
            try:
                if not await done_within(step, stall_ms, clock=clock):
                    raise RequestTimeout(f"{address} sent nothing of {of} for {stall_ms} ms")
            finally:
                step.cancel()
                await asyncio.wait({step})  # the stream can be closed only when no read of it is under way
            message = step.result()
            if message is None:
                return
            yield message
    finally:
        close = getattr(messages, "aclose", None)
        if close is not None:
            await close()


async def _next(messages: AsyncIterator[bytes]) -> bytes | None:
    return await anext(messages, None)
