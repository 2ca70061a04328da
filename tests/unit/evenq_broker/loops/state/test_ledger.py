"""Replaying the records of a log, one by one."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.core.state.records import (
    Committed,
    GroupPut,
    GroupRemoved,
    KeyPut,
    LiteOpened,
    TopicPut,
    TopicRemoved,
    decode,
    encode,
)
from evenq_broker.settings import StoreSettings

from evenq.errors import StoreError
from evenq.model import GroupConfig, MessageType, TopicConfig

TOPIC = TopicConfig(name="t", topic_id=4)
GROUP = GroupConfig(name="g", group_id=6)


async def test_each_operation_has_its_effect_and_replaying_it_twice_changes_nothing(stage: Any) -> None:
    broker = await stage.broker()
    for _ in range(2):
        for op in (TopicPut(TOPIC), GroupPut(GROUP), Committed(6, 4, 0, 12), KeyPut(b"k" * 32, 9, 11)):
            broker.ledger.replay(encode([op]))
    assert broker.catalog.topics.all() == [TOPIC]
    assert broker.catalog.groups.all() == [GROUP]
    assert broker.ledger.progress.committed(6, 4, 0) == 12
    assert (broker.ledger.key, broker.catalog.topics.next_id(), broker.catalog.groups.next_id()) == (
        b"k" * 32,
        9,
        11,
    )


@pytest.mark.parametrize("removal", [TopicRemoved(4), GroupRemoved(6)])
async def test_a_removal_takes_the_progress_along(stage: Any, removal: Any) -> None:
    broker = await stage.broker()
    for op in (TopicPut(TOPIC), GroupPut(GROUP), Committed(6, 4, 0, 12), removal, removal):
        broker.ledger.replay(encode([op]))
    assert broker.ledger.progress.committed(6, 4, 0) is None
    assert len(broker.catalog.topics) + len(broker.catalog.groups) == 1


async def test_a_new_store_gets_its_own_key_and_a_foreign_folder_is_refused(stage: Any, tmp_path: Path) -> None:
    store = StoreSettings(path=tmp_path, disk_free_min_bytes=0, disk_used_max_ratio=1)
    broker = await stage.broker("a", store=store)
    other = await stage.broker("b")
    assert len(broker.ledger.key) == 32
    assert broker.ledger.key != other.ledger.key
    await stage.during(broker.close())
    with pytest.raises(StoreError, match="belongs to broker 'a', this one is 'z'"):
        await stage.broker("z", store=store)


async def test_two_clocks_that_tick_at_different_moments_are_no_clock_that_was_set_back(
    stage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What a new broker writes at its first start has the wall's time, which may be a tick ahead of deadlines' time."""
    broker = stage.made("a")
    stage.clock.jump_wall(1)
    before_ms = broker.runtime.now_ms()
    await stage.during(broker.open())
    assert broker.ledger.store.last_store_ms > before_ms
    assert "set back" not in caplog.text
    await stage.during(broker.close())


@pytest.mark.parametrize("back_ms", [3_600_000, 50 * 365 * 86_400_000], ids=["an-hour", "to-1973"])
async def test_a_clock_that_was_set_back_between_two_starts_keeps_nobody_waiting(
    stage: Any, tmp_path: Path, back_ms: int
) -> None:
    store = StoreSettings(path=tmp_path, disk_free_min_bytes=0, disk_used_max_ratio=1)
    broker = await stage.broker("a", store=store)
    topic = await stage.during(broker.catalog.create_topic("t", queues=1))
    lite = await stage.during(broker.catalog.create_topic("l", message_type=MessageType.LITE))
    group = await stage.during(broker.catalog.create_group("g"))
    broker.ledger.progress.start(group.group_id, topic.topic_id, 0, 0)
    queue = broker.ledger.progress.queue(group.group_id, topic.topic_id, 0)
    broker.ledger.progress.deliver(queue, [0], 1, deadline_ms=broker.runtime.now_ms() + 10_000, client_id="")
    op = broker.ledger.progress.delivered_op(queue, [0], deadline_ms=broker.runtime.now_ms() + 10_000, client_id="")
    opened = LiteOpened(lite.topic_id, 1 << 20, 0, "x")
    broker.lite.topics.apply(opened, broker.runtime.now_ms())
    await stage.during(broker.ledger.journal.record(op, opened))
    await stage.during(broker.close())
    stage.clock.jump_wall(-back_ms)
    again = await stage.broker("a", store=store)
    found = again.ledger.progress.queue(group.group_id, topic.topic_id, 0)
    assert found.pending[0].deadline_ms > 0
    await stage.clock.advance(10_100)
    assert found.ready == [0]
    assert again.lite.topics.get(lite.topic_id, "x") is not None, "it was not idle for fifty years"


