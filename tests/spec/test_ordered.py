"""Promises about ordered consumption: semantics section 15 (OC)."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from evenq_broker.metrics.broker_metrics import broker_metrics

import evenq
from evenq.client.core.groups.lock_trust import LockTrust
from evenq.wire.stubs.evenq.v1 import admin_pb2

RESET = "/evenq.v1.Admin/ResetOffsets"
FAST = {"suspend_ms": 100, "commit_interval_ms": 100}


async def test_oc_3_oc_11_oc_12_one_call_at_a_time_per_queue_in_offset_order_and_queues_in_parallel(world):
    await world.start()
    await world.create("t", 3)
    running, most, by_queue = {}, 0, {}

    async def listener(messages):
        nonlocal most
        queue = messages[0].queue
        assert queue not in running, "two calls for one queue"
        running[queue] = True
        most = max(most, len(running))
        await world.clock.sleep_ms(7)
        by_queue.setdefault(queue.queue_id, []).extend(int(message.body) for message in messages)
        del running[queue]

    for queue in range(3):
        await world.publish(*range(20), queue=queue)
    await world.push(listener=listener, ordered=True, consume_threads=8, options=evenq.PushOptions(consume_batch=3))
    await world.until(lambda: len(world.seen) == 60 and not running)
    assert by_queue == {queue: list(range(20)) for queue in range(3)}
    assert most == 3


async def test_oc_1_oc_2_each_orders_steps_are_handled_in_their_sequence(world):
    """Create, pay, ship of two orders in one queue: order by key, whatever fails in between."""
    await world.start()
    await world.create("t")
    done, failed = [], set()

    async def listener(messages):
        (message,) = messages
        step = message.body.decode()
        if step in {"pay-1", "ship-2"} and step not in failed:
            failed.add(step)
            return False
        done.append(step)
        return None

    await world.publish("create-1", "create-2", "pay-1", "pay-2", "ship-1", "ship-2")
    await world.push(listener=listener, ordered=True, options=evenq.PushOptions(consume_batch=1, **FAST))
    await world.until(lambda: len(done) == 6)
    for order in "12":
        assert [step for step in done if step.endswith(order)] == [f"{s}-{order}" for s in ("create", "pay", "ship")]


async def test_oc_14_oc_15_a_failed_message_comes_again_after_a_pause_while_later_ones_wait(world):
    """And success moves progress."""
    await world.start()
    await world.create("t")
    times, fail = [], 3

    async def listener(messages):
        nonlocal fail
        times.append(world.clock.monotonic_ms())
        if messages[0].body == b"a" and fail:
            fail -= 1
            raise ValueError("not yet")

    await world.publish("a", "b", "c")
    await world.push(listener=listener, ordered=True, options=evenq.PushOptions(consume_batch=1, **FAST))
    await world.until(lambda: len(world.seen) == 6)
    assert world.saw() == ["a", "a", "a", "a", "b", "c"]
    pauses = [after - before for before, after in pairwise(times)]
    assert all(100 <= pause < 150 for pause in pauses[:3])
    await world.clock.advance(250)
    assert await world.committed("g") == 3
    assert not world.has("%RETRY%g")


async def test_oc_16_oc_17_after_its_last_try_a_message_goes_to_the_dead_letters_and_the_queue_goes_on(world):
    """A poison message pauses its queue for a bounded time; the cap is the group's."""
    await world.start()
    await world.create("t")
    await world.group("g", ordered=True, max_attempts=4)

    async def listener(messages):
        return all(message.body != b"poison" for message in messages)

    await world.publish("a", "poison", "b", "c")
    await world.push(listener=listener, ordered=True, options=evenq.PushOptions(**FAST))
    await world.until(lambda: world.saw()[-1:] == ["c"] and world.has("%DLQ%g"))
    assert world.saw().count("poison") == 4
    assert await world.bodies("%DLQ%g") == ["poison"]
    await world.clock.advance(250)
    assert await world.committed("g") == 4


