"""Promises about progress: semantics section 16 (OF), kept by a whole consumer and a whole broker."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil

import pytest

import evenq
from evenq.client.core.reading.offsets import OffsetTable
from evenq.model import QueueOffset

LOCAL = {"retry": "local"}


async def test_of_2_progress_is_in_memory_first_and_reaches_the_broker_every_five_seconds(world):
    """Default period; a quiet consumer reports nothing."""
    await world.start()
    await world.create("t")
    assert evenq.PushOptions().commit_interval_ms == 5_000
    one = await world.push(options=evenq.PushOptions(pull_wait_ms=60_000, **LOCAL))
    await world.ready(one)
    before = world.calls("CommitOffsets")
    await world.publish("x")
    await world.until(lambda: len(world.seen) == 1)
    await world.clock.advance(5_100)
    assert await world.committed("g") == 1
    assert world.calls("CommitOffsets") == before + 1
    await world.clock.advance(20_000)
    assert world.calls("CommitOffsets") == before + 1


async def test_of_3_a_commit_is_in_the_log_when_it_is_answered_not_only_at_a_clean_end(world, tmp_path):
    """A copy of the files in the moment after the answer is what a killed process leaves."""
    broker = await world.start(store={"path": tmp_path / "a"})
    await world.create("t")
    await world.publish("x", "y", "z")
    one = await world.pull(options=evenq.PullOptions(auto_commit=False))
    await world.ready(one)
    await world.during(one.commit({evenq.MessageQueue("t", "a", 0): 2}))
    shutil.copytree(tmp_path / "a", tmp_path / "killed")
    await world.during(one.commit({evenq.MessageQueue("t", "a", 0): 3}))
    await world.during(one.close(), step_ms=20)
    world.clients.clear()
    world.net.stop("a:8081")
    await world.during(broker.close(), step_ms=50)
    del world.brokers["a"]
    await world.start(store={"path": tmp_path / "killed"})
    assert await world.committed("g") == 2


async def test_of_3_of_11_a_restarted_broker_still_has_what_it_said_it_stored(world, tmp_path):
    """Better than a timer: a commit is a record of the broker's log."""
    broker = await world.start(store={"path": tmp_path / "a"})
    await world.create("t")
    one = await world.push(options=evenq.PushOptions(**LOCAL))
    await world.ready(one)
    await world.publish("x", "y")
    await world.until(lambda: len(world.seen) == 2)
    await world.during(one.close(), step_ms=20)
    world.clients.clear()
    world.net.stop("a:8081")
    await world.during(broker.close(), step_ms=50)
    del world.brokers["a"]
    await world.start(store={"path": tmp_path / "a"})
    assert await world.committed("g") == 2


async def test_of_5_of_6_of_7_cs_12_rb_17_broadcasting_reads_everything_and_keeps_its_progress_in_a_file(
    world, tmp_path
):
    """Every member takes every queue; nothing is kept at the broker; the file has all queues, every five seconds."""
    await world.start()
    await world.create("t", 2)
    folders = {name: tmp_path / name for name in ("one", "two")}
    members = [
        await world.push(
            name,
            model="BROADCASTING",
            options=evenq.PushOptions(offsets_folder=folder, **LOCAL),
        )
        for name, folder in folders.items()
    ]
    await world.until(lambda: all(len(member.queues) == 2 for member in members))
    await world.publish("a", "b", queue=0)
    await world.publish("c", queue=1)
    await world.until(lambda: sorted(world.saw()) == ["a", "a", "b", "b", "c", "c"])
    await world.clock.advance(5_100)
    for folder in folders.values():
        path = folder / "g" / "offsets.json"
        await wait_for_file(world, path, lambda rows: [row["offset"] for row in rows] == [2, 1])
    assert await world.committed("g") == -1


async def wait_for_file(world, path, good) -> None:
    await world.slow_until(lambda: path.exists() and good(json.loads(path.read_text())["offsets"]))


async def test_of_5_rb_41_a_broadcasting_member_goes_on_from_its_file(world, tmp_path):
    """RB-41: the local file is the store."""
    await world.start()
    await world.create("t")
    rest = {"model": "BROADCASTING", "options": evenq.PushOptions(offsets_folder=tmp_path, **LOCAL)}
    one = await world.push(**rest)
    await world.publish("a", "b")
    await world.until(lambda: len(world.seen) == 2)
    await close_with_file(world, one)
    await world.publish("c")
    await world.push("again", **rest)
    await world.slow_until(lambda: world.saw() == ["a", "b", "c"])


async def close_with_file(world, member) -> None:
    task = asyncio.ensure_future(member.close())
    world.clients.remove(member)
    await world.slow_until(task.done)


