"""Promises about concurrent consumption: semantics section 14 (CC), and what retries look like to a listener (RD)."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

import evenq
from evenq.client.loops.reading.settler import RETURNS_MAX
from evenq.errors import NotImplementedYet

SEND_BACK = "/evenq.v1.Data/SendBack"
SLOW = {"commit_interval_ms": 100}


async def test_cc_1_cc_2_messages_run_in_parallel_and_may_finish_out_of_order(world):
    """As many listener calls at a time as `consume_threads` says."""
    await world.start()
    await world.create("t")
    running, most, order = 0, 0, []

    async def listener(messages):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await world.clock.sleep_ms(1_000 - 200 * int(messages[0].body))
        order.append(int(messages[0].body))
        running -= 1

    one = await world.push(listener=listener, consume_threads=3, options=evenq.PushOptions(consume_batch=1))
    await world.ready(one)
    await world.publish(0, 1, 2, 3)
    await world.until(lambda: len(order) == 4)
    assert most == 3
    assert order != sorted(order)


async def test_cc_3_a_pulled_list_is_cut_into_batches_up_to_a_setting(world):
    """Ten messages are at least three calls of at most four; no call gets more, none is lost or repeated."""
    await world.start()
    await world.create("t")
    sizes = []

    async def listener(messages):
        sizes.append(len(messages))

    await world.publish(*range(40))
    one = await world.push(listener=listener, options=evenq.PushOptions(consume_batch=4))
    await world.until(lambda: len(world.seen) == 40)
    assert max(sizes) == 4
    assert Counter(world.saw()) == Counter(str(number) for number in range(40))
    assert one.queues


async def test_cc_4_cc_7_the_listeners_result_decides_and_progress_moves_in_memory_first(world):
    """OF-2: the broker hears of it with the next report."""
    await world.start()
    await world.create("t")
    answers = {b"1": None, b"2": True, b"3": False}

    async def listener(messages):
        return answers[messages[0].body]

    one = await world.push(listener=listener, options=evenq.PushOptions(consume_batch=1, retry="local", **SLOW))
    await world.ready(one)
    await world.publish(1, 2, 3)
    await world.until(lambda: len(world.seen) >= 3)
    await world.clock.advance(150)
    assert await world.committed("g") == 2, "behind 1 and 2, before 3"


async def test_cc_4_rd_7_a_batch_may_be_done_in_part_and_name_its_delay(world):
    await world.start()
    await world.create("t")
    batches = []

    async def listener(messages):
        batches.append([message.body for message in messages])
        bad = [message for message in messages if message.body == b"b" and message.delivery_attempt == 1]
        return evenq.Retry(bad, delay_level=1) if bad else None

    await world.publish("a", "b", "c")
    await world.push(listener=listener, options=evenq.PushOptions(**SLOW))
    await world.until(lambda: world.saw().count("b") == 2)
    assert Counter(world.saw()) == {"a": 1, "b": 2, "c": 1}
    again = world.seen[-1]
    assert 1_000 <= again.store_ms - world.seen[0].store_ms < 2_000


async def test_rd_5_a_listener_may_send_a_message_straight_to_the_dead_letters(world):
    await world.start()
    await world.create("t")

    async def listener(messages):
        return evenq.Retry(messages, delay_level=-1)

    await world.push(listener=listener)
    await world.publish("poison")
    await world.until(lambda: world.has("%DLQ%g"))
    await world.clock.advance(50)
    assert await world.bodies("%DLQ%g") == ["poison"]
    assert world.saw() == ["poison"]


async def test_cc_5_cc_7_rd_1_rd_2_a_failed_message_comes_again_through_the_retry_topic_and_holds_no_progress(world):
    """The group reads its retry topic by itself; the message shows its own topic and which delivery it is."""
    await world.start()
    await world.create("t")
    failed = asyncio.Event()

    async def listener(messages):
        if messages[0].body == b"bad" and not failed.is_set():
            failed.set()
            raise ValueError("not now")

    one = await world.push(listener=listener, options=evenq.PushOptions(consume_batch=1, **SLOW))
    await world.ready(one)
    await world.publish("bad", "good")
    await world.until(lambda: world.saw() == ["bad", "good"])
    await world.clock.advance(200)
    assert await world.committed("g") == 2
    await world.until(lambda: world.saw() == ["bad", "good", "bad"], step_ms=50)
    again = world.seen[-1]
    assert (again.topic, again.queue.topic, again.delivery_attempt) == ("t", "%RETRY%g", 2)
    assert again.message_id == "id-bad"
    assert again.store_ms - world.seen[0].store_ms >= 10_000
    assert [queue.topic for queue in one.queues] == ["t"], "the retry topic is no queue of the user's"


async def test_rd_3_a_message_that_always_fails_is_delivered_as_often_as_its_group_says_and_then_dead(world):
    """RD-19, and TQ-13 for the names."""
    await world.start(delay_levels="1s")
    await world.create("t")
    await world.group("g", max_attempts=3)

    async def listener(messages):
        return False

    await world.push(listener=listener)
    await world.publish("poison")
    await world.until(lambda: len(world.seen) == 3, step_ms=50)
    assert [message.delivery_attempt for message in world.seen] == [1, 2, 3]
    await world.clock.advance(10_000)
    assert len(world.seen) == 3
    assert await world.bodies("%DLQ%g") == ["poison"]


async def test_rb_16_rd_2_another_member_may_get_the_retry_and_no_member_misses_it(world):
    """The retry topic is shared like any other, in silence while it does not exist."""
    await world.start(delay_levels="1s")
    await world.create("t", 2)
    done = Counter()

    async def listener(messages):
        for message in messages:
            if message.delivery_attempt == 1:
                return evenq.Retry(messages)
            done[message.body] += 1
        return None

    one = await world.push("one", listener=listener, options=evenq.PushOptions(consume_batch=1))
    two = await world.push("two", listener=listener, options=evenq.PushOptions(consume_batch=1))
    await world.until(lambda: len(one.queues) == len(two.queues) == 1)
    await world.publish(*range(5), queue=0)
    await world.publish(*range(5, 10), queue=1)
    await world.until(lambda: len(done) == 10, step_ms=50)
    assert set(done.values()) == {1}


@pytest.mark.spec("CC-2")
async def test_cc_6_what_the_broker_refuses_to_take_back_runs_here_again_later(world):
    """CC-2: the timer that resubmits."""
    await world.start()
    await world.create("t")

    async def refused(_request, _context):
        raise NotImplementedYet("an older broker")

    rpcs = world.net._hosts["a:8081"].rpcs
    rpcs[SEND_BACK] = replace(rpcs[SEND_BACK], handler=refused)

    async def listener(messages):
        return messages[0].delivery_attempt > 1

    one = await world.push(listener=listener, options=evenq.PushOptions(retry_first_ms=300))
    await world.ready(one)
    await world.publish("x")
    await world.until(lambda: world.saw() == ["x"])
    await world.clock.advance(250)
    assert world.saw() == ["x"]
    await world.until(lambda: world.saw() == ["x", "x"])
    assert (world.seen[1].queue.topic, world.seen[1].delivery_attempt) == ("t", 2)
    assert world.calls("SendBack") == 1
    assert not world.has("%RETRY%g")


def lose_answers(world, count, *, outage=False):
    """The broker stores what is sent back, but the first `count` answers never arrive; `outage`: it stores nothing."""
    rpcs, lost = world.net._hosts["a:8081"].rpcs, []
    send_back = rpcs[SEND_BACK].handler

    async def silent(request, context):
        if len(lost) < count:
            lost.append(request)
            if not outage:
                await send_back(request, context)
            await asyncio.Event().wait()
        return await send_back(request, context)

    rpcs[SEND_BACK] = replace(rpcs[SEND_BACK], handler=silent)
    return lost


@pytest.mark.parametrize("outage", [False, True])
@pytest.mark.parametrize("level", [0, -1])
async def test_cc_6_a_return_without_an_answer_is_repeated_and_is_one_more_delivery(world, outage, level):
    """The broker may have stored the copy, so the message does not run here too."""
    await world.start(delay_levels="1s")
    await world.create("t")
    lost = lose_answers(world, 2, outage=outage)

    async def listener(messages):
        if messages[0].delivery_attempt < 3:
            return evenq.Retry(messages, delay_level=level)
        return None

    one = await world.push(listener=listener, options=evenq.PushOptions(retry_first_ms=300, **SLOW))
    await world.ready(one)
    await world.publish("x")
    await world.until(lambda: len(lost) == 2, step_ms=50)
    await world.clock.advance(60_000)
    assert [message.delivery_attempt for message in world.seen] == ([1, 2, 3] if level == 0 else [1])
    assert await world.committed("g") == 1
    if level:
        assert await world.bodies("%DLQ%g") == ["x"]
    else:
        assert await world.bodies("%RETRY%g") == ["x", "x"]


async def test_cc_6_returns_without_an_answer_are_repeated_one_at_a_time_and_hold_up_no_other_message(world):
    await world.start(delay_levels="1s")
    await world.create("t")
    lost = lose_answers(world, 5, outage=True)
    running, most = 0, 0
    rpcs = world.net._hosts["a:8081"].rpcs
    silent = rpcs[SEND_BACK].handler

    async def counted(request, context):
        nonlocal running, most
        running += 1
        most = max(most, running) if len(lost) >= 3 else most
        try:
            return await silent(request, context)
        finally:
            running -= 1

    rpcs[SEND_BACK] = replace(rpcs[SEND_BACK], handler=counted)

    async def listener(messages):
        return int(messages[0].body) >= 3 or messages[0].delivery_attempt > 1

    options = evenq.PushOptions(consume_batch=1, retry_first_ms=300)
    one = await world.push(listener=listener, consume_threads=3, options=options)
    await world.ready(one)
    await world.publish(*range(3))
    await world.until(lambda: len(lost) == 4, step_ms=50)
    await world.publish(*range(3, 6))
    await world.until(lambda: {"3", "4", "5"} <= set(world.saw()), step_ms=50)
    assert len(lost) < 5, "the others did not wait for the returns"
    await world.until(lambda: len(world.seen) == 9, step_ms=50)
    await world.clock.advance(60_000)
    assert Counter(world.saw()) == {"0": 2, "1": 2, "2": 2, "3": 1, "4": 1, "5": 1}
    assert most == 1


async def test_cc_6_the_next_owner_gets_no_message_whose_return_is_stored_without_an_answer(world):
    await world.start(delay_levels="1s")
    await world.create("t")
    lost = lose_answers(world, 1)

    async def listener(messages):
        return messages[0].delivery_attempt > 1

    options = evenq.PushOptions(consume_batch=1, retry_first_ms=60_000, **SLOW)
    one = await world.push("one", listener=listener, options=options)
    await world.ready(one)
    await world.publish("x", "y")
    await world.until(lambda: len(lost) == 1, step_ms=50)
    await world.clock.advance(5_000)
    await world.during(one.close(), step_ms=50)
    world.clients.remove(one)
    await world.push("two", listener=listener, options=options)
    await world.clock.advance(60_000)
    assert sorted((message.body, message.delivery_attempt) for message in world.seen) == [
        (b"x", 1), (b"x", 2), (b"y", 1), (b"y", 2),
    ]  # fmt: skip


async def test_cc_6_after_many_returns_without_an_answer_a_message_runs_here_again(world):
    """The locks are confirmed all the time, so only this call fails; the queue's progress must not wait for ever."""
    await world.start()
    await world.create("t")
    lost = lose_answers(world, 1_000, outage=True)

    async def listener(messages):
        return messages[0].delivery_attempt > 1

    one = await world.push(listener=listener, options=evenq.PushOptions(retry_first_ms=10, retry_max_ms=100, **SLOW))
    await world.ready(one)
    await world.publish("x")
    await world.until(lambda: len(world.seen) == 2, step_ms=100)
    assert len(lost) == RETURNS_MAX + 1
    assert [message.delivery_attempt for message in world.seen] == [1, 2]
    await world.clock.advance(1_000)
    assert await world.committed("g") == 1


