"""A request that is no gRPC: read to its end, so that what is wrong with it is seen, and answered in text.

Stands where a `Call` would, for browsers, health checks and clients of HTTP that found the wrong port.
"""

from __future__ import annotations

from collections.abc import Callable

from evenq.serving.http2.messages import plain
from evenq.serving.http2.sending import StreamSender
from evenq.serving.http2.streams import Http2Stream
from evenq.wire.http2 import frames as f
from evenq.wire.http2.codes import ErrorCode

__all__ = ["PlainRequest"]

NOT_GRPC = b"This port speaks gRPC.\n"


class PlainRequest:
    """A request that is no gRPC: read to its end, so that what is wrong with it is seen, and answered in text."""

    __slots__ = ("_core", "_status", "_stream", "_touch")

    postponed = False

    def __init__(self, core: StreamSender, touch: Callable[[], None], stream: Http2Stream, http_status: int) -> None:
        """`touch`: called when there is output in `core`."""
        self._core, self._touch, self._stream, self._status = core, touch, stream, http_status

    def receive(self, data: bytes, *, ended: bool) -> None:
        core = self._core
        if not ended:
            core.consumed(self._stream, len(data))
            return
        core.send_headers(self._stream, plain(self._status))
        core.send_data(self._stream, NOT_GRPC)
        core.send_end(self._stream, f.END_OF_DATA)
        self._stream.call = None
        self._touch()

    @property
    def waits_since_ms(self) -> int:
        return self._stream.since_ms

    def end(self, _code: int, _message: str = "") -> None:
        self._core.reset(self._stream, ErrorCode.CANCEL)

    def abandon(self, _code: ErrorCode = ErrorCode.CANCEL) -> None:
        pass
