"""One stream: which sides are open, its windows, and what waits for the peer's window.

Made by `evenq.serving.http2.connection` for each request; the states of RFC 9113 5.1 are its two flags: open is
`receiving and sending`, half-closed (remote) is `sending` alone, half-closed (local) `receiving` alone; a closed stream
is in no table. Always true: `queued_bytes` is the sum of `queue`, and a stream that ends has sent all of it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from evenq.wire.http2.frames import EncodedHeaders

__all__ = ["Http2Stream"]


class Http2Stream:
    """One stream that is not closed."""

    __slots__ = (
        "call",
        "content_left",
        "ending",
        "id",
        "moved_ms",
        "queue",
        "queued_bytes",
        "receive_left",
        "receiving",
        "send_window",
        "sending",
        "since_ms",
        "unannounced",
    )

    def __init__(self, stream_id: int, *, send_window: int, receive_left: int, now_ms: int) -> None:
        self.id = stream_id
        self.receiving = True
        """The peer has not ended its side."""
        self.sending = True
        """We have not ended ours."""
        self.send_window = send_window
        self.receive_left = receive_left
        self.unannounced = 0
        """Bytes that were consumed and that no WINDOW_UPDATE gave back yet."""
        self.content_left: int | None = None
        """Bytes that `content-length` still promises."""
        self.queue: deque[bytes | memoryview] | None = None
        """Made for the first bytes that wait: an empty deque has as many bytes as all of a stream's other fields."""
        self.queued_bytes = 0
        self.ending: EncodedHeaders | None = None
        """Trailers, once everything before them is in the queue."""
        self.since_ms = now_ms
        """When the request, or the message that comes in, began."""
        self.moved_ms = now_ms
        """When bytes of the queue were sent last, or the first was put into an empty one."""
        self.call: Any = None
        """What the layer above keeps with it, until it is over."""

    @property
    def id_bytes(self) -> bytes:
        """As it stands in a frame's header."""
        return self.id.to_bytes(4, "big")