async def test_cc_10_the_next_owner_of_a_dead_member_starts_at_its_last_commit(world):
    """The offset stands at the smallest unfinished message, so what was finished above it comes again."""
    await world.start()
    await world.create("t")
    stuck = asyncio.Event()

    async def listener(messages):
        if messages[0].body == b"1":
            await stuck.wait()

    one = await world.push("one", listener=listener, options=evenq.PushOptions(consume_batch=1, **SLOW))
    await world.ready(one)
    await world.publish(*range(5))
    await world.until(lambda: len(world.seen) == 5)
    await world.clock.advance(300)
    assert await world.committed("g") == 1
    seen = len(world.seen)
    await world.kill(one)
    await world.push("two")
    await world.until(lambda: len(world.seen) == seen + 4)
    assert [int(body) for body in world.saw()[seen:]] == [1, 2, 3, 4]
    stuck.set()


@pytest.mark.spec("CC-2")
async def test_cc_12_a_message_that_runs_too_long_is_sent_back_and_holds_progress_no_more(world):
    """CC-2: the timer that clears expired messages; how its listener ends later does not count."""
    await world.start()
    await world.create("t")
    stuck = asyncio.Event()

    async def listener(messages):
        if messages[0].body == b"0" and messages[0].delivery_attempt == 1:
            await stuck.wait()

    options = evenq.PushOptions(consume_batch=1, consume_timeout_ms=5_000, **SLOW)
    one = await world.push(listener=listener, options=options)
    await world.ready(one)
    await world.publish(*range(3))
    await world.until(lambda: len(world.seen) == 3)
    await world.clock.advance(4_000)
    assert await world.committed("g") == 0
    await world.clock.advance(8_000)
    assert await world.committed("g") == 3
    stuck.set()
    await world.until(lambda: world.saw().count("0") == 2, step_ms=50)
    assert world.seen[-1].delivery_attempt == 2


