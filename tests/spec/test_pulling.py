"""Promises about pulling, flow control and long polls: semantics sections 12 (PQ) and 13 (LP), client and broker."""

from __future__ import annotations

import asyncio

from evenq_proofs.received import received_message

import evenq
from evenq.client.core.reading.process_queue import ProcessQueue
from evenq.model import QueueOffset
from evenq.wire.stubs.evenq.v1 import data_pb2

PULL = "/evenq.v1.Data/Pull"


def requests(world) -> list[data_pb2.PullRequest]:
    """Every pull from now on, as the broker gets it."""
    events = []
    net, ask = world.net, world.net.unary

    async def listening(address, method, request, **rest):
        if method == PULL:
            events.append(data_pb2.PullRequest.FromString(request))
        return await ask(address, method, request, **rest)

    net.unary = listening
    return events


async def test_pq_1_pq_2_pq_9_a_parked_pull_of_one_queue_holds_up_no_other_and_the_loop_never_ends(world):
    """After each answer the queue is pulled again; an empty queue costs one call per long poll, not more."""
    await world.start()
    await world.create("t", 3)
    one = await world.push(options=evenq.PushOptions(pull_wait_ms=10_000))
    await world.ready(one, queues=3)
    result = requests(world)
    for number in range(5):
        await world.publish(number, queue=1)
        await world.until(lambda: len(world.seen) == number + 1, limit_ms=1_000)  # noqa: B023 - waited for at once
    await world.clock.advance(30_000)
    by_queue = [sum(pull.queue.queue_id == queue for pull in result) for queue in range(3)]
    assert by_queue[0] <= 4
    assert by_queue[2] <= 4
    assert by_queue[1] <= 5 + 4


async def test_pq_3_one_pull_at_a_time_per_queue_each_from_where_the_last_one_ended(world):
    await world.start()
    await world.create("t")
    await world.publish(*range(10))
    result = requests(world)
    await world.push(options=evenq.PushOptions(pull_batch=4, retry="local"))
    await world.until(lambda: len(world.seen) == 10)
    await world.clock.advance(100)
    assert [pull.offset for pull in result] == [0, 4, 8, 10]


async def test_pq_4_of_2_a_pull_names_group_client_queue_and_offset_and_carries_progress(world):
    """OF-2: the broker's table knows it before the five seconds are over."""
    await world.start()
    await world.create("t")
    result = requests(world)
    one = await world.push("member-1", options=evenq.PushOptions(retry="local"))
    await world.ready(one)
    await world.publish("a")
    await world.until(lambda: len(world.seen) == 1)
    await world.publish("b")
    await world.until(lambda: len(world.seen) == 2)
    await world.clock.advance(10)
    last = result[-1]
    assert (last.group, last.client_id, last.queue.topic, last.queue.queue_id) == ("g", "member-1", "t", 0)
    assert last.offset == 2
    assert last.committed >= 1
    assert await world.committed("g") >= 1


def received(offset: int, body: bytes = b"four") -> evenq.ReceivedMessage:
    return received_message(offset, body=body, queue=evenq.MessageQueue("t", "a", 0))


def test_pq_5_what_a_process_queue_holds():
    """Messages in offset order, those a listener has, the dropped flag, the time of the last pull."""
    process = ProcessQueue(evenq.MessageQueue("t", "a", 0), QueueOffset(5), now_ms=77)
    assert (process.next, process.dropped, process.last_pull_ms, process.count) == (5, False, 77, 0)
    assert not process.busy
    process.put([received(offset) for offset in (5, 6, 9)], 12, now_ms=99)
    assert (process.next, process.last_pull_ms, process.count, process.bytes, process.span) == (12, 99, 3, 12, 4)
    taken = process.take(2, now_ms=100)
    assert [message.queue_offset for message in taken] == [5, 6], "the smallest offsets first"
    assert (process.count, process.committable) == (3, 5), "what a listener has is still in hand"
    process.finish(QueueOffset(6))
    assert (process.count, process.bytes, process.committable) == (2, 8, 5)
    assert [message.queue_offset for message in process.take(9, now_ms=100)] == [9], "and is not given twice"
    process.put([], 12, now_ms=200)
    assert process.last_pull_ms == 200, "also a pull that brought nothing"
    process.drop()
    assert process.dropped
    process.finish(QueueOffset(5))
    process.finish(QueueOffset(9))
    assert (process.busy, process.count, process.committable) == (False, 0, 12)


async def test_pq_8_the_size_in_hand_puts_pulls_off_until_there_is_room(world):
    """Twenty bodies of 200 bytes against a limit of 1 KiB; each pull brings two."""
    await world.start()
    await world.create("t")
    stuck = asyncio.Event()

    async def listener(messages):
        await stuck.wait()

    await world.publish(*(f"{number:0200}" for number in range(20)))
    options = evenq.PushOptions(pull_batch=2, pull_threshold_bytes_queue=1_024, consume_batch=1, retry="local")
    one = await world.push(listener=listener, options=options)
    await world.ready(one)
    await world.clock.advance(3_000)
    (process,) = one._pushing._member.held.processes()
    assert (process.count, process.bytes) == (6, 1_200)
    stuck.set()
    await world.until(lambda: len(world.seen) == 20)
    assert evenq.PushOptions().pull_threshold_queue == evenq.PullOptions().pull_threshold_queue == 1_000
    assert evenq.PushOptions().pull_threshold_bytes_queue == evenq.PullOptions().pull_threshold_bytes_queue == 100 << 20


