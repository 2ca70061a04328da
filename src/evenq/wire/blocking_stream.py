"""A connection for calls from threads whose answers are many messages: the twin of `blocking_socket` for streams.

Used by the Spark source, whose workers do nothing else while they read (decision 49). The thread that takes the
messages reads the socket, so no thread fetches ahead: what the server sends meanwhile waits in the kernel's buffers, up
to the windows of `CallLimits`. Always true: as of `BlockingSocket`; a message may be looked at until the next one is
asked for, or longer if a caller still holds a view of it: then its memory is not used again.
"""

from __future__ import annotations

from collections.abc import Iterator

from evenq.wire.blocking_socket import BlockingSocket, Lost
from evenq.wire.http2.calling import Calling
from evenq.wire.http2.frames import EncodedHeaders
from evenq.wire.http2.streaming import Streaming

__all__ = ["StreamSocket"]


class StreamSocket(BlockingSocket):
    """A connection that greeted; for one stream after another."""

    __slots__ = ("streaming",)

    def _new_core(self) -> Calling:
        self.streaming = Streaming()
        return self.streaming

    def messages(
        self, headers: EncodedHeaders, request: bytes, *, timeout_ms: int, until_ms: int
    ) -> Iterator[memoryview]:
        """Make one call: its messages as they come. How it ended is in `core`. Raises TimeoutError, Lost and
        ConnectionFault; the connection is of no more use then, nor if not all was taken.
        """
        core = self.streaming
        self._arm(timeout_ms)
        self._write(core.begin(headers, request), until_ms)
        while core.running:
            self._arm_what_is_left(until_ms)
            if self._cipher is None:
                core.received(self._receive_into(core.room()))
            else:
                core.feed(self._read())
            output = core.take()
            if output:
                try:
                    self._write(output, until_ms)
                except Lost:
                    if core.running:
                        raise
                    # The stream has ended, so what was not written is not missed; the connection takes no other call.
                    core.leaving = True
            while core.messages:
                yield core.messages.popleft()
