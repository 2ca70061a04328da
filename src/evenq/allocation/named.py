"""From the name on the wire to the strategy (XO-14)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evenq.allocation.averagely import Averagely
from evenq.allocation.by_circle import ByCircle
from evenq.allocation.config import Config
from evenq.allocation.consistent_hash import ConsistentHash
from evenq.allocation.machine_room import MachineRoom
from evenq.allocation.nearby import Nearby, PrefixRooms, RoomResolver
from evenq.allocation.sticky import Sticky
from evenq.allocation.strategy import Strategy
from evenq.errors import BadRequest
from evenq.model import MessageQueue

__all__ = ["by_name", "known_names"]

NEARBY_PREFIX = "MACHINE_ROOM_NEARBY-"


def known_names() -> tuple[str, ...]:
    """The names that `by_name` takes; the last one with another's name in place of `<inner>`."""
    return ("AVG", "AVG_BY_CIRCLE", "CONFIG", "CONSISTENT_HASH", "MACHINE_ROOM", "STICKY", f"{NEARBY_PREFIX}<inner>")


def by_name(
    name: str,
    *,
    queues: Sequence[MessageQueue] = (),
    rooms: Iterable[str] = (),
    resolver: RoomResolver | None = None,
) -> Strategy:
    """The strategy with this name. Raises BadRequest, with the known names, for any other.

    `queues` is CONFIG's list, `rooms` are MACHINE_ROOM's, `resolver` is MACHINE_ROOM_NEARBY's (default: `room@name` in
    broker names and client ids). Names are matched exactly, upper case.
    """
    match name:
        case "AVG":
            return Averagely()
        case "AVG_BY_CIRCLE":
            return ByCircle()
        case "CONFIG":
            return Config(tuple(queues))
        case "CONSISTENT_HASH":
            return ConsistentHash()
        case "MACHINE_ROOM":
            return MachineRoom(frozenset(rooms))
        case "STICKY":
            return Sticky()
    inner = name.removeprefix(NEARBY_PREFIX)
    if inner in {"AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"} and name.startswith(NEARBY_PREFIX):
        return Nearby(by_name(inner), resolver or PrefixRooms())
    raise BadRequest(f"no allocate strategy is named {name[:80]!r}; known are {', '.join(known_names())}")
