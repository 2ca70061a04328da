"""The order of message queues is what every allocate strategy stands on (XO-9)."""

from evenq.model import MessageQueue


def test_queues_sort_by_topic_then_broker_then_number():
    expected = [MessageQueue(t, b, n) for t in ("a", "b") for b in ("x", "y") for n in (0, 2, 10)]
    assert sorted(set(expected)) == expected


def test_a_queue_is_its_place_and_reads_as_one():
    assert MessageQueue("t", "b", 1) == MessageQueue("t", "b", 1)
    assert len({MessageQueue("t", "b", 1), MessageQueue("t", "b", 1), MessageQueue("t", "b", 2)}) == 2
    assert str(MessageQueue("t", "b", 1)) == "t@b:1"
