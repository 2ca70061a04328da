"""The oldest messages of all queues leave memory first, run by run."""

from evenq.store.consume_queue import ConsumeQueue
from evenq.store.hot_cache import HotCache


def placed(queue, message, count, frame_bytes):
    """A run of `count` messages at the end of `queue`."""
    queue.hot += [message(queue_id=queue.queue_id) for _ in range(count)]
    queue.max_offset = queue.next_offset = queue.next_offset + count
    return (queue, count, frame_bytes)


def test_the_oldest_runs_of_any_queue_go_when_the_newest_need_their_room(message):
    cache, first, second = HotCache(1_000), ConsumeQueue(1, 0), ConsumeQueue(1, 1)
    cache.add([placed(first, message, 3, 400), placed(second, message, 2, 400)])
    assert (cache.bytes, first.hot_start, second.hot_start) == (800, 0, 0)
    cache.add([placed(second, message, 1, 150), placed(first, message, 1, 150)])
    assert (cache.bytes, first.hot_start, second.hot_start) == (700, 3, 0)
    cache.add([placed(second, message, 1, 700)])
    assert (cache.bytes, first.hot_start, second.hot_start) == (1_000, 3, 2), "as much as may stay stays"


def test_what_is_over_the_limit_alone_does_not_stay(message):
    cache, queue = HotCache(100), ConsumeQueue(1, 0)
    cache.add([placed(queue, message, 2, 101)])
    assert (cache.bytes, queue.hot_start) == (0, 2)
    cache.add([])
    assert cache.bytes == 0
