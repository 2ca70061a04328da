"""Strategies of your own, which installed packages offer as entry points of the group `evenq.allocation`.

The name of the entry point is the wire name of the strategy, its object a factory without arguments:

    [project.entry-points."evenq.allocation"]
    BY_TENANT = "our_strategies:ByTenant"

Install the package wherever the group's queues are divided: in rebalancer and brokers, or in each client. Packages are
looked up once per process, and only a requested strategy is imported. All its results are `verified`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from evenq.allocation.context import Context
from evenq.allocation.strategy import Strategy, divide
from evenq.allocation.verified import verified
from evenq.errors import BadRequest
from evenq.model import MessageQueue

ENTRY_POINTS = "evenq.allocation"
NO_STRATEGY = "NONE"
"""Removes a group's strategy, in upper or lower case; no package can use this name."""
OFFERED_MAX = 64
"""Most names that are used, in alphabetical order; the rest is ignored."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.]{0,63}")

T = TypeVar("T")


@lru_cache(maxsize=1)
def offered() -> Mapping[str, tuple[EntryPoint, ...]]:
    """Returns the entry points of installed packages by name, without invalid names and `NONE`."""
    points: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=ENTRY_POINTS):
        if NAME.fullmatch(point.name) and point.name.upper() != NO_STRATEGY:
            points.setdefault(point.name, []).append(point)
    return {name: tuple(points[name]) for name in sorted(points)[:OFFERED_MAX]}


def supplied(name: str) -> Supplied | None:
    """Returns the strategy that a package offers under this name; None if there is none.

    Raises BadRequest if two packages offer it, if it cannot be imported, if it is not valid, and for the name `NONE`.
    """
    if name.upper() == NO_STRATEGY:
        raise BadRequest(f"{name!r} is not a strategy: it removes that of a group; give the package's another name")
    points = offered().get(name, ())
    if not points:
        return None
    values = sorted({point.value for point in points})
    if len(values) > 1:
        raise BadRequest(f"allocate strategy {name!r} is offered {len(values)} times: {values}; uninstall all but one")
    strategy: object = _called(name, "could not be loaded", points[0].load)
    strategy = _called(name, "could not be made", strategy) if callable(strategy) else strategy
    given = getattr(strategy, "name", None)
    if given != name:
        raise BadRequest(f"allocate strategy {name!r} ({values[0]}) has the name {given!r:.80}; both must be the same")
    if not callable(getattr(strategy, "allocate", None)):
        raise BadRequest(
            f"allocate strategy {name!r} ({values[0]}) has no method allocate; see evenq.allocation.Strategy"
        )
    return Supplied(strategy)  # type: ignore[arg-type]  # name and allocate were just checked


@dataclass(frozen=True, slots=True)
class Supplied:
    """A user's strategy with checked results, and with errors that name it."""

    strategy: Strategy

    @property
    def name(self) -> str:
        return self.strategy.name

    def allocate(
        self, group: str, own_id: str, queues: Sequence[MessageQueue], ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See `Strategy.allocate`. Any error of the strategy is raised as BadRequest."""
        mine = _called(self.name, "failed", lambda: self.strategy.allocate(group, own_id, tuple(queues), tuple(ids)))
        return verified({own_id: mine}, queues, (own_id,), strategy=self.name)[own_id]

    def divide_in(
        self, group: str, queues: Sequence[MessageQueue], ids: Sequence[str], context: Context
    ) -> dict[str, list[MessageQueue]]:
        """Returns all members' shares, by one call of `divide_in` or `divide`, otherwise by one per member."""
        if not queues or not ids:
            return {client_id: [] for client_id in ids}
        shares = _called(self.name, "failed", lambda: divide(self.strategy, group, tuple(queues), tuple(ids), context))
        return verified(shares, queues, ids, strategy=self.name)


def _called(name: str, problem: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except BadRequest:
        raise
    except Exception as error:  # user code may raise anything, and must not end a server's loop
        reason = f"{type(error).__name__}: {error}"[:200]
        raise BadRequest(f"allocate strategy {name!r} {problem}: {reason}; fix or uninstall its package") from error