async def test_cc_12_what_cannot_be_sent_back_stays_in_hand_and_progress_waits_for_it(world):
    """First sent back, then removed: nothing is lost where the broker takes nothing back."""
    broker = await world.start()
    await world.create("t")
    send_back = world.net._hosts["a:8081"].rpcs.pop("/evenq.v1.Data/SendBack")
    options = evenq.PushOptions(consume_batch=1, consume_timeout_ms=5_000, **SLOW)
    one = await world.push(listener=lambda _: asyncio.Event().wait(), options=options)
    await world.ready(one)
    await world.publish("x")
    await world.until(lambda: len(world.seen) == 1)
    await world.clock.advance(20_000)
    (process,) = [p for p in one._pushing._member.held.processes() if p.queue.topic == "t"]
    assert process.count == 1
    assert await world.committed("g") == 0
    world.net._hosts["a:8081"].rpcs["/evenq.v1.Data/SendBack"] = send_back
    await world.clock.advance(11_000)
    assert process.count == 0
    assert await world.committed("g") == 1
    assert broker.ledger.store.timers.stats.pending + world.has("%RETRY%g") >= 1
    assert evenq.PushOptions().consume_timeout_ms == 15 * 60_000


async def retained(world, tmp_path, **group):
    """A broker that soon deletes the first message of `t`; returns a function that waits for it."""
    store = {
        "path": tmp_path, "disk_free_min_bytes": 0, "disk_used_max_ratio": 1, "disk_clean_ratio": 1,
        "segment_bytes": 1 << 16, "cache_bytes": 0, "retention_ms": 1_000, "retention_hour": -1,
    }  # fmt: skip
    broker = await world.start(store=store)
    await world.create("t")
    await world.group("g", **group)

    async def deleted():
        await world.publish(*(f"{number}{'.' * 20_000}" for number in range(10)))
        await world.slow_until(lambda: broker.ledger.store.queue_range(1, 0)[0] > 0, step_ms=1_000)

    return deleted


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("level", [0, -1])
async def test_oc_16_a_message_that_retention_deleted_is_given_up_after_its_last_attempt(
    world, tmp_path, caplog, ordered, level
):
    """It cannot become a dead letter any more; neither the commit nor the order waits for it."""
    deleted = await retained(world, tmp_path, max_attempts=2, ordered=ordered)
    ends = asyncio.Event()

    async def listener(messages):
        if messages[0].body != b"poison":
            return None
        await ends.wait()
        return evenq.Retry(messages, delay_level=level)

    options = evenq.PushOptions(consume_batch=1, suspend_ms=100, retry_first_ms=100, **SLOW)
    await world.publish("poison")
    await world.push(listener=listener, ordered=ordered, options=options)
    await world.until(lambda: world.saw() == ["poison"])
    await deleted()
    ends.set()
    end_ms = world.clock.monotonic_ms() + 10_000
    await world.slow_until(lambda: world.clock.monotonic_ms() >= end_ms, step_ms=100)
    assert world.saw().count("poison") == (1 if level else 2), "while attempts are left, it runs here again"
    assert await world.committed("g") == 11
    assert not world.has("%DLQ%g")
    assert "retention has deleted" in caplog.text


