"""What the leader before left to wait for: holds that still run, as brokers report them to the next leader.

Made by `groups.py` from reports, taken up by `member_history.py` when it sees a group for the first time. Brokers may
know of different decisions, so of each topic the newest counts; and a queue that a living member got since then, or
whose lock it has, waits for no member. Pure: when a hold is over is judged by `holds.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from evenq.model import Generation, MessageQueue
from evenq_rebalancer.core.reports import HeldFact, HeldPlaceFact, HoldsFact

__all__ = ["NOTHING_INHERITED", "InheritedHolds", "inherited_of"]


@dataclass(frozen=True, slots=True)
class InheritedHolds:
    """Of one group."""

    places: tuple[HeldPlaceFact, ...] = ()
    """One for each client id, with the queues of all topics; the one that ends first comes first."""
    settled: frozenset[str] = frozenset()
    """Members that have queues which did not wait, so that they succeed no member."""


NOTHING_INHERITED = InheritedHolds()


def inherited_of(facts: Iterable[HoldsFact], holders: Callable[[], Iterable[tuple[str, HeldFact]]]) -> InheritedHolds:
    """What waits. `holders`: what living members have, each row with the name of the broker that tells of it; not asked
    if nothing waits, as there may be many.
    """
    newest: dict[str, HoldsFact] = {}
    for fact in facts:
        if fact.topic not in newest or newest[fact.topic].generation < fact.generation:
            newest[fact.topic] = fact
    if not any(fact.places for fact in newest.values()):
        return NOTHING_INHERITED
    rows = list(holders())
    waiting: dict[str, HeldPlaceFact] = {}
    for fact in sorted(newest.values(), key=lambda fact: fact.generation, reverse=True):
        given = _given_since(rows, fact.topic, fact.generation)
        for held in fact.places:
            queues = tuple(queue for queue in held.queues if queue.topic == fact.topic and queue not in given)
            known = waiting.get(held.client_id)
            if known is not None:
                waiting[held.client_id] = replace(known, queues=known.queues + queues)
            elif queues:
                waiting[held.client_id] = replace(held, queues=queues)
    waited = {queue for fact in newest.values() for held in fact.places for queue in held.queues}
    settled = frozenset({row.holder for _, row in rows if row.queue not in waited} - waiting.keys())
    return InheritedHolds(tuple(sorted(waiting.values(), key=lambda held: held.until_wall_ms)), settled)


def _given_since(rows: Iterable[tuple[str, HeldFact]], topic: str, generation: Generation) -> set[MessageQueue]:
    """Queues that a member got by this decision or a later one, or took while none decided: the queue's own broker
    gave the lock, which remembers the generation of who had it before. What other brokers answered by an older
    decision is out of date.
    """
    return {
        row.queue
        for broker, row in rows
        if row.queue.topic == topic and (row.generation >= generation or row.queue.broker_name == broker)
    }
