"""One HTTP/2 connection of a server, without I/O and without a clock: bytes in, events out; calls in, bytes out.

`receive` is given what came from the peer and returns events; the methods of `StreamSender`
(`evenq.serving.http2.sending`), which it extends, make output, which `take` hands over. A fault of the peer never
leaves as an exception: it is answered with RST_STREAM or GOAWAY. Rules and section numbers are those of RFC 9113.
Always true: the bytes that are kept between two calls are bounded by `Http2Limits`, however the input is split, unless
they are `pending`, and then by what was given; after `ConnectionEnded` nothing is read; the two tables of header
compression are in step, also for refused streams.
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
from evenq.serving.http2.floods import Bucket
from evenq.serving.http2.limits import Http2Limits, Totals
from evenq.serving.http2.sending import StreamSender
from evenq.serving.http2.streams import Http2Stream
from evenq.wire.http2 import frames as f
from evenq.wire.http2.codes import ConnectionFault, ErrorCode, StreamFault
from evenq.wire.http2.fields import FieldKind, HeaderBlock
from evenq.wire.http2.hpack import Decoder

__all__ = ["Connection"]

_HEADER, _HEADER_BYTES = f.HEADER.unpack_from, f.HEADER_BYTES
_CONTENT_LENGTH = int(FieldKind.CONTENT_LENGTH)
_HEADERS_LIMIT = "header_list_bytes_max"
"""All bounds of header blocks follow from it, or are constants."""


class Connection(StreamSender):
    """The server's side."""

    def __init__(self, limits: Http2Limits, totals: Totals, now_ms: int) -> None:
        super().__init__(limits, totals, now_ms)
        self.greeted = False
        """The preface and the peer's first SETTINGS came."""
        self.draining_after: int | None = None
        """Streams above this one are refused: the connection ends."""
        self.frames_max = limits.frames_per_turn
        """Frames that the next `receive` reads."""
        self.frames_read = 0
        """Frames that the last one read, the one that is cut off included."""
        self.pending = False
        """There is more input than that: `receive` is to be called again, with nothing or with more."""
        self._rest = b""
        self._read = 0
        """Bytes of `_rest` that were read: it is cut only now and then, for small shares of much input."""
        self._preface = f.PREFACE
        self._decoder = Decoder()
        self._acks_due = 1
        """SETTINGS of ours that the peer did not acknowledge yet."""
        self._asked_for_no_table = False
        """The peer's deadlines would change its table of fields with each call, so it was asked to keep none."""
        self._receive_left = limits.connection_window_bytes
        self._unannounced = 0
        self._block_stream: Http2Stream | None = None
        self._block_id = 0
        self._block: list[bytes] = []
        self._block_bytes = 0
        self._block_ends = False
        burst, per_s = limits.flood_burst, limits.flood_per_s
        self._pings = Bucket("PING", "flood_burst", burst=burst, per_s=per_s)
        self._updates = Bucket("WINDOW_UPDATE", "flood_burst", burst=burst, per_s=per_s)
        self._others = Bucket("PRIORITY or unknown", "flood_burst", burst=burst, per_s=per_s)
        self._settings = Bucket("SETTINGS", "settings_burst", burst=limits.settings_burst, per_s=1)
        self._empty = Bucket("empty DATA", "empty_data_burst", burst=limits.empty_data_burst, per_s=1)
        self._resets = Bucket("RST_STREAM", "resets_burst", burst=limits.resets_burst, per_s=limits.resets_per_s)

    @property
    def exhausted(self) -> bool:
        """True: the peer has used up the connection's window, and is given no more of it."""
        return self.withhold and self._receive_left < f.FRAME_BYTES_DEFAULT

    @property
    def kept_bytes(self) -> int:
        """Input that is kept for what follows: part of a frame, or of a header block."""
        return max(len(self._rest) - self._read, self._block_bytes)

    # ------------------------------------------------------------------------------------------------------ input

    def receive(self, data: bytes, now_ms: int) -> list[Event]:
        """What the peer's bytes mean, as far as `frames_max` goes; see `pending`. `now_ms`: a monotonic clock."""
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
        except ConnectionFault as fault:
            self._end_for(fault)
            events.append(ConnectionEnded(fault.code, fault.reason))
            return events
        if self.pending and position < len(data) >> 1:
            self._rest, self._read = data, position
        elif position < len(data):
            self._rest = data[position:]
        return events

    def _read_preface(self, data: bytes) -> int:
        preface = self._preface
        if not data.startswith(preface[: len(data)]):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "this is no HTTP/2 with prior knowledge")
        if len(data) < len(preface):
            return 0
        self._preface = b""
        return len(preface)

    def _read_frames(self, data: bytes, position: int, events: list[Event]) -> int:
        end = len(data) - _HEADER_BYTES
        if self._preface:
            return position
        frame_bytes_max = self.limits.frame_bytes_max
        frames_left = self.frames_read = self.frames_max  # so it stays if a fault ends the connection
        while position <= end:
            if not frames_left:
                self.pending = True
                break
            frames_left -= 1
            high, low, kind, flags, stream_id = _HEADER(data, position)
            length = high << 8 | low
            if length > frame_bytes_max:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a frame has over {frame_bytes_max} bytes")
            start = position + _HEADER_BYTES
            position = start + length
            if position > end + _HEADER_BYTES:
                position = start - _HEADER_BYTES
                break
            # The highest bit of the stream number is reserved: it is ignored, not refused (4.1).
            payload, stream_id = data[start:position], stream_id & f.WINDOW_MAX
            # Nothing may come between the frames of a block (6.10): it is one unit of header compression.
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
            except StreamFault as fault:
                self._stream_fault(fault, events)
        self.frames_read -= frames_left
        return position

    def _on_other(self, kind: int, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if not self.greeted and kind != f.SETTINGS:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is no SETTINGS")
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
            # Frames of unknown types must be ignored (5.5): they cost a budget, never the connection at once.
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
        # On a stream that we reset HEADERS may have been on their way (5.1); their block is decoded and dropped.
        if stream is None and stream_id <= self.last_stream_id and stream_id not in self.reset_ids:
            code = ErrorCode.STREAM_CLOSED if stream_id == self.last_stream_id else ErrorCode.PROTOCOL_ERROR
            raise ConnectionFault(code, "HEADERS on a stream that is closed, or was passed over")
        self.last_stream_id = max(self.last_stream_id, stream_id)
        self._block_stream = stream
        if flags & f.END_HEADERS:
            self._on_block(stream_id, payload, bool(flags & f.END_STREAM), events)
            return
        if len(payload) > self.limits.header_block_bytes_max:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too long", _HEADERS_LIMIT)
        self._block_id, self._block, self._block_bytes = stream_id, [payload], len(payload)
        self._block_ends = bool(flags & f.END_STREAM)

    def _on_usual_call(self, data: bytes, position: int, stream_id: int, block: bytes, events: list[Event]) -> int:
        """Nearly every unary call: HEADERS with a block that came before, but for a deadline or an id of the request,
        and at `position` the one DATA frame of the request. Does what `_on_headers`, `_on_block` and `_on_data` do with
        them, in one step. The place behind both; 0: nothing was done, for there is something to object to, or to wait
        for.
        """
        decoded = self._decoder.repeated(block) or self._decoder.usual(block)
        start = position + _HEADER_BYTES
        if decoded is None or start > len(data):
            return 0
        shared = decoded.common or decoded
        if shared.request is None:  # it was accepted before
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
        # Deadlines change with each call and push everything else through the table: without one, blocks can be
        # compared (decision 50).
        if self._decoder.changes and not self._asked_for_no_table:
            self._asked_for_no_table = True
            self._acks_due += 1
            self.out.append(f.settings({f.HEADER_TABLE_SIZE: 0}))
        limits = self.limits
        # Up to four times the list's bound only this call is refused (`refusal_of`). Beyond it the connection ends:
        # references make 4 KB of list from one byte of block (header bomb).
        if len(decoded.fields) > limits.header_fields_max or decoded.size > 4 * limits.header_list_bytes_max:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a request has too many header fields", _HEADERS_LIMIT)
        stream, self._block_stream = self._block_stream, None
        if stream is not None:
            self._on_trailers(stream, decoded, ends, events)
            return
        if stream_id in self.reset_ids:
            return  # was on its way when we reset the stream
        # Refused only here, after decoding: a block that is not decoded leaves the two header tables out of step.
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
        """Reset a stream whose request is malformed; too many of them are a flood."""
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
            # Padding counts in both windows (6.1), and no handler will ever consume it.
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
        if stream_id not in self.reset_ids:  # else it was on its way when we reset the stream
            self._resets.spend(self.now_ms)
            raise StreamFault(stream_id, ErrorCode.STREAM_CLOSED, "DATA on a stream that is closed")

    def _end_receiving(self, stream: Http2Stream) -> None:
        stream.receiving = False
        if stream.content_left:
            raise StreamFault(stream.id, ErrorCode.PROTOCOL_ERROR, "content-length is wrong")
        if not stream.sending:
            self.close_stream(stream)

    def announce(self) -> None:
        """Give the connection's window back, unless `withhold` says that the peer must wait."""
        if not self.withhold and self._unannounced:
            self.out.append(f.window_update(0, self._unannounced))
            self._receive_left += self._unannounced
            self._unannounced = 0

    # ------------------------------------------------------------------------------------------------ other frames

    def _on_window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE has not 4 bytes")
        # A client opens the window of a stream as soon as it reads from it, maybe of thousands before our first answer.
        called_for = (self.sent_frames + self.opened << 2) + (self.sent_bytes >> 12)
        self._updates.spend(self.now_ms, called_for)
        increment = int.from_bytes(payload, "big") & f.WINDOW_MAX
        if not stream_id:
            if not increment:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
            self.send_window += increment
            if self.send_window > f.WINDOW_MAX:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window is over 2^31-1")
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            self._check_not_idle(stream_id, "WINDOW_UPDATE")
            return
        if not increment:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
        stream.send_window += increment
        if stream.send_window > f.WINDOW_MAX:
            raise StreamFault(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "a window is over 2^31-1")
        if stream.queued_bytes and stream.send_window > 0:
            self.ready[stream] = None

    def _on_reset(self, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM has not 4 bytes")
        self._resets.spend(self.now_ms)
        code = ErrorCode.of(int.from_bytes(payload, "big"))
        if self.sent_answers is not None and (untaken := self.sent_answers.reset(stream_id, code)):
            events.append(AnswerRefused(untaken))
        stream = self.streams.get(stream_id)
        if stream is None:
            self._check_not_idle(stream_id, "RST_STREAM")
            return
        self.close_stream(stream)
        events.append(StreamReset(stream, code))

    def _on_ping(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if stream_id or len(payload) != 8:
            raise ConnectionFault(f.size_or_protocol(stream_id), "a PING has a stream, or not 8 bytes")
        # gRPC clients measure the path with a PING when DATA comes, so our own frames earn them.
        self._pings.spend(self.now_ms, self.sent_frames)
        if flags & f.ACK:
            events.append(PingAnswered(payload))
            self.note_read(payload)
        else:
            self.out.append(f.ping(payload, ack=True))

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id or len(payload) % 6 or (flags & f.ACK and payload):
            raise ConnectionFault(f.size_or_protocol(stream_id), "SETTINGS has a stream, or a wrong length")
        if flags & f.ACK:
            if not self.greeted:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is no SETTINGS")
            self._others.spend(self.now_ms)
            self._acks_due -= 1
            if self._asked_for_no_table and self._acks_due <= 0:
                # Before its acknowledgement the peer may still use the 4,096 bytes that it knew (RFC 7541, 4.2).
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
            raise StreamFault(stream_id, ErrorCode.FRAME_SIZE_ERROR, "PRIORITY has not 5 bytes")
        if int.from_bytes(payload[:4], "big") & f.WINDOW_MAX == stream_id:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")

    def _check_not_idle(self, stream_id: int, kind: str) -> None:
        if not stream_id or stream_id > self.last_stream_id or not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"{kind} on an idle stream")

    def _stream_fault(self, fault: StreamFault, events: list[Event]) -> None:
        self._resets.spend(self.now_ms)
        stream = self.streams.get(fault.stream_id)
        if stream is not None:
            self.close_stream(stream)
            events.append(StreamReset(stream, fault.code))
        self.remember_reset(fault.stream_id)
        self.out.append(f.reset(fault.stream_id, fault.code))