async def test_cc_12_a_message_that_runs_too_long_and_that_retention_deleted_holds_progress_no_more(world, tmp_path):
    deleted = await retained(world, tmp_path)

    async def listener(messages):
        if messages[0].body == b"stuck":
            await asyncio.Event().wait()

    await world.publish("stuck")
    await world.push(listener=listener, options=evenq.PushOptions(consume_timeout_ms=60_000, **SLOW))
    await world.until(lambda: world.saw() == ["stuck"])
    await deleted()
    await world.slow_until(lambda: len(world.saw()) == 11, step_ms=100)
    await world.clock.advance(80_000)
    assert await world.committed("g") == 11


async def test_cc_7_done_messages_leave_the_snapshot_and_progress_moves_in_memory_before_the_broker_hears_of_it(world):
    await world.start()
    await world.create("t")
    stuck = asyncio.Event()

    async def listener(messages):
        if messages[0].body == b"2":
            await stuck.wait()

    options = evenq.PushOptions(consume_batch=1, commit_interval_ms=60_000, retry="local")
    one = await world.push(listener=listener, options=options)
    await world.ready(one)
    table = one._pushing._member.progress.table
    (process,) = one._pushing._member.held.processes()
    await world.publish(0, 1, 2, 3)
    await world.until(lambda: len(world.seen) == 4)
    await world.clock.advance(50)
    assert (process.count, process.committable) == (1, 2)
    assert table.memory(process.queue) == 2
    assert await world.committed("g") == 0, "no pull and no report came since"
    stuck.set()
    await world.until(lambda: process.count == 0)
    assert table.memory(process.queue) == 4


