"""A stream of one answer of another copy, which must not stall. Read by `snapshot_fetch` and `record_fetch`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from evenq.errors import RequestTimeout
from evenq.runtime.clock import Clock
from evenq.runtime.net import Net
from evenq_broker.loops.state.signals import done_within


async def peer_stream(
    net: Net, address: str, method: str, request: bytes, *, stall_ms: int, of: str, clock: Clock
) -> AsyncGenerator[bytes, None]:
    """Yields its encoded messages. Raises errors of the call, and RequestTimeout after `stall_ms` of silence."""
    messages = net.stream(address, method, request, timeout_ms=None)
    try:
        while True:
            step = asyncio.ensure_future(_next(messages))
            try:
                if not await done_within(step, stall_ms, clock=clock):
                    raise RequestTimeout(f"{address} sent nothing of {of} for {stall_ms} ms")
            finally:
                step.cancel()
                await asyncio.wait({step})  # the stream can be closed only while no read of it is running
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
