"""Ack, change and forward (wire contract 3.10 to 3.12), by language."""

import asyncio
from typing import Any

import pytest
from evenq_broker.rpc.delivery.settle import ENTRIES_MAX
from evenq_proofs.v2_requests import ack_request, receive_request, send_request, v2_message

from evenq.model.retry import RetryKind, RetryPolicy
from evenq.wire.convert import set_duration_ms
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2

OK, INVALID, MULTIPLE = 20000, 40013, 30000


async def held(stage: Any, *, count: int = 2, auto_renew: bool = False, queues: int = 1) -> tuple[Any, list[str]]:
    """A broker and the handles of messages that group `g` holds."""
    broker = await stage.broker(default_start_from="FIRST", default_queues=queues)
    send = service_pb2.SendMessageRequest(messages=[v2_message("t", f"id{number}") for number in range(count)])
    await stage.ask("SendMessage", send, service_pb2.SendMessageResponse)
    receive = receive_request("g", "t", invisible_ms=5_000, batch_size=count, auto_renew=auto_renew)
    frames = await stage.frames("ReceiveMessage", receive, service_pb2.ReceiveMessageResponse)
    return broker, [f.message.system_properties.receipt_handle for f in frames if f.HasField("message")]


async def ack(stage: Any, *handles: str, language: str = "JAVA", topic: str = "t") -> Any:
    request = ack_request("g", topic)
    for handle in handles:
        request.entries.add(message_id="id", receipt_handle=handle)
    return await stage.ask("AckMessage", request, service_pb2.AckMessageResponse, language=language)


async def change(stage: Any, handle: str, invisible_ms: int, *, language: str = "JAVA", suspend: bool = False) -> Any:
    request = service_pb2.ChangeInvisibleDurationRequest(receipt_handle=handle)
    if suspend:
        request.suspend = True
    request.group.name, request.topic.name = "g", "t"
    set_duration_ms(request.invisible_duration, invisible_ms)
    method = "ChangeInvisibleDuration"
    return await stage.ask(method, request, service_pb2.ChangeInvisibleDurationResponse, language=language)


async def test_an_ack_of_nothing_and_of_too_much_is_refused(stage: Any) -> None:
    await held(stage)
    assert (await ack(stage)).status.code == 40000
    over = await ack(stage, *["x"] * (ENTRIES_MAX + 1))
    assert over.status.code == 40000
    assert str(ENTRIES_MAX) in over.status.message


async def test_the_verdict_of_all_stands_on_top_and_mixed_ones_say_so(stage: Any) -> None:
    _, (first, second) = await held(stage)
    assert (await ack(stage, "bad", "worse")).status.code == INVALID
    mixed = await ack(stage, first, "bad")
    assert (mixed.status.code, [entry.status.code for entry in mixed.entries]) == (MULTIPLE, [OK, INVALID])
    assert [entry.receipt_handle for entry in mixed.entries] == [first, "bad"]
    assert (await ack(stage, first, second)).status.code == OK


async def test_each_handle_of_an_ack_settles_a_message_of_its_own_queue(stage: Any) -> None:
    broker, handles = await held(stage, count=6, queues=3)
    assert (await ack(stage, *handles)).status.code == OK
    done = {queue.queue_id: (queue.committed, list(queue.pending)) for queue in broker.ledger.progress.queues()}
    assert done == dict.fromkeys(range(3), (2, []))


async def test_a_message_whose_time_is_made_shorter_comes_to_a_poll_that_waits_already(stage: Any) -> None:
    _, (first, _) = await held(stage)
    receive = receive_request("g", "t", poll_ms=20_000, invisible_ms=5_000, batch_size=1)
    poll = asyncio.ensure_future(stage.frames("ReceiveMessage", receive, service_pb2.ReceiveMessageResponse))
    await stage.clock.advance(100)
    begun_ms = stage.clock.monotonic_ms()
    assert (await change(stage, first, 1_000)).status.code == OK
    assert any(frame.HasField("message") for frame in await poll)
    assert stage.clock.monotonic_ms() - begun_ms < 2_000


