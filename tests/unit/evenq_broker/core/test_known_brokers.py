"""The memory of brokers: who was there is missed until it is back, leaves empty, or is forgotten."""

from __future__ import annotations

from evenq_broker.core.journal import BrokerForgotten, BrokerKnown
from evenq_broker.core.known_brokers import KNOWN_MAX, KnownBrokers


def missing(brokers: KnownBrokers) -> list[str]:
    return [one.name for one in brokers.missing()]


def test_a_broker_that_was_seen_is_missed_from_its_going_to_its_return() -> None:
    brokers = KnownBrokers()
    assert brokers.look({"b": "1", "c": "1"}, 10) == [BrokerKnown("b"), BrokerKnown("c")]
    assert brokers.look({"b": "1", "c": "1"}, 20) == [], "no news, nothing to record"
    assert brokers.look({"b": "1"}, 30) == [BrokerKnown("c", 30)]
    assert brokers.look({"b": "1"}, 40) == []
    assert brokers.missing() == [BrokerKnown("c", 30)]
    assert brokers.look({"b": "1", "c": "2"}, 50) == [BrokerKnown("c")]
    assert missing(brokers) == []


def test_a_replayed_memory_misses_the_same_brokers() -> None:
    before, after = KnownBrokers(), KnownBrokers()
    for present in ({"b": "1", "c": "1"}, {"c": "1"}):
        for op in before.look(present, 7):
            after.apply(op)
            after.apply(op)
    assert missing(after) == missing(before) == ["b"]
    again = KnownBrokers()
    for op in before.dump():
        again.apply(op)
    assert again.missing() == before.missing()
    assert again.look({}, 9) == [BrokerKnown("c", 9)], "it ended while this broker was down"


def test_a_drained_broker_that_says_that_it_leaves_is_not_missed() -> None:
    brokers = KnownBrokers()
    brokers.look({"b": "1"}, 1)
    brokers.leaves("b", "1", unread=0, dead_letters=0)
    assert missing(brokers) == [], "it is still there"
    assert brokers.look({}, 2) == [BrokerForgotten("b")]
    assert missing(brokers) == []
    assert "b" not in brokers


def test_what_a_drained_broker_still_holds_keeps_it_in_memory() -> None:
    brokers = KnownBrokers()
    brokers.look({"b": "1"}, 1)
    brokers.leaves("b", "1", unread=5, dead_letters=2)
    assert brokers.look({}, 2) == [BrokerKnown("b", 2, 5, 2)]


def test_a_goodbye_counts_for_the_life_that_said_it_only() -> None:
    brokers = KnownBrokers()
    brokers.look({"b": "1"}, 1)
    brokers.leaves("b", "0", unread=0, dead_letters=0)
    assert brokers.look({}, 2) == [BrokerKnown("b", 2)], "an older life said it"
    brokers.look({"b": "2"}, 3)
    brokers.leaves("b", "2", unread=0, dead_letters=0)
    brokers.look({"b": "3"}, 4)  # it came back faster than anybody saw it go
    assert brokers.look({}, 5) == [BrokerKnown("b", 5)]


def test_an_operator_ends_the_search_and_the_memory_is_bounded() -> None:
    brokers = KnownBrokers()
    brokers.look({"b": "1"}, 1)
    brokers.look({}, 2)
    assert brokers.forget("b") == BrokerForgotten("b")
    assert brokers.forget("b") is None
    assert missing(brokers) == []
    ops = brokers.look({f"b{number}": "1" for number in range(KNOWN_MAX + 5)}, 3)
    assert len(ops) == KNOWN_MAX
