"""Sources of due timers: tables in memory and runs on disk, each with its keys in order of due time.

Both have `gone` while a job copies them to a run: timers taken since then must not be taken again from the copy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection
from heapq import heapify, heappop, heappush

from evenq.store.timers.keys import id_of
from evenq.store.timers.runs import BLOCK_ENTRIES, RunFile

DEAD_MIN = 1_024  # ended entries that a heap may have beside the pending ones before it is rebuilt


class EndedTimers(set[int]):
    """Ids of ended timers whose dead entry is still in some run. `watches` are sets that get each id that leaves: a
    search that read the entry before cannot learn from this set that it is dead.
    """

    __slots__ = ("watches",)

    def __init__(self) -> None:
        super().__init__()
        self.watches: list[set[int]] = []

    def forget(self, timer_ids: Collection[int]) -> None:
        """Removes ids whose dead entry was passed, or left out of a new run."""
        for watch in self.watches:
            watch.update(timer_ids)
        self.difference_update(timer_ids)


_NOTHING_ENDED = EndedTimers()


class Source(ABC):
    """A source of keys, with a first one."""

    __slots__ = ("gone",)

    def __init__(self) -> None:
        self.gone: set[int] | None = None
        """Timers taken from here since a job began to copy it; None without one."""

    @abstractmethod
    def head(self, ended: EndedTimers) -> bytes | None:
        """Returns the first key in memory that is pending; drops ended ones before it."""

    @abstractmethod
    def pop(self) -> bytes:
        """Removes the key that `head` returned."""

    @abstractmethod
    def due_head(self) -> bytes | None:
        """Returns a key that is not after any pending one here, in memory or not."""


class TimerTable(Source):
    """Timers in memory, found by id and taken in order."""

    __slots__ = ("_heap", "live")

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, bytes] = {}
        self._heap: list[bytes] = []

    def put(self, timer_id: int, key: bytes) -> None:
        self.live[timer_id] = key
        heappush(self._heap, key)

    def end(self, timer_id: int) -> bool:
        """Removes a timer by its id; False if it is not here."""
        if self.live.pop(timer_id, None) is None:
            return False
        if self.gone is not None:
            self.gone.add(timer_id)
        if len(self._heap) > 2 * len(self.live) + DEAD_MIN:
            self._heap = list(self.live.values())
            heapify(self._heap)
        return True

    def head(self, ended: EndedTimers) -> bytes | None:  # noqa: ARG002  # entries that ended are gone from `live`
        heap, live = self._heap, self.live
        while heap:
            key = heap[0]
            if live.get(id_of(key)) == key:
                return key
            heappop(heap)
        return None

    def pop(self) -> bytes:
        key = heappop(self._heap)
        timer_id = id_of(key)
        del self.live[timer_id]
        if self.gone is not None:
            self.gone.add(timer_id)
        return key

    def due_head(self) -> bytes | None:
        return self.head(_NOTHING_ENDED)


class TimerRun(Source):
    """A run file, how far it is used up, and the keys read ahead."""

    __slots__ = ("ahead", "file", "loaded", "reading", "used")

    def __init__(self, file: RunFile, used: int = 0, ahead: list[bytes] | None = None) -> None:
        super().__init__()
        self.file = file
        self.used = used
        """Entries taken or dropped, from the start of the file."""
        self.ahead: deque[bytes] = deque(ahead or ())
        self.loaded = used + len(self.ahead)
        """Entries used or in memory; later ones are only in the file."""
        self.reading = False

    @property
    def left(self) -> int:
        """Entries that are not used up, ended ones included."""
        return self.file.count - self.used

    def head(self, ended: EndedTimers) -> bytes | None:
        ahead = self.ahead
        while ahead:
            key = ahead[0]
            if not ended:
                return key
            timer_id = id_of(key)
            if timer_id not in ended:
                return key
            ended.forget((timer_id,))
            self.pop()
        return None

    def pop(self) -> bytes:
        key = self.ahead.popleft()
        self.used += 1
        if self.gone is not None:
            self.gone.add(id_of(key))
        return key

    def due_head(self) -> bytes | None:
        if self.ahead:
            return self.ahead[0]
        return self.file.firsts[self.loaded // BLOCK_ENTRIES] if self.loaded < self.file.count else None

    def read_on(self, start: int, keys: list[bytes]) -> None:
        """Adds what was read from entry `start` on, the first of a block."""
        self.reading = False
        self.ahead.extend(keys[self.loaded - start :])
        self.loaded = start + len(keys)