async def test_a_topic_that_is_gone_makes_the_handle_invalid_so_that_nobody_tries_for_ever(stage: Any) -> None:
    broker, (first, _) = await held(stage)
    assert (await ack(stage, first, topic="elsewhere")).status.code == INVALID
    await stage.during(broker.catalog.delete_topic("t"))
    assert (await ack(stage, first)).status.code == INVALID


@pytest.mark.parametrize(("group", "topic"), [("g", "other"), ("rival", "t"), ("rival", "other")])
async def test_a_handle_is_of_one_group_and_one_topic(stage: Any, group: str, topic: str) -> None:
    """Both hold their first message as their first delivery: all that tells the handles apart is whose they are."""
    broker, (first, _) = await held(stage)
    await stage.during(broker.catalog.create_topic("other", queues=1))
    await stage.during(broker.catalog.create_group("rival"))
    send = send_request("other", "id0")
    await stage.ask("SendMessage", send, service_pb2.SendMessageResponse)
    receive = receive_request(group, topic, invisible_ms=5_000, batch_size=1)
    assert len(await stage.frames("ReceiveMessage", receive, service_pb2.ReceiveMessageResponse)) == 3

    def in_flight() -> list[tuple[int, int, int, int]]:
        return [
            (queue.group_id, queue.topic_id, offset, entry.deadline_ms)
            for queue in broker.ledger.progress.queues()
            for offset, entry in queue.pending.items()
        ]

    before = in_flight()
    ack = ack_request(group, topic)
    ack.entries.add(message_id="id0", receipt_handle=first)
    assert (await stage.ask("AckMessage", ack, service_pb2.AckMessageResponse)).status.code == INVALID
    change = service_pb2.ChangeInvisibleDurationRequest(receipt_handle=first)
    bury = service_pb2.ForwardMessageToDeadLetterQueueRequest(receipt_handle=first, message_id="id0")
    for request in (change, bury):
        request.group.name, request.topic.name = group, topic
    answer = await stage.ask("ChangeInvisibleDuration", change, service_pb2.ChangeInvisibleDurationResponse)
    assert answer.status.code == INVALID
    response = service_pb2.ForwardMessageToDeadLetterQueueResponse
    await stage.ask("ForwardMessageToDeadLetterQueue", bury, response)
    assert in_flight() == before


async def test_rust_is_told_ok_for_dead_handles_because_it_would_repeat_them_for_ever(stage: Any) -> None:
    await held(stage)
    assert (await ack(stage, "dead", language="RUST")).status.code == OK
    answer = await change(stage, "dead", 1_000, language="RUST")
    assert (answer.status.code, answer.receipt_handle) == (OK, "dead")


@pytest.mark.parametrize(("invisible_ms", "code"), [(-1, 40011), (0, OK), (43_200_000, OK), (43_200_001, 40011)])
async def test_every_answer_to_a_change_holds_a_handle(stage: Any, invisible_ms: int, code: int) -> None:
    _, (first, _) = await held(stage)
    answer = await change(stage, first, invisible_ms)
    assert answer.status.code == code
    assert answer.receipt_handle
    assert code == OK or answer.receipt_handle == first
    assert (await ack(stage, answer.receipt_handle)).status.code == OK or invisible_ms == 0


async def test_a_nack_of_node_is_not_believed_to_be_milliseconds(stage: Any) -> None:
    broker, (first, second) = await held(stage, auto_renew=True)
    queue = broker.ledger.progress.queue(1, 1, 0)
    await change(stage, first, 1, language="HTTP")
    assert 9_900 < queue.pending[0].deadline_ms - broker.runtime.now_ms() <= 10_000
    await change(stage, second, 1, language="HTTP", suspend=True)
    assert queue.pending[1].deadline_ms - broker.runtime.now_ms() <= 1


