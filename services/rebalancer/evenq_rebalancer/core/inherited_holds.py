"""Holds of the previous leader, as brokers report them to the next one.

`groups.py` makes them from reports, and `member_history.py` resumes them when it sees a group for the first time.
Brokers may have received different decisions, so the newest decision of each topic counts. A queue that a live member
got since then, or whose lock it has, is no longer held. Pure; `holds.py` bounds the remaining time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from evenq.model import Generation, MessageQueue
from evenq_rebalancer.core.reports import HeldFact, HeldPlaceFact, HoldsFact


@dataclass(frozen=True, slots=True)
class InheritedHolds:
    places: tuple[HeldPlaceFact, ...] = ()
    """One per client id, with its held queues of all topics; the one that ends first comes first."""
    settled: frozenset[str] = frozenset()
    """Members that own queues which were not held: they were there before, and are successors of no member."""


NOTHING_INHERITED = InheritedHolds()


def inherited_of(facts: Iterable[HoldsFact], holders: Callable[[], Iterable[tuple[str, HeldFact]]]) -> InheritedHolds:
    """Returns the holds that still apply.

    `holders` returns the queues of live members, each with the name of the reporting broker. As there may be many, it
    is called only if anything is held.
    """
    newest: dict[str, HoldsFact] = {}
    for fact in facts:
        if fact.topic not in newest or newest[fact.topic].generation < fact.generation:
            newest[fact.topic] = fact
    if not any(fact.places for fact in newest.values()):
        return NOTHING_INHERITED
    rows = list(holders())
    waiting: dict[str, HeldPlaceFact] = {}
    # Newest decision first: its end and place of a hold count for the queues of all topics.
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
    """Queues that a member got by this decision or a later one, or took while no leader decided.

    In the second case the queue's own broker reports the lock, which keeps the generation of the previous owner.
    Answers of other brokers by an older decision are outdated.
    """
    return {
        row.queue
        for broker, row in rows
        if row.queue.topic == topic and (row.generation >= generation or row.queue.broker_name == broker)
    }
