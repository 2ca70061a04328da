"""Message ids seen lately: a producer's retry is recognized (wire contract 3.7, checklist 20).

Pure. One dict in the order of its coming; an entry is the object that is being stored, then what was answered for it,
or None after a failure. Entries leave by age, in steps of `tick`, or when there are too many, the oldest first. A key
is topic, message id and the first digits of the body's digest, so that an id used twice by mistake loses nothing.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

__all__ = ["QUEUE_BITS", "Answer", "Key", "RecentMessages", "key_of", "pack_place", "topic_of", "unpack_place"]

Key = bytes
"""Message id, first digits of the body's digest, topic id: one string of bytes, which the collector need not look at.
"""
Answer = int | bytes
"""Where the message is (`pack_place`), or the encoded answer of a message that is in no queue yet."""

QUEUE_BITS = 32  # lite topics have numbers from 1 << 20 on
_TOPIC_BYTES = 4
_SWEEP_SHARE = 64  # of the most entries, forgotten in one go when there are too many


def key_of(message_id: bytes, digest: bytes, topic_id: int) -> Key:
    """The name of a message in the window."""
    return message_id + digest + topic_id.to_bytes(_TOPIC_BYTES, "big")


def topic_of(key: Key) -> int:
    """The id of its topic."""
    return int.from_bytes(key[-_TOPIC_BYTES:], "big")


def pack_place(queue_id: int, offset: int) -> int:
    """Queue and offset as one number: little memory for each message."""
    return offset << QUEUE_BITS | queue_id


def unpack_place(packed: int) -> tuple[int, int]:
    """Queue and offset."""
    return packed & (1 << QUEUE_BITS) - 1, packed >> QUEUE_BITS


class RecentMessages:
    """The window: at most `count_max` messages, each for about `window_ms`."""

    __slots__ = ("_count_max", "_forgotten", "_marks", "_window_ms", "entries")

    def __init__(self, *, window_ms: int, count_max: int) -> None:
        self.entries: dict[Key, object] = {}
        self._window_ms = window_ms
        self._count_max = count_max
        self._marks: deque[tuple[int, int]] = deque()
        """Time, and how many entries there had ever been by then."""
        self._forgotten = 0

    def __len__(self) -> int:
        return len(self.entries)

    def claim(self, key: Key, stored: object) -> object:
        """`stored` itself if the caller is to store it now; else what is known: the object that is being stored by
        another call, or an `Answer`.
        """
        if len(self.entries) >= self._count_max:
            self.make_room()
        known = self.entries.setdefault(key, stored)
        if known is None:  # its first try failed
            self.entries[key] = stored
            return stored
        return known

    def kept(self, key: Key, result: Answer) -> None:
        """It is stored; its retries get this answer."""
        self.entries[key] = result

    def failed(self, key: Key) -> None:
        """It is not stored; a retry will be."""
        self.entries[key] = None

    def make_room(self) -> None:
        """Forget some of the oldest: there are as many as may be."""
        self._forget(max(1, self._count_max // _SWEEP_SHARE))

    def tick(self, now_ms: int) -> None:
        """Forget what came more than a window ago. `now_ms`: any clock that only goes on."""
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
