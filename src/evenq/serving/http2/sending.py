"""The output of a connection: header blocks, DATA within the peer's windows, resets; and the table of its streams.

The base class of `evenq.serving.http2.connection.Connection`. Nothing here writes: `take` returns the output since its
last call, in one piece.
Always true: no more DATA leaves than both windows allow; frames of one stream leave in the order in which they were
made; `unread_bytes` is the sum of what the streams have queued, and also counts for the address and in total.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from evenq.serving.http2.limits import Http2Limits, PeerTotals, Totals
from evenq.serving.http2.sent_answers import PROBE, SentAnswers
from evenq.serving.http2.streams import Http2Stream
from evenq.wire.http2 import frames as f
from evenq.wire.http2.codes import ConnectionFault, ErrorCode

RESETS_REMEMBERED = 4_096
COPY_BYTES_MAX = 64 << 10  # up to this size, pieces are joined: that is cheaper than a further piece
WINDOW_DEFAULT = 65_535

_DATA_HEADER = f.HEADER.pack


class StreamSender:
    """The sending half of a connection."""

    def __init__(self, limits: Http2Limits, totals: Totals, now_ms: int) -> None:
        self.limits = limits
        self.totals = totals
        self.peer = PeerTotals()  # totals of the peer's address; replaced before the first stream
        self.now_ms = now_ms
        self.streams: dict[int, Http2Stream] = {}  # all that are not closed
        self.last_stream_id = 0  # highest stream that the peer opened
        self.reset_ids: dict[int, None] = {}  # newest streams that we reset: frames of them may be on their way
        self.ready: dict[Http2Stream, None] = {}  # streams with queued data and an open window, in order of turns
        self.send_window = WINDOW_DEFAULT
        self.sent_frames = 0  # HEADERS and DATA, since the start
        self.opened = 0  # streams since the start
        self.sent_bytes = 0  # of DATA, since the start
        self.unread_bytes = 0  # queued in all streams
        self.moved: list[Http2Stream] = []  # streams that sent DATA; the layer above clears it
        self.withhold = False  # True: no window of the connection is given back
        self.ended = False  # True: GOAWAY for a fault was sent, no more input is processed
        self.sent_answers: SentAnswers | None = None  # made for the first answer whose handler is to be notified
        self._stream_window = WINDOW_DEFAULT
        self._frame_bytes_max = f.FRAME_BYTES_DEFAULT
        self.out: list[bytes | memoryview] = [
            f.settings(
                {
                    f.MAX_CONCURRENT_STREAMS: limits.streams_per_connection_max,
                    f.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
                    f.MAX_FRAME_SIZE: limits.frame_bytes_max,
                    f.MAX_HEADER_LIST_SIZE: limits.header_list_bytes_max,
                }
            ),
            f.window_update(0, limits.connection_window_bytes - WINDOW_DEFAULT),
        ]

    # ------------------------------------------------------------------------------------------------------ streams

    def open_stream(self, stream_id: int) -> Http2Stream:
        """Opens a stream whose id was checked."""
        limits = self.limits
        stream = self.streams[stream_id] = Http2Stream(
            stream_id, send_window=self._stream_window, receive_left=limits.stream_window_bytes, now_ms=self.now_ms
        )
        self.opened += 1
        self.totals.streams += 1
        self.totals.requests += 1
        self.peer.streams += 1
        return stream

    def close_stream(self, stream: Http2Stream) -> None:
        """Removes a stream and its queue. Idempotent."""
        if self.streams.pop(stream.id, None) is None:
            return
        self.totals.streams -= 1
        self.peer.streams -= 1
        stream.sending = stream.receiving = False
        if stream.queued_bytes:
            self._unqueue(stream.queued_bytes)
            stream.queued_bytes = 0
            stream.queue = None
            self.ready.pop(stream, None)

    def remember_reset(self, stream_id: int) -> None:
        """Remembers a reset stream: further frames of it are not a fault."""
        self.reset_ids[stream_id] = None
        if len(self.reset_ids) > RESETS_REMEMBERED:
            del self.reset_ids[next(iter(self.reset_ids))]

    def consumed(self, stream: Http2Stream, size: int) -> None:
        """Reports `size` consumed bytes of a request; the stream's window is given back in large steps."""
        stream.unannounced += size
        if stream.receiving and stream.unannounced >= self.limits.stream_window_bytes >> 1:
            self.out.append(f.window_update(stream.id, stream.unannounced))
            stream.receive_left += stream.unannounced
            stream.unannounced = 0

    # ------------------------------------------------------------------------------------------------------ answers

    def respond(self, stream: Http2Stream, head: f.EncodedHeaders, message: bytes, tail: f.EncodedHeaders) -> None:
        """Sends a whole answer: headers, one piece of data, trailers."""
        size = len(message)
        window = self.send_window
        # Nearly every unary answer: constant blocks in one append, without a queue.
        fits = size <= window and size <= stream.send_window and size <= self._frame_bytes_max
        if not fits or stream.queued_bytes or not tail.end:
            self.send_headers(stream, head)
            self.send_data(stream, message)
            self.send_end(stream, tail)
            return
        self.send_window = window - size
        self.sent_frames += 3
        self.sent_bytes += size
        id_bytes = stream.id_bytes
        self.out += (
            head.open,
            id_bytes,
            head.block,
            _DATA_HEADER(size >> 8, size & 0xFF, f.DATA, 0, stream.id),
            message,
            tail.end,
            id_bytes,
            tail.block,
        )
        self._end_sending(stream)

    def send_headers(self, stream: Http2Stream, headers: f.EncodedHeaders) -> None:
        """Sends headers that are followed by more."""
        self.sent_frames += 1
        self.out.append(f.header_block(stream.id_bytes, headers, end=False))

    def send_data(self, stream: Http2Stream, data: bytes, prefix: bytes = b"") -> None:
        """Queues `prefix` and `data`; the caller bounds the queue."""
        size = len(prefix) + len(data)
        if not size:
            return
        if size <= COPY_BYTES_MAX:
            self._queue(stream, (prefix + data,), size)
        else:
            self._queue(stream, (prefix, data) if prefix else (data,), size)

    def send_pieces(self, stream: Http2Stream, parts: Sequence[bytes | memoryview]) -> None:
        """Queues parts as they are; their maker has joined small ones."""
        parts = [part for part in parts if part]
        if parts:
            self._queue(stream, parts, sum(map(len, parts)))

    def _queue(self, stream: Http2Stream, parts: Sequence[bytes | memoryview], size: int) -> None:
        if not stream.queued_bytes:
            stream.moved_ms = self.now_ms
            if stream.send_window > 0:
                self.ready[stream] = None
        queue = stream.queue
        if queue is None:
            stream.queue = deque(parts)
        else:
            queue.extend(parts)
        stream.queued_bytes += size
        self._unqueue(-size)

    def send_end(self, stream: Http2Stream, trailers: f.EncodedHeaders) -> None:
        """Sends trailers after all queued data."""
        if stream.queued_bytes:
            stream.ending = trailers
            return
        self.sent_frames += 1
        self.out.append(f.header_block(stream.id_bytes, trailers, end=True))
        self._end_sending(stream)

    def tell_if_untaken(self, stream: Http2Stream, untaken: Callable[[], None], deadline_ms: int | None) -> None:
        """Registers an answer: `untaken` is called if the stream is reset, also after its end, or if a probe shows that
        the peer read the answer only after the call's deadline. Call it once the answer is made.
        """
        if stream.id not in self.streams:  # the stream ended and its handler was cancelled
            return
        if self.sent_answers is None:
            self.sent_answers = SentAnswers(self.limits, self.totals, self.now_ms)
        self.sent_answers.add(stream.id, untaken, self.now_ms, deadline_ms)

    def reset(self, stream: Http2Stream, code: ErrorCode) -> None:
        """Ends a stream immediately."""
        if stream.id in self.streams:
            self.close_stream(stream)
            self.remember_reset(stream.id)
            self.out.append(f.reset(stream.id, code))
            # Its queued data is dropped.
            if self.sent_answers is not None and (untaken := self.sent_answers.reset(stream.id, code)):
                untaken()

    def fail(self, code: ErrorCode, reason: str) -> None:
        """Sends the reason why the connection ends."""
        if not self.ended:
            self.ended = True
            self.out.append(f.go_away(self.last_stream_id, code, reason))

    def release(self) -> None:
        """Removes all streams of a lost connection from the totals. Idempotent."""
        self.ended = True
        if self.sent_answers is not None:
            self.sent_answers.clear()
        for stream in list(self.streams.values()):
            self.close_stream(stream)

    # ------------------------------------------------------------------------------------------------------- output

    def look(self, now_ms: int) -> None:
        """Sets the time to `now_ms` and drops state that is kept for too long."""
        self.now_ms = now_ms
        if self.sent_answers is not None and self.sent_answers.look(now_ms, self.streams):
            self.out.append(f.ping(PROBE))

    def note_read(self, ping: bytes) -> None:
        """Processes the answer to a PING of ours."""
        if ping == PROBE and self.sent_answers is not None:
            self.sent_answers.read(self.now_ms)

    def take(self, bytes_max: int) -> bytes:
        """Returns the whole output, with DATA up to about `bytes_max`."""
        return b"".join(self.take_parts(bytes_max))

    def take_parts(self, bytes_max: int) -> list[bytes | memoryview]:
        """Returns the same: one piece if it is small, otherwise several."""
        before = self.sent_bytes
        if self.ready:
            self._fill(bytes_max)
        out, self.out = self.out, []
        return out if len(out) < 2 or self.sent_bytes - before >= COPY_BYTES_MAX else [b"".join(out)]

    def _fill(self, bytes_max: int) -> None:
        """Moves queued DATA to the output, stream by stream, as far as the windows allow."""
        ready = self.ready
        while ready and self.send_window > 0 and bytes_max > 0:
            stream = next(iter(ready))
            del ready[stream]
            allowed = min(stream.queued_bytes, stream.send_window, self.send_window, bytes_max)
            if allowed <= 0:  # SETTINGS closed its window
                continue
            self._move(stream, allowed)
            bytes_max -= allowed
            if stream.queued_bytes:
                if stream.send_window > 0:
                    ready[stream] = None
            elif stream.ending is not None:
                self.send_end(stream, stream.ending)

    def _move(self, stream: Http2Stream, size: int) -> None:
        out, queue = self.out, stream.queue
        assert queue is not None
        stream.send_window -= size
        self.send_window -= size
        stream.queued_bytes -= size
        stream.moved_ms = self.now_ms
        self._unqueue(size)
        self.moved.append(stream)
        self.sent_bytes += size
        while size:
            left = length = min(size, self._frame_bytes_max)
            size -= length
            self.sent_frames += 1
            out.append(_DATA_HEADER(length >> 8, length & 0xFF, f.DATA, 0, stream.id))
            while left:
                piece = queue[0]
                has = len(piece)
                if has <= left:
                    out.append(piece)
                    queue.popleft()
                    left -= has
                else:
                    view = memoryview(piece)
                    out.append(view[:left])
                    queue[0] = view[left:]
                    left = 0

    def _unqueue(self, size: int) -> None:
        self.unread_bytes -= size
        self.peer.unread_bytes -= size
        self.totals.unread_bytes -= size

    def _end_sending(self, stream: Http2Stream) -> None:
        stream.sending = False
        if stream.receiving:  # answered early: the rest of the request is not needed
            self.out.append(f.reset(stream.id, ErrorCode.NO_ERROR))
            self.remember_reset(stream.id)
        self.close_stream(stream)

    def apply_setting(self, name: int, value: int) -> None:
        """Applies one of the peer's SETTINGS, or ignores it if servers do not use it. Raises ConnectionFault."""
        if name == f.INITIAL_WINDOW_SIZE:
            if value > f.WINDOW_MAX:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE exceeds 2^31-1")
            # The change also applies to open streams, and may make a window negative (RFC 9113, 6.9.2).
            change, self._stream_window = value - self._stream_window, value
            for stream in self.streams.values():
                stream.send_window += change
                if stream.send_window > f.WINDOW_MAX:
                    raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window exceeds 2^31-1")
                if stream.queued_bytes and stream.send_window > 0:
                    self.ready[stream] = None
        elif name == f.MAX_FRAME_SIZE:
            if not f.FRAME_BYTES_DEFAULT <= value < 1 << 24:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE is out of bounds")
            # Streams take turns after each frame, however large frames the peer allows.
            self._frame_bytes_max = min(value, COPY_BYTES_MAX)
        elif name == f.ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH is not 0 or 1")
