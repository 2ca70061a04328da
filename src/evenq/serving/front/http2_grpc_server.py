"""The gRPC server on our own HTTP/2; calls, contexts, statuses and bounds as in `evenq.serving.front.grpc_server`.

Made by `open_grpc_server` if `GrpcServerOptions.front` is `http2`. Always true: as of `GrpcServer`; everything that the
peer can make grow is bounded by `evenq.serving.http2.limits`. This is the hot path: no look-ups, no logging, no copies.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

from evenq.runtime.clock import Clock
from evenq.serving.failures import grpc_status, has_status, known_error, overload
from evenq.serving.front.health import Health
from evenq.serving.front.methods import all_served
from evenq.serving.grpc_server_options import CLEAN_END_MS, GrpcServerOptions
from evenq.serving.http2.calls import Call, Method
from evenq.serving.http2.limits import Totals
from evenq.serving.http2.messages import GrpcFault
from evenq.serving.http2.server import Http2Server
from evenq.serving.latency import MethodStats
from evenq.serving.rpc import CallKind, Rpc, RpcContext, Unary
from evenq.wire.call_errors import CODE_TRAILER
from evenq.wire.status import status_of

_Fail: TypeAlias = Callable[[Exception, RpcContext], bytes]


class Http2GrpcServer:
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
        methods = {rpc.method: self._method(rpc) for rpc in all_served(rpcs, self.health)}
        self._server = Http2Server(
            methods,
            clock=clock,
            limits=replace(options.limits, message_bytes_max=options.receive_bytes_max),
            tls=options.tls,
        )

    @property
    def totals(self) -> Totals:
        """Sums over the connections, and numbers of refusals."""
        return self._server.totals

    async def start(self, host: str, port: int) -> None:
        """Listens; 0 = any free port. Raises PortInUse, or SettingsError for an invalid host or port."""
        self.port = await self._server.start(host, port)

    def turn_away(self) -> None:
        """Makes each client open its next call on a new connection. Bidirectional streams end cleanly, other calls
        continue to their end.
        """
        self._server.drain()
        self._server.end_calls(endless=True)

    async def stop(self, grace_ms: int = 0) -> None:
        """Accepts no new calls, ends bidirectional streams immediately with status OK (decision 25), waits for other
        calls up to `grace_ms`.
        """
        self.health.close()
        await self._server.close_ports()
        # One turn of the loop for calls that crossed the GOAWAY: they begin, so that they end in order.
        await self._clock.sleep_ms(0)
        self._server.end_calls(endless=True)
        await self._server.stop(max(grace_ms, CLEAN_END_MS))

    def _method(self, rpc: Rpc) -> Method:
        stats = self.stats.get(rpc.method, MethodStats())
        fail = _failure(rpc, stats)
        handler: Any = self._unary(rpc, stats, fail) if rpc.kind is CallKind.UNARY else self._stream(rpc, stats, fail)
        return Method(rpc.kind, handler, anybody=rpc.anybody)

    def _unary(self, rpc: Rpc, stats: MethodStats, fail: _Fail) -> Callable[[bytes, Call], Coroutine[Any, Any, bytes]]:
        handler, method = cast("Unary", rpc.handler), rpc.method
        limit = sys.maxsize if rpc.anybody else self._options.running_max  # a full server is alive
        monotonic_ms, listener = self._clock.monotonic_ms, self._options.listener

        async def call(request: bytes, of: Call) -> bytes:
            context = RpcContext(method, of.head.headers, of.connection.peer, of.deadline_ms, listener)
            if self.running >= limit:
                return fail(overload(limit), context)
            started = monotonic_ms()
            self.running += 1
            stats.running += 1
            try:
                context.must_be_legal()
                return await handler(request, context)
            except Exception as error:  # noqa: BLE001  the last handler of all errors: it logs, counts and answers
                return fail(error, context)
            finally:
                self.running -= 1
                stats.running -= 1
                stats.add(monotonic_ms() - started)

        return call

    def _stream(self, rpc: Rpc, stats: MethodStats, fail: _Fail) -> Callable[[Any, Call], Coroutine[Any, Any, None]]:
        handler: Any = rpc.handler
        method, limit, endless = rpc.method, self._options.running_max, rpc.kind is CallKind.BIDI
        monotonic_ms, listener = self._clock.monotonic_ms, self._options.listener

        async def call(request: Any, of: Call) -> None:
            context = RpcContext(method, of.head.headers, of.connection.peer, of.deadline_ms, listener)
            if self.running >= limit:
                await of.send(fail(overload(limit), context))
                return
            started = monotonic_ms()
            self.running += 1
            stats.running += 1
            try:
                context.must_be_legal()
                await of.pump(handler(request, context))
                untaken = getattr(context, "untaken", None)
                if untaken is not None:
                    of.connection.core.tell_if_untaken(of.stream, untaken, of.deadline_ms)
            except Exception as error:  # noqa: BLE001  as above
                await of.send(fail(error, context))
            finally:
                self.running -= 1
                stats.running -= 1
                # A stream that lives as long as its client has no duration of an answer.
                if not endless:
                    stats.add(monotonic_ms() - started)

        return call


def _failure(rpc: Rpc, stats: MethodStats) -> _Fail:
    # Responses with a status carry errors there, where RocketMQ's SDKs look for them; others end with a gRPC error.
    in_response = has_status(rpc.response)

    def fail(error: Exception, context: RpcContext) -> bytes:
        known = known_error(error, rpc)
        stats.failed(known.code)
        if in_response:
            response: bytes = rpc.response(status=status_of(known, context.language)).SerializeToString()
            return response
        raise GrpcFault(grpc_status(known.code), known.message, [(CODE_TRAILER, str(known.code))])

    return fail
