"""One message of a local queue, as it is sent, kept and delivered.

A recent message is the same object for the producer and the consumers, so it must not change after it is stored.
"""

from __future__ import annotations

from evenq.local import pairs

Queue = tuple[str, int]
"""(topic or queue name, queue id)."""
OVERHEAD_BYTES = 160
"""Approximate size of the object without its bytes."""


class Message:
    """A message. `offset` counts within its queue from 0. `store_offset` is its first byte in the engine's files, -1 in
    the memory engine. `stored_ms` is wall time, ms since the epoch. All three are -1 before it is stored (LQ-25).
    """

    __slots__ = (
        "body",
        "name",
        "offset",
        "packed_headers",
        "packed_properties",
        "queue_id",
        "store_offset",
        "stored_ms",
    )

    def __init__(self, name: str, queue_id: int, body: bytes, headers: bytes = b"", properties: bytes = b"") -> None:
        self.name = name
        self.queue_id = queue_id
        self.body = body
        self.packed_headers = headers
        self.packed_properties = properties
        self.offset = -1
        self.store_offset = -1
        self.stored_ms = -1

    @property
    def headers(self) -> dict[str, str]:
        """Pairs for the software between producer and consumer."""
        return pairs.decode(self.packed_headers)

    @property
    def properties(self) -> dict[str, str]:
        """Pairs of the user."""
        return pairs.decode(self.packed_properties)

    @property
    def memory_bytes(self) -> int:
        """Approximate size in memory."""
        return OVERHEAD_BYTES + len(self.body) + len(self.packed_headers) + len(self.packed_properties)

    def __repr__(self) -> str:
        return f"Message({self.name!r}, queue {self.queue_id}, offset {self.offset}, {len(self.body)} bytes)"
