"""One call: its incoming request, its handler, its answer. Made by `evenq.serving.http2.protocol`.

A handler gets the request (bytes, or an iterator of them) and the `Call`; `GrpcFault` ends the call with that status. A
streaming handler waits while the peer does not read. A unary one cannot; its answer is bounded by what it made.
Always true: a call counts at its address from its first byte until its handler ended. Its kept request bytes count at
its connection and in total. After its stream is closed, nothing is sent. Its stream refers to it only until it ends:
otherwise both, and their connection, would stay in memory until the garbage collector runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from evenq.runtime.net import close_frames
from evenq.serving.http2.addresses import Address
from evenq.serving.http2.backpressure import Backpressure
from evenq.serving.http2.deadlines import Deadlines
from evenq.serving.http2.eager_task import EagerTask
from evenq.serving.http2.limits import Http2Limits
from evenq.serving.http2.messages import OK_HEAD, OK_TAIL, GrpcFault, RequestMessageReader, head, prefix, status
from evenq.serving.http2.requests import RequestHead
from evenq.serving.http2.sending import StreamSender
from evenq.serving.http2.streams import Http2Stream
from evenq.serving.http2.turns import Turns
from evenq.serving.rpc import CallKind, Frames
from evenq.wire.http2.codes import ErrorCode, Status

log = logging.getLogger(__name__)

Metadata = Iterable[tuple[str, str | bytes]]

NO_MESSAGE, CUT_OFF = "the request has no message", "the request ends inside a message"


@dataclass(frozen=True, slots=True)
class Method:
    """A served method."""

    kind: CallKind
    handler: Any
    """By kind: `(bytes, Call) -> Coroutine[bytes]`; for streams `(bytes, Call) -> Coroutine[None]` and
    `(AsyncIterator[bytes], Call) -> Coroutine[None]`, which answer with `Call.send` and `Call.pump`.
    """
    anybody: bool = False
    """True: served without credentials, as health and reflection."""


class CallConnection(Protocol):
    """The part of a connection that a call uses."""

    loop: asyncio.AbstractEventLoop
    message_bytes_max: int
    peer: str
    """`host:port` of the caller."""
    turns: Turns
    deadlines: Deadlines
    address: Address

    @property
    def core(self) -> StreamSender:
        """Output of the connection."""

    @property
    def limits(self) -> Http2Limits:
        """Bounds of the front."""

    @property
    def pressure(self) -> Backpressure:
        """Decides which answers must wait."""

    @property
    def peer_certificate(self) -> dict[str, Any]:
        """Certificate that the peer presented in the handshake."""

    def touch(self) -> None:
        """Schedules the output to be written at the end of this turn of the loop."""

    def keep(self, change: int) -> None:
        """Counts a change of the kept bytes of requests. Raises GrpcFault at the bound of all connections."""

    def object_to(self, call: Call, fault: GrpcFault) -> None:
        """Ends a call because of its request."""

    def finished(self, call: Call) -> None:
        """Counts a call as ended, with its handler."""


class Call(EagerTask):
    """State of one call, its task, and the context of its handler."""

    __slots__ = (
        "_finished",
        "_headers_sent",
        "_kept",
        "_message_waiter",
        "_owed",
        "_postponed",
        "_reader",
        "_room_waiters",
        "_started",
        "connection",
        "deadline_ms",
        "ended",
        "head",
        "initial_metadata",
        "kind",
        "method",
        "stream",
        "trailers",
    )

    def __init__(
        self,
        connection: CallConnection,
        stream: Http2Stream,
        method: Method,
        request: RequestHead,
        deadline_ms: int | None,
    ) -> None:
        super().__init__(connection.loop)
        self.connection = connection
        self.stream = stream
        self.method = method
        self.kind = method.kind
        self.head = request
        self.deadline_ms = deadline_ms  # monotonic ms of the server's clock; None: the caller waits without a limit
        self.ended = False  # True: the request is complete
        self.initial_metadata: Metadata = ()  # sent before the first message; must be set before it
        self.trailers: Sequence[tuple[str, str | bytes]] = ()  # sent with any status
        self._reader: RequestMessageReader | None = None
        self._message_waiter: asyncio.Future[None] | None = None
        self._room_waiters: list[asyncio.Future[None]] | None = None  # its own task, and one that reads its requests
        self._started = False
        self._finished = False
        self._headers_sent = False
        self._kept = 0  # counted bytes of the request
        self._postponed: tuple[int, str, Metadata] | None = None  # an error that waits for the caller's first message
        self._owed = 0  # read bytes that open the stream's window once the handler took enough

    # -------------------------------------------------------------------------------------------- for handlers

    @property
    def metadata(self) -> Sequence[tuple[str, str | bytes]]:
        """Metadata of the caller: lower-case names, bytes where the name ends in `-bin`."""
        return self.head.metadata

    @property
    def peer(self) -> str:
        """`host:port` of the caller, `unix:` for a local one."""
        return self.connection.peer

    @property
    def peer_certificate(self) -> dict[str, Any]:
        """Certificate that the caller presented (as `ssl.SSLSocket.getpeercert`); empty without mTLS."""
        return self.connection.peer_certificate

    def send_headers(self) -> None:
        """Sends headers with `initial_metadata` now, before any message. Once."""
        if not self._headers_sent and self.stream.sending:
            self._headers_sent = True
            metadata = tuple(self.initial_metadata)
            self.connection.core.send_headers(self.stream, head(metadata) if metadata else OK_HEAD)
            self.connection.touch()

    # ---------------------------------------------------------------------------------------------- the request

    def receive(self, data: bytes, *, ended: bool) -> None:
        """Processes bytes of the request. Raises GrpcFault for an invalid or too long message."""
        if self._postponed is not None:
            self.end_now()
            return
        self.ended = ended
        connection = self.connection
        size = len(data)
        limit = connection.message_bytes_max
        if (
            ended
            and self._reader is None
            and self.kind is not CallKind.BIDI
            and size >= 5
            and not data[0]
            and size - 5 <= limit
            and int.from_bytes(data[1:5], "big") == size - 5
        ):
            self._start(data[5:])  # a usual call, in one piece
            return
        reader = self._reader
        if reader is None:
            reader = self._reader = RequestMessageReader(limit, self.head.encoding)
            if not self.method.anybody:
                connection.address.idle.pop(self, None)
        if self.kind is CallKind.BIDI:
            self._receive_more(reader, data)
            return
        reader.put(data)
        whole = reader.ready()
        self._keep(reader.kept_bytes - self._kept)
        connection.core.consumed(self.stream, size)
        if whole and reader.surplus:
            raise GrpcFault(Status.INTERNAL, "the request has more than one message")
        if ended:
            message = reader.next()
            if message is None:
                raise GrpcFault(Status.INTERNAL, NO_MESSAGE if reader.clean else CUT_OFF)
            self._keep(-self._kept)
            self._start(message)

    def _receive_more(self, reader: RequestMessageReader, data: bytes) -> None:
        """Processes bytes of a bidirectional stream. They stay as they are until its handler requests the next message:
        a peer may send thousands of small ones and not read the answers.
        """
        if reader.clean:
            self.stream.since_ms = self.connection.core.now_ms
        reader.put(data)
        self._keep(len(data))
        self._owed += len(data)
        self._give_window_back()
        if self._message_waiter is not None:
            if reader.ready() or (self.ended and reader.clean):
                self._wake_reader()
            elif self.ended:
                raise GrpcFault(Status.INTERNAL, CUT_OFF)

    def begin(self) -> None:
        """Starts the handler of a bidirectional stream, before any message."""
        self._started = True
        self.connection.address.idle[self] = None
        self._run(self.method.handler(self, self))
        self.send_headers()  # Rust's SDK waits for them before it sends (wire contract 8.7)

    # The iterator of requests is the call itself: a generator would cost each idle stream 400 bytes more.

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while True:
            if self.connection.pressure.over_share and self._reader is not None:
                await self._wait_for_room()  # an answer would wait as well, so the handler gets no message
            message = await self._next_message()
            if message is not None:
                return message
            if self.ended:
                raise StopAsyncIteration
            self._message_waiter = self._loop.create_future()
            try:
                await self._message_waiter
            finally:
                self._message_waiter = None

    async def _next_message(self) -> bytes | None:
        """Returns the next message; None: none is complete."""
        reader = self._reader
        if reader is None:
            return None
        try:
            message = reader.next()
            if message is None and self.ended and not reader.clean:
                raise GrpcFault(Status.INTERNAL, CUT_OFF)
        except GrpcFault as fault:
            self.connection.object_to(self, fault)
            await self._loop.create_future()  # the task is being cancelled
        self._keep(reader.kept_bytes - self._kept)
        if message is not None:
            self.stream.since_ms = self.connection.core.now_ms  # the next message begins now at the earliest
            self._give_window_back()
        return message

    def _wake_reader(self) -> None:
        waiter = self._message_waiter
        if waiter is not None and not waiter.done():
            self.connection.turns.wake(waiter)

    def _give_window_back(self) -> None:
        if self._owed and self._kept < self.connection.limits.stream_window_bytes >> 1:
            self.connection.core.consumed(self.stream, self._owed)
            self._owed = 0
            self.connection.touch()

    def _keep(self, change: int) -> None:
        if change:
            self._kept += change
            self.connection.keep(change)

    @property
    def incomplete(self) -> bool:
        """True if its handler waits for the whole request."""
        return not self._started and not self._finished

    @property
    def waits_since_ms(self) -> int | None:
        """Begin of the message that the caller has not completed; None: it owes no message."""
        if self.ended:
            return None
        if self.kind is CallKind.BIDI:
            # While the handler does not read, it is unknown whether a message has begun, and no handler waits for it.
            # The first message is owed from the beginning; callers without credentials owe each.
            reader = self._reader
            if reader is not None and (self._message_waiter is None or (reader.clean and not self.method.anybody)):
                return None
        return self.stream.since_ms

    # ----------------------------------------------------------------------------------------------- the answer

    def _start(self, request: bytes) -> None:
        self._started = True
        self._run(self.method.handler(request, self))
        # Only now: most handlers end in their first step, and then need no entry in the table of deadlines.
        if self._coroutine is not None and self.deadline_ms is not None:
            self.connection.deadlines.add(self)

    async def send(self, message: bytes) -> None:
        """Sends one more message of a stream. Waits while the peer does not read."""
        if self._write(message):
            await self._wait_for_room()

    async def pump(self, frames: AsyncIterator[Frames]) -> None:
        """Sends all messages of an iterator, and closes it in any case."""
        try:
            # No answer is made while the peer's share is used up; a bidirectional stream waits at its next message.
            if self.kind is CallKind.SERVER_STREAM and self.connection.pressure.must_wait(self.stream):
                await self._wait_for_room()
            async for frame in frames:
                if isinstance(frame, bytes):
                    full = self._write(frame)
                else:
                    full = self._write_all(frame) if isinstance(frame, list) else self._write_pieces(frame.parts)
                del frame  # the next one may reuse its memory
                if full:
                    await self._wait_for_room()
        except BaseException:
            # A cancelled write leaves the generator where it yielded: its cleanup must not wait for the collector.
            await close_frames(frames)
            raise

    def _write(self, message: bytes, more: bytes = b"") -> bool:
        """Queues one message, and `more` that have their prefixes; True: wait for room before the next one."""
        stream, connection = self.stream, self.connection
        if not stream.sending:
            return True
        if not self._headers_sent:
            self.send_headers()
        connection.core.send_data(stream, message + more if more else message, prefix(len(message)))
        connection.touch()
        return connection.pressure.must_wait(stream)

    def _write_all(self, messages: list[bytes]) -> bool:
        """Works as `_write`, for messages that leave together."""
        pieces: list[bytes] = []
        for message in messages[1:]:
            pieces += (prefix(len(message)), message)
        return self._write(messages[0], b"".join(pieces))

    def _write_pieces(self, parts: list[bytes | memoryview]) -> bool:
        """Works as `_write`, for one message in several pieces."""
        stream, connection = self.stream, self.connection
        if not stream.sending:
            return True
        if not self._headers_sent:
            self.send_headers()
        connection.core.send_pieces(stream, [prefix(sum(map(len, parts))), *parts])
        connection.touch()
        return connection.pressure.must_wait(stream)

    async def _wait_for_room(self) -> None:
        connection = self.connection
        connection.pressure.count_wait(self.stream)
        while not self.stream.sending or connection.pressure.must_wait(self.stream):
            # Without a stream to write to, this waits for the cancellation that follows.
            waiters, waiter = self._room_waiters, self._loop.create_future()
            if waiters is None:
                waiters = self._room_waiters = []
            waiters.append(waiter)
            connection.pressure.waiting[self.stream] = self
            try:
                await waiter
            finally:
                waiters.remove(waiter)
                if not waiters:
                    connection.pressure.waiting.pop(self.stream, None)

    def go_on(self) -> None:
        """Lets handlers continue that waited for room."""
        for waiter in self._room_waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def _returned(self, result: Any) -> None:
        self._finish()
        stream, core = self.stream, self.connection.core
        stream.call = None
        if not stream.sending:
            return
        if self.kind is CallKind.UNARY:
            metadata, trailers = tuple(self.initial_metadata), self.trailers
            start = head(metadata) if metadata else OK_HEAD
            end = status(0, "", trailers) if trailers else OK_TAIL
            message = prefix(len(result)) + result
            if self._headers_sent:
                core.send_data(stream, message)
                core.send_end(stream, end)
            else:
                core.respond(stream, start, message, end)
            self.connection.touch()
        else:
            self.send_headers()
            self.end(0)

    def _raised(self, error: BaseException) -> None:
        self._finish()
        if isinstance(error, GrpcFault):
            self.end(error.code, error.message, error.trailers)
        elif isinstance(error, asyncio.CancelledError):
            self.end(Status.CANCELLED, "the server cancelled the call")
        else:
            log.error("handler failed", exc_info=error, extra={"method": self.head.path})
            self.end(Status.INTERNAL, "internal error")
        if not self.postponed:
            self.stream.call = None

    def end(self, code: int, message: str = "", trailers: Metadata = ()) -> None:
        """Sends this status, if nothing ended the stream before.

        An error of a bidirectional stream waits for the first message: Python's gRPC client reports "Internal error
        from Core" instead if the stream ends before it could write. `end_now` does not wait.
        """
        stream = self.stream
        if not stream.sending or stream.ending is not None:
            return
        if (
            code
            and self.kind is CallKind.BIDI
            and self._reader is None
            and stream.receiving
            and self._postponed is None
        ):
            self._postponed = code, message, trailers
            stream.since_ms = self.connection.core.now_ms
            self.send_headers()
        else:
            last = status(code, message, [*trailers, *self.trailers], alone=not self._headers_sent)
            self.connection.core.send_end(self.stream, last)
            self.connection.touch()

    def end_now(self) -> None:
        """Ends the stream if its error waits."""
        if self._postponed is not None:
            self.end(*self._postponed)
            self.stream.call = None

    @property
    def postponed(self) -> bool:
        """True if it has ended except for a status that waits for the caller's first message."""
        return self._postponed is not None and self.stream.sending

    def abandon(self, _code: ErrorCode = ErrorCode.CANCEL) -> None:
        """Ends the handler and drops the request of a caller that does not wait any more."""
        if self._started:
            self.cancel()
            self._forget_request()
            if self.done():  # it had ended, except for an error that waited
                self.stream.call = None
        else:
            self._finish()
            self.stream.call = None

    def _forget_request(self) -> None:
        self.ended = True
        if self._reader is not None:
            self._reader.clear()
        self._keep(-self._kept)

    def _finish(self) -> None:
        if self._finished:
            return
        self._finished = True
        self._forget_request()
        if self.kind is CallKind.BIDI:
            self.connection.address.idle.pop(self, None)
        if self.deadline_ms is not None:
            self.connection.deadlines.discard(self)
        self.connection.finished(self)
