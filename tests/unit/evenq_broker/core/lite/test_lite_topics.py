"""Lite topics: their names, their owners, their numbers."""

import pytest
from evenq_broker.core.lite.lite_topics import LITE_QUEUES_FROM, LiteTopic, LiteTopics, lite_problem
from evenq_broker.core.state.records import LiteClosed

from evenq.errors import LiteTopicQuotaExceeded
from tests.unit.evenq_broker.conftest import users_of


@pytest.mark.parametrize("name", ["", "  ", "a b", "é", "x" * 65, "a\n"])
def test_a_name_that_is_none_is_told_why(name: str) -> None:
    assert lite_problem(name, 64)


def test_names_have_the_alphabet_of_topics() -> None:
    assert lite_problem("%Chat_42-x", 64) is None
    assert lite_problem("x" * 64, 64) is None


def test_numbers_are_used_again_and_replay_ends_in_the_same_state() -> None:
    table = LiteTopics(all_max=100, each_max=100)
    for name in ("x", "y"):
        table.opened(7, name, table.next_queue(7, "p"), 0, 0)
    assert [one.queue_id - LITE_QUEUES_FROM for one in table.of(7)] == [0, 1]
    x = table.get(7, "x")
    assert x is not None
    table.closed(7, x.queue_id)
    table.closed(7, x.queue_id)
    assert table.next_queue(7, "p") == x.queue_id
    table.opened(7, "z", x.queue_id, 9, 0)
    assert table.next_queue(7, "p") == LITE_QUEUES_FROM + 2
    again = LiteTopics(all_max=100, each_max=100)
    for _ in range(2):
        for op in table.dump():
            again.apply(op, 5)
    assert list(again.dump()) == list(table.dump())
    assert again.next_queue(7, "p") == LITE_QUEUES_FROM + 2
    again.apply(LiteClosed(7, x.queue_id), 5)
    assert again.get(7, "z") is None
    assert again.next_queue(7, "p") == x.queue_id


def test_a_snapshot_without_a_free_number_still_offers_it() -> None:
    table = LiteTopics(all_max=9, each_max=9)
    table.opened(7, "y", LITE_QUEUES_FROM + 2, 0, 0)
    assert table.next_queue(7, "p") == LITE_QUEUES_FROM


def test_both_limits_are_told_apart() -> None:
    table = LiteTopics(all_max=3, each_max=2)
    for topic_id, name in ((1, "x"), (1, "y"), (2, "x")):
        table.opened(topic_id, name, table.next_queue(topic_id, "p"), 0, 0)
    with pytest.raises(LiteTopicQuotaExceeded, match="lite_topics_per_topic_max"):
        table.next_queue(1, "p")
    with pytest.raises(LiteTopicQuotaExceeded, match="lite_topics_max"):
        table.next_queue(2, "p")
    table.forget_topic(1)
    assert len(table) == 1


def test_a_tenant_leaves_lite_topics_to_others() -> None:
    parents = {1: "a-1", 2: "a-2", 3: "b-1"}
    users = users_of(a="topic:a-* publish", b="topic:b-* publish")
    table = LiteTopics(all_max=8, each_max=8, users=lambda: users, name_of=parents.__getitem__)

    def make(topic_id: int, name: str) -> LiteTopic:
        return table.opened(topic_id, name, table.next_queue(topic_id, parents[topic_id]), 0, 0)

    made = [make(1 + number % 2, f"x{number}") for number in range(6)]
    for topic_id in (1, 2):
        with pytest.raises(LiteTopicQuotaExceeded, match=r"6 of them under the grants of user a.*lite_topics_max"):
            make(topic_id, "new")
    make(3, "x")
    for one in made[:2]:
        table.closed(one.topic_id, one.queue_id)
    make(1, "new")


def test_the_queues_of_names_leave_out_those_that_are_not_here() -> None:
    topics = LiteTopics(all_max=10, each_max=10)
    for queue_id, name in enumerate(("a", "b"), LITE_QUEUES_FROM):
        topics.opened(7, name, queue_id, 0, 1_000)
    assert topics.queues(7, ["b", "elsewhere", "a"]) == [LITE_QUEUES_FROM + 1, LITE_QUEUES_FROM]
    assert topics.queues(8, ["a"]) == []
