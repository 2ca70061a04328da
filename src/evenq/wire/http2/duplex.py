"""One HTTP/2 connection of a client with one call in both directions, without I/O and without a clock.

`StreamConnection` with a request that has no end: `open` begins the call, `send` adds a message, and messages beyond
the server's windows wait here. Used by `evenq.wire.duplex_call`. The connection serves one call and is closed with it,
so an ended call resets no stream. Rules and section numbers are those of RFC 9113.
Always true: as of `UnaryConnection`; messages leave whole and in the order of `send`; `unsent_bytes` counts all bytes
of messages that are still kept.
"""

from __future__ import annotations

from collections import deque

from evenq.wire.http2 import frames as f
from evenq.wire.http2.streaming import StreamConnection
from evenq.wire.http2.unary import PREFIX_BYTES


class DuplexConnection(StreamConnection):
    """The client's side. `messages` holds received messages that were not taken."""

    unsent_bytes = 0
    """Bytes of messages and their prefixes that wait for the server's windows."""

    def open(self, headers: f.EncodedHeaders) -> None:
        """Begins the call, after the server's SETTINGS; once per connection."""
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
        """Adds a message; `take` returns as much as the windows allow, the rest later. Does nothing after the end."""
        if not self.running:
            return
        prefix = len(message).to_bytes(PREFIX_BYTES, "big")
        self._unsent.append(memoryview(prefix))
        if message:
            self._unsent.append(memoryview(message))
        self.unsent_bytes += PREFIX_BYTES + len(message)
        self._fill()

    def take_parts(self) -> list[bytes | memoryview]:
        """Returns the output, as `take`, in parts that are not joined."""
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
        """Moves the next `size` waiting bytes to the output."""
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
        """Ends the call with this status. The connection is closed, which replaces a reset of the stream."""
        del ended
        self.status, self.details = status, details
        self._end()

    def _end(self) -> None:
        super()._end()
        self.leaving = True
        self._unsent.clear()
        self.unsent_bytes = 0
