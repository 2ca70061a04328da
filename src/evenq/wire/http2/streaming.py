"""One HTTP/2 connection of a client that receives answers of many messages, without I/O and without a clock.

`UnaryConnection` with one addition: `room` returns the memory for the server's next bytes, and `received` reports how
many were written there. So a message is received without a copy. `feed` does the same for bytes that already are in
memory, such as decrypted ones. `messages` holds the complete ones. Used by `evenq.wire.blocking_stream`.
Always true: within a message at most the next frame's header is requested beyond the current frame; the memory of a
message is used again only when no view of it exists.
"""

from __future__ import annotations

from collections import deque

from evenq.wire.http2 import frames as f
from evenq.wire.http2.answers import AnswerHead
from evenq.wire.http2.codes import ConnectionFault, ErrorCode, Status
from evenq.wire.http2.unary import PREFIX_BYTES, CallLimits, UnaryConnection

ROOMS_MAX = 3  # buffers that are kept for further messages
ROOM_BYTES_MAX = 4 << 20  # longer messages get memory that is not used again


class StreamConnection(UnaryConnection):
    """The client's side. While `running`, read into `room()`."""

    def __init__(self, limits: CallLimits | None = None) -> None:
        super().__init__(limits or CallLimits())
        self.messages: deque[memoryview] = deque()  # complete messages that were not taken
        self._header = memoryview(bytearray(f.HEADER_BYTES))
        self._prefix = memoryview(bytearray(PREFIX_BYTES))
        self._small: memoryview | None = None
        """A whole frame other than plain DATA of our call, as far as it arrived."""
        self._have = 0  # received bytes of the header, or of `_small`
        self._data_left = 0  # missing bytes of a DATA frame
        self._data_ends = False
        self._prefix_have = 0
        self._message: memoryview | None = None  # the message that is being read, at its full length
        self._message_have = 0
        self._rooms: list[bytearray] = []

    def begin(self, headers: f.EncodedHeaders, message: bytes) -> bytes:
        """Opens a call; returns its first output."""
        self.messages.clear()
        self._message, self._prefix_have = None, 0
        output = super().begin(headers, message)
        early, self._rest = self._rest, b""
        if early:  # part of a frame that came between two calls
            self.feed(early)
            output += self.take()
        return output

    # ------------------------------------------------------------------------------------------------------- input

    def room(self) -> list[memoryview]:
        """Returns the buffers for the server's next bytes, at least one."""
        left, message = self._data_left, self._message
        if not left:
            return [(self._header if self._small is None else self._small)[self._have :]]
        if message is None:
            return [self._prefix[self._prefix_have : self._prefix_have + left]]
        part = message[self._message_have : self._message_have + left]
        if left < len(message) - self._message_have:  # the message continues, so another frame must follow
            return [part, self._header]
        return [part]

    def received(self, size: int) -> bool:
        """Reports `size` bytes written into `room()`; True: the call has ended. Raises ConnectionFault."""
        left, message = self._data_left, self._message
        if left:
            missing = PREFIX_BYTES - self._prefix_have if message is None else len(message) - self._message_have
            taken = min(size, left, missing)
            self._data_left = left - taken
            if message is None:
                self._prefix_have += taken
                self._begin_message()
            else:
                self._message_have += taken
                self._end_message()
            size -= taken
            if self._data_left or self._end_of_data() or not size:
                return not self.running
        self._have += size
        if self._small is not None:
            if self._have == len(self._small):
                whole, self._small, self._have = bytes(self._small), None, 0
                self.receive(whole)
        elif self._have == f.HEADER_BYTES:
            self._have = 0
            self._on_header()
        return not self.running

    def feed(self, data: bytes) -> bool:
        """Works as `received`, for bytes that are elsewhere in memory."""
        view, position = memoryview(data), 0
        while position < len(view):
            if not self.running:
                self._rest = bytes(view[position:])
                break
            size = 0
            for part in self.room():
                piece = view[position + size : position + size + len(part)]
                part[: len(piece)] = piece
                size += len(piece)
            self.received(size)
            position += size
        return not self.running

    def _on_header(self) -> None:
        high, low, kind, flags, stream_id = f.HEADER.unpack(self._header)
        length = high << 8 | low
        if length > self.limits.frame_bytes_max:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a frame has over {self.limits.frame_bytes_max} bytes")
        plain = kind == f.DATA and not flags & f.PADDED and stream_id == self._stream_id
        if plain and length and self.running and self._head is not None and not self._block_stream:
            self._data_ends = bool(flags & f.END_STREAM)
            self.count_data(stream_id, length, ended=self._data_ends)
            self._data_left = length
        elif length:
            self._small = memoryview(bytearray(f.HEADER_BYTES + length))
            self._small[: f.HEADER_BYTES], self._have = self._header, f.HEADER_BYTES
        else:
            self.receive(bytes(self._header))

    def _end_of_data(self) -> bool:
        if self._data_ends and self.running:
            self._stop(Status.UNKNOWN, "the answer ends without a status", ended=True)
        return not self.running

    # ---------------------------------------------------------------------------------------------------- messages

    def _begin_message(self) -> None:
        if self._prefix_have < PREFIX_BYTES:
            return
        flag, size = self._prefix[0], int.from_bytes(self._prefix[1:], "big")
        if flag:
            self._stop(Status.INTERNAL, f"the answer has the flag {flag}; compression was not requested")
        elif size > self.limits.answer_bytes_max:
            words = f"a message has {size} bytes, more than the {self.limits.answer_bytes_max} that are allowed"
            self._stop(Status.INTERNAL, words)
        else:
            self._message, self._message_have = self._memory(size), 0
            self._end_message()

    def _end_message(self) -> None:
        message = self._message
        if message is not None and self._message_have == len(message):
            self.messages.append(message)
            self._message, self._prefix_have = None, 0

    def _memory(self, size: int) -> memoryview:
        if size > ROOM_BYTES_MAX:
            return memoryview(bytearray(size))
        for room in self._rooms:
            if len(room) >= size:
                try:
                    room.append(0)  # raises BufferError while a view exists
                except BufferError:
                    continue
                room.pop()
                return memoryview(room)[:size]
        made = bytearray(min(size + (size >> 3), ROOM_BYTES_MAX))
        # An eighth more: the next block of a scan is seldom exactly as long, and then fits.
        self._rooms = [*self._rooms[-ROOMS_MAX + 1 :], made]
        return memoryview(made)[:size]

    def _look_at_body(self) -> None:
        """Reads DATA that arrived as a small, padded frame."""
        data, self._body = memoryview(self._body), b""
        while data and self.running:
            if self._message is None:
                size = min(len(data), PREFIX_BYTES - self._prefix_have)
                self._prefix[self._prefix_have : self._prefix_have + size] = data[:size]
                self._prefix_have += size
                self._begin_message()
            else:
                size = min(len(data), len(self._message) - self._message_have)
                self._message[self._message_have : self._message_have + size] = data[:size]
                self._message_have += size
                self._end_message()
            data = data[size:]

    # --------------------------------------------------------------------------------------------------------- end

    def _finish(self, head: AnswerHead) -> None:
        if head.status is None:
            self._stop(Status.UNKNOWN, "the answer ends without a status", ended=True)
            return
        self.status, self.details, self.trailers = head.status, head.message, head.metadata
        if not head.status and (self._prefix_have or self._message is not None):
            self._stop(Status.INTERNAL, "the answer ends within a message", ended=True)
            return
        self._stop(self.status, self.details, ended=True)

    def _end(self) -> None:
        super()._end()
        if self._data_left or self._have:  # the rest of a frame remains unread
            self.leaving = True
        self._data_left, self._message, self._small = 0, None, None
