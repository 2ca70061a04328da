"""A delivery that no member finished is a dead letter after the last attempt, at once, or counts as failed (RD-3, D3)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from evenq_broker.core.dead_letters.letter import Reason
from evenq_broker.core.delivery.queue_progress import SettleStatus
from evenq_broker.core.polls.poll_table import ANY
from evenq_broker.loops.dead_letters.mover import HOLD_MS, bury, settle, to_dead_letters

from evenq.errors import StoreFull, TooManyRequests
from evenq.model import StartFrom
from evenq.store import Append
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from tests.unit.evenq_broker.takers import taker_of


class Stand:
    """A group on a topic with one queue."""

    def __init__(self, stage: Any, broker: Any, group: Any, topic: Any) -> None:
        self.stage, self.broker, self.group, self.topic = stage, broker, group, topic
        self.popping = taker_of(broker)

    async def pop(self, *, invisible_ms: int = 1_000, client: str = "") -> list[int]:
        batch = await self.stage.during(
            self.popping.pop(
                self.group, self.topic, queue_id=ANY, count=32, invisible_ms=invisible_ms, client_id=client
            )
        )
        return [] if batch is None else [offset for _, offset, _ in batch.held]

    @property
    def queue(self) -> Any:
        return self.broker.ledger.progress.queue(self.group.group_id, self.topic.topic_id, 0)

    @property
    def letters(self) -> int:
        dead = self.broker.catalog.topics.get("%DLQ%g")
        return 0 if dead is None else self.broker.ledger.store.queue_range(dead.topic_id, 0)[1]


async def stand(stage: Any, messages: int = 1, *, max_attempts: int = 1, topic: str = "t", **settings: Any) -> Stand:
    broker = await stage.broker(**settings)
    made = await stage.during(broker.catalog.create_topic(topic, queues=1))
    group = await stage.during(broker.catalog.create_group("g", start_from=StartFrom.FIRST, max_attempts=max_attempts))
    await stage.during(broker.ledger.store.append([Append(made.topic_id, 0, 0, 0, b"", b"") for _ in range(messages)]))
    return Stand(stage, broker, group, made)


async def test_the_last_attempt_that_runs_out_is_a_dead_letter_without_any_consumer(stage: Any) -> None:
    one = await stand(stage, 100)
    assert len(await one.pop()) == 32
    for _ in range(3):
        await one.pop()
    await stage.clock.advance(1_001)
    await stage.until(lambda: one.letters == 100, limit_ms=500)
    assert not one.queue.pending
    assert one.queue.committed == 100
    one.broker.ledger.progress.check()


async def test_an_attempt_before_the_last_is_tried_again(stage: Any) -> None:
    one = await stand(stage, max_attempts=2)
    for _ in range(2):
        assert await one.pop() == [0]
        assert one.letters == 0
        await stage.clock.advance(1_001)
    await stage.until(lambda: one.letters == 1, limit_ms=500)
    assert await one.pop() == []


async def test_a_dead_letter_that_cannot_be_stored_is_tried_again_and_moved_once(stage: Any) -> None:
    one = await stand(stage)
    append, tries = one.broker.ledger.store.append, 0

    async def full(entries: Any, **options: Any) -> Any:
        nonlocal tries
        tries += 1
        raise TooManyRequests("the disk is full")

    await one.pop()
    one.broker.ledger.store.append = full  # the disk's answer, where the store would tell it
    await stage.clock.advance(1_001)
    await stage.until(lambda: tries == 1, limit_ms=500)
    assert await one.pop() == [], "it is not delivered once more"
    await stage.clock.advance(HOLD_MS)
    await stage.until(lambda: tries == 2, limit_ms=500)
    one.broker.ledger.store.append = append
    await stage.clock.advance(HOLD_MS)
    await stage.until(lambda: one.letters == 1, limit_ms=500)
    await stage.clock.advance(3 * HOLD_MS)
    assert one.letters == 1


async def test_a_late_ack_of_a_message_on_its_way_to_the_dead_letters_is_refused(stage: Any) -> None:
    one = await stand(stage)
    append, disk = one.broker.ledger.store.append, asyncio.Event()

    async def slowly(entries: Any, **options: Any) -> None:
        await disk.wait()
        await append(entries, **options)

    expires_ms = one.broker.runtime.now_ms() + 1_000
    await one.pop()
    number = one.queue.pending[0].number
    one.broker.ledger.store.append = slowly
    await stage.clock.advance(1_100)
    now_ms = one.broker.runtime.now_ms()
    verdict = one.broker.ledger.progress.ack(one.queue, 0, number, expires_ms=expires_ms, now_ms=now_ms)
    assert verdict is SettleStatus.INVALID
    disk.set()
    await stage.until(lambda: one.letters == 1)
    one.broker.ledger.store.append = append


async def test_a_message_that_could_not_be_moved_is_not_held_for_the_time_of_its_delivery(stage: Any) -> None:
    """A message that its client cannot receive may be hidden for hours."""
    one = await stand(stage, max_attempts=3)
    append, tries = one.broker.ledger.store.append, 0

    async def full(entries: Any, **options: Any) -> Any:
        nonlocal tries
        tries += 1
        raise TooManyRequests("the disk is full")

    await one.pop(invisible_ms=3_600_000)
    one.broker.ledger.store.append = full
    one.broker.dead_letter_mover.add(one.queue, 0, one.queue.pending[0], Reason.TOO_LARGE)
    await stage.until(lambda: tries == 1, limit_ms=500)
    one.broker.ledger.store.append = append
    await stage.clock.advance(HOLD_MS + 100)
    assert await one.pop() == [0]


async def test_a_push_delivery_that_lasts_too_long_counts_as_failed_with_the_groups_pause(stage: Any) -> None:
    one = await stand(stage, max_attempts=3, renew_max_ms=60_000, client_silence_ms=3_600_000, client_lost_ms=3_600_000)
    assert await one.pop(client="slow") == [0]
    await stage.clock.advance(60_000)
    assert await one.pop(client="other") == []
    pause_ms = one.group.retry.delay_ms(1, levels=one.broker.runtime.delay_levels)
    assert pause_ms >= 10_000
    await stage.clock.advance(pause_ms - 100)
    assert await one.pop(client="other") == []
    await stage.clock.advance(100)
    assert await one.pop(client="other") == [0]
    assert one.queue.pending[0].attempt == 2
    one.broker.ledger.progress.check()


@pytest.mark.parametrize("topic", ["%DLQ%g", "%DLQ%other"])
async def test_a_group_that_fails_on_dead_letters_makes_no_circle(stage: Any, topic: str) -> None:
    broker = await stage.broker()
    made = await stage.during(broker.catalog.create_topic(topic, queues=1, system=True))
    group = await stage.during(broker.catalog.create_group("g", start_from=StartFrom.FIRST, max_attempts=2))
    await stage.during(broker.ledger.store.append([Append(made.topic_id, 0, 0, 0, b"", b"")]))
    one = Stand(stage, broker, group, made)
    taken = 0
    for _ in range(10):
        taken += len(await one.pop())
        await stage.clock.advance(1_001)
    assert (taken, one.letters) == (2, 1)
    assert one.queue.committed == 1


async def delivered(stage: Any) -> tuple[Any, Any, Any, Any]:
    """Broker, group, topic, and the group's progress on a queue whose message 0 is being worked on."""
    broker = await stage.broker()
    topic = await stage.during(broker.catalog.create_topic("t", queues=1))
    group = await stage.during(broker.catalog.create_group("g"))
    send = service_pb2.SendMessageRequest()
    message = send.messages.add(body=b"poison")
    message.topic.name = "t"
    message.user_properties["color"] = "red"
    message.system_properties.message_id, message.system_properties.tag = "id", "tag"
    await stage.ask("SendMessage", send, service_pb2.SendMessageResponse)
    broker.ledger.progress.start(group.group_id, topic.topic_id, 0, 0)
    queue = broker.ledger.progress.queue(group.group_id, topic.topic_id, 0)
    broker.ledger.progress.deliver(queue, [0], 1, deadline_ms=10**15, client_id="")
    return broker, group, topic, queue


