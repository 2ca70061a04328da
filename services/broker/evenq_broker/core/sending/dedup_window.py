"""Window of recent message ids, by which a producer's retry is recognized (wire contract 3.7, checklist 20).

Pure. One dict in the order of arrival. An entry is the object that is being stored, then the answer for it, or None
after a failure. Entries leave by age, in steps of `tick`, or when there are too many, the oldest first. A key has
topic, message id and the CRC32 of the body, so that an id used twice by mistake loses nothing.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

Key = bytes
"""Message id, CRC32 of the body in hexadecimal, topic id: one string of bytes, cheap for the garbage collector."""
Answer = int | bytes
"""Place of the message (`pack_place`), or the encoded answer for a message that is in no queue yet."""

QUEUE_BITS = 32  # lite topics have numbers from 1 << 20 on
_TOPIC_BYTES = 4
_SWEEP_SHARE = 64  # share of the entries that is forgotten when there are too many


def key_of(message_id: bytes, mark: bytes, topic_id: int) -> Key:
    """`mark`: see `core.sending.body_digest`."""
    return message_id + mark + topic_id.to_bytes(_TOPIC_BYTES, "big")


def topic_of(key: Key) -> int:
    return int.from_bytes(key[-_TOPIC_BYTES:], "big")


def pack_place(queue_id: int, offset: int) -> int:
    """Returns queue and offset as one number, which takes little memory."""
    return offset << QUEUE_BITS | queue_id


def unpack_place(packed: int) -> tuple[int, int]:
    return packed & (1 << QUEUE_BITS) - 1, packed >> QUEUE_BITS


class RecentMessages:
    """The window: at most `count_max` messages, each for about `window_ms`."""

    __slots__ = ("_count_max", "_forgotten", "_marks", "_window_ms", "entries")

    def __init__(self, *, window_ms: int, count_max: int) -> None:
        self.entries: dict[Key, object] = {}
        self._window_ms = window_ms
        self._count_max = count_max
        self._marks: deque[tuple[int, int]] = deque()  # Time, and the number of entries ever made by then
        self._forgotten = 0

    def __len__(self) -> int:
        return len(self.entries)

    def claim(self, key: Key, stored: object) -> object:
        """Returns `stored` itself if the caller must store it now, otherwise what is known: the object that another
        call is storing, or an `Answer`.
        """
        if len(self.entries) >= self._count_max:
            self.make_room()
        known = self.entries.setdefault(key, stored)
        if known is None:  # its first try failed
            self.entries[key] = stored
            return stored
        return known

    def kept(self, key: Key, result: Answer) -> None:
        """Notes that it is stored; its retries get this answer."""
        self.entries[key] = result

    def failed(self, key: Key) -> None:
        """Notes that it is not stored; a retry will be."""
        self.entries[key] = None

    def make_room(self) -> None:
        """Forgets some of the oldest entries, because there are too many."""
        self._forget(max(1, self._count_max // _SWEEP_SHARE))

    def tick(self, now_ms: int) -> None:
        """Forgets what came more than a window ago. `now_ms`: any clock that only goes forward."""
        marks, until = self._marks, 0
        while marks and marks[0][0] <= now_ms - self._window_ms:
            until = marks.popleft()[1]
        if until > self._forgotten:
            self._forget(until - self._forgotten)
        marks.append((now_ms, self._forgotten + len(self.entries)))

    def _forget(self, count: int) -> None:
        oldest = list(islice(self.entries, count))
        for key in oldest:
            del self.entries[key]
        self._forgotten += len(oldest)
