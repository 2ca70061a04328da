"""One connection on the loop: bytes between its transport and the core, calls between the core and handlers.

Made by `evenq.serving.http2.server` for each accepted connection. All answers of one turn of the loop leave together.
Always true: while the peer reads nothing from its socket, nothing is read from it; only output of the core is written;
after `connection_lost` the connection counts nowhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast

from evenq.runtime.clock import Clock
from evenq.runtime.tasks import write_parts
from evenq.serving.http2.addresses import Address
from evenq.serving.http2.backpressure import WRITE_BYTES, Backpressure
from evenq.serving.http2.calls import Call, Method
from evenq.serving.http2.connection import Connection
from evenq.serving.http2.deadlines import Deadlines
from evenq.serving.http2.events import (
    AnswerRefused,
    ConnectionEnded,
    DataReceived,
    Event,
    PingAnswered,
    RequestStarted,
    StreamEnded,
    StreamReset,
)
from evenq.serving.http2.limits import Http2Limits, Totals
from evenq.serving.http2.messages import GrpcFault, status
from evenq.serving.http2.refusals import PlainRequest, refusal_of, refuse_newest
from evenq.serving.http2.requests import request_head
from evenq.serving.http2.streams import Http2Stream
from evenq.serving.http2.turns import Turns
from evenq.serving.rpc import CallKind
from evenq.wire.http2 import frames as f
from evenq.wire.http2.codes import ErrorCode, Status

HELD_BYTES = 64 << 10  # the transport pauses writing above this
POSTPONED_MS = 100  # shortest time that an error of a stream waits for its caller's first message
KEEPALIVE, DRAIN = b"evenq-ka", b"evenq-go"  # data of our two kinds of PING


class ConnectionOwner(Protocol):
    """The part of the server that a connection uses."""

    clock: Clock
    connections: dict[Http2Protocol, None]
    """All connections that speak HTTP/2."""
    deadlines: Deadlines
    limits: Http2Limits
    loop: asyncio.AbstractEventLoop
    methods: Mapping[str, Method]
    """By path, `/package.Service/Rpc`."""
    shares: Iterator[int]
    """For each connection in turn: the ticks in which it is checked."""
    stopping: bool
    totals: Totals
    turns: Turns

    def admit(self, protocol: asyncio.BaseProtocol, transport: asyncio.BaseTransport) -> Address | None:
        """Counts a new connection; None: there are too many, or the server is stopping."""

    def forget(self, connection: Http2Protocol) -> None:
        """Removes a lost connection."""


class Http2Protocol(asyncio.Protocol):
    """The server's side of one connection."""

    def __init__(self, server: ConnectionOwner) -> None:
        self.server = server
        self.loop = server.loop
        # Of the server; copied because each call needs them and has no reference to the server.
        self.turns, self.deadlines = server.turns, server.deadlines
        self.share = next(server.shares)
        self.limits = server.limits
        self.message_bytes_max = server.limits.message_bytes_max
        self.peer = ""
        self.core = Connection(server.limits, server.totals, 0)
        self.pressure = Backpressure(self.core, server.limits)
        self.request_bytes = 0  # kept bytes of the requests of its calls
        self.address: Address
        self._transport: Any = None
        self._monotonic_ms = server.clock.monotonic_ms
        self._opened_ms = 0
        self._heard_ms = 0
        self._active_ms = 0
        self._pinged_ms: int | None = None
        self._draining_ms: int | None = None
        self._busy = self._scheduled = self._closed = self._begun = False
        self._early: list[bytes] = []
        """Input after a handshake, before its end was processed here, or while there was more than a turn's work."""
        self._more = False  # input waits for the next turn of the loop, and reading is paused
        self._closed_ms = 0  # since when the transport has to send the last output
        self._lingers_ms: int | None = None  # since when input is dropped, so that our GOAWAY arrives
        self._thrown_away = 0

    # ---------------------------------------------------------------------------------------------- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        address = self.server.admit(self, transport)
        if address is None:
            self._closed = True
            self._transport.abort()
            return
        self.begin(self._transport, address)

    def begin(self, transport: asyncio.Transport, address: Address) -> None:
        """Starts HTTP/2 on a transport that was counted."""
        self._transport, self.address = transport, address
        self.core.peer = address
        self.peer = address.peer_of(transport)
        transport.set_write_buffer_limits(high=HELD_BYTES)
        self._opened_ms = self._heard_ms = self._active_ms = self._monotonic_ms()
        self.server.connections[self] = None
        self._begun = True
        if self._closed:  # lost during the handshake
            self._closed = False
            self.connection_lost(None)
            return
        self.flush()
        if self._early:
            early, self._early = b"".join(self._early), []
            self.data_received(early)

    def data_received(self, data: bytes) -> None:
        self._heard_ms = self._monotonic_ms()
        if self._closed:
            self._throw_away(len(data))
        elif not self._begun or self._more:
            self._early.append(data)
        else:
            self._take_in(data, self.turns.share())

    def _take_in(self, data: bytes, frames: int) -> None:
        """Processes `frames` of the input; the rest has its turn after the other connections."""
        self.core.frames_max = frames
        self._busy = True
        began_ms = self._monotonic_ms()
        try:
            for event in self.core.receive(data, began_ms):
                kind = type(event)
                if kind is DataReceived:
                    self._on_data(event.stream, event.data, event.ended)  # type: ignore[union-attr]  # by its type
                elif kind is RequestStarted:
                    self._on_request(cast("RequestStarted", event))
                else:
                    self._on_other(event)
        finally:
            self._busy = False
        if self.core.exhausted:
            refuse_newest(self)
        if self.core.pending and not self._more:
            self._more = True
            self.server.totals.reach("frames_per_turn")
            if self.pressure.paused_ms is None:
                self._transport.pause_reading()
        elif self._more and not self.core.pending and not self._early:
            self._more = False
            if self.pressure.paused_ms is None:
                self._transport.resume_reading()
        self.flush()
        # Writing counts as well: under high load it is a third of the work.
        self.turns.spend(self.core.frames_read, self._monotonic_ms() - began_ms)
        if self._more and self.pressure.paused_ms is None:
            self.turns.wait(self)

    def go_on(self, frames: int) -> None:
        """Continues with the waiting input, in this connection's turn; `frames`: its share."""
        if self._closed or self.pressure.paused_ms is not None:
            return
        data, self._early = b"".join(self._early), []
        if self.core.pending or data:
            self._take_in(data, frames)
        else:
            self._more = False
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        # The transport accepts no output after this: answers leave before, and no later call counts as answered.
        if self._begun and not self._closed:
            self.flush()
            self._end_calls(cancelled=True)
        return False

    def pause_writing(self) -> None:
        self.pressure.pause(self._monotonic_ms(), self._transport.get_write_buffer_size())
        if not self._more:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self.pressure.resume()
        if not self._closed:
            if self._more:
                self.turns.wait(self)
            else:
                self._transport.resume_reading()
            self.flush()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  asyncio's signature
        self._closed = True
        self.pressure.resume()
        if self not in self.server.connections:
            return
        self._end_calls(cancelled=True)
        self.server.forget(self)

    @property
    def peer_certificate(self) -> dict[str, Any]:
        """Certificate that the peer presented in the handshake."""
        shown: dict[str, Any] | None = self._transport.get_extra_info("peercert")
        return shown or {}

    # ----------------------------------------------------------------------------------------------------- output

    def touch(self) -> None:
        """Schedules the output to be written at the end of this turn of the loop."""
        if not self._busy and not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Writes the output of the core, as far as the transport accepts it."""
        self._scheduled = False
        if self._closed:
            return
        core, pressure = self.core, self.pressure
        while pressure.paused_ms is None:
            output = core.take_parts(pressure.write_bytes)
            if not output:
                break
            write_parts(self._transport, output)
        # Answers of unary calls cannot wait for room, so the connection ends.
        if core.unread_bytes > self.limits.connection_unread_bytes_max and not core.ended:
            self._stalled("connection_unread_bytes_max")
            self.fail(ErrorCode.ENHANCE_YOUR_CALM, "answers are not read")
            return
        if core.ended:
            self._end_calls()
            self._close()
        elif core.draining_after is not None and not core.streams:
            if pressure.paused_ms is None:  # otherwise the last answer is still on its way
                self._close()
        elif pressure.waiting:
            pressure.wake()
        core.moved.clear()

    def _stalled(self, limit: str) -> None:
        self.server.totals.stalled += 1
        self.server.totals.reach(limit)

    def fail(self, code: ErrorCode, reason: str) -> None:
        """Ends the connection and sends the reason."""
        self.core.fail(code, reason)
        self.server.totals.fault(code.name)
        self._end_calls()
        if self.pressure.paused_ms is None and not self._closed:
            self._transport.write(self.core.take(WRITE_BYTES))
        self._close()

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._closed_ms = self._monotonic_ms()
        if self.pressure.paused_ms is not None:
            self._transport.abort()
        elif not self.core.ended or self._transport.is_closing():
            self._transport.close()
        else:
            self._lingers_ms = self._closed_ms
            if self._transport.can_write_eof():
                self._transport.write_eof()
            if self._more:
                self._transport.resume_reading()

    def _throw_away(self, size: int) -> None:
        self._thrown_away += size
        if self._lingers_ms is not None and self._thrown_away > self.limits.linger_bytes:
            self._end_lingering()

    def _end_lingering(self) -> None:
        self._lingers_ms = None
        self._transport.close()

    def finish(self) -> None:
        """Writes the remaining output and ends the connection."""
        if self._lingers_ms is not None:
            self._end_lingering()
        if not self._closed:
            self.core.draining_after = self.core.draining_after or self.core.last_stream_id
            self.flush()
            if self.pressure.paused_ms is None:  # otherwise when the transport accepts more; the server aborts it later
                self._close()

    def abort(self) -> None:
        """Ends the connection without notice: the peer does not respond."""
        self._transport.abort()

    # ------------------------------------------------------------------------------------------------------ events

    def _on_request(self, event: RequestStarted) -> None:
        stream = event.stream
        request = request_head(event.block)
        self._active_ms = self._heard_ms
        if request.malformed:
            self.core.object_to(stream, ErrorCode.PROTOCOL_ERROR)
            return
        call: Any
        if request.not_grpc:
            call = stream.call = PlainRequest(self.core, self.touch, stream, request.not_grpc)
        else:
            method = self.server.methods.get(request.path)
            refusal = refusal_of(self, method, event.block, stopping=self.server.stopping)
            if request.bad_timeout:
                refusal = Status.INTERNAL, "grpc-timeout is not valid"
            if refusal is not None or method is None:
                assert refusal is not None
                self._refuse(stream, *refusal)
                return
            timeout = request.timeout_ms
            deadline_ms = None if timeout is None else self._heard_ms + timeout
            call = stream.call = Call(self, stream, method, request, deadline_ms)
            self.address.calls += 1
            if method.kind is CallKind.BIDI:
                call.begin()
                if timeout is not None and not call.done():
                    self.deadlines.add(call)
        if event.ended:
            self._on_data(stream, event.data, True)

    def _refuse(self, stream: Http2Stream, code: Status, message: str) -> None:
        self.core.send_end(stream, status(code, message, alone=True))

    def _on_data(self, stream: Http2Stream, data: bytes, ended: bool) -> None:
        call = stream.call
        if call is None or not stream.sending or stream.ending is not None:
            return
        try:
            call.receive(data, ended=ended)
        except GrpcFault as fault:
            self.object_to(call, fault)

    def object_to(self, call: Call, fault: GrpcFault) -> None:
        """Ends a call because of its request."""
        if fault.limit:
            self.server.totals.refuse_call(fault.limit)
        call.end(fault.code, fault.message, fault.trailers)
        call.abandon()

    def _on_other(self, event: Event) -> None:
        if isinstance(event, StreamEnded):
            self._on_data(event.stream, b"", True)
        elif isinstance(event, StreamReset):
            if event.stream.call is not None:
                self.server.totals.cancelled += 1
                event.stream.call.abandon(event.code)
        elif isinstance(event, AnswerRefused):
            event.untaken()
        elif isinstance(event, PingAnswered):
            self._pinged_ms = None
            if event.data == DRAIN and self._draining_ms is not None:
                self._end_drain()
        elif isinstance(event, ConnectionEnded):
            self.server.totals.fault(event.code.name)
            if not self.core.greeted:
                self.server.totals.handshakes_failed += 1
            self._end_calls()

    def _end_calls(self, *, cancelled: bool = False) -> None:
        calls = [stream.call for stream in self.core.streams.values() if stream.call is not None]
        self.core.release()  # drops the streams, and with them the references to their calls
        self.server.totals.cancelled += len(calls) if cancelled else 0
        for call in calls:
            call.abandon()

    def keep(self, change: int) -> None:
        """Counts kept bytes of requests; at the bounds the peer waits, or a call is refused."""
        totals, limits, core = self.server.totals, self.limits, self.core
        self.request_bytes += change
        totals.request_bytes += change
        if change > 0:
            if self.request_bytes >= limits.connection_request_bytes_max and not core.withhold:
                core.withhold = True
                totals.reach("connection_request_bytes_max")
            if totals.request_bytes > limits.request_bytes_max:
                words = f"incomplete requests have {totals.request_bytes} bytes, the maximum; try again"
                raise GrpcFault(Status.RESOURCE_EXHAUSTED, words, limit="request_bytes_max")
        elif core.withhold and self.request_bytes < limits.connection_request_bytes_max >> 1:
            core.withhold = False
            core.announce()
            self.touch()

    def finished(self, _call: Call) -> None:
        """Counts a call as ended, with its handler."""
        self.address.calls -= 1

    # -------------------------------------------------------------------------------------------------------- time

    def tick(self, now_ms: int) -> None:
        """Ends what takes too long. Called by the server a few times a second."""
        core, limits = self.core, self.limits
        if self._closed:
            if self._lingers_ms is not None:
                if now_ms - self._lingers_ms >= limits.linger_ms:
                    self._end_lingering()
            elif now_ms - self._closed_ms >= limits.write_stall_ms:
                self.abort()  # a closed transport waits for its peer to read the rest
            return
        core.look(now_ms)
        if not core.greeted:
            if now_ms - self._opened_ms >= limits.preface_ms:
                self.server.totals.handshakes_failed += 1
                self.server.totals.reach("preface_ms")
                self.fail(ErrorCode.SETTINGS_TIMEOUT, "no preface arrived in time")
            return
        if limit := self.pressure.has_stalled(now_ms):
            self._stalled(limit)
            self.abort()
            return
        if core.streams:
            self._active_ms = now_ms
            self._look_at_streams(now_ms)
        elif now_ms - self._active_ms >= limits.idle_ms:
            if self._draining_ms is None and core.draining_after is None:
                self.server.totals.reach("idle_ms")
            self.drain(now_ms)
        if self._draining_ms is not None and now_ms - self._draining_ms >= limits.drain_ping_ms:
            self._end_drain()
        if now_ms - self._heard_ms >= limits.keepalive_ms:
            self._keep_alive(now_ms)
        self.flush()

    def _keep_alive(self, now_ms: int) -> None:
        if self._pinged_ms is None:
            self._pinged_ms = now_ms
            self.core.out.append(f.ping(KEEPALIVE))
        elif now_ms - self._pinged_ms >= self.limits.keepalive_timeout_ms:
            self.server.totals.keepalive_timeouts += 1
            self.server.totals.reach("keepalive_timeout_ms")
            self.abort()

    def _look_at_streams(self, now_ms: int) -> None:
        limits, totals, core = self.limits, self.server.totals, self.core
        pressed = bool(self.pressure.over_share)
        stall_ms = limits.pressed_stall_ms if pressed else limits.stall_ms
        for stream in list(core.streams.values()):
            call = stream.call
            if stream.queued_bytes and now_ms - stream.moved_ms >= stall_ms:
                self._stalled("pressed_stall_ms" if pressed else "stall_ms")
                core.reset(stream, ErrorCode.ENHANCE_YOUR_CALM)
                if call is not None:
                    call.abandon()
                continue
            if call is None:
                continue
            if call.postponed and now_ms - stream.since_ms >= POSTPONED_MS:
                call.end_now()
            since_ms = call.waits_since_ms if stream.receiving else None
            if since_ms is not None and now_ms - since_ms >= limits.request_ms:
                totals.late_requests += 1
                totals.reach("request_ms")
                call.end(Status.DEADLINE_EXCEEDED, f"the request was not complete within {limits.request_ms} ms")
                call.end_now()
                call.abandon()

    # ------------------------------------------------------------------------------------------------------- drain

    def drain(self, now_ms: int) -> None:
        """Announces that no more calls are accepted, waits for those on their way, then for the running ones."""
        if self._draining_ms is None and self.core.draining_after is None and not self._closed:
            self._draining_ms = now_ms
            # RFC 9113, 6.8: the first GOAWAY names the highest number; calls that crossed it are accepted until the
            # PING is answered.
            self.core.out += (f.go_away(f.WINDOW_MAX, ErrorCode.NO_ERROR), f.ping(DRAIN))
            self.touch()

    @property
    def idle_since_ms(self) -> int | None:
        """Time since which the connection is idle, as in `IdleConnection`."""
        showed_nothing = self.address.idle
        if self._closed or any(stream.call not in showed_nothing for stream in self.core.streams.values()):
            return None
        # An open stream puts it after all connections without one, also after those opened in this millisecond.
        return self._monotonic_ms() + 1 if self.core.streams else self._active_ms

    def make_room(self) -> None:
        """Ends it for another connection. Its client opens a new one with its next call."""
        self.core.out.append(f.go_away(self.core.last_stream_id, ErrorCode.NO_ERROR))
        self.flush()
        self._end_calls()
        self._closed = True
        self.abort()

    def _end_drain(self) -> None:
        self._draining_ms = None
        core = self.core
        core.draining_after = core.last_stream_id
        core.out.append(f.go_away(core.last_stream_id, ErrorCode.NO_ERROR))
        self.touch()

    def end_calls(self, *, endless: bool, code: Status, message: str) -> None:
        """Ends running calls: only bidirectional streams, or all."""
        for stream in list(self.core.streams.values()):
            call = stream.call
            if isinstance(call, Call) and (call.kind is CallKind.BIDI or not endless):
                if code is Status.OK:
                    call.send_headers()
                call.end(code, message)
                call.end_now()
                call.abandon()
