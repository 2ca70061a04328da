"""TraceMessage: from the send to the acknowledgement or the dead-letter topic, as far as the broker remembers."""

from typing import Any

import pytest
from evenq_proofs.v2_requests import ack_request, nack_request, receive_request, send_request

from evenq.errors import BadRequest, MessageNotFound, NotImplementedYet
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2

METHOD = "/evenq.v1.Admin/TraceMessage"


async def filled(stage: Any, **settings: Any) -> Any:
    broker = await stage.broker(default_start_from="FIRST", **settings)
    await stage.during(broker.catalog.create_topic("t", queues=1))
    await stage.during(broker.catalog.create_group("g", max_attempts=2))
    request = send_request("t", "id", b"body", message_type=definition_pb2.NORMAL)
    assert (await stage.ask("SendMessage", request, service_pb2.SendMessageResponse)).status.code == 20000
    return broker


async def receive(stage: Any, *, auto_renew: bool = False, client: str = "c") -> list[Any]:
    request = receive_request("g", "t", poll_ms=100, invisible_ms=10_000, batch_size=1, auto_renew=auto_renew)
    frames = await stage.frames("ReceiveMessage", request, service_pb2.ReceiveMessageResponse, client=client)
    return [frame.message.system_properties for frame in frames if frame.HasField("message")]


async def ack(stage: Any, handle: str) -> None:
    request = ack_request("g", "t")
    request.entries.add(message_id="id", receipt_handle=handle)
    assert (await stage.ask("AckMessage", request, service_pb2.AckMessageResponse)).status.code == 20000


async def trace(stage: Any, **result: Any) -> list[Any]:
    request = admin_pb2.TraceMessageRequest(**{"message_id": "id", **result})
    return list((await stage.call(METHOD, request, admin_pb2.TraceMessageResponse)).traces)


def events(one: Any) -> list[tuple[str, str, int]]:
    name = admin_pb2.TraceEvent.Kind.Name
    return [(name(event.kind), event.client_id, event.attempt) for event in one.events]


@pytest.mark.parametrize("auto_renew", [False, True])
async def test_each_step_is_told_with_who_and_which_attempt(stage: Any, auto_renew: bool) -> None:
    await filled(stage)
    [before] = await trace(stage)
    assert (events(before), list(before.groups)) == ([("STORED", "", 0)], [])
    [first] = await receive(stage, auto_renew=auto_renew, client="one")
    [running] = (await trace(stage))[0].groups
    assert (running.group, running.state, running.attempt) == ("g", "IN_FLIGHT", 1)
    assert running.client_id == ("one" if auto_renew else "")
    request = nack_request("g", "t", first.receipt_handle, 0, message_id="id")
    await stage.ask("ChangeInvisibleDuration", request, service_pb2.ChangeInvisibleDurationResponse, client="one")
    assert (await trace(stage))[0].groups[0].state == "RETRY"
    [second] = await receive(stage, auto_renew=auto_renew, client="two")
    await ack(stage, second.receipt_handle)
    [done] = await trace(stage)
    assert (done.groups[0].state, done.groups[0].attempt) == ("FINISHED", 2)
    assert events(done) == [
        ("STORED", "", 0),
        ("DELIVERED", "one", 1),
        ("INVISIBLE", "", 1),
        ("DELIVERED", "two", 2),
        ("ACKNOWLEDGED", "", 0),
    ]
    assert done.remembered_since_ms > 0
    assert done.message.body_bytes == 4
    assert done.message.message.body == b""
    assert await trace(stage, topic="t", group="nobody") != []


async def test_a_dead_letter_is_told_at_the_original_and_as_a_copy(stage: Any) -> None:
    broker = await filled(stage)
    for _ in range(2):
        await receive(stage)
        await stage.clock.advance(10_100)
    assert await receive(stage) == []
    await stage.until(lambda: broker.catalog.topics.get("%DLQ%g") is not None)
    await stage.until(lambda: broker.ledger.progress.inflight(1, 1, 0) == 0)
    original, copy = await trace(stage)
    assert original.groups[0].state == "DEAD_LETTERED"
    assert events(original)[-1] == ("DEAD_LETTERED", "", 0)
    assert "ACKNOWLEDGED" not in [kind for kind, _, _ in events(original)]
    assert copy.message.queue.topic == "%DLQ%g"
    assert copy.message.message.system_properties.dead_letter_queue.topic == "t"


async def test_without_memory_the_state_is_told_all_the_same(stage: Any) -> None:
    broker = await filled(stage, trace_bytes=0)
    assert broker.ledger.trace is None
    [got] = await receive(stage)
    await ack(stage, got.receipt_handle)
    [one] = await trace(stage)
    assert (events(one), one.groups[0].state, one.remembered_since_ms) == ([("STORED", "", 0)], "FINISHED", 0)


async def test_nothing_found_and_no_index_have_their_own_errors(stage: Any) -> None:
    broker = await filled(stage)
    with pytest.raises(MessageNotFound, match="'other' in any topic"):
        await trace(stage, message_id="other")
    with pytest.raises(BadRequest):
        await trace(stage, message_id="")
    own = broker.runtime.settings.store.model_copy(update={"message_index": False})  # the default is everybody's
    object.__setattr__(broker.runtime.settings, "store", own)
    with pytest.raises(NotImplementedYet):
        await trace(stage)


async def test_an_id_tells_nothing_of_copies_in_topics_that_the_caller_may_not_look_at(stage: Any) -> None:
    """The id of another client's message finds its copies in the dead letters of their groups."""
    broker = await filled(stage)
    await stage.during(broker.catalog.create_topic("mine", queues=1))
    group, topic = broker.catalog.groups.get("g"), broker.catalog.topics.get("t")
    [taken] = await receive(stage)
    forward = service_pb2.ForwardMessageToDeadLetterQueueRequest(receipt_handle=taken.receipt_handle)
    forward.group.name, forward.topic.name = group.name, topic.name
    await stage.ask("ForwardMessageToDeadLetterQueue", forward, service_pb2.ForwardMessageToDeadLetterQueueResponse)

    async def topics(grants: str, **result: Any) -> list[str]:
        request = admin_pb2.TraceMessageRequest(message_id="id", **result)
        answer = await stage.as_user(grants, METHOD, request, admin_pb2.TraceMessageResponse)
        assert not any(one.message.message.body for one in answer.traces)
        return [one.message.queue.topic for one in answer.traces]

    assert await topics("topic:* describe") == ["t", "%DLQ%g"]
    assert await topics("topic:t describe", topic="t") == ["t"]
    assert await topics("topic:t describe; group:g consume", topic="t") == ["t", "%DLQ%g"]
    with pytest.raises(MessageNotFound):
        await topics("topic:mine consume", topic="mine")
    assert await topics("topic:mine consume", topic="mine", local=True) == []
