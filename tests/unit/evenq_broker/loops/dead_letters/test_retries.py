"""Giving a message back: its delayed copy says which delivery it will be, and waits as long as the group says."""

from typing import Any

import pytest
from evenq_broker.core.dead_letters.delayed_retries import DelayedRetries
from evenq_broker.loops.dead_letters.retries import attempts_before, retry_delay_ms, retry_later
from evenq_proofs.v2_requests import send_request

from evenq.errors import StoreFull
from evenq.model.delay_levels import CLASSIC
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2


class Scene:
    """A broker with one message in topic `t`, and the group `g` that fails on it."""

    def __init__(self, stage: Any, broker: Any, group: Any, topic: Any) -> None:
        self.stage, self.broker, self.group, self.topic = stage, broker, group, topic
        self.delayed = DelayedRetries()

    async def retry(self, offset: int = 0, *, topic: Any = None, level: int = 0, attempts: int = 1) -> bool:
        broker = self.broker
        stored: bool = await self.stage.during(
            retry_later(
                broker.kernel, self.group, topic or self.topic, 0, offset,
                level=level, attempts=attempts, delayed_retries=self.delayed
            )
        )  # fmt: skip
        return stored

    @property
    def retry_topic(self) -> Any:
        return self.broker.catalog.topics.get("%RETRY%g")

    def copies(self) -> int:
        """Copies that have become due."""
        return int(self.broker.ledger.store.queue_range(self.retry_topic.topic_id, 0)[1])

    async def copy(self, offset: int) -> Any:
        """One of them as a reader gets it."""
        store = self.broker.ledger.store
        (message,) = await self.stage.during(store.read_at(self.retry_topic.topic_id, 0, [offset]))
        return message


async def scene_of(stage: Any) -> Scene:
    broker = await stage.broker()
    topic = await stage.during(broker.catalog.create_topic("t", queues=1))
    group = await stage.during(broker.catalog.create_group("g"))
    send = send_request("t", "id", b"poison")
    await stage.ask("SendMessage", send, service_pb2.SendMessageResponse)
    return Scene(stage, broker, group, topic)


def test_the_pause_is_the_level_asked_for_or_the_one_of_the_attempts() -> None:
    assert retry_delay_ms(CLASSIC, 1, 9) == 1_000
    assert retry_delay_ms(CLASSIC, 0, 1) == 10_000
    assert retry_delay_ms(CLASSIC, 0, 2) == 30_000


@pytest.mark.parametrize(("level", "attempts", "pause_ms"), [(0, 1, 10_000), (0, 2, 30_000), (2, 1, 5_000)])
async def test_the_copy_becomes_due_after_the_pause_and_not_before(
    stage: Any, level: int, attempts: int, pause_ms: int
) -> None:
    scene = await scene_of(stage)
    given_back_ms = stage.clock.monotonic_ms()
    assert await scene.retry(level=level, attempts=attempts)
    await stage.until(lambda: scene.copies() == 1)
    assert stage.clock.monotonic_ms() - given_back_ms >= pause_ms
    assert stage.clock.monotonic_ms() - given_back_ms <= pause_ms + 2_000


async def test_the_copy_says_which_delivery_it_will_be_and_where_it_comes_from(stage: Any) -> None:
    scene = await scene_of(stage)
    await scene.retry(level=1, attempts=3)
    await stage.until(lambda: scene.copies() == 1)
    copy = await scene.copy(0)
    system = definition_pb2.SystemProperties.FromString(copy.system)
    assert system.delivery_attempt == 4
    assert (system.dead_letter_queue.topic, system.dead_letter_queue.message_id) == ("t", "id")
    ledger, group = scene.broker.ledger, scene.group
    assert await stage.during(attempts_before(ledger, group, scene.retry_topic, 0, 0)) == 4
    assert await stage.during(attempts_before(ledger, group, scene.topic, 0, 0)) == 0, "no retry topic"
    assert await stage.during(attempts_before(ledger, group, scene.retry_topic, 0, 9)) == 0, "nothing is there"


async def test_a_copy_is_given_back_again_with_its_first_origin(stage: Any) -> None:
    scene = await scene_of(stage)
    await scene.retry(level=1, attempts=1)
    await stage.until(lambda: scene.copies() == 1)
    await scene.retry(topic=scene.retry_topic, level=1, attempts=2)
    await stage.until(lambda: scene.copies() == 2)
    system = definition_pb2.SystemProperties.FromString((await scene.copy(1)).system)
    assert system.delivery_attempt == 3
    assert system.dead_letter_queue.topic == "t"


async def test_each_stored_copy_is_counted_for_its_group_and_topic(stage: Any) -> None:
    scene = await scene_of(stage)
    stats = scene.broker.runtime.stats.group_topic(scene.group.group_id, scene.topic.topic_id)
    for count in (1, 2):
        await scene.retry()
        assert stats.redeliveries == count
        assert scene.delayed.waiting(scene.retry_topic.topic_id) == count


async def test_a_message_that_is_not_there_any_more_is_not_given_back(stage: Any) -> None:
    scene = await scene_of(stage)
    assert await scene.retry(5) is False
    assert scene.retry_topic is None


async def test_a_copy_that_cannot_be_stored_is_an_error_and_is_not_waited_for(stage: Any) -> None:
    scene = await scene_of(stage)
    await scene.retry()
    scene.broker.ledger.store._state.set_full(StoreFull("full"))
    with pytest.raises(StoreFull):
        await scene.retry()
    assert scene.delayed.waiting(scene.retry_topic.topic_id) == 1
    stats = scene.broker.runtime.stats.group_topic(scene.group.group_id, scene.topic.topic_id)
    assert stats.redeliveries == 1
