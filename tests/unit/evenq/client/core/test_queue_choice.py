"""Queues of a priority (the rest of the module is proved by the producer's spec tests)."""

from evenq.client.core.queue_choice import queues_of_priority
from evenq.model import MessageQueue


def test_a_priority_has_a_queue_at_each_broker_and_the_top_is_not_exceeded() -> None:
    queues = [MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)]
    assert queues_of_priority(0, queues) == [queues[0], queues[2]]
    assert queues_of_priority(1, queues) == [queues[1], queues[2]]
    assert queues_of_priority(9, queues) == queues_of_priority(1, queues)
    assert queues_of_priority(-1, queues) == queues_of_priority(0, queues), "the broker says that it is wrong"
