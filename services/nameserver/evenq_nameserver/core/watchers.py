"""Watches of routes, with a bounded number of events that wait for each.

An event is encoded once for all. If the events of a watcher reach `behind_max`, they are dropped and its watch ends
with an error. The watcher opens a new watch, which begins with a snapshot, so it misses no change.
"""

from __future__ import annotations

from collections import deque

from evenq.errors import TooManyRequests


class RouteWatcher:
    """One watch; `pending` are encoded events in order."""

    __slots__ = ("cut_off", "name", "pending")

    def __init__(self, name: str) -> None:
        self.name = name
        self.pending: deque[bytes] = deque()
        self.cut_off = False


class Watchers:
    def __init__(self, *, watchers_max: int, behind_max: int) -> None:
        self._watchers_max = watchers_max
        self._behind_max = behind_max
        self._watchers: dict[int, RouteWatcher] = {}
        self.cut_off_count = 0

    def __len__(self) -> int:
        return len(self._watchers)

    def join(self, name: str) -> RouteWatcher:
        """Opens a watch. Raises TooManyRequests if there are `watchers_max`."""
        if len(self._watchers) >= self._watchers_max:
            raise TooManyRequests(
                f"{self._watchers_max} watches of routes are open, the maximum; watch another nameserver, or poll"
            )
        watcher = RouteWatcher(name)
        self._watchers[id(watcher)] = watcher
        return watcher

    def leave(self, watcher: RouteWatcher) -> None:
        self._watchers.pop(id(watcher), None)

    def tell(self, event: bytes) -> list[RouteWatcher]:
        """Queues an event for all. Returns the watchers that are cut off by it."""
        slow = []
        for watcher in self._watchers.values():
            if len(watcher.pending) >= self._behind_max:
                watcher.cut_off = True
                watcher.pending.clear()
                slow.append(watcher)
            else:
                watcher.pending.append(event)
        for watcher in slow:
            self.leave(watcher)
        self.cut_off_count += len(slow)
        return slow