async def test_cc_13_one_thread_keeps_the_order_inside_a_queue(world):
    await world.start()
    await world.create("t")

    async def listener(messages):
        await world.clock.sleep_ms(int(messages[0].body) % 3)

    await world.push(listener=listener, consume_threads=1, options=evenq.PushOptions(consume_batch=2))
    await world.publish(*range(30))
    await world.until(lambda: len(world.seen) == 30)
    assert [int(body) for body in world.saw()] == list(range(30))


async def test_a_poison_message_takes_no_neighbour_to_the_dead_letters(world):
    """Batches fail as a whole, but what failed before comes alone."""
    await world.start(delay_levels="1s")
    await world.create("t")
    await world.group("g", max_attempts=2)

    async def listener(messages):
        if any(message.body == b"bad" for message in messages):
            raise ValueError("bad")

    await world.publish("good", "bad", "fine")
    await world.push(listener=listener, options=evenq.PushOptions(consume_batch=8))
    await world.until(lambda: world.has("%DLQ%g"), step_ms=50)
    await world.clock.advance(3_000)
    assert await world.bodies("%DLQ%g") == ["bad"]


async def test_cc_4_a_listener_that_raises_cancels_or_answers_nonsense_costs_no_slot_and_loses_nothing(world):
    """More bad answers than slots: each is a failure of its messages, and all are done in the end."""
    await world.start()
    await world.create("t")
    done = []

    async def listener(messages):
        number = int(messages[0].body)
        if messages[0].delivery_attempt == 1:
            match number % 4:
                case 0:
                    raise asyncio.CancelledError
                case 1:
                    raise StopAsyncIteration
                case 2:
                    return evenq.Retry([None])
                case 3:
                    return evenq.Retry(5)
        done.append(number)
        return object()

    await world.publish(*range(12))
    await world.push(listener=listener, consume_threads=2, options=evenq.PushOptions(consume_batch=1, **SLOW))
    await world.until(lambda: len(done) == 12)
    assert sorted(done) == list(range(12))
