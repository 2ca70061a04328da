"""What is done for clients that are not closed when their process ends.

A producer may have messages that nobody has acknowledged yet. Those of the sync face are waited for, as the loop of
`loops.background` still runs then; a loop of the user's is over, so of the asyncio face only the number is logged.
A forked child ends without its parent's clients.
"""

from __future__ import annotations

import atexit
import os
from typing import Protocol
from weakref import WeakSet

from evenq.runtime.clock import SystemClock

__all__ = ["EXIT_MS", "EndsWithProcess", "Exits"]

EXIT_MS = 10_000
"""Longest wait at the end of the process, for all clients together."""


class EndsWithProcess(Protocol):
    """A client that has something to do when its process ends."""

    def end_with_process(self, timeout_ms: int) -> None:
        """Take `timeout_ms` at most; raise nothing."""


class Exits:
    """Clients of one face, as long as they live."""

    def __init__(self) -> None:
        self._clients: WeakSet[EndsWithProcess] = WeakSet()
        self._process_id = os.getpid()

    @classmethod
    def registered(cls) -> Exits:
        """One that is called at the end of the process."""
        exits = cls()
        atexit.register(exits.end)
        return exits

    def add(self, client: EndsWithProcess) -> None:
        """Call its `end_with_process` when the process ends."""
        if self._process_id != os.getpid():
            self._clients, self._process_id = WeakSet(), os.getpid()
        self._clients.add(client)

    def end(self) -> None:
        """The process ends: one client after the other, within `EXIT_MS`."""
        if self._process_id != os.getpid():
            return
        clock = SystemClock()
        end_ms = clock.monotonic_ms() + EXIT_MS
        for client in list(self._clients):
            client.end_with_process(max(0, end_ms - clock.monotonic_ms()))
