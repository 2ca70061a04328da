"""Queues of a priority, of ordered messages, and by faults (the rest is proved by the producer's spec tests)."""

from evenq.client.core.sending.faults import FaultTable
from evenq.client.core.sending.queue_choice import FixedQueues, QueueCounter, queues_of_priority
from evenq.model import MessageQueue


def test_a_priority_has_a_queue_at_each_broker_and_the_top_is_not_exceeded() -> None:
    queues = [MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)]
    assert queues_of_priority(0, queues) == [queues[0], queues[2]]
    assert queues_of_priority(1, queues) == [queues[1], queues[2]]
    assert queues_of_priority(9, queues) == queues_of_priority(1, queues)
    assert queues_of_priority(-1, queues) == queues_of_priority(0, queues), "the broker says that it is wrong"


def test_fixed_queues_stay_while_their_broker_is_away_and_tell_when_new_ones_came() -> None:
    one, two, three = (MessageQueue("t", name, 0) for name in "abc")
    fixed = FixedQueues()
    assert not fixed.changed((one, three), "ac"), "the first ones moved nothing"
    assert not fixed.changed((one,), "a")
    assert list(fixed.queues) == [one, three]
    assert fixed.changed((one, two), "ab")
    assert list(fixed.queues) == [one, two, three]


def test_rt_8_fixed_queues_go_when_their_broker_is_there_and_does_not_name_them_any_more() -> None:
    one, two, away = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)
    fixed = FixedQueues()
    fixed.changed((one, two, away), "ab")
    assert fixed.changed((one,), "a"), "keys move: say so"
    assert list(fixed.queues) == [one, away]


def test_by_faults_a_retry_is_near_once_then_elsewhere_and_at_last_where_the_pause_ends_first() -> None:
    queues = [MessageQueue("t", broker, number) for broker in "abc" for number in range(2)]
    counter, faults = QueueCounter(0), FaultTable()
    near = counter.choose_by_faults(queues, faults, now_ms=0, failed=queues[0], near=True)
    assert near == queues[1]
    away = counter.choose_by_faults(queues, faults, now_ms=0, failed=queues[0])
    assert away.broker_name != "a"
    for broker, latency_ms in (("a", 20_000), ("b", 600), ("c", 20_000)):
        faults.answered(broker, latency_ms, 0)
    chosen = [counter.choose_by_faults(queues, faults, now_ms=1).broker_name for _ in range(40)]
    assert chosen.count("b") > 20
    only = queues[:1]
    assert counter.choose_by_faults(only, faults, now_ms=1, failed=only[0], near=True) == only[0]
