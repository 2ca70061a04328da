"""Promises about sending: semantics section 7 (PR)."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from evenq.client.core.queue_choice import QueueCounter, queue_of_group
from evenq.model import MessageQueue

LIST = [MessageQueue("t", broker, number) for broker in ("a", "b") for number in (0, 1)]


def test_pr_2_a_counter_goes_up_by_one_per_choice_modulo_the_list() -> None:
    counter = QueueCounter(6)
    assert [counter.choose(LIST) for _ in range(5)] == [LIST[2], LIST[3], LIST[0], LIST[1], LIST[2]]


def test_pr_3_after_b1_failed_the_next_choice_is_a0() -> None:
    counter = QueueCounter(7)
    failed = counter.choose(LIST)
    assert failed == MessageQueue("t", "b", 1)
    assert counter.choose(LIST, failed_broker=failed.broker_name) == MessageQueue("t", "a", 0)


def test_pr_2_queues_of_the_failed_broker_are_skipped_until_another_broker_comes() -> None:
    counter = QueueCounter(0)
    assert counter.choose(LIST, failed_broker="a") == MessageQueue("t", "b", 0)


def test_pr_2_the_only_broker_is_used_although_it_failed() -> None:
    only = LIST[:2]
    assert QueueCounter(0).choose(only, failed_broker="a") in only


@given(start=st.integers(0, 1 << 16), messages=st.integers(0, 400), queues=st.integers(1, 40))
def test_pr_6_messages_spread_evenly(start: int, messages: int, queues: int) -> None:
    counter = QueueCounter(start)
    choices = [MessageQueue("t", "a", number) for number in range(queues)]
    shares = Counter(counter.choose(choices) for _ in range(messages))
    assert {shares[queue] for queue in choices} <= {messages // queues, messages // queues + 1}


def test_pr_6_one_hundred_messages_over_sixteen_queues_are_six_or_seven_each() -> None:
    counter = QueueCounter(11)
    choices = [MessageQueue("t", "a", number) for number in range(16)]
    assert set(Counter(counter.choose(choices) for _ in range(100)).values()) == {6, 7}


@given(st.text(min_size=1, max_size=30), st.integers(1, 64))
def test_pr_7_equal_keys_go_to_one_queue(group: str, queues: int) -> None:
    choices = [MessageQueue("t", "a", number) for number in range(queues)]
    assert queue_of_group(group, choices) == queue_of_group(str(group), list(choices))


def test_pr_7_the_hash_is_the_same_in_every_release() -> None:
    choices = [MessageQueue("t", "a", number) for number in range(16)]
    assert [queue_of_group(group, choices).queue_id for group in ("order-1", "order-2", "order-3")] == [12, 3, 15]
