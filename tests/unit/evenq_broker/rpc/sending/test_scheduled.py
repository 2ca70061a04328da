"""ListScheduled: messages that wait for their time or the outcome of their transaction."""

from __future__ import annotations

from typing import Any

import pytest
from evenq_broker.rpc.sending import scheduled as module

from evenq.errors import BadRequest, ConnectionFailed, TopicNotFound
from evenq.model import MessageType
from evenq.wire.convert import set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2

METHOD = "/evenq.v1.Admin/ListScheduled"


async def begun(stage: Any) -> Any:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("calls", queues=1, message_type=MessageType.DELAY))
    await stage.during(broker.catalog.create_topic("other", queues=1, message_type=MessageType.MIXED))
    return broker


async def send(stage: Any, name: str, *, topic: str = "calls", delay_ms: int = 0) -> Any:
    message = v2.Message(body=b"x" * 300)
    message.topic.name = topic
    system = message.system_properties
    system.message_id, system.tag, system.message_type = name, "ring", v2.DELAY if delay_ms else v2.TRANSACTION
    system.keys.append(f"key-{name}")
    if delay_ms:
        set_ms(system.delivery_timestamp, stage.clock.now_ms() + delay_ms)
    request = service_pb2.SendMessageRequest(messages=[message])
    response = await stage.ask("SendMessage", request, service_pb2.SendMessageResponse)
    assert response.entries[0].status.code == 20000, response
    return response.entries[0]


async def listed(stage: Any, topic: str = "", **fields: Any) -> Any:
    return await stage.call(
        METHOD, admin_pb2.ListScheduledRequest(topic=topic, **fields), admin_pb2.ListScheduledResponse
    )


async def test_delayed_messages_and_open_transactions_are_listed_by_the_time_when_they_are_due(stage: Any) -> None:
    await begun(stage)
    late = await send(stage, "late", delay_ms=600_000)
    await send(stage, "soon", delay_ms=60_000)
    await send(stage, "half", topic="other")
    response = await listed(stage)
    assert [(one.message_id, one.topic, one.kind) for one in response.messages] == [
        ("half", "other", "TRANSACTION"),
        ("soon", "calls", "DELAY"),
        ("late", "calls", "DELAY"),
    ]
    assert not response.more
    [_, one] = (await listed(stage, "calls")).messages
    assert (one.tag, list(one.keys), one.body_bytes, one.broker_name) == ("ring", ["key-late"], 300, "a")
    assert one.due_ms - one.stored_ms == pytest.approx(600_000, abs=1_000)
    assert one.recall_handle == late.recall_handle, "the handle that its sender has"
    assert response.messages[0].recall_handle == ""


async def test_what_is_due_or_recalled_is_not_listed(stage: Any) -> None:
    broker = await begun(stage)
    entry = await send(stage, "recalled", delay_ms=600_000)
    await send(stage, "due", delay_ms=1_000)
    request = service_pb2.RecallMessageRequest(recall_handle=entry.recall_handle)
    request.topic.name = "calls"
    await stage.ask("RecallMessage", request, service_pb2.RecallMessageResponse)
    await stage.until(lambda: broker.ledger.store.timers.stats.fired == 1)
    assert list((await listed(stage, "calls")).messages) == []


async def test_the_next_ones_are_returned_and_the_answer_says_that_there_are_more(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begun(stage)
    for number in range(6):
        await send(stage, f"m{number}", delay_ms=600_000 + abs(number - 2) * 10_000)
    response = await listed(stage, max=2)
    assert [one.message_id for one in response.messages] in (["m2", "m1"], ["m2", "m3"])
    assert response.more
    monkeypatch.setattr(module, "SCANNED_MAX", 3)
    response = await listed(stage, "other")
    assert (list(response.messages), response.more) == ([], True), (
        "it did not read all, and does not say that none is there"
    )


async def test_the_answers_of_other_brokers_are_merged_and_a_silent_one_is_named(stage: Any) -> None:
    broker = await begun(stage)
    await send(stage, "here", delay_ms=600_000)

    async def ask_peers(_method: str, request: bytes, **_: Any) -> list[tuple[str, Any]]:
        assert admin_pb2.ListScheduledRequest.FromString(request).local
        there = admin_pb2.ListScheduledResponse(more=True)
        there.status.code = v2.OK
        there.messages.add(broker_name="b", topic="calls", kind="DELAY", due_ms=1, message_id="there")
        return [("b", there.SerializeToString()), ("c", ConnectionFailed("no"))]

    broker.cluster.peers.ask_peers = ask_peers
    response = await listed(stage, "calls")
    assert [(one.broker_name, one.message_id) for one in response.messages] == [("b", "there"), ("a", "here")]
    assert list(response.silent) == ["c"]
    assert response.more


async def test_a_wrong_number_and_an_unknown_topic_are_refused(stage: Any) -> None:
    await begun(stage)
    with pytest.raises(BadRequest, match="1 to 1000"):
        await listed(stage, max=1_001)
    with pytest.raises(TopicNotFound):
        await listed(stage, "nothing")


async def test_a_handle_is_only_for_those_who_may_publish(stage: Any) -> None:
    await begun(stage)
    await send(stage, "mine", delay_ms=600_000)
    request = admin_pb2.ListScheduledRequest(topic="calls")
    for action, has_handle in (("describe", False), ("consume", False), ("publish", True)):
        response = await stage.as_user(f"topic:calls {action}", METHOD, request, admin_pb2.ListScheduledResponse)
        [one] = response.messages
        assert bool(one.recall_handle) is has_handle, action


async def test_messages_of_topics_without_a_grant_are_left_out(stage: Any) -> None:
    await begun(stage)
    await send(stage, "foreign", topic="other")
    await send(stage, "mine", delay_ms=600_000)
    for local in (False, True):
        request = admin_pb2.ListScheduledRequest(local=local)
        response = await stage.as_user("topic:calls describe", METHOD, request, admin_pb2.ListScheduledResponse)
        assert [one.message_id for one in response.messages] == ["mine"]
