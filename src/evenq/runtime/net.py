"""The network as an argument: calls by address, method path and encoded bytes.

`evenq.wire.net.GrpcNet` is the real one; the simulator and unit tests hand in their own. A failed call raises
`evenq.errors.ConnectionFailed` (no server answered), `RequestTimeout` (no answer in time) or `Unauthorized`; what the
answer itself says is the caller's business, because every response of ours carries a status inside.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol

__all__ = ["BlockingCalls", "Net"]


class Net(Protocol):
    """Ways to call another process."""

    async def unary(
        self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: Mapping[str, str] | None = None
    ) -> bytes:
        """One request, one answer. `method` is `/package.Service/Rpc`."""
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
        """Open a stream: one request (bytes) or many (iterator), many answers. Closing the iterator ends the call."""
        ...

    async def close(self) -> None:
        """End all channels."""
        ...


class BlockingCalls(Protocol):
    """Ways to call another process from a thread that waits for the answer. Thread-safe."""

    sign: Callable[[], Mapping[str, str]] | None
    """Makes further headers of each call; None: there are none."""

    def unary(
        self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: Sequence[tuple[str, str]]
    ) -> bytes:
        """One request, one answer. `metadata` is a tuple, which is read once for all calls that give an equal one."""
        ...

    def look_after(self) -> None:
        """Do what connections need that no call uses. Does not wait; call it about once a second, in any thread."""
        ...

    def close(self) -> None:
        """End all connections."""
        ...
