"""A call with messages in both directions whose sender never waits, for the links between brokers.

`open_duplex` uses the call of the net if it has one (`evenq.wire.duplex_call` over sockets). Otherwise it uses
`Net.stream`, as in simulations. Always true: messages leave in the order of `send`; no side must buffer more than one
message for the other, because `has_room` reports when the next message may be sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Protocol, cast

from evenq.runtime.net import Net, close_frames


class Duplex(Protocol):
    """One call; belongs to one loop."""

    on_room: Callable[[], None]
    """Called when `has_room` became true, first when the call is open. Must not wait or raise."""

    @property
    def has_room(self) -> bool:
        """True if one more message may be sent now."""
        ...

    def send(self, message: bytes) -> None:
        """Sends a message; allowed only while `has_room`. Never waits. A message may be lost silently with its call."""
        ...

    def answers(self) -> AsyncGenerator[bytes, None]:
        """Opens the call and returns the messages of the peer, until it ends the call; once per call.

        Closing the iterator, or the end of its task, ends the call. Raises as `Net.stream`.
        """
        ...


class _MakesDuplex(Protocol):
    """A net with its own duplex calls."""

    def duplex(self, address: str, method: str, *, metadata: Mapping[str, str] | None = None) -> Duplex: ...


def open_duplex(net: Net, address: str, method: str, *, metadata: Mapping[str, str] | None = None) -> Duplex:
    """Returns a call to the address; `Duplex.answers` opens it."""
    if hasattr(net, "duplex"):
        return cast("_MakesDuplex", net).duplex(address, method, metadata=metadata)
    return StreamedDuplex(net, address, method, metadata=metadata)


class StreamedDuplex:
    """A duplex call over `Net.stream`. It has room while the task that sends requests waits for the next one."""

    def __init__(self, net: Net, address: str, method: str, *, metadata: Mapping[str, str] | None = None) -> None:
        self.on_room: Callable[[], None] = lambda: None
        self._net, self._address, self._method, self._metadata = net, address, method, metadata
        self._request: asyncio.Future[bytes] | None = None
        """The next request, for which the sending task waits."""

    @property
    def has_room(self) -> bool:
        return self._request is not None and not self._request.done()

    def send(self, message: bytes) -> None:
        assert self._request is not None, "nothing is sent without room"
        self._request.set_result(message)

    async def answers(self) -> AsyncGenerator[bytes, None]:
        frames = self._net.stream(
            self._address, self._method, self._requests(), timeout_ms=None, metadata=self._metadata
        )
        try:
            async for frame in frames:
                yield frame
        finally:
            if self._request is not None:
                self._request.cancel()
            await close_frames(frames)

    async def _requests(self) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        while True:
            request = self._request = loop.create_future()
            self.on_room()
            try:
                message = await request
            except asyncio.CancelledError:
                if request.cancelled() and not _is_cancelled():
                    return  # the call has ended
                raise
            yield message


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
