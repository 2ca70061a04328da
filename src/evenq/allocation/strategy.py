"""What an allocate strategy is, the checks that four of them share, and the division for a whole group at once.

A user's own strategy only needs a `name` and `allocate`. This room writes no logs, as pure rooms do not; AL-3 asks for
a line when a member is not in its own group's list, so `absence` gives the caller the sentence to write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from evenq.allocation.context import Context
from evenq.errors import BadRequest
from evenq.model import MessageQueue

__all__ = ["ContextDivider", "Divider", "Strategy", "absence", "checked", "checked_all", "divide", "places"]

NOTHING_KNOWN = Context()


class Strategy(Protocol):
    """A way to divide queues among members (AL-1)."""

    @property
    def name(self) -> str:
        """The name on the wire (XO-14): AVG, AVG_BY_CIRCLE, CONFIG, MACHINE_ROOM, MACHINE_ROOM_NEARBY-<inner>,
        CONSISTENT_HASH, STICKY, or one of your own.
        """
        ...

    def allocate(
        self, group: str, own_id: str, queues: Sequence[MessageQueue], ids: Sequence[str]
    ) -> list[MessageQueue]:
        """The queues of member `own_id`. `queues` and `ids` are sorted, alike for all members (RB-11).

        Raises BadRequest where the strategy's documents ask for an illegal-argument error (AL-2, AL-22).
        """
        ...


@runtime_checkable
class Divider(Protocol):
    """A strategy that has a faster way to serve all members at once than one `allocate` each."""

    def divide(self, group: str, queues: Sequence[MessageQueue], ids: Sequence[str]) -> dict[str, list[MessageQueue]]:
        """The same as `allocate` for each id."""
        ...


@runtime_checkable
class ContextDivider(Protocol):
    """A strategy that knows what to do with a server's facts."""

    def divide_in(
        self, group: str, queues: Sequence[MessageQueue], ids: Sequence[str], context: Context
    ) -> dict[str, list[MessageQueue]]:
        """What each member gets."""
        ...


def divide(
    strategy: Strategy,
    group: str,
    queues: Sequence[MessageQueue],
    ids: Sequence[str],
    context: Context = NOTHING_KNOWN,
) -> dict[str, list[MessageQueue]]:
    """What each member gets, in the order of `ids`. Strategies that do not know contexts ignore it.

    Raises what the strategy raises: BadRequest.
    """
    if isinstance(strategy, ContextDivider):
        return strategy.divide_in(group, queues, ids, context)
    if isinstance(strategy, Divider):
        return strategy.divide(group, queues, ids)
    return {client_id: strategy.allocate(group, client_id, queues, ids) for client_id in ids}


def checked(own_id: str, queues: Sequence[MessageQueue], ids: Sequence[str]) -> bool:
    """The checks of AL-2, in its order, then AL-3: False if `own_id` is not in `ids`, and so gets nothing."""
    if not own_id:
        raise BadRequest("currentCID is empty: give the client id of the member that asks")
    if not queues:
        raise BadRequest("mqAll is null or mqAll empty: give the topic's queues, at least one")
    if not ids:
        raise BadRequest("cidAll is null or cidAll empty: give the client ids of the group's members, at least one")
    return own_id in ids


def checked_all(queues: Sequence[MessageQueue], ids: Sequence[str]) -> None:
    """The checks of AL-2 for each member."""
    for client_id in ids:
        checked(client_id, queues, (client_id,))


def places(ids: Sequence[str]) -> dict[str, int]:
    """Where each id comes first, as `ids.index` tells."""
    first: dict[str, int] = {}
    for index, client_id in enumerate(ids):
        first.setdefault(client_id, index)
    return first


def absence(group: str, own_id: str, ids: Sequence[str]) -> str | None:
    """The log line of AL-3, with group, own id and ids; None if the member is in the list."""
    if own_id in ids:
        return None
    return f"member {own_id!r} of group {group!r} is not in the group's member list {list(ids)}, so it gets no queue"
