"""The protocol of allocate strategies, the checks that four of them share, and the division for a whole group.

A user's own strategy only needs `name` and `allocate`. This package is pure and writes no logs: `absence` returns the
line that AL-3 requires when a member is not in the list of its group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from evenq.allocation.context import Context
from evenq.errors import BadRequest
from evenq.model import MessageQueue

NOTHING_KNOWN = Context()


class Strategy(Protocol):
    """A way to divide queues among members (AL-1)."""

    @property
    def name(self) -> str:
        """The wire name (XO-14), see `known_names`; or one of your own."""
        ...

    def allocate(
        self, group: str, own_id: str, queues: Sequence[MessageQueue], ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Returns the queues of member `own_id`. `queues` and `ids` are sorted and equal for all members (RB-11).

        Raises BadRequest where the strategy's documents require an illegal-argument error (AL-2, AL-22).
        """
        ...


@runtime_checkable
class Divider(Protocol):
    """A strategy with a faster way for all members than one `allocate` each."""

    def divide(
        self, group: str, queues: Sequence[MessageQueue], ids: Sequence[str]
    ) -> dict[str, list[MessageQueue]]: ...


@runtime_checkable
class ContextDivider(Protocol):
    """A strategy that uses facts of a server."""

    def divide_in(
        self, group: str, queues: Sequence[MessageQueue], ids: Sequence[str], context: Context
    ) -> dict[str, list[MessageQueue]]: ...


def divide(
    strategy: Strategy,
    group: str,
    queues: Sequence[MessageQueue],
    ids: Sequence[str],
    context: Context = NOTHING_KNOWN,
) -> dict[str, list[MessageQueue]]:
    """Returns the queues of each member, in the order of `ids`. Raises BadRequest where the strategy does."""
    if isinstance(strategy, ContextDivider):
        return strategy.divide_in(group, queues, ids, context)
    if isinstance(strategy, Divider):
        return strategy.divide(group, queues, ids)
    return {client_id: strategy.allocate(group, client_id, queues, ids) for client_id in ids}


def checked(own_id: str, queues: Sequence[MessageQueue], ids: Sequence[str]) -> bool:
    """Checks AL-2, in its order, then AL-3: False if `own_id` is not in `ids`, and so gets no queue."""
    if not own_id:
        raise BadRequest("currentCID is empty: give the client id of the member")
    if not queues:
        raise BadRequest("mqAll is null or mqAll empty: give the topic's queues, at least one")
    if not ids:
        raise BadRequest("cidAll is null or cidAll empty: give the client ids of the group's members, at least one")
    return own_id in ids


def checked_all(queues: Sequence[MessageQueue], ids: Sequence[str]) -> None:
    for client_id in ids:
        checked(client_id, queues, (client_id,))


def places(ids: Sequence[str]) -> dict[str, int]:
    """Returns the first index of each id."""
    first: dict[str, int] = {}
    for index, client_id in enumerate(ids):
        first.setdefault(client_id, index)
    return first


def absence(group: str, own_id: str, ids: Sequence[str]) -> str | None:
    """Returns the log line of AL-3, with group, own id and ids; None if the member is in the list."""
    if own_id in ids:
        return None
    return f"member {own_id!r} of group {group!r} is not in the group's member list {list(ids)}, so it gets no queue"
