"""The last written groups, as they lie in the log, for the copies that wait for them.

A leader sends each group to its followers as soon as it is written. Reading it back from its file costs a turn of a
thread and a task, so small ones are kept for a moment. `Appender` fills it, `LeaderSide.recent` reads it. Always true:
it returns whole groups, byte for byte as they were written, and keeps at most `KEPT_BYTES`. On the loop only.
"""

from __future__ import annotations

from collections import deque

from evenq.store.log.writer import WriteBatch

GROUP_BYTES_MAX = 64 << 10
"""A longer group is read from its file: its bytes dominate the cost."""
KEPT_BYTES = 256 << 10


class RecentGroups:
    """The last groups, which follow each other without a gap."""

    def __init__(self) -> None:
        self._groups: deque[tuple[int, bytes]] = deque()
        """Log offset and bytes of each."""
        self._end = -1
        """Log offset after the last one."""
        self.bytes = 0

    def keep(self, batch: WriteBatch) -> None:
        """Keeps a written group if it is one piece of one file: there, log offsets count bytes."""
        # A group comes when it was written, and once more when it was synced.
        if batch.end == self._end:
            return
        runs, size = batch.runs, batch.bytes
        whole = len(runs) == 1 and not runs[0].seals and size <= GROUP_BYTES_MAX
        if not whole or runs[0].start + runs[0].position != batch.start or sum(map(len, runs[0].parts)) != size:
            self.clear()
            return
        if batch.start != self._end:
            self.clear()
        self._groups.append((batch.start, b"".join(runs[0].parts)))
        self._end, self.bytes = batch.end, self.bytes + size
        while self.bytes > KEPT_BYTES:
            self.bytes -= len(self._groups.popleft()[1])

    def read(self, start: int, end: int) -> bytes | None:
        """Returns the log from `start` to `end`, both between groups; None if not all of it is kept."""
        if end != self._end:
            return None
        found: list[bytes] = []
        for begin, data in reversed(self._groups):
            if begin < start:
                return None
            found.append(data)
            if begin == start:
                return found[0] if len(found) == 1 else b"".join(reversed(found))
        return None

    def clear(self) -> None:
        self._groups.clear()
        self._end, self.bytes = -1, 0
