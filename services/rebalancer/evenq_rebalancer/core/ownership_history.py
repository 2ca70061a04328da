"""Since when and why each queue is where it is: a few columns side by side, carried on from decision to decision.

Made by `decisions.py`. A decision over 10,000 queues must be made within milliseconds, so a queue that stays where it
is costs one comparison, and what all rows that changed together have in common is one `Stamp`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evenq.model import Generation, MessageQueue
from evenq_rebalancer.core.sharing import ALL_MEMBERS, Division

__all__ = ["OwnershipHistory", "Stamp", "history_after"]


@dataclass(frozen=True, slots=True)
class Stamp:
    """One change of one or many rows."""

    since_ms: int
    """Ms since the epoch."""
    reason: str
    generation: Generation


@dataclass(frozen=True, slots=True)
class OwnershipHistory:
    """One row for each owner of each queue; all columns are of one length."""

    queues: Sequence[MessageQueue]
    owners: Sequence[str]
    previous: Sequence[str]
    """Who had the queue before; empty: no member, or several."""
    stamps: Sequence[Stamp]

    def by_queue(self) -> dict[MessageQueue, dict[str, int]]:
        """Queue to its owners, with the row of each."""
        rows: dict[MessageQueue, dict[str, int]] = {}
        for index, (queue, owner) in enumerate(zip(self.queues, self.owners, strict=True)):
            rows.setdefault(queue, {})[owner] = index
        return rows


def history_after(
    before: OwnershipHistory | None, division: Division, stamp: Stamp, *, waiting: Mapping[MessageQueue, object]
) -> tuple[OwnershipHistory, int]:
    """The rows of a new division, and how many of them went from one member to another. `waiting`: queues that had no
    owner in `before` only because they were held, so that who had them then is still who had them before.
    """
    queues, owners = division.queues, division.owners
    count = len(queues)
    if before is None:
        return OwnershipHistory(queues, owners, [""] * count, [stamp] * count), 0
    if division.one_row_each and (queues is before.queues or tuple(queues) == tuple(before.queues)):
        return _same_queues(before, division, stamp, waiting)
    old = before.by_queue()
    now: dict[MessageQueue, set[str]] = {}
    for queue, owner in zip(queues, owners, strict=True):
        now.setdefault(queue, set()).add(owner)
    previous, stamps, moves = [""] * count, [stamp] * count, 0
    for index, (queue, owner) in enumerate(zip(queues, owners, strict=True)):
        held = old.get(queue, {})
        row = held.get(owner)
        if row is not None:
            previous[index], stamps[index] = before.previous[row], before.stamps[row]
            continue
        lost = [name for name in held if name not in now[queue]]
        if len(lost) == 1:
            previous[index] = lost[0] or (before.previous[held[""]] if queue in waiting else "")
        moves += _moved(owner, previous[index])
    return OwnershipHistory(queues, owners, previous, stamps), moves


def _same_queues(
    before: OwnershipHistory, division: Division, stamp: Stamp, waiting: Mapping[MessageQueue, object]
) -> tuple[OwnershipHistory, int]:
    owners, queues = division.owners, division.queues
    changed = [index for index, owner in enumerate(owners) if owner != before.owners[index]]
    if not changed:
        return OwnershipHistory(queues, owners, before.previous, before.stamps), 0
    previous, stamps, moves = list(before.previous), list(before.stamps), 0
    for index in changed:
        stamps[index] = stamp
        if before.owners[index] or queues[index] not in waiting:
            previous[index] = before.owners[index]
        moves += _moved(owners[index], previous[index])
    return OwnershipHistory(queues, owners, previous, stamps), moves


def _moved(owner: str, previous: str) -> bool:
    """True if one member gave the queue to another."""
    return owner != previous and not {owner, previous} & {"", ALL_MEMBERS}
