"""Waits for a change with a limit, on the program's own clock.

A `Signal` counts changes; a loop remembers the count that it has seen and waits for a greater one. Many changes between
two checks are one wake-up, so a slow loop never gets a backlog.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from evenq.runtime.clock import Clock
from evenq.runtime.tasks import done_within


class Signal:
    """A counter that loops can wait on."""

    def __init__(self) -> None:
        self.count = 0
        """Grows with each change."""
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Counts a change and wakes all waiting loops."""
        self.count += 1
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seen: int, *, clock: Clock, timeout_ms: float | None = None) -> bool:
        """Waits for a count beyond `seen`; False after `timeout_ms`."""
        if self.count > seen:
            return True
        event = self._event
        if timeout_ms is None:
            await event.wait()
            return True
        await done_within(asyncio.ensure_future(event.wait()), timeout_ms, clock=clock)
        return self.count > seen


class Changes:
    """Notifications between parts of one broker: changed topics, groups and members here, changed routes of the
    cluster.

    Sender and listener do not know each other. Listeners register at the start and are called in the order of their
    registration (`broker.py`).
    """

    def __init__(self) -> None:
        self.facts = Signal()
        """Counts changes of topics, groups and members here."""
        self.routes = Signal()
        """Counts changes of the route table."""
        self._fact_listeners: list[Callable[[str, str], None]] = []
        self._route_listeners: list[Callable[[Collection[str]], None]] = []

    def on_facts(self, listener: Callable[[str, str], None]) -> None:
        """Calls `listener(group, topic)` at each `facts_changed`; an empty name: not that."""
        self._fact_listeners.append(listener)

    def on_routes(self, listener: Callable[[Collection[str]], None]) -> None:
        """Calls `listener(topics)` when these topics have another route than before."""
        self._route_listeners.append(listener)

    def facts_changed(self, *, group: str = "", topic: str = "") -> None:
        """Notifies listeners of a changed topic or group; neither named: anything may have changed."""
        for listener in self._fact_listeners:
            listener(group, topic)

    def routes_changed(self, topics: Collection[str]) -> None:
        """Notifies listeners that these topics have another route; without topics, the table may have changed."""
        self.routes.notify()
        if topics:
            for listener in self._route_listeners:
                listener(topics)
