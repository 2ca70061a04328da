"""A call whose messages go both ways and whose sender never waits: what links between brokers are made of.

`open_duplex` gives one of any `Net`: the net's own if it has one (`evenq.wire.duplex_call` over sockets), else one over
`Net.stream`, as in simulations. Always true: messages leave in the order of `send`; no side has to hold more than one
message for the other side, because `has_room` says when the next one may come.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Protocol, cast

from evenq.runtime.net import Net

__all__ = ["Duplex", "StreamedDuplex", "open_duplex"]


class Duplex(Protocol):
    """One call. Belongs to one loop."""

    on_room: Callable[[], None]
    """Called when `has_room` became true, the first time when the call stands. Must not wait or raise."""

    @property
    def has_room(self) -> bool:
        """One more message may be sent now."""
        ...

    def send(self, message: bytes) -> None:
        """Send a message; only while `has_room`. Never waits. A message may be lost with its call, without a word."""
        ...

    def answers(self) -> AsyncGenerator[bytes, None]:
        """Open the call: what the other side sends, until it ends the call. Closing the iterator, or the end of its
        task, ends the call. Once per call. Raises as `Net.stream`.
        """
        ...


class _MakesDuplex(Protocol):
    """A net with duplex calls of its own."""

    def duplex(self, address: str, method: str, *, metadata: Mapping[str, str] | None = None) -> Duplex: ...


def open_duplex(net: Net, address: str, method: str, *, metadata: Mapping[str, str] | None = None) -> Duplex:
    """A call to the address; `Duplex.answers` opens it."""
    if hasattr(net, "duplex"):
        return cast("_MakesDuplex", net).duplex(address, method, metadata=metadata)
    return StreamedDuplex(net, address, method, metadata=metadata)


class StreamedDuplex:
    """A duplex call over `Net.stream`: there is room while the task that sends requests waits for the next one."""

    def __init__(self, net: Net, address: str, method: str, *, metadata: Mapping[str, str] | None = None) -> None:
        self.on_room: Callable[[], None] = lambda: None
        self._net, self._address, self._method, self._metadata = net, address, method, metadata
        self._request: asyncio.Future[bytes] | None = None
        """What the task that carries the requests waits for: its next one."""

    @property
    def has_room(self) -> bool:
        """See Duplex."""
        return self._request is not None and not self._request.done()

    def send(self, message: bytes) -> None:
        """See Duplex."""
        assert self._request is not None, "nothing is sent without room"
        self._request.set_result(message)

    async def answers(self) -> AsyncGenerator[bytes, None]:
        """See Duplex."""
        frames = self._net.stream(
            self._address, self._method, self._requests(), timeout_ms=None, metadata=self._metadata
        )
        try:
            async for frame in frames:
                yield frame
        finally:
            if self._request is not None:
                self._request.cancel()
            close = getattr(frames, "aclose", None)
            if close is not None:
                await close()

    async def _requests(self) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        while True:
            request = self._request = loop.create_future()
            self.on_room()
            try:
                message = await request
            except asyncio.CancelledError:
                if request.cancelled() and not _is_cancelled():
                    return  # the call is over
                raise
            yield message


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