async def letters(stage: Any, broker: Any, group: str = "g") -> list[tuple[Any, Any, int]]:
    """Head, system properties and tag hash of everything in the dead-letter topic."""
    topic = broker.catalog.topics.get(f"%DLQ%{group}")
    assert topic.read_queues == 1
    found = await broker.ledger.store.read(topic.topic_id, 0, 0, count_max=10, bytes_max=1 << 20)
    return [
        (
            definition_pb2.Message.FromString(one.head),
            definition_pb2.SystemProperties.FromString(one.system),
            one.tag_hash,
        )
        for one in found.messages
    ]


async def test_a_dead_letter_keeps_its_content_and_tells_where_it_came_from(stage: Any) -> None:
    broker, group, topic, queue = await delivered(stage)
    [original] = await broker.ledger.store.read_at(topic.topic_id, 0, [0])
    await stage.during(to_dead_letters(broker.kernel, group, topic, queue, 0, long_polls=broker.long_polls))
    [(head, system, tag_hash)] = await letters(stage, broker)
    assert (head.body, head.topic.name) == (b"poison", "%DLQ%g")
    assert dict(head.user_properties) == {
        "color": "red",
        "DLQ_ORIGIN_TOPIC": "t",
        "DLQ_ORIGIN_MESSAGE_ID": "id",
        "DLQ_ORIGIN_BROKER": "a",
        "DLQ_ORIGIN_QUEUE_ID": "0",
        "DLQ_ORIGIN_OFFSET": "0",
        "DLQ_ORIGIN_TYPE": "NORMAL",
        "DLQ_ATTEMPTS": "1",
        "DLQ_REASON": "attempts",
    }
    assert (system.dead_letter_queue.topic, system.dead_letter_queue.message_id) == ("t", "id")
    assert (system.tag, tag_hash) == ("tag", original.tag_hash)
    assert (queue.committed, queue.pending) == (1, {})
    assert broker.runtime.stats.group_topic(group.group_id, topic.topic_id).dead_letters == 1


