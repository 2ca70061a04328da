"""Message ids in the format of the 5.x SDKs (wire contract 3.7): 34 upper-case hex digits.

`01`, MAC address (6 bytes), low 16 bits of the process id, seconds since 2021-01-01T00:00Z (4 bytes), counter (4
bytes). A process has one object, because only the counter distinguishes two ids of the same second. `next` is
thread-safe.
"""

from __future__ import annotations

from itertools import count

EPOCH_2021_MS = 1_609_459_200_000


class MessageIds:
    """Generator of ids that are unique in the process."""

    def __init__(self, *, mac: int, process_id: int) -> None:
        self._prefix = f"01{mac & 0xFFFFFFFFFFFF:012X}{process_id & 0xFFFF:04X}"
        self._count = count()

    def next(self, now_ms: int) -> str:
        """Returns a new id for a message made at `now_ms` (wall clock)."""
        seconds = ((now_ms - EPOCH_2021_MS) // 1000) & 0xFFFFFFFF
        return f"{self._prefix}{seconds:08X}{next(self._count) & 0xFFFFFFFF:08X}"