async def test_43_a_failing_node_consumer_waits_its_groups_policy_between_tries(stage: Any) -> None:
    """Checklist 43."""
    retry = RetryPolicy(kind=RetryKind.CUSTOMIZED, delays_ms=(3_000, 7_000))
    broker, (handle, _) = await held(stage, auto_renew=True)
    await stage.during(broker.catalog.create_group("g", retry=retry))
    queue = broker.ledger.progress.queue(1, 1, 0)
    for attempt, pause_ms in ((1, 3_000), (2, 7_000), (3, 7_000)):
        queue.pending[0].attempt = attempt
        await change(stage, handle, 3, language="HTTP")
        assert pause_ms - 100 < queue.pending[0].deadline_ms - broker.runtime.now_ms() <= pause_ms
        queue.pending[0].client_id = "c"


async def test_forwarding_settles_and_a_handle_that_is_gone_is_ok(stage: Any) -> None:
    broker, (first, _) = await held(stage)

    async def forward(handle: str, message_id: str = "") -> int:
        request = service_pb2.ForwardMessageToDeadLetterQueueRequest(receipt_handle=handle, message_id=message_id)
        request.group.name, request.topic.name = "g", "t"
        response = service_pb2.ForwardMessageToDeadLetterQueueResponse
        return int((await stage.ask("ForwardMessageToDeadLetterQueue", request, response)).status.code)

    assert [await forward(first), await forward(first), await forward("bad"), await forward("", "id1")] == [OK] * 4
    assert broker.ledger.progress.queue(1, 1, 0).pending == {}
    assert broker.runtime.stats.group_topic(1, 1).dead_letters == 2


async def test_a_push_consumer_that_gives_up_the_last_attempt_waits_no_pause(stage: Any) -> None:
    """RD-3: what a nack says after the last attempt is not waited for; a simple consumer may ask for more time."""
    broker, (first, second) = await held(stage, auto_renew=True)
    queue = broker.ledger.progress.queue(1, 1, 0)
    queue.pending[0].attempt = queue.pending[1].attempt = broker.runtime.settings.default_group_max_attempts
    answer = await change(stage, first, 1_800_000)
    assert (answer.status.code, bool(answer.receipt_handle)) == (OK, True)
    await stage.until(lambda: broker.runtime.stats.group_topic(1, 1).dead_letters == 1, limit_ms=500)
    assert (await ack(stage, answer.receipt_handle)).status.code == OK
    assert (await change(stage, second, 1_000, suspend=True)).status.code == OK
    await stage.clock.advance(500)
    assert broker.runtime.stats.group_topic(1, 1).dead_letters == 1


async def test_a_simple_consumer_may_have_more_time_for_the_last_attempt_and_then_it_is_dead_at_once(
    stage: Any,
) -> None:
    broker, (first, second) = await held(stage)
    queue = broker.ledger.progress.queue(1, 1, 0)
    queue.pending[0].attempt = queue.pending[1].attempt = broker.runtime.settings.default_group_max_attempts
    assert (await change(stage, first, 8_000)).status.code == OK
    assert (await change(stage, second, 0)).status.code == OK
    await stage.until(lambda: broker.runtime.stats.group_topic(1, 1).dead_letters == 1, limit_ms=500)
    assert sorted(queue.pending) == [0]
    await stage.clock.advance(8_000)
    await stage.until(lambda: broker.runtime.stats.group_topic(1, 1).dead_letters == 2, limit_ms=500)


async def test_an_answer_names_each_message_and_handle_as_the_request_did(stage: Any) -> None:
    _, handles = await held(stage, count=3)
    request = ack_request("g", "t")
    names = ["", "id1", "ä" * 100, "x" * 20_000]
    for name, handle in zip(names, [*handles, "forged" * 40], strict=True):
        request.entries.add(message_id=name, receipt_handle=handle)
    answer = await stage.ask("AckMessage", request, service_pb2.AckMessageResponse)
    assert answer.status.code == MULTIPLE
    assert [(one.message_id, one.receipt_handle) for one in answer.entries] == [
        (one.message_id, one.receipt_handle) for one in request.entries
    ]
    assert [one.status.code for one in answer.entries] == [OK, OK, OK, INVALID]