async def test_a_second_burial_keeps_the_first_origin(stage: Any) -> None:
    broker, group, topic, _ = await delivered(stage)
    assert await stage.during(bury(broker.kernel, group, topic, 0, 0)) is True
    dead = broker.catalog.topics.get("%DLQ%g")
    other = await stage.during(broker.catalog.create_group("h"))
    assert await stage.during(bury(broker.kernel, other, dead, 0, 0)) is True
    [(_, first, _)] = await letters(stage, broker)
    [(_, second, _)] = await letters(stage, broker, "h")
    assert first.dead_letter_queue == second.dead_letter_queue


async def test_what_is_not_there_any_more_is_only_finished(stage: Any) -> None:
    broker, group, topic, queue = await delivered(stage)
    assert await stage.during(bury(broker.kernel, group, topic, 0, 5)) is False
    assert broker.catalog.topics.get("%DLQ%g") is None
    broker.ledger.progress.deliver(queue, [5], 6, deadline_ms=10**15, client_id="")
    await stage.during(to_dead_letters(broker.kernel, group, topic, queue, 5, long_polls=broker.long_polls))
    assert 5 not in queue.pending
    assert 0 in queue.pending


async def test_a_copy_that_cannot_be_stored_leaves_the_original_unfinished(stage: Any) -> None:
    broker, group, topic, queue = await delivered(stage)
    broker.ledger.store._state.set_full(StoreFull("full"))
    with pytest.raises(StoreFull):
        await stage.during(to_dead_letters(broker.kernel, group, topic, queue, 0, long_polls=broker.long_polls))
    assert 0 in queue.pending


@pytest.mark.parametrize("changes", [True, False])
@pytest.mark.parametrize("ready", [[5], []])
async def test_polls_wake_for_what_a_finished_message_lets_through_once_that_is_recorded(
    changes: bool, ready: list[int]
) -> None:
    """The next message of an ordered queue waits for the one that became a dead letter."""
    woken: list[tuple[int, int, int]] = []
    recorded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    queue: Any = SimpleNamespace(group_id=1, topic_id=2, queue_id=3, ready=ready)
    ledger: Any = SimpleNamespace(
        progress=SimpleNamespace(finish=lambda *_: changes), journal=SimpleNamespace(record=lambda _: recorded)
    )
    polls: Any = SimpleNamespace(ready=lambda *key: woken.append(key))
    settling = asyncio.ensure_future(settle(ledger, queue, 4, long_polls=polls))
    for _ in range(5):
        await asyncio.sleep(0)
    assert settling.done() is not changes
    assert not (changes and woken), "before it is safe"
    recorded.set_result(None)
    await settling
    assert woken == ([(1, 2, 3)] if ready else [])
