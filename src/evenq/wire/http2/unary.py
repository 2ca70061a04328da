"""One HTTP/2 connection of a client that makes one unary call at a time, without I/O and without a clock.

`begin` opens a call, `receive` processes input and returns whether the call has ended, `take` returns the output. Used
by `evenq.wire.blocking_socket`; a call owns its connection, so it never waits for data of another call. Rules and
section numbers are those of RFC 9113.
Always true: memory between two calls of `receive` is bounded by `CallLimits`, however the input is split; no more DATA
is sent than both windows allow; after a ConnectionFault, which only `receive` raises, no more input is processed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evenq.wire.http2 import frames as f
from evenq.wire.http2.answers import AnswerHead, answer_head, status_of_http, status_of_reset
from evenq.wire.http2.codes import ConnectionFault, ErrorCode, Status
from evenq.wire.http2.hpack import Decoder

PREFIX_BYTES = 5
WINDOW_DEFAULT = 65_535
STREAM_ID_MAX = f.WINDOW_MAX
_HEADER, _HEADER_BYTES, _PACK = f.HEADER.unpack_from, f.HEADER_BYTES, f.HEADER.pack


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """Bounds of one connection, in bytes unless the name counts something."""

    answer_bytes_max: int = 256 << 20
    """Size of one answer; a longer one ends its call as soon as its length is known."""
    stream_window_bytes: int = 4 << 20
    """Bytes of one answer that a server may send before a WINDOW_UPDATE."""
    connection_window_bytes: int = 8 << 20
    """The same for the connection; more than a stream's, because abandoned answers count too."""
    frame_bytes_max: int = 64 << 10
    header_list_bytes_max: int = 16 << 10
    """Size of one answer's headers or trailers; more ends the call."""
    header_block_bytes_max: int = 64 << 10
    """The same, compressed; more ends the connection."""
    continuations_max: int = 16


