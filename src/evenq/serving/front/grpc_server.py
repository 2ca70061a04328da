"""The gRPC server of every program on grpcio: bytes in, bytes out, errors as statuses.

`open_grpc_server` serves `Rpc`s (`evenq.serving.rpc`), which are independent of gRPC, with `grpc.health.v1` and server
reflection. Always true: a handler's error is answered in the response's own `status`, or without one as a gRPC
error with the trailer `evenq-code`. A defect is answered with an id that is also in the log, never with a stack. No
more than `running_max` handlers run at the same time. This is the hot path: no look-ups, no logging, no copies here.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote

import grpc
import grpc.aio

from evenq import errors
from evenq.runtime.clock import Clock
from evenq.runtime.net import close_frames
from evenq.runtime.tasks import spawn
from evenq.serving.binding import bind, port_in_use
from evenq.serving.failures import grpc_status, has_status, known_error, overload
from evenq.serving.front.health import Health
from evenq.serving.front.http2_grpc_server import Http2GrpcServer
from evenq.serving.front.methods import all_served
from evenq.serving.grpc_server_options import CLEAN_END_MS, GrpcServerOptions
from evenq.serving.latency import MethodStats
from evenq.serving.rpc import Bidi, CallKind, Frames, Rpc, RpcContext, ServerStream, Unary, each_of
from evenq.wire.call_errors import CODE_TRAILER
from evenq.wire.status import status_of


class GrpcServer:
    """A running server. Made by `open_grpc_server`; owned by the loop that made it."""

    def __init__(self, rpcs: Sequence[Rpc], *, clock: Clock, options: GrpcServerOptions) -> None:
        self.port = 0  # port that it listens on
        self.listener = options.listener
        self.health = Health()
        self.stats: dict[str, MethodStats] = {rpc.method: MethodStats() for rpc in rpcs}
        """Counters by method; the methods of health and reflection are not counted."""
        self.running = 0  # calls that have not ended
        self._clock = clock
        self._options = options
        self._stopping = False
        self._endless: set[asyncio.Task[Any]] = set()
        self._server: Any = grpc.aio.server(options=options.channel_arguments())
        methods = {rpc.method: self._method_handler(rpc) for rpc in all_served(rpcs, self.health)}
        finder: Any = _Methods(methods)  # has what gRPC uses of its abstract class
        self._server.add_generic_rpc_handlers((finder,))

    async def start(self, host: str, port: int) -> None:
        """Listens; 0 = any free port. Raises PortInUse, or SettingsError for an invalid host or port."""
        _probe(host, port)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if self._options.credentials is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, self._options.credentials)
        except RuntimeError as error:
            if self._options.credentials is not None:  # the port was free just before
                raise errors.SettingsError(
                    f"cannot listen with TLS on {host}:{port}: certificate and key must be PEM and belong together"
                ) from error
            raise port_in_use(host, port) from error
        await self._server.start()

    async def stop(self, grace_ms: int = 0) -> None:
        """Accepts no new calls, ends bidirectional streams immediately with status OK (decision 25), waits for other
        calls up to `grace_ms`.
        """
        self._stopping = True
        self.health.close()
        # Without any grace gRPC would cancel the streams before they can end cleanly.
        stopped = spawn(self._server.stop(max(grace_ms, CLEAN_END_MS) / 1000), name="server stop")
        await self._clock.sleep_ms(0)
        for task in list(self._endless):
            task.cancel()
        await stopped

    def _method_handler(self, rpc: Rpc) -> _MethodHandler:
        stats = self.stats.get(rpc.method, MethodStats())
        fail = self._failure(rpc, stats)
        match rpc.kind:
            case CallKind.UNARY:
                return _MethodHandler(unary_unary=self._unary(rpc, stats, fail))
            case CallKind.SERVER_STREAM:
                return _MethodHandler(unary_stream=self._server_stream(rpc, stats, fail), response_streaming=True)
            case CallKind.BIDI:
                stream = self._bidi(rpc, stats, fail)
                return _MethodHandler(stream_stream=stream, request_streaming=True, response_streaming=True)

    def _unary(self, rpc: Rpc, stats: MethodStats, fail: _Fail) -> Callable[[bytes, Any], Awaitable[bytes]]:
        handler, method = cast("Unary", rpc.handler), rpc.method
        limit = sys.maxsize if rpc.anybody else self._options.running_max  # a full server is alive
        monotonic_ms, metadata, listener = self._clock.monotonic_ms, _METADATA.get, self._options.listener

        async def call(request: bytes, grpc_context: Any) -> bytes:
            started = monotonic_ms()
            remaining = grpc_context.time_remaining()
            deadline = None if remaining is None else started + int(remaining * 1000)
            context = RpcContext(method, metadata(), _address(grpc_context.peer()), deadline, listener)
            if self.running >= limit:
                return await fail(overload(limit), context, grpc_context)
            self.running += 1
            stats.running += 1
            try:
                context.must_be_legal()
                return await handler(request, context)
            except Exception as error:  # noqa: BLE001  the last handler of all errors: it logs, counts and answers
                return await fail(error, context, grpc_context)
            finally:
                self.running -= 1
                stats.running -= 1
                stats.add(monotonic_ms() - started)

        return call

    def _server_stream(self, rpc: Rpc, stats: MethodStats, fail: _Fail) -> Callable[[bytes, Any], Awaitable[None]]:
        handler, method, limit = cast("ServerStream", rpc.handler), rpc.method, self._options.running_max
        monotonic_ms, metadata, listener = self._clock.monotonic_ms, _METADATA.get, self._options.listener

        async def call(request: bytes, grpc_context: Any) -> None:
            started = monotonic_ms()
            remaining = grpc_context.time_remaining()
            deadline = None if remaining is None else started + int(remaining * 1000)
            context = RpcContext(method, metadata(), _address(grpc_context.peer()), deadline, listener)
            if self.running >= limit:
                await grpc_context.write(await fail(overload(limit), context, grpc_context))
                return
            self.running += 1
            stats.running += 1
            try:
                context.must_be_legal()
                await _pump(handler(request, context), grpc_context.write)
            except Exception as error:  # noqa: BLE001  as above
                await grpc_context.write(await fail(error, context, grpc_context))
            finally:
                self.running -= 1
                stats.running -= 1
                stats.add(monotonic_ms() - started)

        return call

    def _bidi(self, rpc: Rpc, stats: MethodStats, fail: _Fail) -> Callable[[Any, Any], Awaitable[None]]:
        handler, method, limit = cast("Bidi", rpc.handler), rpc.method, self._options.running_max
        monotonic_ms, metadata, listener = self._clock.monotonic_ms, _METADATA.get, self._options.listener

        async def call(requests: Any, grpc_context: Any) -> None:
            await grpc_context.send_initial_metadata(())  # Rust's SDK waits for it before it sends (contract 8.7)
            remaining = grpc_context.time_remaining()
            deadline = None if remaining is None else monotonic_ms() + int(remaining * 1000)
            context = RpcContext(method, metadata(), _address(grpc_context.peer()), deadline, listener)
            if self.running >= limit:
                await grpc_context.write(await fail(overload(limit), context, grpc_context))
                return
            task = asyncio.current_task()
            assert task is not None
            self.running += 1
            stats.running += 1
            self._endless.add(task)
            try:
                context.must_be_legal()
                await _pump(handler(requests, context), grpc_context.write)
            except asyncio.CancelledError:
                if not self._stopping:
                    raise
                # The server is stopping. Returning ends the stream with OK: Rust's SDK reopens a stream that ended
                # with an error endlessly without a pause (decision 25).
            except Exception as error:  # noqa: BLE001  as above
                await grpc_context.write(await fail(error, context, grpc_context))
            finally:
                self.running -= 1
                stats.running -= 1
                self._endless.discard(task)

        return call

    def _failure(self, rpc: Rpc, stats: MethodStats) -> _Fail:
        in_response = has_status(rpc.response)

        async def fail(error: Exception, context: RpcContext, grpc_context: Any) -> bytes:
            known = known_error(error, rpc)
            stats.failed(known.code)
            if in_response:
                response: bytes = rpc.response(status=status_of(known, context.language)).SerializeToString()
                return response
            trailers = ((CODE_TRAILER, str(known.code)),)
            await grpc_context.abort(_GRPC_CODES[int(grpc_status(known.code))], known.message, trailers)
            raise AssertionError("abort always raises")

        return fail


async def open_grpc_server(
    rpcs: Sequence[Rpc], *, host: str, port: int, clock: Clock, options: GrpcServerOptions | None = None
) -> GrpcServer | Http2GrpcServer:
    """Serves `rpcs` at host:port; 0 = any free port, which is `port` of the result. Raises PortInUse, SettingsError."""
    options = options or GrpcServerOptions()
    server = (GrpcServer if options.front == "grpcio" else Http2GrpcServer)(rpcs, clock=clock, options=options)
    await server.start(host, port)
    return server


_Fail = Callable[[Exception, RpcContext, Any], Awaitable[bytes]]

_METADATA: ContextVar[Sequence[tuple[str, str | bytes]]] = ContextVar("metadata", default=())
"""Headers of the current task's call: gRPC decodes them to find the method, and again for handlers that read them from
the context.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _MethodHandler:
    """A handler in the form that gRPC requires, without (de)serialisers."""

    request_streaming: bool = False
    response_streaming: bool = False
    request_deserializer: None = None
    response_serializer: None = None
    unary_unary: Any = None
    unary_stream: Any = None
    stream_unary: Any = None
    stream_stream: Any = None


class _Methods:
    """A `grpc.GenericRpcHandler` that finds the method; an unknown one becomes gRPC's UNIMPLEMENTED."""

    def __init__(self, methods: dict[str, _MethodHandler]) -> None:
        self._methods = methods

    def service(self, handler_call_details: Any) -> Any:
        _METADATA.set(handler_call_details.invocation_metadata)
        return self._methods.get(handler_call_details.method)


def _address(peer: str) -> str:
    return peer[5:] if peer.startswith("ipv4:") else unquote(peer.removeprefix("ipv6:"))


async def _pump(frames: AsyncIterator[Frames], write: Callable[[bytes], Awaitable[None]]) -> None:
    try:
        async for frame in frames:
            for one in each_of(frame):
                await write(one)
    except BaseException:
        # A cancelled write leaves the generator where it yielded: its cleanup must not wait for the collector.
        await close_frames(frames)
        raise


def _probe(host: str, port: int) -> None:
    """Binds once with plain sockets, because gRPC's own error is vague and writes lines of its core to stderr."""
    for one in bind(host, port):
        one.close()


_GRPC_CODES = {code.value[0]: code for code in grpc.StatusCode}
