"""A connection for calls from threads whose answers are many messages; `blocking_socket` is for single answers.

Used by the Spark source, whose workers do nothing else while they read (decision 49). The thread that takes the
messages reads the socket. Nothing is prefetched: data waits in the kernel's buffers, up to the windows of `CallLimits`.
Always true: as for `BlockingSocket`; the memory of a message is used again after the next message is requested, unless
the caller still holds a view of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from evenq.wire.blocking_socket import BlockingSocket, Lost
from evenq.wire.http2.frames import EncodedHeaders
from evenq.wire.http2.streaming import StreamConnection
from evenq.wire.http2.unary import UnaryConnection


class StreamSocket(BlockingSocket):
    """A connection whose handshake is complete; for one stream after another."""

    __slots__ = ("streaming",)

    def _new_core(self) -> UnaryConnection:
        self.streaming = StreamConnection()
        return self.streaming

    def messages(
        self, headers: EncodedHeaders, request: bytes, *, timeout_ms: int, until_ms: int
    ) -> Iterator[memoryview]:
        """Makes one call and returns its messages as they arrive; its outcome is in `core`.

        The connection is unusable after TimeoutError, Lost or ConnectionFault, or if messages were left unread.
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
                    # The stream has ended, so the server needs no more; the connection takes no other call.
                    core.leaving = True
            while core.messages:
                yield core.messages.popleft()
