"""Promises about pull consumers: CS-6, CS-11, RB-26, RB-49, and the classic lite pull: assign, subscribe, seek, pause."""

from __future__ import annotations

import asyncio

import pytest

import evenq
from evenq.errors import BadRequest, PreconditionFailed, RequestTimeout, Unsupported

T0 = evenq.MessageQueue("t", "a", 0)
T1 = evenq.MessageQueue("t", "a", 1)


def texts(messages) -> list[str]:
    return [message.body.decode() for message in messages]


async def poll(world, consumer, **rest) -> list[str]:
    return texts(await world.during(consumer.poll(**rest)))


async def test_cs_6_cs_9_cs_11_the_first_round_comes_at_once_and_rebalance_only_says_what_is_its_own(world):
    """A pull consumer is never ordered; its user fetches."""
    await world.start()
    await world.create("t", 2)
    one = await world.pull("one")
    await world.until(lambda: one.queues == [T0, T1], limit_ms=1_500)
    await world.publish("a", "b", queue=0)
    await world.publish("c", queue=1)
    got = await poll(world, one) + await poll(world, one)
    assert sorted(got) == ["a", "b", "c"]
    assert await poll(world, one, wait_ms=100) == []


@pytest.mark.spec("RB-26")
async def test_members_share_the_queues_and_a_hand_over_repeats_nothing_that_was_polled_past(world):
    """RB-26: a removed queue waits for the next poll of its messages, then goes with its progress."""
    await world.start()
    await world.create("t", 2)
    one = await world.pull("one")
    await world.ready(one, queues=2)
    await world.publish(*range(4), queue=0)
    await world.publish(*range(4, 8), queue=1)
    got = await poll(world, one, max_messages=2)
    two = await world.pull("two")
    for _ in range(40):
        got += await poll(world, one, max_messages=2, wait_ms=20)
        got += await poll(world, two, max_messages=2, wait_ms=20)
    assert sorted(map(int, got)) == list(range(8))
    assert len(one.queues) == len(two.queues) == 1


async def test_what_a_poll_returned_is_consumed_at_the_next_poll_not_before(world):
    """At least once: a user that dies in between gets it again. OF-11: a clean end commits."""
    await world.start()
    await world.create("t")
    options = evenq.PullOptions(commit_interval_ms=100)
    one = await world.pull(options=options)
    await world.ready(one)
    await world.publish("a", "b", "c")
    assert await poll(world, one, max_messages=2) == ["a", "b"]
    await world.clock.advance(500)
    assert await world.committed("g") == 0
    assert await poll(world, one) == ["c"]
    await world.clock.advance(500)
    assert await world.committed("g") == 2
    began_ms = world.clock.monotonic_ms()
    await world.during(one.close(consumed=False))
    assert world.clock.monotonic_ms() - began_ms < 1_000
    two = await world.pull(options=options)
    assert await poll(world, two) == ["c"]
    await world.during(two.close())
    assert await world.committed("g") == 3


async def test_without_automatic_commits_only_commit_moves_progress(world):
    """Also no pull carries it along, and flow control does not wait for commits."""
    await world.start()
    await world.create("t")
    options = evenq.PullOptions(auto_commit=False, commit_interval_ms=100, pull_threshold_queue=5, pull_batch=5)
    one = await world.pull(options=options)
    await world.ready(one)
    await world.publish(*range(30))
    got = []
    while len(got) < 30:
        got += await poll(world, one, max_messages=7)
    assert [int(body) for body in got] == list(range(30))
    await world.clock.advance(1_000)
    assert await world.committed("g") == 0, "its start, which a member that dies now must not take along"
    await world.during(one.commit({T0: 12}))
    assert await world.committed("g") == 12
    await world.during(one.commit())
    assert await world.committed("g") == 30
    await world.during(one.commit({T0: 3}))
    assert await world.committed("g") == 3, "an explicit offset also goes back"
    await world.during(one.close())
    assert await world.committed("g") == 3


async def test_rb_49_a_consumer_of_chosen_queues_reads_where_its_user_says_whoever_else_reads_them(world):
    """`assign`: no group membership, no locks; progress goes to the group's offsets."""
    await world.start()
    await world.create("t", 2)
    await world.publish(*range(5), queue=0)
    await world.publish(*range(5, 9), queue=1)
    one = await world.pull("one", subscriptions=None)
    two = await world.pull("two", subscriptions=None)
    assert await world.during(one.queues_of("t")) == [T0, T1]
    await world.during(asyncio.gather(one.assign([T0]), two.assign([T0, T1])))
    assert one.queues == [T0]
    assert two.queues == [T0, T1]
    one.seek(T0, 3)
    assert await poll(world, one) == ["3", "4"]
    assert sorted(await poll(world, two) + await poll(world, two)) == [str(number) for number in range(9)]
    await world.during(one.commit())
    assert await world.committed("g") == 5
    await world.during(one.assign([T1]))
    assert one.queues == [T1]
    assert await poll(world, one) == ["5", "6", "7", "8"]
    assert world.brokers["a"].membership.locks.holder("g", T0) == ""


