"""What a connection sends: header blocks, DATA within the peer's windows, resets; and the table of its streams.

The half of `evenq.serving.http2.connection.Connection` that makes output. Nothing here writes: `take` gives what has
come together since the last time, in one piece.
Always true: no more DATA leaves than both windows allow; frames of one stream leave in the order they were made;
`unread_bytes` of the connection is the sum of what its streams have queued, and counts at its address and in all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from evenq.serving.http2.limits import Http2Limits, PeerTotals, Totals
from evenq.serving.http2.sent_answers import PROBE, SentAnswers
from evenq.serving.http2.streams import Http2Stream
from evenq.wire.http2 import frames as f
from evenq.wire.http2.codes import ConnectionFault, ErrorCode

__all__ = ["StreamSender"]

RESETS_REMEMBERED = 4_096
COPY_BYTES_MAX = 64 << 10
"""A message below this is joined with its prefix, and so is what a turn sends: one piece less costs less than the copy.
"""
WINDOW_DEFAULT = 65_535

_DATA_HEADER = f.HEADER.pack


class StreamSender:
    """The sending half."""

    def __init__(self, limits: Http2Limits, totals: Totals, now_ms: int) -> None:
        self.limits = limits
        self.totals = totals
        self.peer = PeerTotals()
        """Of the peer's address; to be replaced before the first stream."""
        self.now_ms = now_ms
        self.streams: dict[int, Http2Stream] = {}
        """All that are not closed."""
        self.last_stream_id = 0
        """Highest stream that the peer opened."""
        self.reset_ids: dict[int, None] = {}
        """Newest streams that we reset: frames on them may be on their way."""
        self.ready: dict[Http2Stream, None] = {}
        """Streams with something queued whose own window is open, in the order of their turns."""
        self.send_window = WINDOW_DEFAULT
        self.sent_frames = 0
        """HEADERS and DATA, since the start."""
        self.opened = 0
        """Streams that were ever opened."""
        self.sent_bytes = 0
        """Of DATA, since the start."""
        self.unread_bytes = 0
        """Queued in all streams."""
        self.moved: list[Http2Stream] = []
        """Streams that sent DATA; its watcher clears it."""
        self.withhold = False
        """True: the peer gets no more window of the connection."""
        self.ended = False
        """True: GOAWAY for a fault was sent, nothing is read any more."""
        self.sent_answers: SentAnswers | None = None
        """Those whose handlers want to know whether they are taken; None: there was none yet."""
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
        """A new one, of a number that was checked."""
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
        """Forget it, and what it has queued. Idempotent."""
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
        """Frames that come on this stream are no fault."""
        self.reset_ids[stream_id] = None
        if len(self.reset_ids) > RESETS_REMEMBERED:
            del self.reset_ids[next(iter(self.reset_ids))]

    def consumed(self, stream: Http2Stream, size: int) -> None:
        """`size` bytes of a request were used up: open the stream's window by as much, in large steps."""
        stream.unannounced += size
        if stream.receiving and stream.unannounced >= self.limits.stream_window_bytes >> 1:
            self.out.append(f.window_update(stream.id, stream.unannounced))
            stream.receive_left += stream.unannounced
            stream.unannounced = 0

    # ------------------------------------------------------------------------------------------------------ answers

    def respond(self, stream: Http2Stream, head: f.EncodedHeaders, message: bytes, tail: f.EncodedHeaders) -> None:
        """A whole answer: headers, one piece of data, trailers."""
        size = len(message)
        window = self.send_window
        # Nearly every unary answer: one append of constant blocks, without a queue and without a look at the windows
        # later.
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
        """Headers that more follows."""
        self.sent_frames += 1
        self.out.append(f.header_block(stream.id_bytes, headers, end=False))

    def send_data(self, stream: Http2Stream, data: bytes, prefix: bytes = b"") -> None:
        """Queue `prefix` and `data`; how much is queued is the caller's to bound."""
        size = len(prefix) + len(data)
        if not size:
            return
        if size <= COPY_BYTES_MAX:
            self._queue(stream, (prefix + data,), size)
        else:
            self._queue(stream, (prefix, data) if prefix else (data,), size)

    def send_pieces(self, stream: Http2Stream, parts: Sequence[bytes | memoryview]) -> None:
        """Queue them as they are: small ones are put together by their maker."""
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
        """Trailers, behind all that is queued."""
        if stream.queued_bytes:
            stream.ending = trailers
            return
        self.sent_frames += 1
        self.out.append(f.header_block(stream.id_bytes, trailers, end=True))
        self._end_sending(stream)

    def tell_if_untaken(self, stream: Http2Stream, untaken: Callable[[], None], deadline_ms: int | None) -> None:
        """Call `untaken` if the stream is reset, also after its end, or if it is seen that the peer has read the answer
        only after the call's deadline. To be said once the answer is made.
        """
        if stream.id not in self.streams:  # nobody is there to take it; its handler was cancelled
            return
        if self.sent_answers is None:
            self.sent_answers = SentAnswers(self.limits, self.totals, self.now_ms)
        self.sent_answers.add(stream.id, untaken, self.now_ms, deadline_ms)

    def reset(self, stream: Http2Stream, code: ErrorCode) -> None:
        """End a stream at once."""
        if stream.id in self.streams:
            self.close_stream(stream)
            self.remember_reset(stream.id)
            self.out.append(f.reset(stream.id, code))
            # What it had queued is thrown away.
            if self.sent_answers is not None and (untaken := self.sent_answers.reset(stream.id, code)):
                untaken()

    def fail(self, code: ErrorCode, reason: str) -> None:
        """Say why the connection ends, and forget its streams."""
        if not self.ended:
            self.ended = True
            self.out.append(f.go_away(self.last_stream_id, code, reason))

    def release(self) -> None:
        """The connection is gone: nothing of it counts any more. Idempotent."""
        self.ended = True
        if self.sent_answers is not None:
            self.sent_answers.clear()
        for stream in list(self.streams.values()):
            self.close_stream(stream)

    # ------------------------------------------------------------------------------------------------------- output

    def look(self, now_ms: int) -> None:
        """It is `now_ms`: forget what is kept for too long."""
        self.now_ms = now_ms
        if self.sent_answers is not None and self.sent_answers.look(now_ms, self.streams):
            self.out.append(f.ping(PROBE))

    def note_read(self, ping: bytes) -> None:
        """A PING of ours was answered."""
        if ping == PROBE and self.sent_answers is not None:
            self.sent_answers.read(self.now_ms)

    def take(self, bytes_max: int) -> bytes:
        """All that is to be sent now, DATA up to about `bytes_max`."""
        return b"".join(self.take_parts(bytes_max))

    def take_parts(self, bytes_max: int) -> list[bytes | memoryview]:
        """The same: in one piece if it is little, else as it lies."""
        before = self.sent_bytes
        if self.ready:
            self._fill(bytes_max)
        out, self.out = self.out, []
        return out if len(out) < 2 or self.sent_bytes - before >= COPY_BYTES_MAX else [b"".join(out)]

    def _fill(self, bytes_max: int) -> None:
        """Move queued DATA to the output: streams in turn, as far as the windows go."""
        ready = self.ready
        while ready and self.send_window > 0 and bytes_max > 0:
            stream = next(iter(ready))
            del ready[stream]
            allowed = min(stream.queued_bytes, stream.send_window, self.send_window, bytes_max)
            if allowed <= 0:  # SETTINGS shut its window
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
        if stream.receiving:  # answered early: what the peer still sends is of no use
            self.out.append(f.reset(stream.id, ErrorCode.NO_ERROR))
            self.remember_reset(stream.id)
        self.close_stream(stream)

    def apply_setting(self, name: int, value: int) -> None:
        """One of the peer's SETTINGS. Raises ConnectionFault. Those that say nothing to a server are left out."""
        if name == f.INITIAL_WINDOW_SIZE:
            if value > f.WINDOW_MAX:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE is over 2^31-1")
            # The change counts for open streams too, and may make a window negative (RFC 9113, 6.9.2).
            change, self._stream_window = value - self._stream_window, value
            for stream in self.streams.values():
                stream.send_window += change
                if stream.send_window > f.WINDOW_MAX:
                    raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window is over 2^31-1")
                if stream.queued_bytes and stream.send_window > 0:
                    self.ready[stream] = None
        elif name == f.MAX_FRAME_SIZE:
            if not f.FRAME_BYTES_DEFAULT <= value < 1 << 24:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE is out of bounds")
            # However large a peer's frames may be, streams take turns after each.
            self._frame_bytes_max = min(value, COPY_BYTES_MAX)
        elif name == f.ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH is not 0 or 1")
