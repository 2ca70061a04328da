"""One stream: its open sides, its windows, and the data that waits for the peer's window.

Made by `evenq.serving.http2.connection` for each request. Two flags are the states of RFC 9113 5.1: open is `receiving`
and `sending`, half-closed (remote) is `sending` alone, half-closed (local) `receiving` alone. A closed stream is in no
table. Always true: `queued_bytes` is the sum of `queue`, and a stream that ends has sent all of it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from evenq.wire.http2.frames import EncodedHeaders


class Http2Stream:
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
        self.receiving = True  # the peer has not ended its side
        self.sending = True  # we have not ended our side
        self.send_window = send_window
        self.receive_left = receive_left
        self.unannounced = 0  # consumed bytes that no WINDOW_UPDATE gave back
        self.content_left: int | None = None  # missing bytes of `content-length`
        self.queue: deque[bytes | memoryview] | None = None
        """Made for the first waiting bytes: an empty deque is as large as all other fields of a stream together."""
        self.queued_bytes = 0
        self.ending: EncodedHeaders | None = None  # trailers, once all data before them is in the queue
        self.since_ms = now_ms  # begin of the request, or of the current incoming message
        self.moved_ms = now_ms  # time of the last progress: bytes left the queue, or entered an empty one
        self.call: Any = None  # object of the layer above, until it ends

    @property
    def id_bytes(self) -> bytes:
        """Stream id as in a frame's header."""
        return self.id.to_bytes(4, "big")