async def test_oc_17_better_a_queue_that_a_message_pauses_is_counted_for_its_group_until_it_goes_on(world):
    def paused(broker):
        (metric,) = [one for one in broker_metrics(broker) if one.name == "evenq_broker_stuck_queues"]
        return dict(metric.read())

    broker = await world.start(stuck_ms=20_000)
    await world.create("t", 2)
    await world.group("g", ordered=True, max_attempts=1_000)
    await world.group("h")
    cured = []

    async def listener(messages):
        return bool(cured) or all(message.body != b"poison" for message in messages)

    one = await world.push(listener=listener, ordered=True, options=evenq.PushOptions(**FAST))
    await world.push("other", group="h", options=evenq.PushOptions(**FAST))
    await world.ready(one, queues=2)
    await world.publish("a", "b", queue=1)
    await world.clock.advance(60_000)
    assert paused(broker) == {("g",): 0, ("h",): 0}, "all is read"
    await world.publish("poison", "c")
    await world.clock.advance(15_000)
    assert paused(broker) == {("g",): 0, ("h",): 0}
    await world.clock.advance(20_000)
    assert paused(broker) == {("g",): 1, ("h",): 0}
    cured.append(True)
    await world.clock.advance(10_000)
    assert paused(broker) == {("g",): 0, ("h",): 0}


async def test_oc_16_if_the_dead_letters_cannot_be_reached_the_queue_waits_on(world):
    broker = await world.start()
    await world.create("t")
    await world.group("g", max_attempts=1)

    async def listener(messages):
        return messages[0].body != b"poison"

    one = await world.push(listener=listener, ordered=True, options=evenq.PushOptions(consume_batch=1, **FAST))
    await world.ready(one)
    host = world.net._hosts["a:8081"]
    send_back = host.rpcs.pop("/evenq.v1.Data/SendBack")
    await world.publish("poison", "b")
    await world.until(lambda: world.saw() == ["poison"])
    await world.clock.advance(2_000)
    assert world.saw() == ["poison"], "it had its one delivery; only its burial is tried again, and b waits"
    host.rpcs["/evenq.v1.Data/SendBack"] = send_back
    await world.until(lambda: world.saw()[-1] == "b")
    assert broker.catalog.topics.get("%DLQ%g") is not None


async def test_oc_16_a_burial_without_an_answer_is_repeated_and_the_message_runs_no_more(world):
    """Given up before its last attempt: the broker may have buried it, so it is not delivered here again (CC-6)."""
    await world.start()
    await world.create("t")
    rpcs, lost = world.net._hosts["a:8081"].rpcs, []
    method = "/evenq.v1.Data/SendBack"
    send_back = rpcs[method].handler

    async def silent(request, context):
        answer = await send_back(request, context)
        if len(lost) < 2:
            lost.append(request)
            await asyncio.Event().wait()
        return answer

    rpcs[method] = replace(rpcs[method], handler=silent)

    async def listener(messages):
        return evenq.Retry(messages, delay_level=-1) if messages[0].body == b"poison" else None

    one = await world.push(listener=listener, ordered=True, options=evenq.PushOptions(consume_batch=1, **FAST))
    await world.ready(one)
    await world.publish("poison", "b")
    await world.until(lambda: world.saw()[-1:] == ["b"], step_ms=50)
    assert world.saw() == ["poison", "b"]
    assert len(lost) == 2
    assert await world.bodies("%DLQ%g") == ["poison"]


