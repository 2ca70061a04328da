"""Strategies of your own: installed packages offer them as entry points of the group `evenq.allocation`.

The entry point's name is the strategy's name on the wire, its object a factory without arguments:

    [project.entry-points."evenq.allocation"]
    BY_TENANT = "our_strategies:ByTenant"

Install the package wherever the group's queues are divided: in rebalancer and brokers, or in each client. The packages
are looked up once per process; only a strategy that is asked for is imported. Everything it gives is `verified`.
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

__all__ = ["ENTRY_POINTS", "NO_STRATEGY", "Supplied", "offered", "supplied"]

ENTRY_POINTS = "evenq.allocation"
NO_STRATEGY = "NONE"
"""Asks for no strategy, in any case; no package can take the name."""
OFFERED_MAX = 64
"""Most names that are looked at, in alphabetical order; the rest is unknown."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.]{0,63}")

T = TypeVar("T")


@lru_cache(maxsize=1)
def offered() -> Mapping[str, tuple[EntryPoint, ...]]:
    """What installed packages offer, by name. Names that no group could have are left out, and `NONE`."""
    points: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=ENTRY_POINTS):
        if NAME.fullmatch(point.name) and point.name.upper() != NO_STRATEGY:
            points.setdefault(point.name, []).append(point)
    return {name: tuple(points[name]) for name in sorted(points)[:OFFERED_MAX]}


def supplied(name: str) -> Supplied | None:
    """The strategy that a package offers under this name; None if there is none.

    Raises BadRequest, with what to fix, if two packages offer it, if it cannot be imported or is no strategy,
    and for the name `NONE`, always.
    """
    if name.upper() == NO_STRATEGY:
        raise BadRequest(f"{name!r} is no strategy: the name takes a group's own away; a package needs another one")
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
    return Supplied(strategy)  # type: ignore[arg-type]  # its two parts were just looked at


@dataclass(frozen=True, slots=True)
class Supplied:
    """A user's strategy, with its results checked and its failures reported as its own."""

    strategy: Strategy

    @property
    def name(self) -> str:
        """The name that it was asked for."""
        return self.strategy.name

    def allocate(
        self, group: str, own_id: str, queues: Sequence[MessageQueue], ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See `Strategy.allocate`. Errors: also whatever goes wrong inside, as BadRequest."""
        mine = _called(self.name, "failed", lambda: self.strategy.allocate(group, own_id, tuple(queues), tuple(ids)))
        return verified({own_id: mine}, queues, (own_id,), strategy=self.name)[own_id]

    def divide_in(
        self, group: str, queues: Sequence[MessageQueue], ids: Sequence[str], context: Context
    ) -> dict[str, list[MessageQueue]]:
        """All members' shares. A strategy with `divide_in` or `divide` is asked once, else once per member."""
        if not queues or not ids:
            return {client_id: [] for client_id in ids}
        shares = _called(self.name, "failed", lambda: divide(self.strategy, group, tuple(queues), tuple(ids), context))
        return verified(shares, queues, ids, strategy=self.name)


def _called(name: str, problem: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except BadRequest:
        raise
    except Exception as error:  # a stranger's code may raise anything, and must not end a server's loop
        reason = f"{type(error).__name__}: {error}"[:200]
        raise BadRequest(f"allocate strategy {name!r} {problem}: {reason}; fix or uninstall its package") from error
