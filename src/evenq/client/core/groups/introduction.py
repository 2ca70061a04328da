"""Who a member is to its brokers: what it reads since when (RG-6), where it runs, and which start of its program this
is. Told as the first word of each session, and again when it has changed.
"""

from __future__ import annotations

from collections.abc import Mapping

from evenq.client.core.calls import Join
from evenq.model import FilterExpression, MessageModel

__all__ = ["Introduction"]


class Introduction:
    """Of one member."""

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
        """`subscriptions` are its user's to change, followed by `changed`; `now_ms` since the epoch; `hands_over`:
        whether it lets go of its queues when a broker closes; `refuses_resets`: whether it goes on where it is when an
        operator moves the group; `strategy`: divides its queues while the group has none; `unordered`: its user
        wants FIFO topics without their order.
        """
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
        """The subscriptions are others since now (RG-6)."""
        self._version_ms = now_ms

    def join(self) -> Join:
        """As it is now."""
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
        """To go on under, when another living member has this client id."""
        return f"{client_id}~{self._incarnation:x}"
