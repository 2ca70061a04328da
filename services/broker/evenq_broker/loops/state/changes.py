"""What parts of one broker tell each other of what changed: topics, groups and members here, routes of the cluster.

Who changes something says so; who must know registers at the start. So neither has to know the other, and the order of
the listeners is the order of their registration (`broker.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from evenq_broker.loops.state.signals import Signal

__all__ = ["Changes"]


class Changes:
    """What changed at one broker, for those that wait for changes."""

    def __init__(self) -> None:
        self.facts = Signal()
        """Counts changes of topics, groups and members here."""
        self.routes = Signal()
        """Counts changes of the route table."""
        self._fact_listeners: list[Callable[[str, str], None]] = []
        self._route_listeners: list[Callable[[Collection[str]], None]] = []

    def on_facts(self, listener: Callable[[str, str], None]) -> None:
        """Call `listener(group, topic)` at each `facts_changed`; an empty name: not that."""
        self._fact_listeners.append(listener)

    def on_routes(self, listener: Callable[[Collection[str]], None]) -> None:
        """Call `listener(topics)` when these topics have another route than before."""
        self._route_listeners.append(listener)

    def facts_changed(self, *, group: str = "", topic: str = "") -> None:
        """This topic, or this group or its members, changed here; neither named: anything may have. Whoever should know
        is answered at once.
        """
        for listener in self._fact_listeners:
            listener(group, topic)

    def routes_changed(self, topics: Collection[str]) -> None:
        """The route table may have changed, and that of these topics has."""
        self.routes.notify()
        if topics:
            for listener in self._route_listeners:
                listener(topics)
