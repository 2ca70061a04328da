"""Message ids as the 5.x SDKs make them (wire contract 3.7): 34 upper hex digits.

`01`, MAC address (6 bytes), low 16 bits of the process id, seconds since 2021-01-01T00:00Z (4 bytes), counter (4
bytes). One object per process, because the counter is what tells two ids of one second apart. `next` is safe from
several threads.
"""

from __future__ import annotations

from itertools import count

__all__ = ["MessageIds"]

EPOCH_2021_MS = 1_609_459_200_000


class MessageIds:
    """Makes ids; never the same twice in a process."""

    def __init__(self, *, mac: int, process_id: int) -> None:
        self._prefix = f"01{mac & 0xFFFFFFFFFFFF:012X}{process_id & 0xFFFF:04X}"
        self._count = count()

    def next(self, now_ms: int) -> str:
        """A new id, for a message made at `now_ms` (wall clock)."""
        seconds = ((now_ms - EPOCH_2021_MS) // 1000) & 0xFFFFFFFF
        return f"{self._prefix}{seconds:08X}{next(self._count) & 0xFFFFFFFF:08X}"
