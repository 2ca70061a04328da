"""Where members and brokers run, and whether a place that was left is being filled again.

Own labels win: a member's or broker's zone, a member's `instance`. Where there are none, the watch over the cluster
(`loops/kubernetes_*`) answers by address, through `Facts.set_places`. Alone, without such a watcher, nothing is known
by address and labels are all there is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["MemberPlace", "PlaceOf", "Places", "ZoneOf"]


@dataclass(frozen=True, slots=True)
class MemberPlace:
    """Where a member runs, for as long as what runs there may be replaced."""

    key: str
    """Same for a member and its successor: the label `instance`, or what controls the pod (`namespace/kind/name`)."""
    leaving: bool = True
    """The one that runs there now is being replaced: its pod terminates and its controller will start another."""


ZoneOf = Callable[[str], str]
"""Address to zone; empty: unknown."""
PlaceOf = Callable[[str], MemberPlace | None]
"""Address to place; None: unknown, or no member will come instead. Asked when a member joins, and when it left, by the
address it had: a watcher must remember a pod for a while after it is gone."""


@dataclass(slots=True)
class Places:
    """Both answers."""

    zone_of_address: ZoneOf = lambda _: ""
    place_of_address: PlaceOf = lambda _: None

    def zone(self, label: str, address: str) -> str:
        """The zone by the label, else by the address; empty: unknown."""
        return label or (self.zone_of_address(address) if address else "")

    def place(self, instance: str, address: str) -> MemberPlace | None:
        """The place by the label `instance`, else by the address; None: unknown.

        Who gives itself a stable name says that a successor may come, so such a place is always `leaving`.
        """
        if instance:
            return MemberPlace(f"instance {instance}")
        return self.place_of_address(address) if address else None
