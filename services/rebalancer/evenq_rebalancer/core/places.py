"""Places of members and brokers, and whether a place that a member left will be refilled.

Own labels win: the zone of a member or broker, and a member's `instance`. Without labels the Kubernetes watch
(`loops/topology.py`) answers by address, through `MergedFacts.set_places`. Without the watch, only labels are known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemberPlace:
    """A place whose member may be replaced by a successor."""

    key: str
    """Same for a member and its successor: the label `instance`, or the pod's controller (`namespace/kind/name`)."""
    leaving: bool = True
    """The present member is being replaced: its pod terminates and the controller will start another."""


ZoneOf = Callable[[str], str]
"""Address to zone; empty: unknown."""
PlaceOf = Callable[[str], MemberPlace | None]
"""Address to place; None: unknown, or not refilled. It is called when a member joins, and after it left, so a watch
must remember a removed pod for a while."""


@dataclass(slots=True)
class Places:
    zone_of_address: ZoneOf = lambda _: ""
    place_of_address: PlaceOf = lambda _: None

    def zone(self, label: str, address: str) -> str:
        """Returns the zone by label, otherwise by address; empty: unknown."""
        return label or (self.zone_of_address(address) if address else "")

    def place(self, instance: str, address: str) -> MemberPlace | None:
        """Returns the place by the label `instance` (always `leaving`), otherwise by address; None: unknown."""
        if instance:
            return MemberPlace(f"instance {instance}")
        return self.place_of_address(address) if address else None
