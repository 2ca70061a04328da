"""The memory of brokers: who was there is missed until it is back, leaves empty, or is forgotten."""

from __future__ import annotations

from evenq_broker.core.cluster.known_brokers import KNOWN_MAX, TOPICS_IN_ONE, Away, KnownBrokers
from evenq_broker.core.state.records import BrokerForgotten, BrokerKnown, BrokerTopics


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


def knowing(**topics: int) -> KnownBrokers:
    brokers = KnownBrokers()
    brokers.look({"b": "1"}, 1)
    brokers.learn("b", topics)
    return brokers


def test_the_queues_of_a_broker_that_is_not_there_are_away_until_it_is_back_or_forgotten() -> None:
    brokers = knowing(t=4, u=2)
    assert brokers.away("t", {"b"}) == []
    assert brokers.away("t", set()) == [Away("b", 4, 0)], "a broker that just started misses none yet, but knows"
    brokers.look({}, 7)
    assert brokers.away("t", set()) == [Away("b", 4, 7)]
    assert brokers.away("other", set()) == []
    brokers.look({"b": "2"}, 8)
    assert brokers.away("t", {"b"}) == []
    brokers.look({}, 9)
    brokers.forget("b")
    assert brokers.away("t", set()) == []
    brokers.look({"b": "3"}, 10)
    assert brokers.away("t", set()) == [], "what it had before it was forgotten is reported anew"


def test_only_what_changed_is_recorded_and_a_replay_knows_the_same() -> None:
    brokers = knowing(t=4, u=2)
    assert brokers.learn("b", {"t": 4, "u": 2}) == []
    assert brokers.learn("b", {"t": 8}) == [BrokerTopics("b", {"t": 8, "u": 0})]
    assert brokers.learn("unknown", {"t": 8}) == []
    again = KnownBrokers()
    for _ in range(2):
        for op in brokers.dump():
            again.apply(op)
    assert again.away("t", set()) == [Away("b", 8, 0)]
    assert again.away("u", set()) == []
    again.apply(BrokerForgotten("b"))
    assert list(again.dump()) == []


def test_one_operation_never_holds_too_many_topics() -> None:
    brokers = knowing(**{f"t{number}": 1 for number in range(TOPICS_IN_ONE + 1)})
    sizes = [len(op.read_queues) for op in brokers.dump() if isinstance(op, BrokerTopics)]
    assert sizes == [TOPICS_IN_ONE, 1]


def test_a_topic_that_was_deleted_misses_no_broker_that_is_away() -> None:
    brokers = knowing(t=4)
    assert brokers.topic_deleted("t") == [], "it is there: it deletes the topic itself"
    brokers.look({}, 7)
    assert brokers.topic_deleted("t") == [BrokerTopics("b", {"t": 0})]
    assert brokers.away("t", set()) == []


def test_a_drained_broker_is_away_only_for_what_nobody_has_read() -> None:
    for unread, dead_letters, away in ((0, 0, []), (0, 3, []), (5, 0, [Away("b", 4, 7)])):
        brokers = knowing(t=4)
        brokers.leaves("b", "1", unread=unread, dead_letters=dead_letters)
        brokers.look({}, 7)
        assert brokers.away("t", set()) == away


def test_a_nameserver_that_has_just_started_makes_brokers_known_and_none_missing() -> None:
    brokers = knowing(t=4)
    assert brokers.look({"c": "1"}, 7, sure=False) == [BrokerKnown("c")]
    assert missing(brokers) == []
    assert brokers.look({"c": "1"}, 8) == [BrokerKnown("b", 8)]
