"""The introduction of a member to its brokers: subscriptions and the time of their last change (RG-6), location, and
the incarnation of its program. Sent at the begin of each session, and again after changes.
"""

from __future__ import annotations

from collections.abc import Mapping

from evenq.client.core.calls import Join
from evenq.model import FilterExpression, MessageModel


class Introduction:
    """The introduction of one member."""

    def __init__(
        self,
        *,
        group: str,
        model: MessageModel,
        subscriptions: Mapping[str, FilterExpression],
        zone: str,
        instance: str,
        capacity: float,
        incarnation: int,
        now_ms: int,
        hands_over: bool = True,
        refuses_resets: bool = False,
        strategy: str = "",
        unordered: bool = False,
    ) -> None:
        """`subscriptions` may change, followed by `changed`. `now_ms`: since the epoch. The others are as in `Join`."""
        self._group = group
        self._model = model
        self._subscriptions = subscriptions
        self._zone, self._instance, self._capacity = zone, instance, capacity
        self._incarnation = incarnation
        self._version_ms = now_ms
        self._hands_over = hands_over
        self._refuses_resets = refuses_resets
        self._strategy = strategy
        self._unordered = unordered

    def changed(self, now_ms: int) -> None:
        """Notes that the subscriptions changed at `now_ms` (RG-6)."""
        self._version_ms = now_ms

    def join(self) -> Join:
        return Join(
            self._group,
            self._model,
            dict(self._subscriptions),
            self._version_ms,
            zone=self._zone,
            instance=self._instance,
            capacity=self._capacity,
            incarnation=self._incarnation,
            hands_over=self._hands_over,
            refuses_resets=self._refuses_resets,
            strategy=self._strategy,
            unordered=self._unordered,
        )

    def other_name(self, client_id: str) -> str:
        """Returns a new client id for when another living member has this one."""
        return f"{client_id}~{self._incarnation:x}"
