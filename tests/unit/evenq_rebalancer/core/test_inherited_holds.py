"""What a leader before left to wait for, out of what several brokers tell."""

from __future__ import annotations

from evenq_rebalancer.core.inherited_holds import NOTHING_INHERITED, inherited_of
from evenq_rebalancer.core.reports import HeldFact, HeldPlaceFact, HoldsFact

from evenq.model import Generation, MessageQueue


def queues(*numbers: int, topic: str = "T") -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue(topic, "b", number) for number in numbers)


def place(own: str, *numbers: int, topic: str = "T", until_ms: int = 100) -> HeldPlaceFact:
    return HeldPlaceFact(
        client_id=own, place=own.partition(".")[0], until_wall_ms=until_ms, queues=queues(*numbers, topic=topic)
    )


def holds(counter: int, *places: HeldPlaceFact, topic: str = "T") -> HoldsFact:
    return HoldsFact(topic=topic, places=places, generation=Generation(1, counter))


def has(own: str, number: int, counter: int, *, by: str = "other") -> tuple[str, HeldFact]:
    return by, HeldFact(queue=queues(number)[0], holder=own, generation=Generation(1, counter))


def test_of_each_topic_the_newest_decision_counts_also_one_that_holds_nothing() -> None:
    old, new = holds(3, place("web-1.1", 1, 2)), holds(4, place("web-1.1", 1))
    assert inherited_of([new, old], tuple).places == (place("web-1.1", 1),)
    assert inherited_of([old, new], tuple).places == (place("web-1.1", 1),)
    assert inherited_of([old, holds(5)], tuple) is NOTHING_INHERITED


def test_nobody_is_asked_for_holders_where_nothing_waits() -> None:
    def holders() -> list[tuple[str, HeldFact]]:
        raise AssertionError("there may be many")

    assert inherited_of([holds(3)], holders) is NOTHING_INHERITED
    assert inherited_of([], holders) is NOTHING_INHERITED


def test_one_that_left_waits_with_its_queues_of_all_topics_and_the_first_to_end_comes_first() -> None:
    result = [
        holds(3, place("web-1.1", 1, until_ms=200), place("web-2.1", 2, until_ms=100)),
        holds(4, place("web-1.1", 7, topic="U", until_ms=200), topic="U"),
    ]
    first, second = inherited_of(result, tuple).places
    assert (first.client_id, second.client_id) == ("web-2.1", "web-1.1")
    assert set(second.queues) == {*queues(1), *queues(7, topic="U")}


def test_a_queue_that_somebody_got_since_then_waits_for_nobody() -> None:
    result = [holds(3, place("web-1.1", 1, 2, 3, 4))]
    rows = [has("a", 1, 3), has("a", 2, 9), has("a", 3, 2), has("a", 4, 2, by="b")]
    assert inherited_of(result, lambda: rows).places == (place("web-1.1", 3),), (
        "reported by an older decision, and no lock"
    )
    assert inherited_of(result, lambda: [has("a", number, 4) for number in (1, 2, 3, 4)]).places == ()


def test_who_has_nothing_but_locks_of_queues_that_waited_may_still_be_a_successor() -> None:
    inherited = inherited_of([holds(3, place("web-1.1", 1, 2))], lambda: [has("n", 1, 2, by="b")])
    assert inherited.places == (place("web-1.1", 2),)
    assert inherited.settled == set()


def test_who_has_queues_is_settled_but_not_who_came_back_itself() -> None:
    result = [holds(3, place("web-1.1", 1))]
    assert inherited_of(result, lambda: [has("a", 5, 1), has("web-1.1", 6, 1)]).settled == {"a"}


def test_a_queue_of_another_topic_than_its_hold_is_left_out() -> None:
    assert inherited_of([holds(3, place("web-1.1", 1, topic="U"))], tuple).places == ()