@pytest.mark.parametrize("ends", ["killed", "closed"])
@pytest.mark.parametrize(
    ("before_ms", "ran_ms", "set_ms"),
    [(-60_000, 30_000, 0), (-60_000, 90_000, 0), (0, 5_000, 60_000), (0, 5_000, -60_000)],
    ids=["behind-the-log", "behind-it-for-a-while", "set-forward-while-it-runs", "set-back-while-it-runs"],
)
async def test_a_delivery_ends_when_it_should_whatever_the_clocks_of_this_and_the_next_start_say(
    stage: Any, tmp_path: Path, before_ms: int, ran_ms: int, set_ms: int, ends: str
) -> None:
    """The time of a broker and that of its log part, and the next start, here or at another copy, knows the log's (D10:
    1 of 3,800 seeds of `make sim-replicated`, each of which looked as if a group never got a message).
    """
    store = StoreSettings(path=tmp_path / "a", disk_free_min_bytes=0, disk_used_max_ratio=1)
    first = await stage.broker("a", store=store)
    topic = await stage.during(first.catalog.create_topic("t", queues=1))
    group = await stage.during(first.catalog.create_group("g"))
    await stage.during(first.close())
    stage.clock.jump_wall(before_ms)
    broker = await stage.broker("a", store=store)
    await stage.clock.advance(ran_ms)
    stage.clock.jump_wall(set_ms)
    begun_ms = stage.clock.monotonic_ms()
    progress, deadline_ms = broker.ledger.progress, broker.runtime.now_ms() + 10_000
    progress.start(group.group_id, topic.topic_id, 0, 0)
    queue = progress.queue(group.group_id, topic.topic_id, 0)
    progress.deliver(queue, [0], 1, deadline_ms=deadline_ms, client_id="")
    await stage.during(
        broker.ledger.journal.record(progress.delivered_op(queue, [0], deadline_ms=deadline_ms, client_id=""))
    )
    assert queue.pending[0].deadline_ms == deadline_ms
    if ends == "killed":
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        store = store.model_copy(update={"path": tmp_path / "b"})
    else:
        await stage.during(broker.close())
    again = await stage.broker("a", store=store)
    # The log's last time is that of the record. It does not tell how long that took to be safe on a busy machine, the
    # broker to end, and the next one to begin; nor does a wrong clock.
    unknown_ms = stage.clock.monotonic_ms() - begun_ms
    found = again.ledger.progress.queue(group.group_id, topic.topic_id, 0)
    await stage.clock.advance(9_000 - stage.clock.monotonic_ms() + begun_ms)
    assert found.ready == [], "too early"
    await stage.clock.advance(2_200 + unknown_ms)
    assert found.ready == [0], found.pending[0].deadline_ms - again.runtime.now_ms()
    await stage.during(broker.close())


async def test_a_record_goes_to_every_part_that_wants_it_and_a_snapshot_holds_every_part(stage: Any) -> None:
    broker = await stage.broker()
    seen: list[Any] = []
    for part in ("one", "two"):
        broker.ledger.keeps(
            {Committed: lambda op, part=part: seen.append((part, op.offset))}, lambda: [GroupPut(GROUP)]
        )
    broker.ledger.replay(encode([TopicPut(TOPIC), GroupPut(GROUP), Committed(6, 4, 0, 12)]))
    assert seen == [("one", 12), ("two", 12)]
    assert broker.ledger.progress.committed(6, 4, 0) == 12
    held = list(decode(broker.ledger._state()))
    assert held.count(GroupPut(GROUP)) == 3  # the catalog's own, and of both parts
    progress = [at for at, op in enumerate(held) if getattr(op, "group_id", 0) == 6]
    assert held.index(TopicPut(TOPIC)) < min(progress)