async def test_pq_6_a_dropped_queue_is_never_pulled_again(world):
    await world.start()
    await world.create("t", 1)
    one = await world.push(options=evenq.PushOptions(retry="local"))
    await world.ready(one)
    result = requests(world)
    one.unsubscribe("t")
    await world.until(lambda: not one.queues)
    await world.publish(1)
    await world.clock.advance(20_000)
    assert not result
    assert not world.seen


async def test_pq_7_a_span_over_2000_puts_pulls_off_until_the_oldest_message_is_done(world):
    """The stuck message at 0 lets 2,001 offsets be in hand, not more; when it ends, the pulls go on."""
    await world.start()
    await world.create("t")
    stuck = asyncio.Event()

    async def listener(messages):
        if messages[0].queue_offset == 0:
            await stuck.wait()

    for start in range(0, 6_000, 1_000):
        await world.publish(*range(start, start + 1_000))
    options = evenq.PushOptions(pull_batch=1, consume_batch=1, pull_threshold_queue=100_000, retry="local")
    await world.push(listener=listener, consume_threads=5, options=options)
    await world.until(lambda: len(world.seen) == 2_002, limit_ms=400_000)
    await world.clock.advance(5_000)
    assert max(message.queue_offset for message in world.seen) == 2_001
    stuck.set()
    await world.until(lambda: len(world.seen) > 2_100, limit_ms=400_000)


async def test_pq_8_count_and_size_in_hand_put_pulls_off(world):
    await world.start()
    await world.create("t", 2)
    stuck = asyncio.Event()

    async def listener(messages):
        await stuck.wait()

    await world.publish(*range(100), queue=0)
    options = evenq.PushOptions(pull_batch=10, pull_threshold_queue=25, retry="local")
    one = await world.push(listener=listener, options=options)
    await world.ready(one, queues=2)
    await world.clock.advance(2_000)
    (process,) = [p for p in one._pushing._member.held.processes() if p.queue.queue_id == 0]
    assert 25 <= process.count < 35
    stuck.set()
    await world.until(lambda: len(world.seen) == 100)


async def test_pq_8_rb_39_rb_40_a_topics_limit_is_divided_by_its_own_queues(world):
    """Other topics' queues and the retry topic's do not count."""
    await world.start(delay_levels="1s")
    await world.create("t", 3)
    await world.create("u", 5)
    options = evenq.PushOptions(pull_threshold_topic=1_000, pull_threshold_bytes_topic=100)
    one = await world.push(subscriptions={"t": "*", "u": "*"}, options=options)
    await world.ready(one, queues=8)
    held = one._pushing._member.held
    assert (held.limits("t").messages, held.limits("t").bytes) == (333, 33)
    assert (held.limits("u").messages, held.limits("u").bytes) == (200, 20)


async def test_pq_9_an_answer_that_comes_empty_and_too_fast_is_followed_by_a_pause(world):
    """A broker that answers at once with nothing is asked ten times a second, not thousands."""
    await world.start()
    await world.create("t")
    one = await world.push(options=evenq.PushOptions(pull_wait_ms=0, retry="local"))
    await world.ready(one)
    result = requests(world)
    await world.clock.advance(10_000)
    assert 50 <= len(result) <= 101


async def test_lp_2_lp_3_a_parked_pull_is_answered_within_its_queues_news_and_no_other(world):
    """LP-1: at once, without the five seconds that are only the safety net of the original."""
    await world.start()
    await world.create("t", 2)
    one = await world.push(options=evenq.PushOptions(retry="local"))
    await world.ready(one, queues=2)
    await world.clock.advance(1_000)
    result = requests(world)
    asked_ms = world.clock.monotonic_ms()
    await world.publish("x", queue=1)
    await world.until(lambda: len(world.seen) == 1, step_ms=1)
    assert world.clock.monotonic_ms() - asked_ms <= 20
    await world.clock.advance(10)
    assert [pull.queue.queue_id for pull in result] == [1]


async def test_lp_2_news_that_nobody_told_of_are_found_when_the_pull_ends(world):
    """The safety net: a pull waits at most `pull_wait_ms`, then the queue is looked at again."""
    broker = await world.start()
    await world.create("t")
    one = await world.push(options=evenq.PushOptions(pull_wait_ms=5_000, retry="local"))
    await world.ready(one)
    broker.ledger.store.on_dispatched = lambda _: None
    await world.publish("x")
    await world.clock.advance(1_000)
    assert not world.seen
    await world.until(lambda: len(world.seen) == 1, limit_ms=6_000)
