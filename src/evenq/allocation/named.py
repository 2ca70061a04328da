"""Strategies by their wire name (XO-14): built-in ones, then those of installed packages.

The name `NONE`, in upper or lower case, removes the strategy of a group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from evenq.allocation.averagely import Averagely
from evenq.allocation.by_circle import ByCircle
from evenq.allocation.config import Config
from evenq.allocation.consistent_hash import ConsistentHash
from evenq.allocation.machine_room import MachineRoom
from evenq.allocation.nearby import Nearby, RoomResolver
from evenq.allocation.sticky import Sticky
from evenq.allocation.strategy import Strategy
from evenq.allocation.supplied import NO_STRATEGY, offered, supplied
from evenq.errors import BadRequest
from evenq.model import MessageQueue

NEARBY_PREFIX = "MACHINE_ROOM_NEARBY-"
BUILT_IN = ("AVG", "AVG_BY_CIRCLE", "CONFIG", "CONSISTENT_HASH", "MACHINE_ROOM", "STICKY")
OUTER_ONLY = {"CONFIG", "MACHINE_ROOM"}
SHOWN_MAX = 16  # names in an error


def known_names() -> tuple[str, ...]:
    """Returns the names that `by_name` takes, those of packages last; `<inner>` stands for the name of another one."""
    return (*BUILT_IN, f"{NEARBY_PREFIX}<inner>", *(name for name in offered() if name not in BUILT_IN))


def by_name(
    name: str,
    *,
    queues: Sequence[MessageQueue] = (),
    rooms: Iterable[str] = (),
    resolver: RoomResolver | None = None,
) -> Strategy:
    """Returns the strategy with this name, in exact case. Raises BadRequest, with the known names, for any other.

    `queues` is CONFIG's list, `rooms` are MACHINE_ROOM's, `resolver` is MACHINE_ROOM_NEARBY's (default: `room@name` in
    broker names and client ids). Installed packages may add names (`supplied.py`), not replace built-in ones.
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
    if name.startswith(NEARBY_PREFIX) and inner not in OUTER_ONLY and (inner in BUILT_IN or inner in offered()):
        return Nearby(by_name(inner), resolver)
    if (own := supplied(name)) is not None:
        return own
    known = ", ".join(known_names()[:SHOWN_MAX])
    raise BadRequest(f"no allocate strategy is named {name[:80]!r}; known are {known}")


def requested_strategy(name: str) -> str | None:
    """Returns the strategy that a request sets: None for an empty name (unchanged), empty for `NONE` (no strategy).

    Raises BadRequest for an unknown name, and for CONFIG, by which no server can decide.
    """
    if not name:
        return None
    if name.upper() == NO_STRATEGY:
        return ""
    if name == "CONFIG":
        raise BadRequest(
            "CONFIG is a list of queues in each member's own program, a server cannot decide by it: leave the group "
            "without a strategy (NONE) and give every consumer its list, strategy=Config((MessageQueue(...), ...))"
        )
    by_name(name)
    return name


def stand_in(strategy: Strategy) -> Strategy:
    """Returns the strategy for servers without the current owners, such as a broker without a rebalancer.

    That is AVG for STICKY, also inside of rooms, and the strategy itself otherwise.
    """
    if isinstance(strategy, Sticky):
        return Averagely()
    if isinstance(strategy, Nearby):
        return replace(strategy, inner=stand_in(strategy.inner))
    return strategy