async def test_oc_5_oc_6_oc_7_oc_8_a_queue_is_locked_before_it_is_read_and_as_long_as_it_is_assigned(world):
    """The lock is per queue, at its broker, for one client of the group; no other reads it meanwhile."""
    await world.start("a")
    await world.start("b")
    await world.create("t", 2)
    owners: dict[object, str] = {}

    def listener_of(name):
        async def listener(messages):
            queue = messages[0].queue
            locks = world.brokers[queue.broker_name].membership.locks
            assert locks.holder("g", queue) == name
            assert owners.setdefault(queue, name) == name, "a second member processes the queue"
            await world.clock.sleep_ms(20)
            assert locks.holder("g", queue) == name
            del owners[queue]

        return listener

    one = await world.push("one", listener=listener_of("one"), ordered=True)
    await world.ready(one, queues=4)
    for number in range(60):
        await world.publish(number, queue=number % 2, broker="ab"[number // 2 % 2])
    two = await world.push("two", listener=listener_of("two"), ordered=True)
    await world.until(lambda: len(one.queues) == len(two.queues) == 2)
    await world.until(lambda: len(set(world.saw())) == 60)
    assert len(world.seen) == 60
    locks = {(queue, name) for name in "ab" for queue in one.queues + two.queues if queue.broker_name == name}
    assert {world.brokers[name].membership.locks.holder("g", queue) for queue, name in locks} == {"one", "two"}
    await world.during(one.close())
    await world.until(lambda: len(two.queues) == 4)


async def test_oc_9_rb_33_a_refused_lock_is_tried_again(world):
    """OC-6: until then the queue is not read."""
    await world.start()
    await world.create("t")
    queue = evenq.MessageQueue("t", "a", 0)
    locks = world.brokers["a"].membership.locks
    holder = await world.push("zzz", ordered=True)
    await world.ready(holder)
    hold, finished = asyncio.Event(), asyncio.Event()

    async def listener(messages):
        hold.set()
        await finished.wait()

    holder._listener = listener
    await world.publish("x")
    await world.until(hold.is_set)
    options = evenq.PushOptions(lock_wait_ms=0, lock_retry_ms=500)
    one = await world.push("aaa", ordered=True, options=options)
    await world.clock.advance(1_000)
    assert locks.holder("g", queue) == "zzz"
    assert one.queues == []
    tried = world.calls("LockQueues")
    await world.clock.advance(1_000)
    assert tried < world.calls("LockQueues") <= tried + 10
    finished.set()
    await world.ready(one)
    assert locks.holder("g", queue) == "aaa"


async def test_oc_13_rb_25_a_queue_is_not_taken_away_while_its_listener_runs_within_a_bound(world):
    """It is unlocked after the listener ended."""
    await world.start()
    await world.create("t")
    running = asyncio.Event()

    async def listener(messages):
        running.set()
        await world.clock.sleep_ms(1_500)

    one = await world.push("one", listener=listener, ordered=True)
    await world.ready(one)
    await world.publish("x")
    await world.until(running.is_set)
    began = world.clock.monotonic_ms()
    two = await world.push("aaa", ordered=True)
    await world.ready(two)
    assert world.clock.monotonic_ms() - began >= 1_400
    assert await world.committed("g") == 1
    assert world.saw() == ["x"]


async def a_long_call(world, *, call_ms=20_000, end=None, fails=False, limits=None, group=None, **options):
    """An ordered member whose call outlasts `drain_ms` by far: the member, the calls that run, and the most at a time.
    It ends with the event `end`, if there is one.
    """
    await world.start(**(limits or {}))
    await world.create("t")
    if group is not None:
        await world.group("g", ordered=True, **group)
    running, most, began = [], [0], asyncio.Event()

    async def listener(messages):
        running.append(messages[0].body)
        most[0] = max(most[0], len(running))
        began.set()
        first = len(world.seen) == 1
        await (end.wait() if first and end is not None else world.clock.sleep_ms(call_ms if first else 10))
        running.remove(messages[0].body)
        return not (fails and first)

    fields = {"listener": listener, "ordered": True, "options": evenq.PushOptions(consume_batch=1, **options)}
    one = await world.push("one", **fields)
    await world.ready(one)
    await world.publish("x", "y")
    await world.until(began.is_set)
    return one, running, most, fields


async def test_oc_8_oc_13_a_call_longer_than_the_drain_time_keeps_its_queue_until_it_ends(world):
    """Better than RB-25: there is no bound of a second after which the next owner runs beside it."""
    one, running, most, fields = await a_long_call(world)
    two = await world.push("aaa", **fields)
    await world.clock.advance(10_000)
    assert running == [b"x"]
    assert (one.queues, two.queues) == ([], [])
    await world.until(lambda: world.saw() == ["x", "y"])
    await world.ready(two)
    await world.until(lambda: not running)
    assert most == [1]


async def test_oc_8_rd_3_a_message_whose_only_delivery_succeeds_is_not_a_dead_letter_after_a_rebalance(world):
    _, running, most, fields = await a_long_call(world, group={"max_attempts": 1})
    two = await world.push("aaa", **fields)
    await world.ready(two)
    await world.until(lambda: world.saw() == ["x", "y"])
    await world.until(lambda: not running)
    await world.clock.advance(10_000)
    assert most == [1]
    assert not world.has("%DLQ%g")


async def test_oc_8_an_operators_reset_begins_when_the_running_call_has_ended(world):
    one, running, most, _ = await a_long_call(world)
    request = admin_pb2.ResetOffsetsRequest(group="g", topic="t", to=admin_pb2.EARLIEST)
    raw = world.net.unary("a:8081", RESET, request.SerializeToString(), timeout_ms=60_000)
    (move,) = admin_pb2.ResetOffsetsResponse.FromString(await world.during(raw)).moves
    assert "starts there when its running listener call has ended" in move.note
    await world.clock.advance(10_000)
    assert (world.saw(), running) == (["x"], [b"x"])
    await world.until(lambda: world.saw() == ["x", "x", "y"])
    await world.until(lambda: not running)
    assert most == [1]
    assert one.queues


@pytest.mark.parametrize("how", ["unsubscribe", "broker leaves", "stalled"])
async def test_oc_8_a_queue_that_leaves_in_any_other_way_waits_for_its_call_too(world, how):
    """Its topic is not subscribed any more, its broker closes, or it was not pulled for long (RB-20)."""
    one, running, most, fields = await a_long_call(world)
    ownership = one._pushing._member.ownership
    if how == "unsubscribe":
        one.unsubscribe("t")
        two = await world.push("aaa", **fields)
    elif how == "broker leaves":
        ownership.broker_leaves("a")
        two = one
    else:
        (process,) = one._pushing._member.held.processes()
        process.last_pull_ms -= 200_000
        ownership.wake()
        two = one
    await world.clock.advance(10_000)
    assert (world.saw(), running) == (["x"], [b"x"])
    await world.until(lambda: world.saw() == ["x", "y"])
    await world.until(lambda: not running)
    assert most == [1]
    await world.ready(two)


async def test_oc_8_a_broker_that_restarts_under_a_running_call_gives_its_queue_to_no_other_member(world, tmp_path):
    """It waits for members within its own limit; the lock is in its log, and its holder comes back."""
    end = asyncio.Event()
    # Far more than the minutes of the clock that pass while a busy machine opens the folder.
    limits = {"store": {"path": tmp_path / "a"}, "revoke_ms": 100_000_000}
    one, running, most, fields = await a_long_call(world, end=end, limits=limits)
    two = await world.push("aaa", **fields)
    await world.clock.advance(1_000)
    await world.during(world.brokers["a"].leave(2_000), step_ms=20)
    world.net.stop("a:8081")
    await world.during(world.brokers.pop("a").close(), step_ms=20)
    await world.start(**limits)
    await world.slow_until(lambda: len(world.brokers["a"].membership.members.members("g")) == 2, step_ms=50)
    await world.clock.advance(5_000)
    assert (world.saw(), running) == (["x"], [b"x"])
    end.set()
    await world.slow_until(lambda: world.saw() == ["x", "y"] and not running, step_ms=50)
    assert most == [1]
    await world.slow_until(lambda: len(one.queues + two.queues) == 1, step_ms=50)


async def test_oc_13_a_call_that_never_ends_gives_its_queue_up_after_the_brokers_revoke_ms(world):
    one, running, _, fields = await a_long_call(world, call_ms=1_000_000, limits={"revoke_ms": 15_000})
    two = await world.push("aaa", **fields)
    await world.clock.advance(14_000)
    assert two.queues == []
    await world.ready(two)
    assert running[:1] == [b"x"]
    world.clients.remove(one)


async def test_oc_13_only_the_end_of_the_consumer_cuts_the_wait_to_the_drain_time(world):
    one, _, _, fields = await a_long_call(world, call_ms=1_000_000, drain_ms=2_000)
    two = await world.push("aaa", **fields)
    await world.clock.advance(5_000)
    assert two.queues == []
    began_ms = world.clock.monotonic_ms()
    await world.during(one.close())
    assert world.clock.monotonic_ms() - began_ms < 5_000
    world.clients.remove(one)
    await world.ready(two)


async def test_oc_15_a_call_that_fails_while_its_queue_leaves_is_left_to_the_next_owner_at_once(world):
    _, _, most, fields = await a_long_call(world, fails=True, call_ms=8_000)
    two = await world.push("aaa", **fields)
    began_ms = world.clock.monotonic_ms()
    await world.ready(two)
    assert 7_000 < world.clock.monotonic_ms() - began_ms < 12_000
    await world.until(lambda: world.saw() == ["x", "x", "y"])
    assert [message.delivery_attempt for message in world.seen] == [1, 2, 1]
    assert most == [1]


def locks_of_a_line_that_ended(ended_ms):
    trust = LockTrust()
    trust.welcome(ended_ms, lease_ms=0)
    assert trust.confirm(ended_ms, suspicions=trust.suspicions)
    trust.end(ended_ms)
    return trust


async def test_oc_8_oc_18_a_member_that_lost_its_line_starts_nothing_more_until_its_lock_is_sure_again(world):
    """Better: what the broker may have given to another member is not worked on."""
    await world.start()
    await world.create("t")
    one = await world.push(ordered=True, options=evenq.PushOptions(consume_batch=1, **FAST))
    await world.ready(one)
    member = one._pushing._member
    await world.publish("a")
    await world.until(lambda: world.saw() == ["a"])
    (line,) = member.sessions._connections.values()
    members, locks = line.members, line.locks
    line.members, line.locks = None, locks_of_a_line_that_ended(world.clock.monotonic_ms() - 10_000)
    await world.publish("b")
    await world.clock.advance(2_000)
    assert world.saw() == ["a"]
    line.members, line.locks = members, locks
    await world.until(lambda: world.saw() == ["a", "b"])
    assert member.sessions.trusted("a", trust_ms=0)
    line.members, line.locks = None, locks_of_a_line_that_ended(world.clock.monotonic_ms() - 400)
    await world.publish("c")
    await world.until(lambda: world.saw() == ["a", "b", "c"], limit_ms=90)  # within `lock_trust_ms` it goes on
    line.members, line.locks = members, locks


async def test_oc_5_oc_7_oc_9_a_dead_members_queue_goes_on_in_order_within_the_grace(world):
    """Better: the lock is bound to the membership and released on death; no 20 s of idle."""
    broker = await world.start()
    await world.create("t")
    await world.publish(*range(30))

    async def slow(_):
        await world.clock.sleep_ms(10)

    options = evenq.PushOptions(consume_batch=1, commit_interval_ms=100, drain_ms=500)
    one = await world.push("one", ordered=True, listener=slow, options=options)
    await world.ready(one)
    two = await world.push("two", ordered=True, listener=slow, options=options)
    await world.until(lambda: len(world.seen) > 10)
    first, second = (one, two) if one.queues else (two, one)
    await world.kill(first)
    began, seen = world.clock.monotonic_ms(), len(world.seen)
    await world.until(lambda: len(world.seen) > seen)
    assert world.clock.monotonic_ms() - began <= broker.runtime.settings.session_grace_ms + 750
    await world.until(lambda: world.saw()[-1] == "29")
    after = [int(body) for body in world.saw()[seen:]]
    assert after == list(range(after[0], 30)), "in order"
    assert after[0] >= seen - 15, "from the last commit on"
    assert second.queues


async def test_oc_18_a_graceful_hand_over_keeps_order_and_repeats_nothing(world):
    """Better: the next owner begins when the old one has finished what it had begun and has committed."""
    await world.start()
    await world.create("t")
    busy = []

    async def slow(messages):
        assert not busy, "two listeners in one queue"
        busy.append(messages)
        await world.clock.sleep_ms(30)
        busy.clear()

    options = evenq.PushOptions(consume_batch=4, commit_interval_ms=60_000, drain_ms=5_000)
    members = [await world.push("m5", ordered=True, listener=slow, options=options)]
    await world.ready(*members)
    await world.publish(*range(200))
    for name in ("m4", "m3", "m2"):  # each is the first by its name and takes the queue
        await world.until(lambda: len(world.seen) >= 30 * len(members))
        members.append(await world.push(name, ordered=True, listener=slow, options=options))
        await world.until(lambda: len(members[-1].queues) == 1)
    await world.until(lambda: len(world.seen) == 200)
    assert world.saw() == [str(number) for number in range(200)]


async def test_oc_6_oc_7_a_lock_lives_and_ends_with_its_membership(world):
    broker = await world.start()
    await world.create("t")
    one = await world.push("one", ordered=True)
    await world.ready(one)
    queue = broker.catalog.routes.readable("t")[0]
    assert broker.membership.locks.holder("g", queue) == "one"
    await world.clock.advance(60_000)
    assert broker.membership.locks.holder("g", queue) == "one", "for as long as it is assigned"
    await world.during(one.close())
    world.clients.remove(one)
    assert broker.membership.locks.holder("g", queue) == ""


async def test_ordered_broadcasting_has_one_listener_at_a_time_per_queue_in_offset_order_without_a_lock(
    world, tmp_path
):
    """OC-3, OC-11, OC-12 for each member by itself: two members read all three queues, each in order, side by side."""
    await world.start()
    await world.create("t", 3)
    running, most, handled = Counter(), Counter(), {"one": {}, "two": {}}

    def listener_of(name):
        async def listener(messages):
            queue = messages[0].queue.queue_id
            running[name, queue] += 1
            most[name, queue] = max(most[name, queue], running[name, queue])
            most[name] = max(most[name], sum(running[name, one] for one in range(3)))
            await world.clock.sleep_ms(7)
            handled[name].setdefault(queue, []).extend(int(message.body) for message in messages)
            running[name, queue] -= 1
            return messages[0].body != b"4"

        return listener

    for queue in range(3):
        await world.publish(*range(30), queue=queue)
    for name in handled:
        await world.push(
            name, listener=listener_of(name), ordered=True, model="BROADCASTING", consume_threads=8,
            options=evenq.PushOptions(consume_batch=2, offsets_folder=tmp_path / name),
        )  # fmt: skip
    await world.slow_until(lambda: sum(len(one) for both in handled.values() for one in both.values()) == 180)
    for name, queues in handled.items():
        assert queues == {queue: list(range(30)) for queue in range(3)}, "what fails has no retries (RD-1)"
        assert [most[name, queue] for queue in range(3)] == [1, 1, 1]
        assert most[name] > 1, "queues run beside each other"
    assert not world.brokers["a"].membership.locks.holders()


async def test_oc_1_oc_3_a_fifo_topic_is_read_in_order_unless_the_consumer_says_otherwise(world, caplog):
    """Topics of other types that the same consumer reads are not: the type of each decides."""
    await world.start()
    await world.create("t", message_type="FIFO")
    await world.create("normal")
    running, most, handled = Counter(), Counter(), []

    async def listener(messages):
        topic = messages[0].topic
        running[topic] += 1
        most[topic] = max(most[topic], running[topic])
        await world.clock.sleep_ms(50)
        running[topic] -= 1
        if topic != "t":
            return None
        handled.append(messages[0].body.decode())
        return messages[0].body != b"1" or messages[0].delivery_attempt > 1

    options = evenq.PushOptions(consume_batch=1, **FAST)
    fields = {"listener": listener, "options": options, "consume_threads": 8}
    one = await world.push(subscriptions={"t": "*", "normal": "*"}, **fields)
    await world.ready(one, queues=2)
    await world.publish(*range(4), message_group="order-1")
    await world.publish(*range(4, 12), topic="normal")
    await world.until(lambda: len(handled) == 5 and len(world.seen) == 13)
    assert handled == ["0", "1", "1", "2", "3"]
    assert (most["t"], most["normal"] > 1) == (1, True)
    assert "is FIFO" not in caplog.text
    await world.during(one.close())
    world.clients.remove(one)
    two = await world.push("two", ordered=False, **fields)
    await world.ready(two)
    await world.publish(*range(20, 28), message_group="order-1")
    await world.until(lambda: len(handled) >= 13)
    assert most["t"] > 1
    assert caplog.text.count("topic t is FIFO, and this consumer has ordered=False") == 1
    members = world.brokers["a"].membership.members.members("g")
    assert [(member.client_id, member.unordered) for member in members] == [("two", True)]
