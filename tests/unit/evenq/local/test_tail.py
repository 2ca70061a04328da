"""The newest messages in memory."""

from __future__ import annotations

from evenq.local.messages import Message
from evenq.local.tail import Cache, QueueTail, Topic


def published(cache, queue, count, size=100):
    messages = []
    for _ in range(count):
        message = Message("T", queue.key[1], bytes(size))
        message.offset = queue.next
        queue.next += 1
        messages.append(message)
    cache.publish(queue, messages)


def test_memory_stays_within_the_limit_and_the_oldest_of_all_queues_go_first():
    cache, topic = Cache(5_000), Topic("T")
    first, second = QueueTail(topic, 0), QueueTail(topic, 1)
    published(cache, first, 10)
    published(cache, second, 15)
    assert cache.bytes <= 5_000
    assert first.recent(0, 5) == []
    assert [message.offset for message in first.recent(9, 5)] == [9]
    assert [message.offset for message in second.recent(3, 2)] == [3, 4]
    assert (first.end, second.end) == (10, 15)


def test_the_newest_message_stays_whatever_its_size():
    cache, queue = Cache(1), QueueTail(Topic("T"), 0)
    published(cache, queue, 3)
    assert [message.offset for message in queue.recent(2, 9)] == [2]


def test_the_list_of_a_long_queue_is_cut_and_offsets_stay_right():
    cache, queue = Cache(50_000), QueueTail(Topic("T"), 0)
    queue.start_at(100, 100)
    for _ in range(500):
        published(cache, queue, 10)
    assert len(queue.tail[1]) < 2_000
    assert [message.offset for message in queue.recent(5_095, 9)] == [5_095, 5_096, 5_097, 5_098, 5_099]
    assert queue.recent(99, 1) == queue.recent(200, 1) == queue.recent(5_100, 1) == []


def test_who_waits_is_told_once_for_a_batch():
    class Listener:
        rung = []

        def ring(self, key):
            self.rung.append(key)

    topic = Topic("T")
    topic.bells[1] = Listener()
    published(Cache(1_000), QueueTail(topic, 4), 3)
    assert Listener.rung == [("T", 4)]
