"""The network as an argument: calls by address, method path and encoded bytes.

`evenq.wire.net.GrpcNet` is the real one; the simulator and unit tests pass their own. A failed call raises
`evenq.errors.ConnectionFailed` (no server answered), `RequestTimeout` (no answer in time) or `Unauthorized`. The caller
checks the status inside each response.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol

from evenq.errors import RequestTimeout
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import done_within


class Net(Protocol):
    """Ways to call another process."""

    async def unary(
        self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: Mapping[str, str] | None = None
    ) -> bytes:
        """Sends one request and returns one answer. `method` is `/package.Service/Rpc`."""
        ...

    def stream(
        self,
        address: str,
        method: str,
        requests: AsyncIterator[bytes] | bytes,
        *,
        timeout_ms: int | None,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[bytes]:
        """Opens a stream: one request (bytes) or many (iterator), many answers. Closing the iterator ends the call."""
        ...

    async def close(self) -> None:
        """Closes all channels."""
        ...


class BlockingCalls(Protocol):
    """Ways to call another process from a thread that waits for the answer; thread-safe."""

    sign: Callable[[], Mapping[str, str]] | None
    """Function that makes additional headers of each call; None: no additional headers."""

    def unary(
        self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: Sequence[tuple[str, str]]
    ) -> bytes:
        """Sends one request and returns one answer. Headers are encoded once for all calls with equal `metadata`."""
        ...

    def look_after(self) -> None:
        """Maintains the idle connections. Does not wait; call it about once a second, in any thread."""
        ...

    def close(self) -> None:
        """Closes all connections."""
        ...


async def close_frames(frames: AsyncIterator[object]) -> None:
    """Closes the iterator of a stream, if it can be closed: generators can, other iterators may not."""
    close = getattr(frames, "aclose", None)
    if close is not None:
        await close()


async def frames_within(
    frames: AsyncIterator[bytes], *, stall_ms: int, silence: str, clock: Clock
) -> AsyncGenerator[bytes, None]:
    """Yields the frames of a stream, and closes it. Raises RequestTimeout with the text `silence` after `stall_ms`
    without a frame.
    """
    try:
        while True:
            step = asyncio.ensure_future(_next(frames))
            try:
                if not await done_within(step, stall_ms, clock=clock):
                    raise RequestTimeout(f"{silence} for {stall_ms} ms")
            finally:
                step.cancel()
                await asyncio.wait({step})  # the stream can be closed only while no read of it is running
            frame = step.result()
            if frame is None:
                return
            yield frame
    finally:
        await close_frames(frames)


async def _next(frames: AsyncIterator[bytes]) -> bytes | None:
    return await anext(frames, None)
