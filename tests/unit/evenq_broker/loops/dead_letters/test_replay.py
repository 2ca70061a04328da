"""A replay sends each dead letter once, whatever breaks it off, and knows which letters wait."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.core.delivery.filters import EVERYTHING, MessageFilter, message_filter
from evenq_broker.loops.dead_letters.replay import (
    Count,
    Replay,
    group_known,
    groups_with_letters,
    replay_progress,
    waiting_letters,
)
from evenq_broker.loops.resizing.resizing import permit
from evenq_broker.settings import StoreSettings

from evenq.errors import StoreFull, TopicNotFound
from evenq.model import MessageType, Permission
from evenq.store import Append
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2


class Scene:
    """A broker with `count` dead letters of group `g`, which come from topic `t`; their bodies are their numbers."""

    def __init__(self, stage: Any, broker: Any) -> None:
        self.stage, self.broker = stage, broker

    def replay(
        self,
        *,
        message_filter: MessageFilter = EVERYTHING,
        to_topic: str = "",
        per_second: float = 0,
        max_count: int = 0,
    ) -> Replay:
        broker = self.broker
        return Replay(
            broker.kernel, "g",
            message_filter=message_filter, to_topic=to_topic, per_second=per_second, max_count=max_count,
            cluster_catalog=broker.cluster_catalog, lite=broker.lite
        )  # fmt: skip

    async def run(self, **options: Any) -> Count:
        """The whole of a replay; its count at the end."""
        counts = await self.counts(**options)
        return counts[-1]

    async def counts(self, **options: Any) -> list[Count]:
        replay = self.replay(**options)

        async def collected() -> list[Count]:
            return [count async for count in replay.run()]

        collected_counts: list[Count] = await self.stage.during(collected())
        return collected_counts

    async def bodies(self, topic: str = "t") -> list[int]:
        """What arrived in a topic of one queue."""
        config, store = self.broker.catalog.topics.get(topic), self.broker.ledger.store
        if config is None:
            return []
        low, high = store.queue_range(config.topic_id, 0)
        messages = await self.stage.during(store.read_at(config.topic_id, 0, list(range(low, high))))
        return [int(definition_pb2.Message.FromString(message.head).body) for message in messages]

    def waiting(self) -> tuple[int, int]:
        return waiting_letters(self.broker.kernel, "g")


async def scene_of(stage: Any, count: int, *, origin: str = "t", **settings: Any) -> Scene:
    broker = await stage.broker(default_queues=1, **settings)
    await stage.during(broker.catalog.create_topic("t", queues=1))
    await stage.during(broker.catalog.create_group("g"))
    dead = await stage.during(broker.catalog.create_topic("%DLQ%g", queues=1, system=True))
    letters = []
    for number in range(count):
        message = definition_pb2.Message(body=str(number).encode())
        message.user_properties["number"] = str(number)
        if origin:
            message.user_properties["DLQ_ORIGIN_TOPIC"] = origin
        system = definition_pb2.SystemProperties(message_id=f"id{number}")
        if origin:
            system.dead_letter_queue.topic = origin
        letters.append(Append(dead.topic_id, 0, 0, 0, message.SerializeToString(), system.SerializeToString()))
    await stage.during(broker.ledger.store.append(letters))
    return Scene(stage, broker)


async def test_letters_wait_until_they_were_replayed(stage: Any) -> None:
    scene = await scene_of(stage, 3)
    broker = scene.broker
    assert scene.waiting() == (3, 3)
    assert replay_progress(broker.kernel, "g") is None
    assert await scene.run() == Count(total=3, replayed=3)
    assert await scene.bodies() == [0, 1, 2], "in the order of their death"
    assert scene.waiting() == (3, 0)
    assert await scene.run() == Count()
    assert await scene.bodies() == [0, 1, 2]
    broker.ledger.progress.check()


async def test_a_replay_that_broke_off_goes_on_where_it_was_also_after_a_restart(stage: Any, tmp_path: Path) -> None:
    store = StoreSettings(path=tmp_path)
    scene = await scene_of(stage, 5, store=store)
    assert (await scene.run(max_count=2)).replayed == 2
    assert scene.waiting() == (5, 3)
    await stage.end(scene.broker)
    again = Scene(stage, await stage.broker(default_queues=1, store=store))
    assert again.waiting() == (5, 3)
    assert (await again.run()).replayed == 3
    assert await again.bodies() == [0, 1, 2, 3, 4]


async def test_a_crash_in_the_middle_repeats_no_letter(stage: Any, tmp_path: Path) -> None:
    scene = await scene_of(stage, 5, store=StoreSettings(path=tmp_path / "before"))
    await scene.run(max_count=2)
    shutil.copytree(tmp_path / "before", tmp_path / "after")  # as a kill leaves it: no snapshot, no goodbye
    await stage.end(scene.broker)
    again = Scene(stage, await stage.broker(default_queues=1, store=StoreSettings(path=tmp_path / "after")))
    assert again.waiting() == (5, 3)
    assert (await again.run()).replayed == 3
    assert await again.bodies() == [0, 1, 2, 3, 4]


async def test_what_a_filter_leaves_out_still_waits(stage: Any) -> None:
    scene = await scene_of(stage, 4)
    properties = lambda head: dict(definition_pb2.Message.FromString(head).user_properties)  # noqa: E731
    wanted = message_filter("number > '1'", is_sql=True, user_properties=properties)
    assert await scene.run(message_filter=wanted) == Count(total=4, replayed=2, left_out=2)
    assert await scene.bodies() == [2, 3]
    assert scene.waiting() == (4, 2)


async def test_a_rate_stretches_the_replay_and_its_count_is_told_meanwhile(stage: Any) -> None:
    scene = await scene_of(stage, 20)
    started_ms = stage.clock.monotonic_ms()
    counts = await scene.counts(per_second=10)
    assert 1_900 <= stage.clock.monotonic_ms() - started_ms <= 2_500
    assert len(counts) >= 5
    assert counts[-1].replayed == 20


async def test_a_plan_counts_by_topic_and_sends_nothing(stage: Any) -> None:
    scene = await scene_of(stage, 4)
    replay = scene.replay()
    assert await stage.during(replay.plan()) == {"t": 4}
    assert replay.count.total == 4
    assert await stage.during(scene.replay(to_topic="other", max_count=3).plan()) == {"other": 3}
    assert await scene.bodies() == []
    assert scene.waiting() == (4, 4)
    await scene.run(max_count=1)
    assert await stage.during(scene.replay().plan()) == {"t": 3}, "what was sent is not sent again"


async def test_a_letter_without_an_origin_needs_a_topic(stage: Any) -> None:
    scene = await scene_of(stage, 2, origin="")
    assert await stage.during(scene.replay().plan()) == {"": 2}
    count = await scene.run()
    assert (count.replayed, count.failed) == (0, 2)
    assert "no original topic" in count.error
    assert scene.waiting() == (2, 2)
    assert (await scene.run(to_topic="t")).replayed == 2
    assert await scene.bodies() == [0, 1]


async def test_a_topic_that_takes_nothing_fails_the_letter_and_keeps_it(stage: Any) -> None:
    scene = await scene_of(stage, 1)
    broker = scene.broker
    await stage.during(broker.catalog.create_topic("closed", queues=1))
    await stage.during(permit(broker.kernel, "closed", Permission.READ))
    count = await scene.run(to_topic="closed")
    assert (count.failed, count.error) == (1, "topic closed takes no messages; name another one with --to")
    assert (await scene.run(to_topic="%DLQ%g")).failed == 1, "a dead-letter topic is no place to send to"
    assert scene.waiting() == (1, 1)


async def test_a_letter_without_a_lite_topic_does_not_fit_a_topic_of_lite_messages(stage: Any) -> None:
    scene = await scene_of(stage, 1)
    await stage.during(scene.broker.catalog.create_topic("lite", message_type=MessageType.LITE))
    count = await scene.run(to_topic="lite")
    assert count.failed == 1
    assert "the dead letter has no lite topic" in count.error


async def test_a_letter_that_could_not_be_stored_is_sent_by_the_next_replay(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = await scene_of(stage, 2)
    store = scene.broker.ledger.store
    append = store.append

    async def full(*_: Any, **__: Any) -> None:
        raise StoreFull("the disk is full")

    def refused(entries: Any, **options: Any) -> Any:
        copies = any(entry.topic_id == scene.broker.catalog.topics.get("t").topic_id for entry in entries)
        return full() if copies else append(entries, **options)

    monkeypatch.setattr(store, "append", refused)
    count = await scene.run()
    assert (count.replayed, count.failed, count.error) == (0, 2, "the disk is full")
    assert scene.waiting() == (2, 2)
    monkeypatch.undo()
    assert (await scene.run()).replayed == 2
    assert await scene.bodies() == [0, 1]
    scene.broker.ledger.progress.check()


async def test_letters_that_retention_removed_are_finished_and_not_counted(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = await scene_of(stage, 3)
    store = scene.broker.ledger.store
    read_at = store.read_at

    async def without_the_first(topic_id: int, queue_id: int, offsets: list[int]) -> Any:
        return await read_at(topic_id, queue_id, [offset for offset in offsets if offset])

    monkeypatch.setattr(store, "read_at", without_the_first)
    count = await scene.run()
    assert (count.replayed, count.failed) == (2, 0)
    progress = replay_progress(scene.broker.kernel, "g")
    assert progress is not None
    assert not progress.pending


async def test_groups_with_letters_are_known_also_when_the_group_is_gone(stage: Any) -> None:
    scene = await scene_of(stage, 1)
    catalog = scene.broker.catalog
    await stage.during(catalog.create_topic("%DLQ%gone", queues=1, system=True))
    assert sorted(groups_with_letters(catalog)) == ["g", "gone"]
    assert group_known(catalog, "g")
    assert group_known(catalog, "gone")
    assert not group_known(catalog, "other")
    assert waiting_letters(scene.broker.kernel, "other") == (0, 0)


async def test_a_replay_begins_nothing_on_dead_letters_that_are_deleted_meanwhile(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = await scene_of(stage, 2)
    catalog = scene.broker.catalog
    create = catalog.create_group

    async def deleted_meanwhile(*args: Any, **options: Any) -> Any:
        await catalog.delete_topic("%DLQ%g")
        return await create(*args, **options)

    monkeypatch.setattr(catalog, "create_group", deleted_meanwhile)
    with pytest.raises(TopicNotFound, match="topic %DLQ%g was deleted meanwhile"):
        await scene.run()
    assert list(scene.broker.ledger.progress.queues()) == []
