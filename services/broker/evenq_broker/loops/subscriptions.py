"""Tells operators of groups whose members filter a topic differently: once when it begins, and again at most once a
minute while members come and go. Called by `loops.sessions` whenever a group changes.
"""

from __future__ import annotations

import logging

from evenq.runtime.clock import Clock
from evenq_broker.core.members import MemberTable
from evenq_broker.core.subscriptions import different_filters, wanted_of

__all__ = ["SubscriptionReports"]

log = logging.getLogger(__name__)

_PAUSE_MS = 60_000
_CLIENTS_SHOWN = 3  # of each filter


class SubscriptionReports:
    """Who differs, and when it was said."""

    def __init__(self, members: MemberTable, clock: Clock) -> None:
        self._members = members
        self._clock = clock
        self._told: dict[tuple[str, str], int] = {}  # (group, topic) -> monotonic ms

    def look(self, group: str) -> None:
        """The group's members or what they want changed."""
        found = different_filters(wanted_of(self._members.members(group)))
        for key in [key for key in self._told if key[0] == group and key[1] not in found]:
            del self._told[key]
            log.info("the group's members filter alike again", extra={"group": group, "topic": key[1]})
        now_ms = self._clock.monotonic_ms()
        for topic, filters in found.items():
            last_ms = self._told.get((group, topic))
            if last_ms is not None and now_ms - last_ms < _PAUSE_MS:
                continue
            self._told[group, topic] = now_ms
            wanted = {one.expression: clients[:_CLIENTS_SHOWN] for one, clients in filters.items()}
            log.warning(
                "members of one group filter a topic differently: what one leaves out is passed over for all; "
                "give them one filter, or groups of their own",
                extra={"group": group, "topic": topic, "filters": wanted},
            )
