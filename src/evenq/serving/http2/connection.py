"""The protocol core of one HTTP/2 connection of a server: bytes in, events out; answers in, bytes out.

Problem: the bytes come from any client, so also from hostile ones. They may be split anywhere, interleave thousands of
streams, and contain frames that cost their sender nothing. Both sides compress header fields with tables that change
with each block (HPACK): after one skipped block all later ones would be read wrongly.

Idea: a state machine without I/O and without a clock, so that tests can feed it any bytes in any split. `receive`
processes input and returns events. The methods of the base class `StreamSender` make output, and `take` returns it. A
fault of the peer never leaves as an exception: `StreamFault` becomes RST_STREAM, `ConnectionFault` becomes GOAWAY and
the event `ConnectionEnded`.

Invariants:
- Kept input is at most one incomplete frame and one incomplete header block, however the input is split. The exception
  is `pending` input, which is bounded by what the caller passed. All bounds are in `Http2Limits`.
- One `receive` processes at most `frames_max` frames, so that a connection cannot hold up the others.
- Each complete header block is decoded, also of refused and reset streams, so the tables of both sides stay equal.
- The windows that this side announced are enforced: DATA beyond them is a fault.
- Frames that cost the peer nothing spend a budget (`Bucket`); an empty budget ends the connection.
- After `ConnectionEnded` no input is processed.

Example: a Pull of 100 bytes is a HEADERS frame of 9 + 68 bytes and a DATA frame of 9 + 105, together 191. From the
second such call on, both give one `RequestStarted(ended=True)` with 105 bytes of data (`_on_usual_call`). If only
100 bytes have arrived, `receive` returns `RequestStarted(ended=False)` and keeps 23 bytes; the other 91 bytes give
`DataReceived(ended=True)`. The call takes 105 bytes of the connection's window of 16,777,216, which are given back
when 8,388,608 are due. An answer of 10 bytes is 77 bytes of output: headers, DATA, trailers.

References: RFC 9113 (section numbers in comments are its own), RFC 7541 (HPACK), decision 37 (why an own front),
decision 50 (no header table for clients), CVE-2023-44487 (rapid reset) and CVE-2024-27316 (endless CONTINUATION), the
attacks behind two of the budgets. `docs/internals/front.md` has the states of a stream and all bounds.
"""

from __future__ import annotations

from evenq.serving.http2.events import (
    AnswerRefused,
    ConnectionEnded,
    DataReceived,
    Event,
    PeerGoesAway,
    PingAnswered,
    RequestStarted,
    StreamEnded,
    StreamReset,
)
from evenq.serving.http2.limits import Bucket, Http2Limits, Totals
from evenq.serving.http2.sending import StreamSender
from evenq.serving.http2.streams import Http2Stream
from evenq.wire.http2 import frames as f
from evenq.wire.http2.codes import ConnectionFault, ErrorCode, StreamFault
from evenq.wire.http2.fields import FieldKind, HeaderBlock
from evenq.wire.http2.hpack import Decoder

_HEADER, _HEADER_BYTES = f.HEADER.unpack_from, f.HEADER_BYTES
_CONTENT_LENGTH = int(FieldKind.CONTENT_LENGTH)
_HEADERS_LIMIT = "header_list_bytes_max"
"""Limit that is counted for header blocks: all their bounds follow from it, or are constants."""