class UnaryConnection:
    """The client's side. After a call: `status`, and `message` or `details` and `trailers`."""

    def __init__(self, limits: CallLimits = CallLimits()) -> None:
        self.limits = limits
        self.greeted = False  # the server's SETTINGS arrived: it speaks HTTP/2, and calls can begin
        self.leaving = False
        """The server accepts no further call on this connection, or the stream ids are used up."""
        self.running = False  # a call has not ended
        self.refused = False  # the server reported that it did not process the call that ended
        self.status = 0
        self.message: bytes | bytearray = b""
        self.details = ""
        self.trailers: Sequence[tuple[str, str]] = ()
        self._stream_id = -1
        self._left: memoryview = memoryview(b"")
        """The rest of the request, which waits for the server's windows."""
        self._head: AnswerHead | None = None
        self._body: bytes | bytearray = b""
        self._body_bytes = -1  # length of the answer with its prefix; -1: the prefix is not complete
        self._send_window = WINDOW_DEFAULT
        self._stream_send_window = WINDOW_DEFAULT
        self._first_window = WINDOW_DEFAULT  # initial window of a stream at the server
        self._frame_bytes = f.FRAME_BYTES_DEFAULT
        self._receive_left = limits.connection_window_bytes
        self._stream_receive_left = 0
        self._rest = b""
        self._decoder = Decoder()
        self._block: list[bytes] = []
        self._block_stream, self._block_flags = 0, 0
        self._out: list[bytes | memoryview] = [
            f.PREFACE,
            f.settings(
                {
                    f.ENABLE_PUSH: 0,
                    f.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
                    f.MAX_FRAME_SIZE: limits.frame_bytes_max,
                    f.MAX_HEADER_LIST_SIZE: limits.header_list_bytes_max,
                }
            ),
        ]
        if limits.connection_window_bytes > WINDOW_DEFAULT:
            self._out.append(f.window_update(0, limits.connection_window_bytes - WINDOW_DEFAULT))

    @property
    def written(self) -> bool:
        """True if the whole request was passed to the output."""
        return not self._left

    @property
    def kept_bytes(self) -> int:
        """Buffered input, without the answer itself."""
        return max(len(self._rest), sum(map(len, self._block)))

    # ------------------------------------------------------------------------------------------------------ output

    def take(self) -> bytes:
        """Returns the output that must be written now."""
        if not self._out:
            return b""
        out, self._out = b"".join(self._out), []
        return out

    def begin(self, headers: f.EncodedHeaders, message: bytes) -> bytes:
        """Opens a call; returns its first output."""
        # After the server's SETTINGS only: before them the port may speak another protocol, which would lose the call.
        assert self.greeted
        assert not self.running
        assert not self.leaving
        stream_id = self._stream_id = self._stream_id + 2
        self.running, self.refused, self.leaving = True, False, stream_id >= STREAM_ID_MAX
        self.status, self.message, self.details, self.trailers = 0, b"", "", ()
        self._head, self._body, self._body_bytes = None, b"", -1
        self._stream_receive_left = self.limits.stream_window_bytes
        id_bytes, length = stream_id.to_bytes(4, "big"), len(message)
        size = length + PREFIX_BYTES
        if size <= self._send_window and size <= self._first_window and size <= self._frame_bytes and headers.open:
            self._send_window -= size
            self._stream_send_window = self._first_window - size
            self._out += (
                headers.open,
                id_bytes,
                headers.block,
                _PACK(size >> 8, size & 0xFF, f.DATA, f.END_STREAM, stream_id),
                length.to_bytes(PREFIX_BYTES, "big"),
                message,
            )
        else:
            self._out.append(f.header_block(id_bytes, headers, end=False))
            self._stream_send_window = self._first_window
            self._left = memoryview(length.to_bytes(PREFIX_BYTES, "big") + message)
            self._fill()
        return self.take()

    def give_up(self, code: ErrorCode = ErrorCode.CANCEL) -> bytes:
        """Ends a call whose caller does not wait any more; returns the output that notifies the server."""
        if self.running:
            self._out.append(f.reset(self._stream_id, code))
            self._end()
        return self.take()

    def _fill(self) -> None:
        """Passes as much of the request to the output as the windows allow."""
        while self._left:
            size = min(len(self._left), self._send_window, self._stream_send_window, self._frame_bytes)
            if size <= 0:
                return
            piece, self._left = self._left[:size], self._left[size:]
            self._send_window -= size
            self._stream_send_window -= size
            flags = 0 if self._left else f.END_STREAM
            self._out += (_PACK(size >> 8, size & 0xFF, f.DATA, flags, self._stream_id), piece)

    # ------------------------------------------------------------------------------------------------------- input

    def receive(self, data: bytes) -> bool:
        """Processes input; True: the call has ended. Raises ConnectionFault: the connection is unusable."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        position, end = 0, len(data)
        frame_bytes_max = self.limits.frame_bytes_max
        while end - position >= _HEADER_BYTES:
            high, low, kind, flags, stream_id = _HEADER(data, position)
            length = high << 8 | low
            if length > frame_bytes_max:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a frame has over {frame_bytes_max} bytes")
            start = position + _HEADER_BYTES
            stop = start + length
            if stop > end:
                break
            position, payload, stream_id = stop, data[start:stop], stream_id & f.WINDOW_MAX
            if self._block_stream and (kind != f.CONTINUATION or stream_id != self._block_stream):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")
            # A server's preface is its SETTINGS (3.4); anything else is another protocol on that port.
            if not self.greeted and (kind != f.SETTINGS or flags & f.ACK):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            if kind == f.HEADERS:
                self._on_headers(flags, stream_id, payload)
            elif kind == f.DATA:
                self._on_data(flags, stream_id, payload)
            else:
                self._on_other(kind, flags, stream_id, payload)
        if position < end:
            self._rest = data[position:]
        return not self.running

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._check_known(stream_id)
        if flags & (f.PADDED | f.PRIORITY):
            payload = f.without_extras(flags, stream_id, payload)
        if flags & f.END_HEADERS:
            self._on_block(flags, stream_id, payload)
        else:
            self._block_stream, self._block_flags, self._block = stream_id, flags, [payload]

    def _on_continuation(self, flags: int, payload: bytes) -> None:
        if not self._block_stream:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._block.append(payload)
        limits = self.limits
        if len(self._block) > limits.continuations_max + 1 or self.kept_bytes > limits.header_block_bytes_max:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too long")
        if flags & f.END_HEADERS:
            stream_id, block = self._block_stream, b"".join(self._block)
            self._block_stream, self._block = 0, []
            self._on_block(self._block_flags, stream_id, block)

    def _on_block(self, flags: int, stream_id: int, block: bytes) -> None:
        decoded = self._decoder.decode(block)  # also of an ended call: the tables must stay equal
        if stream_id != self._stream_id or not self.running:
            return
        if decoded.size > self.limits.header_list_bytes_max:
            words = f"the server's metadata has {decoded.size} bytes, more than {self.limits.header_list_bytes_max}"
            self._stop(Status.RESOURCE_EXHAUSTED, words)
            return
        head, ends = answer_head(decoded), bool(flags & f.END_STREAM)
        if self._head is not None:
            if not ends:
                self._stop(Status.INTERNAL, "RST_STREAM: the answer has headers between its messages")
            else:
                self._finish(head)
        # Informational headers may precede the answer (8.1); gRPC ignores them.
        elif 100 <= head.http_status < 200:
            if ends:
                self._stop(Status.INTERNAL, "RST_STREAM: the answer ends with informational headers", ended=True)
        elif head.http_status != 200 or not head.is_grpc:
            if head.status:
                self._finish(head)  # still an answer of gRPC
                return
            self._stop(
                status_of_http(head.http_status), f"Received http2 header with status: {head.http_status}", ended=ends
            )
        elif ends:
            self._finish(head)
        else:
            self._head = head

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._check_known(stream_id)
        ended = bool(flags & f.END_STREAM)
        if not self.count_data(stream_id, len(payload), ended=ended):
            return
        if flags & f.PADDED:
            payload = f.without_extras(f.PADDED, stream_id, payload)
        if payload:
            if not self._body:
                self._body = payload
            else:
                if type(self._body) is bytes:
                    self._body = bytearray(self._body)
                self._body += payload
            self._look_at_body()
        if ended and self.running:
            self._stop(Status.UNKNOWN, "the answer ends without a status", ended=True)

    def count_data(self, stream_id: int, length: int, *, ended: bool) -> bool:
        """Updates both windows for a DATA frame; False: its call has ended. Raises ConnectionFault."""
        self._receive_left -= length
        if self._receive_left < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the connection's window")
        whole = self.limits.connection_window_bytes
        # In large steps: a WINDOW_UPDATE for each frame would double the frames, and servers limit their number.
        if self._receive_left <= whole >> 1:
            self._out.append(f.window_update(0, whole - self._receive_left))
            self._receive_left = whole
        if stream_id != self._stream_id or not self.running:
            return False
        if self._head is None:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA before HEADERS")
        self._stream_receive_left -= length
        if self._stream_receive_left < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the stream's window")
        whole = self.limits.stream_window_bytes
        if self._stream_receive_left <= whole >> 1 and not ended:
            self._out.append(f.window_update(stream_id, whole - self._stream_receive_left))
            self._stream_receive_left = whole
        return True

    def _look_at_body(self) -> None:
        body = self._body
        if self._body_bytes < 0:
            if len(body) < PREFIX_BYTES:
                return
            if body[0]:
                self._stop(Status.INTERNAL, f"the answer has the flag {body[0]}; compression was not requested")
                return
            self._body_bytes = PREFIX_BYTES + int.from_bytes(body[1:PREFIX_BYTES], "big")
            if self._body_bytes > self.limits.answer_bytes_max:
                self._stop(
                    Status.INTERNAL,
                    f"the answer has {self._body_bytes} bytes, more than the {self.limits.answer_bytes_max} that are "
                    "allowed",
                )
                return
        if len(body) > self._body_bytes:
            self._stop(Status.INTERNAL, "the answer has more than one message")

    def _on_other(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == f.WINDOW_UPDATE:
            self._on_window_update(stream_id, payload)
        elif kind == f.PING:
            if stream_id or len(payload) != 8:
                raise ConnectionFault(f.size_or_protocol(stream_id), "a PING has a stream, or not 8 bytes")
            if not flags & f.ACK:
                self._out.append(f.ping(payload, ack=True))
        elif kind == f.SETTINGS:
            self._on_settings(flags, stream_id, payload)
        elif kind == f.RST_STREAM:
            self._on_reset(stream_id, payload)
        elif kind == f.GOAWAY:
            self._on_go_away(stream_id, payload)
        elif kind == f.CONTINUATION:
            self._on_continuation(flags, payload)
        elif kind == f.PUSH_PROMISE:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the server pushes")

    def _on_window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "the length of WINDOW_UPDATE is not 4 bytes")
        increment = int.from_bytes(payload, "big") & f.WINDOW_MAX
        if not stream_id:
            self._send_window += increment
        elif stream_id == self._stream_id and self.running:
            self._stream_send_window += increment
        else:
            self._check_known(stream_id)
            return
        if not increment or max(self._send_window, self._stream_send_window) > f.WINDOW_MAX:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window grows by nothing, or over 2^31-1")
        self._fill()

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id or len(payload) % 6 or (flags & f.ACK and payload):
            raise ConnectionFault(f.size_or_protocol(stream_id), "SETTINGS has a stream, or a wrong length")
        if flags & f.ACK:
            return
        self.greeted = True
        for start in range(0, len(payload), 6):
            name = int.from_bytes(payload[start : start + 2], "big")
            value = int.from_bytes(payload[start + 2 : start + 6], "big")
            if name == f.INITIAL_WINDOW_SIZE:
                if self.running:
                    self._stream_send_window += value - self._first_window
                self._first_window = value
                if max(value, self._stream_send_window) > f.WINDOW_MAX:
                    raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window exceeds 2^31-1")
            elif name == f.MAX_FRAME_SIZE:
                if not f.FRAME_BYTES_DEFAULT <= value < 1 << 24:
                    raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE is out of bounds")
                self._frame_bytes = value
            elif name == f.MAX_CONCURRENT_STREAMS and not value:
                self.leaving = True
        self._out.append(f.frame(f.SETTINGS, f.ACK, 0))
        self._fill()

    def _on_reset(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "the length of RST_STREAM is not 4 bytes")
        self._check_known(stream_id)
        if stream_id != self._stream_id or not self.running:
            return  # our answer was complete: the rest of the request is not needed
        code = ErrorCode.of(int.from_bytes(payload, "big"))
        # Only this code reports that nothing was done (8.7), so only then the call may be repeated.
        self.refused = code is ErrorCode.REFUSED_STREAM
        self.status, self.details = status_of_reset(code), f"RST_STREAM with {code.name}"
        self._end()

    def _on_go_away(self, stream_id: int, payload: bytes) -> None:
        if stream_id or len(payload) < 8:
            raise ConnectionFault(f.size_or_protocol(stream_id), "a GOAWAY has a stream, or less than 8 bytes")
        self.leaving = True
        last = int.from_bytes(payload[:4], "big") & f.WINDOW_MAX
        # A stream above this number was not processed (6.8); one at or below it may still be answered.
        if self.running and last < self._stream_id:
            code = ErrorCode.of(int.from_bytes(payload[4:8], "big"))
            self.refused = True
            self.status, self.details = Status.UNAVAILABLE, f"GOAWAY with {code.name}"
            self._end()

    def _check_known(self, stream_id: int) -> None:
        if not stream_id & 1 or stream_id > self._stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a frame has a stream that is idle, or not a client's")

    # --------------------------------------------------------------------------------------------------------- end

    def _finish(self, head: AnswerHead) -> None:
        """Ends the call by its trailers."""
        if head.status is None:
            self._stop(Status.UNKNOWN, "the answer ends without a status", ended=True)
            return
        self.status, self.details, self.trailers = head.status, head.message, head.metadata
        if not head.status:
            if len(self._body) != self._body_bytes:
                self._stop(Status.INTERNAL, "the answer has no message, or only a part of it", ended=True)
                return
            self.message = self._body[PREFIX_BYTES:]
        self._stop(self.status, self.details, ended=True)

    def _stop(self, status: int, details: str, *, ended: bool = False) -> None:
        """Ends the call with this status. `ended`: the server's side of the stream has ended too."""
        self.status, self.details = status, details
        # Without a reset the server would wait for the rest of the request, or send an answer that is not read.
        if not ended or self._left:
            self._out.append(f.reset(self._stream_id, ErrorCode.CANCEL))
        self._end()

    def _end(self) -> None:
        self.running = False
        self._left = memoryview(b"")
        self._head, self._body = None, b""
