"""Reports to operators groups whose members filter a topic differently: once when it begins, and again at most once a
minute while members come and go. Called by `loops.groups.sessions` when a group changes. Large groups are checked once
for many changes, so that the cost of thousands of joining clients does not grow with the square of their number.
"""

from __future__ import annotations

import logging

from evenq.runtime.clock import Clock
from evenq_broker.core.groups.members import MemberTable
from evenq_broker.core.groups.subscriptions import different_filters, wanted_of

log = logging.getLogger(__name__)

_PAUSE_MS = 60_000
_CLIENTS_SHOWN = 3  # of each filter
_AT_ONCE_MAX = 64  # members of a group that is checked with each change


class SubscriptionReports:
    """Groups with different filters, and when they were reported."""

    def __init__(self, members: MemberTable, clock: Clock) -> None:
        self._members = members
        self._clock = clock
        self._warned_ms: dict[tuple[str, str], int] = {}  # (group, topic) -> monotonic ms
        self._large: set[str] = set()
        self._late: set[str] = set()

    def look(self, group: str) -> None:
        """Checks a group whose members or subscriptions changed."""
        if group in self._large:
            self._late.add(group)
        else:
            self._look(group)

    def look_late(self) -> None:
        """Checks the large groups that have changed; to be called a few times a second."""
        late, self._late = self._late, set()
        for group in late:
            self._look(group)

    def _look(self, group: str) -> None:
        members = self._members.members(group)
        if len(members) > _AT_ONCE_MAX:
            self._large.add(group)
        else:
            self._large.discard(group)
        differing = different_filters(wanted_of(members))
        for key in [key for key in self._warned_ms if key[0] == group and key[1] not in differing]:
            del self._warned_ms[key]
            log.info("group %s: all members use the same filter for topic %s again", *key, extra={"group": group})
        now_ms = self._clock.monotonic_ms()
        for topic, filters in differing.items():
            last_ms = self._warned_ms.get((group, topic))
            if last_ms is not None and now_ms - last_ms < _PAUSE_MS:
                continue
            self._warned_ms[group, topic] = now_ms
            shown = {one.expression: clients[:_CLIENTS_SHOWN] for one, clients in filters.items()}
            log.warning(
                "group %s: members filter topic %s differently; messages that one filter excludes are skipped for the "
                "whole group. Use one filter, or separate groups",
                group,
                topic,
                extra={"group": group, "topic": topic, "filters": shown},
            )
