"""One HTTP/2 connection of a client with one call whose messages go both ways, without I/O and without a clock.

`Streaming` whose request has no end: `open` begins the call, `send` adds a message to it, and what the server's windows
do not take yet waits here. Used by `evenq.wire.duplex_call`; the connection serves one call and is closed with it, so a
call that is over resets no stream. Rules and section numbers are those of RFC 9113.
Always true: as of `Calling`; messages leave whole and in the order of `send`; `unsent_bytes` counts what waits for a
window, and nothing else of a message is kept.
"""

from __future__ import annotations

from collections import deque

from evenq.wire.http2 import frames as f
from evenq.wire.http2.calling import PREFIX_BYTES
from evenq.wire.http2.streaming import Streaming

__all__ = ["DuplexStreaming"]


class DuplexStreaming(Streaming):
    """The client's side. `messages` holds what came and was not taken."""

    unsent_bytes = 0
    """Of messages and their prefixes, what the server's windows did not take yet."""

    def open(self, headers: f.EncodedHeaders) -> None:
        """Begin the call. The server has greeted; once per connection."""
        assert self.greeted
        assert not self.running
        stream_id = self._stream_id = self._stream_id + 2
        self.running = True
        self._unsent: deque[memoryview] = deque()
        self._stream_send_window = self._first_window
        self._stream_receive_left = self.limits.stream_window_bytes
        self._out.append(f.header_block(stream_id.to_bytes(4, "big"), headers, end=False))
        early, self._rest = self._rest, b""
        if early:  # part of a frame that came with the greeting
            self.feed(early)

    def send(self, message: bytes) -> None:
        """One more message; what the windows take of it is in `take` now, the rest later. Nothing happens when the call
        is over.
        """
        if not self.running:
            return
        prefix = len(message).to_bytes(PREFIX_BYTES, "big")
        self._unsent.append(memoryview(prefix))
        if message:
            self._unsent.append(memoryview(message))
        self.unsent_bytes += PREFIX_BYTES + len(message)
        self._fill()

    def take_parts(self) -> list[bytes | memoryview]:
        """What must be written now, as `take` has it, not joined."""
        parts, self._out = self._out, []
        return parts

    def _fill(self) -> None:
        while self.unsent_bytes:
            size = min(self.unsent_bytes, self._send_window, self._stream_send_window, self._frame_bytes)
            if size <= 0:
                return
            self._send_window -= size
            self._stream_send_window -= size
            self.unsent_bytes -= size
            self._out.append(f.HEADER.pack(size >> 8, size & 0xFF, f.DATA, 0, self._stream_id))
            self._move(size)

    def _move(self, size: int) -> None:
        """The next bytes of what waits go out."""
        unsent = self._unsent
        while size:
            first = unsent[0]
            if len(first) <= size:
                unsent.popleft()
                self._out.append(first)
                size -= len(first)
            else:
                self._out.append(first[:size])
                unsent[0] = first[size:]
                return

    def _stop(self, status: int, details: str, *, ended: bool = False) -> None:
        """The call is over with this. Its connection is closed, which says all that a reset would."""
        del ended
        self.status, self.details = status, details
        self._end()

    def _end(self) -> None:
        super()._end()
        self.leaving = True
        self._unsent.clear()
        self.unsent_bytes = 0
