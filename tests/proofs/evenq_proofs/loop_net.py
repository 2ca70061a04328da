"""A network inside one process: calls by address reach the `Rpc`s served there, on the same loop, with no sockets.

For tests of programs that talk to each other. Always true, as with the real door and net: bytes in, bytes out; an error
of a handler comes back in the response's status; an address where no server serves raises ConnectionFailed; a stream that
is closed by its caller ends at the handler. `stop` breaks all streams of an address, as the end of a process would.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import suppress
from typing import Any, cast

from evenq.errors import ConnectionFailed, Error, RequestTimeout
from evenq.model import PLAIN_LISTENER, Listener
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn
from evenq.serving.auth.namespaces import resolved
from evenq.serving.rpc import Bidi, CallKind, Frames, Rpc, RpcContext, ServerStream, Unary, each_of
from evenq.wire.status import status_of


class _Host:
    def __init__(self, rpcs: Iterable[Rpc], listener: Listener) -> None:
        self.rpcs = {rpc.method: resolved(rpc) for rpc in rpcs}
        self.listener = listener
        self.calls: set[asyncio.Task[Any]] = set()


class LoopNet:
    """`Net` between the servers of one process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._hosts: dict[str, _Host] = {}
        self.calls: list[tuple[str, str]] = []
        """(address, method) of every call, oldest first."""

    def serve(self, address: str, rpcs: Iterable[Rpc], *, listener: Listener = PLAIN_LISTENER) -> None:
        """Let `rpcs` answer at the address from now on; `listener`: the door that calls to it come through."""
        self._hosts[address] = _Host(rpcs, listener)

    def stop(self, address: str) -> None:
        """The server at the address is gone; what it was answering breaks."""
        host = self._hosts.pop(address, None)
        for task in list(host.calls if host else ()):
            task.cancel()

    async def unary(
        self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: Mapping[str, str] | None = None
    ) -> bytes:
        """One request, one answer; RequestTimeout after `timeout_ms` of the clock."""
        host, rpc = self._find(address, method)
        context = self._context(host, method, metadata, timeout_ms)
        call = spawn(_answer(rpc, request, context), name=method)
        limit = spawn(self._clock.sleep_ms(timeout_ms), name="limit")
        host.calls.add(call)
        try:
            await asyncio.wait({call, limit}, return_when=asyncio.FIRST_COMPLETED)
            if call.done() and not call.cancelled():
                return cast("bytes", call.result())
            if call.cancelled():
                raise ConnectionFailed(f"{address} went away during {method}")
            raise RequestTimeout(f"{address} did not answer {method} within {timeout_ms} ms")
        finally:
            host.calls.discard(call)
            call.cancel()
            limit.cancel()

    async def stream(
        self,
        address: str,
        method: str,
        requests: AsyncIterator[bytes] | bytes,
        *,
        timeout_ms: int | None,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """Answers as they come, a few of them kept while they are not taken."""
        host, rpc = self._find(address, method)
        context = self._context(host, method, metadata, timeout_ms)
        if rpc.kind is CallKind.BIDI:
            result = _one(requests) if isinstance(requests, bytes) else requests
            answers: AsyncIterator[Frames] = cast("Bidi", rpc.handler)(result, context)
        else:
            assert isinstance(requests, bytes), f"{method} takes one request"
            answers = cast("ServerStream", rpc.handler)(requests, context)
        frames: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue(maxsize=4)
        pump = spawn(_pump(answers, frames, rpc, context.language, address), name=method)
        host.calls.add(pump)
        try:
            while (frame := await frames.get()) is not None:
                if isinstance(frame, BaseException):
                    raise frame
                yield frame
        finally:
            host.calls.discard(pump)
            pump.cancel()
            with suppress(asyncio.CancelledError):
                await pump

    async def close(self) -> None:
        """Nothing is held open."""

    def _find(self, address: str, method: str) -> tuple[_Host, Rpc]:
        self.calls.append((address, method))
        host = self._hosts.get(address)
        if host is None or method not in host.rpcs:
            raise ConnectionFailed(f"no server answers {method} at {address}")
        return host, host.rpcs[method]

    def _context(
        self, host: _Host, method: str, metadata: Mapping[str, str] | None, timeout_ms: int | None
    ) -> RpcContext:
        deadline_ms = None if timeout_ms is None else self._clock.monotonic_ms() + timeout_ms
        return RpcContext(method, list((metadata or {}).items()), "127.0.0.1:1", deadline_ms, host.listener)


async def _answer(rpc: Rpc, request: bytes, context: RpcContext) -> bytes:
    try:
        return await cast("Unary", rpc.handler)(request, context)
    except Error as error:
        if "status" not in rpc.response.DESCRIPTOR.fields_by_name:
            raise
        answer: bytes = rpc.response(status=status_of(error, context.language)).SerializeToString()
        return answer


async def _pump(
    answers: AsyncIterator[Frames],
    frames: asyncio.Queue[bytes | BaseException | None],
    rpc: Rpc,
    language: str,
    address: str,
) -> None:
    try:
        async for answer in answers:
            for one in each_of(answer):
                await frames.put(one)
        await frames.put(None)
    except Error as error:
        if "status" in rpc.response.DESCRIPTOR.fields_by_name:
            await frames.put(rpc.response(status=status_of(error, language)).SerializeToString())
            await frames.put(None)
        else:
            await frames.put(error)
    except asyncio.CancelledError:
        close = getattr(answers, "aclose", None)
        if close is not None:
            await close()
        raise
    finally:
        if not frames.full():
            frames.put_nowait(
                ConnectionFailed(f"{address} ended {rpc.method}")
            )  # it is not looked at, if it ended well


async def _one(request: bytes) -> AsyncIterator[bytes]:
    yield request