async def test_of_6_two_groups_on_one_machine_are_kept_apart_and_a_lost_file_starts_by_the_policy_and_says_so(
    world, tmp_path, caplog
):
    caplog.set_level(logging.INFO, "evenq")
    await world.start()
    await world.create("t")
    await world.publish("old")
    rest = {"model": "BROADCASTING", "options": evenq.PushOptions(offsets_folder=tmp_path, **LOCAL)}
    one = await world.push("one", group="g1", **rest)
    two = await world.push("two", group="g2", start_from="LAST", **rest)
    await world.slow_until(lambda: len(one.queues) == len(two.queues) == 1 and len(world.seen) == 1)
    await close_with_file(world, one)
    await close_with_file(world, two)
    assert sorted(path.parent.name for path in tmp_path.rglob("offsets.json")) == ["g1", "g2"]
    (tmp_path / "g1" / "offsets.json").unlink()
    caplog.clear()
    await world.push("three", group="g1", **rest)
    await world.slow_until(lambda: world.saw() == ["old", "old"])
    assert "reading begins by the start policy" in caplog.text


async def test_rd_1_broadcasting_has_no_retries(world, tmp_path):
    await world.start()
    await world.create("t")

    async def listener(messages):
        return False

    one = await world.push(listener=listener, model="BROADCASTING", options=evenq.PushOptions(offsets_folder=tmp_path))
    await world.slow_until(lambda: len(one.queues) == 1)
    await world.publish("x")
    await world.slow_until(lambda: len(world.seen) == 1)
    await world.clock.advance(60_000)
    assert len(world.seen) == 1
    assert not world.has("%RETRY%g")
    assert not world.has("%DLQ%g")


async def test_of_8_reads_name_their_source(world):
    """Memory only, or the store only; nothing found is -1."""
    await world.start()
    await world.create("t")
    one = await world.pull(options=evenq.PullOptions(auto_commit=False))
    await world.ready(one)
    (queue,) = one.queues
    assert await world.committed("another") == -1
    assert await world.during(one.committed(queue)) == 0, "where the group began"
    await world.publish("a")
    assert len(await world.during(one.poll())) == 1
    assert one.position(queue) == 1
    assert await world.during(one.committed(queue)) == 0
    await world.during(one.commit())
    assert await world.during(one.committed(queue)) == 1
    assert OffsetTable().memory(evenq.MessageQueue("t", "a", 0)) == -1


async def test_of_10_of_11_rb_24_a_queue_that_moves_away_is_stored_at_once_and_then_forgotten(world):
    """No repeat, although the next report is far away."""
    await world.start()
    await world.create("t", 2)
    options = evenq.PushOptions(commit_interval_ms=60_000, **LOCAL)
    one = await world.push("one", options=options)
    await world.ready(one, queues=2)
    await world.publish(*range(5), queue=0)
    await world.publish(*range(5, 10), queue=1)
    await world.until(lambda: len(world.seen) == 10)
    two = await world.push("two", options=options)
    await world.until(lambda: len(two.queues) == 1)
    table = one._pushing._member.progress.table
    assert set(table.all()) == set(one.queues)
    (moved,) = two.queues
    assert await world.committed("g", queue=moved.queue_id) == 5
    await world.clock.advance(5_000)
    assert len(world.seen) == 10


async def test_of_11_closing_finishes_what_runs_commits_and_is_bounded(world):
    """What a listener does not finish within `drain_ms` is not committed and comes again to the next owner."""
    await world.start()
    await world.create("t")
    never = asyncio.Event()

    async def listener(messages):
        if messages[0].body == b"stuck":
            await never.wait()
        await world.clock.sleep_ms(300)

    options = evenq.PushOptions(commit_interval_ms=60_000, consume_batch=1, drain_ms=1_000, **LOCAL)
    one = await world.push(listener=listener, options=options)
    await world.ready(one)
    await world.publish("a", "b", "stuck", "c")
    await world.until(lambda: len(world.seen) == 4)
    began_ms = world.clock.monotonic_ms()
    await world.during(one.close())
    world.clients.remove(one)
    assert world.clock.monotonic_ms() - began_ms <= 1_000 + 3_000
    assert await world.committed("g") == 2
    never.set()
    await world.push("two")
    await world.until(lambda: world.saw()[4:] == ["stuck", "c"])


@pytest.mark.parametrize("back", [True, False])
def test_of_9_a_stored_offset_is_the_next_one_and_goes_back_only_when_told(back):
    table = OffsetTable()
    queue = evenq.MessageQueue("t", "a", 0)
    table.begin(queue, QueueOffset(9), stored=True)
    if back:
        table.rewind(queue, QueueOffset(4))
        assert (table.due(), table.rewound(queue)) == ({queue: 4}, True)
        table.stored(queue, QueueOffset(4))
        assert (table.due(), table.rewound(queue)) == ({}, False)
    else:
        table.advance(queue, QueueOffset(4))
        assert table.due() == {}
