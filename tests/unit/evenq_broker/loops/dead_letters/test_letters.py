"""The copy first, then the end of the original; one path for both wires."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from evenq_broker.loops.dead_letters.letters import bury, settle, to_dead_letters

from evenq.errors import StoreFull
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2

Run = Callable[[Callable[[Any], Awaitable[None]]], None]


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
    await stage.during(
        to_dead_letters(
            broker.runtime, broker.catalog, broker.ledger, group, topic, queue, 0, long_polls=broker.long_polls
        )
    )
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
    assert await stage.during(bury(broker.runtime, broker.catalog, broker.ledger, group, topic, 0, 0)) is True
    dead = broker.catalog.topics.get("%DLQ%g")
    other = await stage.during(broker.catalog.create_group("h"))
    assert await stage.during(bury(broker.runtime, broker.catalog, broker.ledger, other, dead, 0, 0)) is True
    [(_, first, _)] = await letters(stage, broker)
    [(_, second, _)] = await letters(stage, broker, "h")
    assert first.dead_letter_queue == second.dead_letter_queue


async def test_what_is_not_there_any_more_is_only_finished(stage: Any) -> None:
    broker, group, topic, queue = await delivered(stage)
    assert await stage.during(bury(broker.runtime, broker.catalog, broker.ledger, group, topic, 0, 5)) is False
    assert broker.catalog.topics.get("%DLQ%g") is None
    broker.ledger.progress.deliver(queue, [5], 6, deadline_ms=10**15, client_id="")
    await stage.during(
        to_dead_letters(
            broker.runtime, broker.catalog, broker.ledger, group, topic, queue, 5, long_polls=broker.long_polls
        )
    )
    assert 5 not in queue.pending
    assert 0 in queue.pending


async def test_a_copy_that_cannot_be_stored_leaves_the_original_unfinished(stage: Any) -> None:
    broker, group, topic, queue = await delivered(stage)
    broker.ledger.store._state.set_full(StoreFull("full"))
    with pytest.raises(StoreFull):
        await stage.during(
            to_dead_letters(
                broker.runtime, broker.catalog, broker.ledger, group, topic, queue, 0, long_polls=broker.long_polls
            )
        )
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