async def test_seek_goes_back_and_forward_and_to_both_ends(world):
    await world.start()
    await world.create("t")
    one = await world.pull(options=evenq.PullOptions(commit_interval_ms=100))
    await world.ready(one)
    await world.publish(*range(6))
    assert len(await poll(world, one)) == 6
    one.seek(T0, 4)
    assert one.position(T0) == 4
    assert await poll(world, one) == ["4", "5"]
    await world.during(one.seek_to_begin(T0))
    assert await poll(world, one, max_messages=1) == ["0"]
    await world.clock.advance(300)
    assert await world.committed("g") == 0, "progress follows the seek"
    await world.during(one.seek_to_end(T0))
    assert await poll(world, one, wait_ms=50) == []
    await world.publish("new")
    assert await poll(world, one) == ["new"]


async def test_rb_45_an_offset_is_found_by_time(world):
    await world.start()
    await world.create("t")
    await world.publish("old")
    await world.clock.advance(60_000)
    at_ms = world.clock.now_ms()
    await world.publish("new")
    one = await world.pull()
    await world.ready(one)
    offset = await world.during(one.offset_at(T0, at_ms))
    one.seek(T0, offset)
    assert await poll(world, one) == ["new"]


async def test_a_paused_queue_is_left_out_until_it_is_resumed(world):
    await world.start()
    await world.create("t", 2)
    one = await world.pull()
    await world.ready(one, queues=2)
    one.pause([T0])
    await world.publish("a", queue=0)
    await world.publish("b", queue=1)
    assert await poll(world, one) == ["b"]
    assert await poll(world, one, wait_ms=500) == []
    one.resume([T0])
    assert await poll(world, one) == ["a"]


async def test_what_cannot_be_is_refused_with_a_sentence(world):
    await world.start()
    await world.create("t")
    one = await world.pull()
    chosen = await world.pull("two", subscriptions=None)
    await world.ready(one)
    with pytest.raises(PreconditionFailed, match="is not owned by this consumer"):
        one.seek(T1, 0)
    with pytest.raises(BadRequest, match="-1"):
        one.seek(T0, -1)
    with pytest.raises(BadRequest, match="max_messages"):
        await one.poll(0)
    with pytest.raises(Unsupported, match="without subscriptions"):
        await one.assign([T0])
    with pytest.raises(Unsupported, match="chosen queues"):
        chosen.subscribe("t")
    with pytest.raises(RequestTimeout, match="1 of 1 queues"):
        await world.during(chosen.assign([evenq.MessageQueue("t", "nowhere", 0)], timeout_ms=300))
    waiting = asyncio.ensure_future(one.poll(wait_ms=1_000))
    await world.clock.advance(0)
    with pytest.raises(Unsupported, match="another poll"):
        await one.poll()
    await world.during(waiting)
    with pytest.raises(BadRequest, match="commit_interval_ms"):
        evenq.PullOptions(commit_interval_ms=1)


async def test_broadcasting_pull_consumers_each_read_everything(world, tmp_path):
    """CS-12."""
    await world.start()
    await world.create("t")
    members = [
        await world.pull(name, model="BROADCASTING", options=evenq.PullOptions(offsets_folder=tmp_path / name))
        for name in ("one", "two")
    ]
    await world.slow_until(lambda: world.calls("/Pull") == 2)
    await world.publish("x")
    assert [await poll(world, member) for member in members] == [["x"], ["x"]]


@pytest.mark.parametrize("auto_commit", [True, False])
async def test_an_interrupted_poll_loses_nothing(world, auto_commit):
    """Ctrl-C in the sync face: while it waits, and when its messages were on the way to a user who left."""
    await world.start()
    await world.create("t")
    one = await world.pull(options=evenq.PullOptions(auto_commit=auto_commit))
    await world.ready(one)
    waiting = asyncio.ensure_future(one.poll(wait_ms=5_000))
    await world.clock.advance(100)
    one._polling.interrupt()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    await world.publish(*"abc")
    assert await poll(world, one, max_messages=1) == ["a"]
    assert await poll(world, one, max_messages=1) == ["b"]
    one._polling.interrupt()
    assert await poll(world, one) == ["b", "c"]
    await world.during(one.commit())
    assert await world.committed("g") == 3
