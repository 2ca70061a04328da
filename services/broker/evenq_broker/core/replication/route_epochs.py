"""Which epoch of a broker group is the newest: routes carry it, nameservers and clients keep the highest (R14).

So a deposed leader that still registers cannot take its successor's place in anybody's table. A route is a hint, never
authority: what is written where is decided by the group record and the epochs of the log. Bounded.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RouteEpochs", "RouteOf"]

GROUPS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class RouteOf:
    """Who leads a broker group, as one source said."""

    epoch: int
    leader: int
    """Broker id."""


class RouteEpochs:
    """Broker name -> newest route."""

    __slots__ = ("_max", "_newest")

    def __init__(self, *, groups_max: int = GROUPS_MAX) -> None:
        self._newest: dict[str, RouteOf] = {}
        self._max = groups_max

    def offer(self, broker_name: str, route: RouteOf) -> bool:
        """True: the route is the newest known, use it. False: it is older, of another leader of the same epoch, or
        there are too many groups.
        """
        known = self._newest.get(broker_name)
        if known is None:
            if len(self._newest) >= self._max:
                return False
        elif route.epoch < known.epoch or (route.epoch == known.epoch and route.leader != known.leader):
            # One epoch has one leader (I7): a second one of the same number is a mistake or a lie, and the first stays.
            return False
        self._newest[broker_name] = route
        return True

    def newest(self, broker_name: str) -> RouteOf | None:
        """What is used."""
        return self._newest.get(broker_name)

    def forget(self, broker_name: str) -> None:
        """The group is gone for good."""
        self._newest.pop(broker_name, None)
