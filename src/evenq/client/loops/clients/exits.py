"""The end of clients that are not closed when their process ends.

A producer may have messages without an acknowledgement. Those of the sync face are waited for, because the loop of
`loops.background` still runs then. The loop of an asyncio client has ended, so only the number of its messages is
logged. A forked child ends without its parent's clients.
"""

from __future__ import annotations

import atexit
import os
from typing import Protocol
from weakref import WeakSet

from evenq.runtime.clock import SystemClock

EXIT_MS = 10_000
"""Longest wait at the end of the process, for all clients together."""


class EndsWithProcess(Protocol):
    """A client with work left when its process ends."""

    def end_with_process(self, timeout_ms: int) -> None:
        """Ends the client within `timeout_ms`; raises nothing."""


class Exits:
    """The living clients of one face."""

    def __init__(self) -> None:
        self._clients: WeakSet[EndsWithProcess] = WeakSet()
        self._process_id = os.getpid()

    @classmethod
    def registered(cls) -> Exits:
        """Returns an object whose clients end with the process."""
        exits = cls()
        atexit.register(exits.end)
        return exits

    def add(self, client: EndsWithProcess) -> None:
        if self._process_id != os.getpid():
            self._clients, self._process_id = WeakSet(), os.getpid()
        self._clients.add(client)

    def end(self) -> None:
        """Ends one client after the other, within `EXIT_MS`."""
        if self._process_id != os.getpid():
            return
        clock = SystemClock()
        end_ms = clock.monotonic_ms() + EXIT_MS
        for client in list(self._clients):
            client.end_with_process(max(0, end_ms - clock.monotonic_ms()))
