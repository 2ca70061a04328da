"""The network of a world: calls by address over links that delay, reorder, lose, stall and break, all by one seed.

It behaves as gRPC over TCP does: messages of one stream keep their order and none is missing, calls overtake each
other, a lost call ends in ConnectionFailed or in the caller's time-out (and may have been carried out all the same), a
partition stalls what is under way, and what a dead process had open breaks. Handlers run as the process that serves.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from evenq.errors import ConnectionFailed, Error, RequestTimeout
from evenq.serving.rpc import Bidi, CallKind, Frames, Rpc, RpcContext, ServerStream, Unary, each_of
from evenq.wire.status import status_of
from evenq_proofs.sim.loop import CALLER, ProcessClock, SimProcess, VirtualLoop

Seen = Callable[[SimProcess, str, str, bytes, bytes | None], None]
"""(server, caller, method, request, answer): of each unary call when it comes (answer None) and when it ends, and of each
answer of a server stream."""


@dataclass(slots=True)
class LinkFault:
    """What the network does to everything while it is in force."""

    delay_ms: tuple[float, float] = (0.2, 3.0)
    """Shortest and longest way of one message."""
    spike: float = 0.0
    """Part of the messages that take `spike_ms` longer."""
    spike_ms: float = 400.0
    loss: float = 0.0
    """Part of the unary calls whose request or answer is lost."""
    breaks: float = 0.0
    """Part of the stream messages that break their stream instead of coming."""


class _Call:
    """One unary call or stream, as both ends and the network see it."""

    def __init__(self, source: SimProcess, address: str) -> None:
        self.source = source
        self.address = address
        self.server: SimProcess | None = None
        self.task: asyncio.Task[Any] | None = None
        self.over = False
        """The caller waits no longer."""
        self.fail: Callable[[Error], None] = lambda _: None


class _Host:
    def __init__(self, process: SimProcess, rpcs: Iterable[Rpc], clock: ProcessClock) -> None:
        self.process = process
        self.rpcs = {rpc.method: rpc for rpc in rpcs}
        self.clock = clock
        self.calls: dict[_Call, None] = {}
        self.draining = False


class SimNet:
    """All links. Names of hosts are the part of an address before its port."""

    def __init__(self, loop: VirtualLoop, rng: random.Random, *, seen: Seen) -> None:
        self.fault = LinkFault()
        self._loop = loop
        self._rng = rng
        self._seen = seen
        self._hosts: dict[str, _Host] = {}
        self._cut: dict[tuple[str, str], None] = {}
        self._stalled: list[tuple[str, str, Callable[[], None]]] = []
        self._calls: dict[_Call, None] = {}

    # ------------------------------------------------------------------------------------------------ who is there

    def serve(self, address: str, process: SimProcess, rpcs: Iterable[Rpc], clock: ProcessClock) -> None:
        """Let `rpcs` answer at the address from now on."""
        self._hosts[address] = _Host(process, rpcs, clock)

    async def drain(self, address: str, clock: ProcessClock, grace_ms: int) -> None:
        """A server ends well: no new calls, streams of two sides end, others have `grace_ms`."""
        host = self._hosts.get(address)
        if host is None or host.draining:
            return
        host.draining = True
        for call in list(host.calls):
            if isinstance(call, _Stream) and call.both_ways and call.task is not None:
                call.task.cancel()
        until_ms = clock.monotonic_ms() + grace_ms
        while host.calls and clock.monotonic_ms() < until_ms:
            await clock.sleep_ms(10)
        for call in list(host.calls):
            if call.task is not None:
                call.task.cancel()
        if self._hosts.get(address) is host:
            del self._hosts[address]

    def died(self, process: SimProcess) -> None:
        """The process is gone: its listeners refuse, its peers' calls break, its own calls end at their servers."""
        for address in [address for address, host in self._hosts.items() if host.process is process]:
            host = self._hosts.pop(address)
            for call in list(host.calls):
                self._send(process.host, call.source.host, partial(call.fail, _gone(call.address)))
        for call in [call for call in self._calls if call.source is process]:
            call.over = True
            self._calls.pop(call, None)
            self._abandon(call)

    # ------------------------------------------------------------------------------------------------ faults

    def cut(self, pairs: Iterable[tuple[str, str]]) -> None:
        """From now on nothing gets from the first host of each pair to the second."""
        self._cut.update(dict.fromkeys(pairs))

    def heal(self) -> None:
        """All links are whole; what was stalled goes on its way."""
        self._cut.clear()
        stalled, self._stalled = self._stalled, []
        for source, target, deliver in stalled:
            self._send(source, target, deliver)

    # ------------------------------------------------------------------------------------------------ unary calls

    async def unary(
        self, source: SimProcess, address: str, method: str, request: bytes, timeout_ms: int, metadata: dict[str, str]
    ) -> bytes:
        """One call; times out by the world's time."""
        done: asyncio.Future[bytes] = self._loop.create_future()
        call = _Call(source, address)
        call.fail = lambda error: None if done.done() else done.set_exception(error)
        self._calls[call] = None
        timer = self._loop.call_later(
            timeout_ms / 1000,
            lambda: call.fail(RequestTimeout(f"{address} did not answer {method} within {timeout_ms} ms")),
        )

        def answered(answer: bytes | Error) -> None:
            if isinstance(answer, Error):
                call.fail(answer)
            elif not done.done():
                done.set_result(answer)

        self._go(call, lambda: self._arrived(call, method, request, timeout_ms, metadata, answered))
        try:
            return await done
        finally:
            timer.cancel()
            call.over = True
            self._calls.pop(call, None)
            if not done.done() or done.cancelled() or done.exception() is not None:
                self._abandon(call)

    def _go(self, call: _Call, deliver: Callable[[], None]) -> None:
        roll = self._rng.random()
        if roll < self.fault.loss / 2:  # the request is lost
            if roll < self.fault.loss / 4:
                self._loop.call_later(0.05, lambda: call.fail(_gone(call.address)))
            return
        self._send(call.source.host, _host(call.address), deliver)

    def _arrived(
        self,
        call: _Call,
        method: str,
        request: bytes,
        timeout_ms: int,
        metadata: dict[str, str],
        answered: Callable[[bytes | Error], None],
    ) -> None:
        host = self._found(call, method)
        if host is None:
            return
        caller = metadata.get("x-mq-client-id", call.source.name)
        context = self._context(host, call, method, metadata, timeout_ms)
        self._seen(host.process, caller, method, request, None)

        async def work() -> None:
            CALLER.set(caller)
            try:
                answer: bytes | Error = await _answer(host.rpcs[method], request, context)
            except asyncio.CancelledError:
                answer = _gone(call.address)
            finally:
                host.calls.pop(call, None)
            if isinstance(answer, bytes) and host.process.running:
                self._seen(host.process, caller, method, request, answer)
            if not call.over and self._rng.random() >= self.fault.loss / 2:
                self._send(host.process.host, call.source.host, lambda: answered(answer))

        host.calls[call] = None
        call.server, call.task = host.process, host.process.spawn(work(), name=method)

    # ------------------------------------------------------------------------------------------------ streams

    async def stream(
        self,
        source: SimProcess,
        address: str,
        method: str,
        requests: AsyncIterator[bytes] | bytes,
        metadata: dict[str, str],
    ) -> AsyncGenerator[bytes, None]:
        """A stream of one or two sides."""
        call = _Stream(source, address, both_ways=not isinstance(requests, bytes))
        self._calls[call] = None
        up: asyncio.Task[None] | None = None
        self._along(call, up=True, deliver=lambda: self._opened(call, method, requests, metadata))
        if not isinstance(requests, bytes):
            up = self._loop.create_task(self._upload(call, requests), name=f"up {method}")
        try:
            while True:
                frame = await call.frames.get()
                if frame is None:
                    return
                if isinstance(frame, Error):
                    raise frame
                yield frame
        finally:
            call.over = True
            self._calls.pop(call, None)
            if up is not None:
                up.cancel()
            self._abandon(call)

    async def _upload(self, call: _Stream, requests: AsyncIterator[bytes]) -> None:
        try:
            async for request in requests:
                self._along(call, up=True, deliver=partial(call.requests.put_nowait, request))
            self._along(call, up=True, deliver=lambda: call.requests.put_nowait(None))
        finally:
            close = getattr(requests, "aclose", None)
            if close is not None:
                with suppress(RuntimeError):
                    await close()

    def _opened(
        self, call: _Stream, method: str, requests: AsyncIterator[bytes] | bytes, metadata: dict[str, str]
    ) -> None:
        host = self._found(call, method)
        if host is None:
            return
        rpc = host.rpcs[method]
        context = self._context(host, call, method, metadata, None)
        caller = metadata.get("x-mq-client-id", call.source.name)

        async def work() -> None:
            CALLER.set(caller)
            if rpc.kind is CallKind.BIDI:
                answers: AsyncIterator[Frames] = cast("Bidi", rpc.handler)(_each(call.requests), context)
            else:
                assert isinstance(requests, bytes), f"{method} takes one request"
                answers = cast("ServerStream", rpc.handler)(requests, context)
            end: Error | None = None
            try:
                async for answer in answers:
                    for one in each_of(answer):
                        if isinstance(requests, bytes):
                            self._seen(host.process, caller, method, requests, one)
                        self._along(call, up=False, deliver=partial(call.frames.put_nowait, one))
            except Error as error:
                end = _in_status(rpc, error, call, self)
            except asyncio.CancelledError:
                end = _gone(call.address)
                close = getattr(answers, "aclose", None)
                if close is not None:
                    await close()
            finally:
                host.calls.pop(call, None)
            self._along(call, up=False, deliver=lambda: call.frames.put_nowait(end))

        host.calls[call] = None
        call.server, call.task = host.process, host.process.spawn(work(), name=method)

    def _along(self, call: _Stream, *, up: bool, deliver: Callable[[], None]) -> None:
        """One message of a stream, behind those before it."""
        if call.broken:
            return
        if self._rng.random() < self.fault.breaks:
            self._break(call)
            return
        ends = (call.source.host, _host(call.address))
        line = call.up if up else call.down
        line.append(deliver)
        source, target = ends if up else ends[::-1]
        self._send(source, target, lambda: self._next(call, line))

    def _next(self, call: _Stream, line: list[Callable[[], None]]) -> None:
        # Messages may overtake each other on the way; whichever comes, the oldest is handed over.
        if line and not call.broken:
            line.pop(0)()

    def _break(self, call: _Stream) -> None:
        call.broken = True
        self._loop.call_later(self._rng.uniform(0, 0.5), lambda: call.fail(_gone(call.address)))
        self._loop.call_later(self._rng.uniform(0, 0.5), lambda: _cancel(call))

    # ------------------------------------------------------------------------------------------------ inside

    def _found(self, call: _Call, method: str) -> _Host | None:
        if call.over:
            return None
        host = self._hosts.get(call.address)
        if host is None or method not in host.rpcs or host.draining:
            refusal = ConnectionFailed(f"no server answers {method} at {call.address}")
            self._send(_host(call.address), call.source.host, lambda: call.fail(refusal))
            return None
        return host

    def _context(
        self, host: _Host, call: _Call, method: str, metadata: dict[str, str], timeout_ms: int | None
    ) -> RpcContext:
        deadline_ms = None if timeout_ms is None else host.clock.monotonic_ms() + timeout_ms
        return RpcContext(method, list(metadata.items()), f"{call.source.host}:1", deadline_ms)

    def _abandon(self, call: _Call) -> None:
        """The caller is gone or has given up; its server learns of it when the news gets there."""
        self._send(call.source.host, _host(call.address), lambda: _cancel(call))

    def _send(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        if (source, target) in self._cut:
            self._stalled.append((source, target, deliver))
            return
        delay_ms = 0.01 if source == target else self._rng.uniform(*self.fault.delay_ms)
        if self.fault.spike and self._rng.random() < self.fault.spike:
            delay_ms += self._rng.uniform(0, self.fault.spike_ms)
        self._loop.call_later(delay_ms / 1000, self._come, source, target, deliver)

    def _come(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        if (source, target) in self._cut:  # cut while it was under way
            self._stalled.append((source, target, deliver))
        else:
            deliver()


class _Stream(_Call):
    def __init__(self, source: SimProcess, address: str, *, both_ways: bool) -> None:
        super().__init__(source, address)
        self.both_ways = both_ways
        self.frames: asyncio.Queue[bytes | Error | None] = asyncio.Queue()
        self.requests: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.up: list[Callable[[], None]] = []
        self.down: list[Callable[[], None]] = []
        self.broken = False
        self.fail = self.frames.put_nowait


class ProcessNet:
    """`Net` as one process has it."""

    def __init__(self, net: SimNet, process: SimProcess) -> None:
        self._net = net
        self._process = process

    async def unary(
        self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: Mapping[str, str] | None = None
    ) -> bytes:
        """One request, one answer."""
        return await self._net.unary(self._process, address, method, request, timeout_ms, dict(metadata or {}))

    def stream(
        self,
        address: str,
        method: str,
        requests: AsyncIterator[bytes] | bytes,
        *,
        timeout_ms: int | None,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """One request or many, many answers."""
        return self._net.stream(self._process, address, method, requests, dict(metadata or {}))

    async def close(self) -> None:
        """Nothing is held open."""


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def _gone(address: str) -> ConnectionFailed:
    return ConnectionFailed(f"the connection to {address} broke")


def _cancel(call: _Call) -> None:
    if call.task is not None:
        call.task.cancel()


async def _each(requests: asyncio.Queue[bytes | None]) -> AsyncIterator[bytes]:
    while (request := await requests.get()) is not None:
        yield request


async def _answer(rpc: Rpc, request: bytes, context: RpcContext) -> bytes | Error:
    try:
        return await cast("Unary", rpc.handler)(request, context)
    except Error as error:
        if "status" not in rpc.response.DESCRIPTOR.fields_by_name:
            return error
        answer: bytes = rpc.response(status=status_of(error, context.language)).SerializeToString()
        return answer


def _in_status(rpc: Rpc, error: Error, call: _Stream, net: SimNet) -> Error | None:
    if "status" not in rpc.response.DESCRIPTOR.fields_by_name:
        return error
    result = rpc.response(status=status_of(error, "")).SerializeToString()
    net._along(call, up=False, deliver=lambda: call.frames.put_nowait(result))
    return None
