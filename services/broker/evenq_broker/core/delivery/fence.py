"""Fence around a delivery whose end is being stored: the ack of a transaction, or a copy in place of the message.

Problem: the store answers an append one step later. In between, another call could end the same delivery in another
way, and a message would have results and a dead letter, or be finished and delivered.

Idea: `begin` raises the number of the delivery and sets its deadline to FINISHING; `end` finishes the message, or gives
the delivery back. Every other way compares one of the two:

    another way                          while a fence holds                          after a transaction
    -----------------------------------  -------------------------------------------  -------------------
    ack                                  finishes; its consumer settles it twice      OK, no effect
    change of the invisible time         refused by the number                        refused
    dead letters by handle               OK, no effect, by the number                 OK, no effect
    dead letters by message id           OK, no effect, by `is_fenced`                OK, no effect
    SendBack (a member that pulls)       refused for now, by `is_fenced`              copied: it names a place
    another transaction                  refused by the number                        refused
    repeated receive (attempt id)        not delivered, by the number                 not delivered
    deadline; end of the client          no effect on FINISHING; `shorten`            no effect
    commit past it, reset, deletion      wins: it names no delivery                   a reset delivers it again

The other direction: a move to the dead letters on request and SendBack hold a fence while they copy, and the last
attempt raises the number before it waits for its move. A transaction whose delivery ended so is refused.

A snapshot lacks a fenced message: the state of the broker includes what is being stored. `refused` says that the
records are certainly not in the log; a snapshot then has the message. Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from evenq_broker.core.delivery.deadlines import DeliveryDeadlines
from evenq_broker.core.delivery.queue_progress import FINISHING, READY, Pending, QueueProgress


def is_fenced(entry: Pending) -> bool:
    return entry.deadline_ms == FINISHING


def always() -> bool:
    """`refused` of a copy: it is another record than the ack, so a snapshot must have the message until the ack."""
    return True


class DeliveryFence:
    """All fenced deliveries of a broker."""

    __slots__ = ("_deadlines", "_finish", "_held")

    def __init__(self, deadlines: DeliveryDeadlines, finish: Callable[[QueueProgress, int], bool]) -> None:
        self._deadlines, self._finish = deadlines, finish
        self._held: dict[Pending, tuple[int, Callable[[], bool]]] = {}
        """The end of the delivery, and whether the records were refused."""

    def begin(self, queue: QueueProgress, offset: int, refused: Callable[[], bool]) -> Pending:
        """Fences a message that is delivered or ready: until `end` it is neither delivered nor settled by others.
        `refused`: whether the records are certainly not in the log.
        """
        entry = queue.pending[offset]
        self._held[entry] = entry.deadline_ms, refused
        entry.number += 1  # other handles become invalid
        queue.running -= entry.running
        entry.deadline_ms = FINISHING
        queue.running += entry.running
        return entry

    def end(self, queue: QueueProgress, offset: int, entry: Pending, *, stored: bool) -> int:
        """Finishes the message if the ack is stored, otherwise restores it. Returns the end of its delivery, or 0."""
        deadline_ms, _ = self._held.pop(entry)
        if queue.pending.get(offset) is not entry:  # an operator or a commit finished it meanwhile
            return 0
        if stored:
            self._finish(queue, offset)
            return 0
        entry.number -= 1
        queue.running -= entry.running
        entry.deadline_ms = deadline_ms
        queue.running += entry.running
        if deadline_ms == READY:
            heapq.heappush(queue.ready, offset)
        else:
            self._deadlines.arm(queue, deadline_ms, [offset])
        return deadline_ms

    def shorten(self, entry: Pending, deadline_ms: int) -> None:
        """Moves the end of the delivery, for the case that it continues: its client is gone."""
        before_ms, refused = self._held[entry]
        self._held[entry] = min(before_ms, deadline_ms), refused

    def unfinished_until(self, entry: Pending) -> int | None:
        """Returns the end of the delivery for a snapshot; None: it is being finished."""
        deadline_ms, refused = self._held[entry]
        return deadline_ms if refused() else None
