"""Which topics a member reads in order: as its user says, or else those of type FIFO.

Asked by `loops.ownership` whenever a queue becomes the member's own. A FIFO topic promises the order of its message
groups, so a listener that runs for two messages of a queue at a time must be asked for, and is worth a warning.
"""

from __future__ import annotations

import logging

from evenq.client.loops.reading.read_plan import ReadPlan
from evenq.client.loops.routes.route_book import RouteBook

__all__ = ["TopicOrder"]

log = logging.getLogger(__name__)


class TopicOrder:
    """The rule of one member."""

    def __init__(self, read_plan: ReadPlan, routes: RouteBook) -> None:
        self._group, self._ordered = read_plan.group, read_plan.ordered
        self._has_listener = read_plan.attempts_max is not None
        self._routes = routes
        self._warned: set[str] = set()

    def kept_in(self, topic: str) -> bool:
        """True if queues of the topic, whose route is known, have one listener call at a time."""
        route = self._routes.peek(topic)
        fifo = route is not None and route.fifo
        if self._ordered is None:
            return fifo
        if fifo and not self._ordered and self._has_listener and topic not in self._warned:
            self._warned.add(topic)
            log.warning(
                "group %s: topic %s is FIFO, and this consumer has ordered=False: messages of one message group are "
                "processed side by side, and in any order after a failure; leave `ordered` out to keep their order",
                self._group, topic,
            )  # fmt: skip
        return self._ordered
