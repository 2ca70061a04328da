"""The oldest groups of messages leave memory first."""

from evenq.store.log.consume_queue import ConsumeQueue
from evenq.store.log.hot_cache import HotCache
from evenq.store.log.writer import WriteBatch


def group(message, size, counts):
    """A safe group of this number of log bytes, with this number of messages of each queue."""
    batch = WriteBatch(0)
    batch.end = size
    for queue, count in counts.items():
        queue.hot += [message(queue_id=queue.queue_id) for _ in range(count)]
        batch.messages += count
        batch.touched[queue] = queue.max_offset = queue.next_offset = queue.next_offset + count
    return batch


def test_the_oldest_groups_go_when_the_newest_need_their_room(message):
    cache, first, second = HotCache(1_000), ConsumeQueue(1, 0), ConsumeQueue(1, 1)
    cache.add(group(message, 400, {first: 3}))
    cache.add(group(message, 600, {first: 1, second: 2}))
    assert (cache.bytes, first.hot_start, second.hot_start) == (1_000, 0, 0)
    cache.add(group(message, 1, {second: 1}))
    assert (cache.bytes, first.hot_start, second.hot_start) == (601, 3, 0)
    cache.add(group(message, 1_000, {second: 1}))
    assert (cache.bytes, first.hot_start, second.hot_start) == (1_000, 4, 3)


def test_a_group_over_the_limit_does_not_stay(message):
    cache, queue = HotCache(100), ConsumeQueue(1, 0)
    cache.add(group(message, 101, {queue: 2}))
    assert (cache.bytes, queue.hot_start) == (0, 2)


def test_groups_without_messages_take_no_room(message):
    cache, queue = HotCache(100), ConsumeQueue(1, 0)
    cache.add(group(message, 60, {queue: 1}))
    cache.add(group(message, 60, {}))
    assert (cache.bytes, queue.hot_start) == (60, 0)


def test_messages_that_are_in_no_memory_take_no_room_and_those_that_went_go_only_once(message):
    cache, queue = HotCache(1_000), ConsumeQueue(1, 0)
    cache.add(group(message, 400, {queue: 3}))
    queue.go_on_cold(8)  # a block of five messages
    queue.next_offset = queue.max_offset = 8
    batch = WriteBatch(0)
    batch.end, batch.messages, batch.cold_bytes, batch.touched[queue] = 5_000, 5, 4_900, 8
    cache.add(batch)
    assert cache.bytes == 500
    cache.add(group(message, 600, {queue: 2}))  # the first group leaves, which the block has sent away before
    assert (cache.bytes, queue.hot_start, len(queue.hot)) == (700, 8, 2)
    assert queue.hot[0].queue_id == 0
    queue.take_back(8)
    assert (queue.hot, queue.hot_base) == ([], 8)
    queue.take_back(4)
    assert (queue.hot, queue.hot_base, queue.hot_dead, queue.next_offset) == ([], 4, 0, 4)