class Connection(StreamSender):
    def __init__(self, limits: Http2Limits, totals: Totals, now_ms: int) -> None:
        super().__init__(limits, totals, now_ms)
        self.greeted = False  # the preface and the peer's first SETTINGS arrived; stays True
        self.draining_after: int | None = None  # streams above this one are refused; None: the connection is not ending
        self.frames_max = limits.frames_per_turn  # most frames that the next `receive` processes
        self.frames_read = 0  # frames that the last `receive` processed, with an incomplete last one; <= `frames_max`
        self.pending = False  # more input is here: call `receive` again, with or without more bytes
        self._rest = b""  # input from the first frame that was not processed
        self._read = 0  # processed bytes of `_rest`: it is cut only now and then, for small shares of much input
        self._preface = f.PREFACE  # empty once the preface was read
        self._decoder = Decoder()  # its table equals the peer's after each complete block
        self._acks_due = 1  # SETTINGS of ours that the peer has not acknowledged
        self._asked_for_no_table = False  # our SETTINGS allow the peer no header table; set once
        # `_receive_left`: rest of the connection's window at the peer; below 0 is a fault. `_unannounced`: bytes that
        # no WINDOW_UPDATE gave back. Their sum is always `connection_window_bytes`.
        self._receive_left = limits.connection_window_bytes
        self._unannounced = 0
        self._block_stream: Http2Stream | None = None  # stream of the current header block; None: the block opens one
        self._block_id = 0  # stream id of an incomplete header block; 0: there is none
        self._block: list[bytes] = []  # its parts; empty without `_block_id`
        self._block_bytes = 0  # sum of `_block`; at most `header_block_bytes_max`
        self._block_ends = False  # the HEADERS frame of the block had END_STREAM
        burst, per_s = limits.flood_burst, limits.flood_per_s
        self._pings = Bucket("PING", "flood_burst", burst=burst, per_s=per_s)
        self._updates = Bucket("WINDOW_UPDATE", "flood_burst", burst=burst, per_s=per_s)
        self._others = Bucket("PRIORITY or unknown", "flood_burst", burst=burst, per_s=per_s)
        self._settings = Bucket("SETTINGS", "settings_burst", burst=limits.settings_burst, per_s=1)
        self._empty = Bucket("empty DATA", "empty_data_burst", burst=limits.empty_data_burst, per_s=1)
        self._resets = Bucket("RST_STREAM", "resets_burst", burst=limits.resets_burst, per_s=limits.resets_per_s)

    @property
    def exhausted(self) -> bool:
        """True if the peer has used up the connection's window and no more of it is given back."""
        return self.withhold and self._receive_left < f.FRAME_BYTES_DEFAULT

    @property
    def kept_bytes(self) -> int:
        """Bytes of input that are kept: part of a frame, or of a header block."""
        return max(len(self._rest) - self._read, self._block_bytes)

    # ------------------------------------------------------------------------------------------------------ input

    def receive(self, data: bytes, now_ms: int) -> list[Event]:
        """Processes input, up to `frames_max` frames (see `pending`). `now_ms`: a monotonic clock."""
        events: list[Event] = []
        self.pending = False
        self.frames_read = 0
        if self.ended:
            return events
        self.now_ms = now_ms
        position = 0
        if self._rest:
            if data:
                data = self._rest[self._read :] + data
            else:
                data, position = self._rest, self._read
            self._rest, self._read = b"", 0
        try:
            if self._preface:
                position = self._read_preface(data)
            position = self._read_frames(data, position, events)
        except ConnectionFault as fault:  # the whole connection ends: GOAWAY, and the rest of the input is dropped
            self._end_for(fault)
            events.append(ConnectionEnded(fault.code, fault.reason))
            return events
        # A small share of much input was processed: the rest is not copied.
        if self.pending and position < len(data) >> 1:
            self._rest, self._read = data, position
        elif position < len(data):
            self._rest = data[position:]
        return events

    def _read_preface(self, data: bytes) -> int:
        preface = self._preface
        if not data.startswith(preface[: len(data)]):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "this is not HTTP/2 with prior knowledge")
        if len(data) < len(preface):  # a part of the preface, right so far
            return 0
        self._preface = b""
        return len(preface)

    def _read_frames(self, data: bytes, position: int, events: list[Event]) -> int:
        end = len(data) - _HEADER_BYTES
        if self._preface:
            return position
        frame_bytes_max = self.limits.frame_bytes_max
        frames_left = self.frames_read = self.frames_max  # stays so if a fault ends the connection
        while position <= end:
            if not frames_left:  # the share is used up: the rest is for the next call
                self.pending = True
                break
            frames_left -= 1
            high, low, kind, flags, stream_id = _HEADER(data, position)
            length = high << 8 | low
            if length > frame_bytes_max:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a frame has over {frame_bytes_max} bytes")
            start = position + _HEADER_BYTES
            position = start + length
            if position > end + _HEADER_BYTES:  # the payload is incomplete: the frame is read again with more input
                position = start - _HEADER_BYTES
                break
            # The highest bit of the stream id is reserved and ignored (4.1).
            payload, stream_id = data[start:position], stream_id & f.WINDOW_MAX
            # No frame may interrupt a header block (6.10): it is one unit of header compression.
            if self._block_id and (kind != f.CONTINUATION or stream_id != self._block_id):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")
            try:
                if kind == f.DATA:
                    self._on_data(flags, stream_id, payload, events)
                elif kind == f.HEADERS:
                    if frames_left and flags == f.END_HEADERS:
                        behind = self._on_usual_call(data, position, stream_id, payload, events)
                        if behind:
                            position = behind
                            frames_left -= 1
                            continue
                    self._on_headers(flags, stream_id, payload, events)
                else:
                    self._on_other(kind, flags, stream_id, payload, events)
            except StreamFault as fault:  # only this stream ends: RST_STREAM
                self._stream_fault(fault, events)
        self.frames_read -= frames_left
        return position

    def _on_other(self, kind: int, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if not self.greeted and kind != f.SETTINGS:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if kind == f.WINDOW_UPDATE:
            self._on_window_update(stream_id, payload)
        elif kind == f.RST_STREAM:
            self._on_reset(stream_id, payload, events)
        elif kind == f.PING:
            self._on_ping(flags, stream_id, payload, events)
        elif kind == f.CONTINUATION:
            self._on_continuation(flags, payload, events)
        elif kind == f.SETTINGS:
            self._on_settings(flags, stream_id, payload)
        elif kind == f.GOAWAY:
            if stream_id or len(payload) < 8:
                raise ConnectionFault(f.size_or_protocol(stream_id), "a GOAWAY has a stream, or less than 8 bytes")
            self._others.spend(self.now_ms)
            events.append(PeerGoesAway())
        elif kind == f.PUSH_PROMISE:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a client pushes")
        else:
            # Frames of unknown types must be ignored (5.5): they cost a budget and do not end the connection.
            self._others.spend(self.now_ms)
            if kind == f.PRIORITY_FRAME:
                self._on_priority(stream_id, payload)

    # ----------------------------------------------------------------------------------------------------- requests

    def _on_headers(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if not stream_id & 1 or not self.greeted:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS with a stream that no client opens, or too early")
        if flags & (f.PADDED | f.PRIORITY):
            payload = f.without_extras(flags, stream_id, payload)
        stream = self.streams.get(stream_id)
        # HEADERS of a stream that we reset may have been on their way (5.1); their block is decoded and dropped.
        if stream is None and stream_id <= self.last_stream_id and stream_id not in self.reset_ids:
            code = ErrorCode.STREAM_CLOSED if stream_id == self.last_stream_id else ErrorCode.PROTOCOL_ERROR
            raise ConnectionFault(code, "HEADERS on a stream that is closed, or was skipped")
        self.last_stream_id = max(self.last_stream_id, stream_id)
        self._block_stream = stream  # trailers of an open stream; None: a new or a reset one
        if flags & f.END_HEADERS:
            self._on_block(stream_id, payload, bool(flags & f.END_STREAM), events)
            return
        if len(payload) > self.limits.header_block_bytes_max:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too long", _HEADERS_LIMIT)
        self._block_id, self._block, self._block_bytes = stream_id, [payload], len(payload)
        self._block_ends = bool(flags & f.END_STREAM)

    def _on_usual_call(self, data: bytes, position: int, stream_id: int, block: bytes, events: list[Event]) -> int:
        """Processes a usual unary call in one step: HEADERS with a repeated block, apart from a deadline or a request's
        id, and at `position` the only DATA frame. Has the effect of `_on_headers`, `_on_block` and `_on_data`.

        Returns the position after both frames; 0: nothing was done, because of a fault or because input is missing.
        """
        decoded = self._decoder.repeated(block) or self._decoder.usual(block)
        start = position + _HEADER_BYTES
        if decoded is None or start > len(data):
            return 0
        shared = decoded.common or decoded
        if shared.request is None:  # the layer above has not accepted this block before
            return 0
        high, low, kind, flags, data_stream_id = _HEADER(data, position)
        length: int = high << 8 | low
        behind = start + length
        limits = self.limits
        if (
            data_stream_id != stream_id
            or flags != f.END_STREAM
            or kind != f.DATA
            or behind > len(data)
            or length > limits.frame_bytes_max
            or length > limits.stream_window_bytes
            or length > self._receive_left
            or stream_id <= self.last_stream_id
            or not stream_id & 1
            or stream_id in self.reset_ids
            or len(self.streams) >= limits.streams_per_connection_max
            or self.draining_after is not None
            or self._decoder.knows_length
            or decoded.size > limits.header_list_bytes_max
        ):
            return 0
        self.last_stream_id = stream_id
        self._receive_left -= length
        self._unannounced += length
        if self._unannounced >= limits.connection_window_bytes >> 1:
            self.announce()
        stream = self.open_stream(stream_id)
        stream.receiving = False
        stream.receive_left -= length
        events.append(RequestStarted(stream, decoded, ended=True, data=data[start:behind]))
        return behind

    def _on_continuation(self, flags: int, payload: bytes, events: list[Event]) -> None:
        if not self._block_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._block.append(payload)
        self._block_bytes += len(payload)
        limits = self.limits
        if self._block_bytes > limits.header_block_bytes_max or len(self._block) > limits.continuations_max + 1:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too long", _HEADERS_LIMIT)
        if flags & f.END_HEADERS:
            stream_id, block = self._block_id, b"".join(self._block)
            self._block_id, self._block, self._block_bytes = 0, [], 0
            self._on_block(stream_id, block, self._block_ends, events)

    def _on_block(self, stream_id: int, block: bytes, ends: bool, events: list[Event]) -> None:
        if len(block) > self.limits.header_block_bytes_max:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too long", _HEADERS_LIMIT)
        decoded = self._decoder.decode(block)
        # Deadlines change with each call and evict all other fields from the table. Without a table, blocks can be
        # compared as bytes (decision 50).
        if self._decoder.changes and not self._asked_for_no_table:
            self._asked_for_no_table = True
            self._acks_due += 1
            self.out.append(f.settings({f.HEADER_TABLE_SIZE: 0}))
        limits = self.limits
        # Up to four times the bound of the list only this call is refused (`refusal_of`). Beyond it the connection
        # ends: references make 4 KB of list from one byte of block (header bomb).
        if len(decoded.fields) > limits.header_fields_max or decoded.size > 4 * limits.header_list_bytes_max:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a request has too many header fields", _HEADERS_LIMIT)
        stream, self._block_stream = self._block_stream, None
        if stream is not None:
            self._on_trailers(stream, decoded, ends, events)  # a second block of an open stream
            return
        if stream_id in self.reset_ids:
            return  # the block was on its way when we reset the stream
        # Refused only after decoding: a skipped block would leave the header tables different.
        crowded = len(self.streams) >= limits.streams_per_connection_max
        if crowded or self._is_beyond_drain(stream_id):
            if crowded:
                self.totals.reach("streams_per_connection_max")
            self.totals.streams_refused += 1
            self._resets.spend(self.now_ms)
            self.remember_reset(stream_id)
            self.out.append(f.reset(stream_id, ErrorCode.REFUSED_STREAM))
            return
        stream = self.open_stream(stream_id)
        stream.receiving = not ends
        if self._decoder.knows_length:
            for one in decoded.fields:
                if one.kind == _CONTENT_LENGTH:
                    self._promise(stream, one.pair[1], ends)
        events.append(RequestStarted(stream, decoded, ended=ends))

    def object_to(self, stream: Http2Stream, code: ErrorCode) -> None:
        """Resets a stream with a malformed request; too many of them are a flood."""
        self.reset(stream, code)
        try:
            self._resets.spend(self.now_ms)
        except ConnectionFault as fault:
            self._end_for(fault)

    def _end_for(self, fault: ConnectionFault) -> None:
        if fault.limit:
            self.totals.reach(fault.limit)
        self.fail(fault.code, fault.reason)

    def _is_beyond_drain(self, stream_id: int) -> bool:
        return self.draining_after is not None and stream_id > self.draining_after

    def _on_trailers(self, stream: Http2Stream, decoded: HeaderBlock, ends: bool, events: list[Event]) -> None:
        if not stream.receiving:
            raise StreamFault(stream.id, ErrorCode.STREAM_CLOSED, "HEADERS after END_STREAM")
        if not ends:
            raise StreamFault(stream.id, ErrorCode.PROTOCOL_ERROR, "trailers without END_STREAM")
        for one in decoded.fields:
            if one.kind == FieldKind.MALFORMED or one.name.startswith(b":"):
                raise StreamFault(stream.id, ErrorCode.PROTOCOL_ERROR, "trailers with a field that may not be there")
        self._end_receiving(stream)
        events.append(StreamEnded(stream))

    def _promise(self, stream: Http2Stream, text: str, ends: bool) -> None:
        if not text.isdecimal() or len(text) > 18 or (ends and int(text)):
            raise StreamFault(stream.id, ErrorCode.PROTOCOL_ERROR, "content-length is wrong")
        stream.content_left = int(text)

    def _on_data(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        length = len(payload)
        stream = self.streams.get(stream_id)
        self._receive_left -= length
        self._unannounced += length
        if self._receive_left < 0:
            raise ConnectionFault(
                ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the connection's window", "connection_window_bytes"
            )
        if self._unannounced >= self.limits.connection_window_bytes >> 1:
            self.announce()
        if stream is None:
            self._on_stray_data(stream_id)
            return
        if not stream.receiving:
            raise StreamFault(stream_id, ErrorCode.STREAM_CLOSED, "DATA after END_STREAM")
        ended = bool(flags & f.END_STREAM)
        stream.receive_left -= length
        if stream.receive_left < 0:
            self.totals.reach("stream_window_bytes")
            raise StreamFault(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the stream's window")
        if flags & f.PADDED:
            payload = f.without_extras(flags & f.PADDED, stream_id, payload)
            # Padding counts in both windows (6.1), and no handler consumes it.
            self.consumed(stream, length - len(payload))
        if not payload and not ended:
            self._empty.spend(self.now_ms)
        if stream.content_left is not None:
            stream.content_left -= len(payload)
            if stream.content_left < 0 or (ended and stream.content_left):
                raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "content-length is wrong")
        if ended:
            stream.receiving = False
            if not stream.sending:
                self.close_stream(stream)
        events.append(DataReceived(stream, payload, ended=ended))

    def _on_stray_data(self, stream_id: int) -> None:
        if not stream_id or stream_id > self.last_stream_id or not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA on an idle stream")
        if stream_id not in self.reset_ids:  # otherwise it was on its way when we reset the stream
            self._resets.spend(self.now_ms)
            raise StreamFault(stream_id, ErrorCode.STREAM_CLOSED, "DATA on a stream that is closed")

    def _end_receiving(self, stream: Http2Stream) -> None:
        stream.receiving = False
        if stream.content_left:
            raise StreamFault(stream.id, ErrorCode.PROTOCOL_ERROR, "content-length is wrong")
        if not stream.sending:
            self.close_stream(stream)

    def announce(self) -> None:
        """Gives the connection's window back, unless `withhold` makes the peer wait."""
        if not self.withhold and self._unannounced:
            self.out.append(f.window_update(0, self._unannounced))
            self._receive_left += self._unannounced
            self._unannounced = 0

    # ------------------------------------------------------------------------------------------------ other frames

    def _on_window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "the length of WINDOW_UPDATE is not 4 bytes")
        # A client may open the windows of thousands of streams before our first answer, so both earn budget.
        called_for = (self.sent_frames + self.opened << 2) + (self.sent_bytes >> 12)
        self._updates.spend(self.now_ms, called_for)
        increment = int.from_bytes(payload, "big") & f.WINDOW_MAX
        if not stream_id:  # of the connection
            if not increment:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
            self.send_window += increment
            if self.send_window > f.WINDOW_MAX:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window exceeds 2^31-1")
            return
        stream = self.streams.get(stream_id)
        if stream is None:  # of a closed stream: ignored
            self._check_not_idle(stream_id, "WINDOW_UPDATE")
            return
        if not increment:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
        stream.send_window += increment
        if stream.send_window > f.WINDOW_MAX:
            raise StreamFault(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "a window exceeds 2^31-1")
        if stream.queued_bytes and stream.send_window > 0:  # queued DATA may leave
            self.ready[stream] = None

    def _on_reset(self, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "the length of RST_STREAM is not 4 bytes")
        self._resets.spend(self.now_ms)
        code = ErrorCode.of(int.from_bytes(payload, "big"))
        # Also after the end of the stream: the caller drops an answer that it did not take (decision 102).
        if self.sent_answers is not None and (untaken := self.sent_answers.reset(stream_id, code)):
            events.append(AnswerRefused(untaken))
        stream = self.streams.get(stream_id)
        if stream is None:  # of a closed stream
            self._check_not_idle(stream_id, "RST_STREAM")
            return
        self.close_stream(stream)
        events.append(StreamReset(stream, code))

    def _on_ping(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if stream_id or len(payload) != 8:
            raise ConnectionFault(f.size_or_protocol(stream_id), "a PING has a stream, or not 8 bytes")
        # gRPC clients measure the path with a PING when DATA arrives, so our own frames earn budget.
        self._pings.spend(self.now_ms, self.sent_frames)
        if flags & f.ACK:  # an answer to our keepalive, drain or read probe
            events.append(PingAnswered(payload))
            self.note_read(payload)
        else:
            self.out.append(f.ping(payload, ack=True))

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id or len(payload) % 6 or (flags & f.ACK and payload):
            raise ConnectionFault(f.size_or_protocol(stream_id), "SETTINGS has a stream, or a wrong length")
        if flags & f.ACK:
            if not self.greeted:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self._others.spend(self.now_ms)
            self._acks_due -= 1
            if self._asked_for_no_table and self._acks_due <= 0:
                # Before its acknowledgement the peer may still use its table of 4,096 bytes (RFC 7541, 4.2).
                self._decoder.bytes_allowed = 0
            return
        self._settings.spend(self.now_ms)
        self.greeted = True
        for start in range(0, len(payload), 6):
            name = int.from_bytes(payload[start : start + 2], "big")
            self.apply_setting(name, int.from_bytes(payload[start + 2 : start + 6], "big"))
        self.out.append(f.frame(f.SETTINGS, f.ACK, 0))

    def _on_priority(self, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY without a stream")
        if len(payload) != 5:
            raise StreamFault(stream_id, ErrorCode.FRAME_SIZE_ERROR, "the length of PRIORITY is not 5 bytes")
        if int.from_bytes(payload[:4], "big") & f.WINDOW_MAX == stream_id:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")

    def _check_not_idle(self, stream_id: int, kind: str) -> None:
        if not stream_id or stream_id > self.last_stream_id or not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"{kind} on an idle stream")

    def _stream_fault(self, fault: StreamFault, events: list[Event]) -> None:
        self._resets.spend(self.now_ms)
        stream = self.streams.get(fault.stream_id)
        if stream is not None:  # otherwise the fault is of a stream that is not open
            self.close_stream(stream)
            events.append(StreamReset(stream, fault.code))
        self.remember_reset(fault.stream_id)
        self.out.append(f.reset(fault.stream_id, fault.code))
