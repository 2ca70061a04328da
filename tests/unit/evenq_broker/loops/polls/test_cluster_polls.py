"""A receive that waits at one broker is answered with a message of another (wire contract 3.9, checklist 31)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from evenq_broker.core.polls.interest import Want
from evenq_broker.loops.delivery.ending import FetchedMessages
from evenq_broker.loops.polls.cluster_polls import _Line
from evenq_broker.rpc.polls.fetching import fetch
from evenq_proofs.v2_requests import ack_request, receive_messages, receive_request, v2_message

from evenq.serving.rpc import RpcContext
from evenq.wire.convert import set_duration_ms
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import peers_pb2
from tests.unit.evenq_broker.conftest import know

V2 = "/apache.rocketmq.v2.MessagingService/"


async def pair(stage: Any, *names: str, **settings: Any) -> list[Any]:
    """Brokers with topic `t`, one queue each, that know each other and whose lines are open."""
    brokers = [await stage.broker(name, default_queues=1, **settings) for name in names or ("a", "b")]
    for broker in brokers:
        await stage.during(broker.catalog.create_topic("t"))
    know(*brokers)
    await stage.until(lambda: all(len(b.cluster_polls._listeners) == len(brokers) - 1 for b in brokers))
    return brokers


def receiving(
    stage: Any, broker: str = "a", *, client: str = "c", poll_ms: int = 10_000, queue_id: int = -1, **fields: Any
) -> asyncio.Task[list[Any]]:
    request = service_pb2.ReceiveMessageRequest(batch_size=fields.pop("batch", 32), **fields)
    request.group.name, request.message_queue.topic.name = "g", "t"
    request.message_queue.id = queue_id
    request.message_queue.broker.name = broker
    set_duration_ms(request.long_polling_timeout, poll_ms)
    set_duration_ms(request.invisible_duration, 30_000)
    headers = {"x-mq-client-id": client, "x-mq-language": "JAVA"}

    return asyncio.ensure_future(receive_messages(stage.net, f"{broker}:8081", request, metadata=headers))


async def send(stage: Any, broker: str, count: int = 1) -> None:
    request = service_pb2.SendMessageRequest(
        messages=[v2_message("t", f"id{number}", b"hello") for number in range(count)]
    )
    await stage.ask("SendMessage", request, service_pb2.SendMessageResponse, broker=broker)


async def settled(stage: Any) -> None:
    """Let everything that was begun come to rest."""
    await stage.clock.advance(600)


async def test_31_a_poll_at_one_broker_is_answered_with_the_message_of_another(stage: Any) -> None:
    """Checklist 31."""
    a, b = await pair(stage)
    waiting = receiving(stage)
    await stage.until(lambda: len(b.cluster_polls.waiters) == 1)
    began_ms = stage.clock.monotonic_ms()
    await send(stage, "b")
    [got] = await stage.during(waiting)
    assert stage.clock.monotonic_ms() - began_ms <= 20
    handle = got.system_properties.receipt_handle
    assert handle.startswith("e1.b.")
    assert (a.cluster_polls.fetches, a.cluster_polls.fetches_empty) == (1, 0)
    ack = ack_request("g", "t")
    ack.entries.add(message_id="id0", receipt_handle=handle)
    answer = await stage.ask("AckMessage", ack, service_pb2.AckMessageResponse, broker="a")
    assert answer.status.code == 20000
    assert b.ledger.progress.inflight(b.catalog.groups.get("g").group_id, b.catalog.topics.get("t").topic_id, 0) == 0


async def test_31_a_poll_parked_after_the_message_came_is_answered_at_once(stage: Any) -> None:
    """Checklist 31: a backlog elsewhere is no reason to wait either."""
    await pair(stage, default_start_from="FIRST")
    await send(stage, "b", 3)
    got = [await stage.during(receiving(stage, batch=1)) for _ in range(3)]
    assert sorted(message.system_properties.message_id for [message] in got) == ["id0", "id1", "id2"]
    assert stage.clock.monotonic_ms() < 1_500


async def test_a_group_that_waits_at_one_broker_has_begun_at_all(stage: Any) -> None:
    _, b = await pair(stage)
    assert await stage.during(receiving(stage, poll_ms=100)) == []
    await send(stage, "b")  # after the first receive: it must not be missed
    [got] = await stage.during(receiving(stage, poll_ms=2_000))
    assert got.system_properties.receipt_handle.startswith("e1.b.")
    assert b.catalog.groups.get("g") is not None


async def test_a_poll_gets_the_first_message_of_a_topic_that_another_broker_makes_while_it_waits(stage: Any) -> None:
    """No member is connected to that broker: the parked poll alone tells that the group waited."""
    a, b = [await stage.broker(name, default_queues=1) for name in ("a", "b")]
    await stage.during(a.catalog.create_topic("t"))
    know(a, b)
    await stage.until(lambda: all(len(one.cluster_polls._listeners) == 1 for one in (a, b)))
    waiting = receiving(stage)
    await stage.until(lambda: len(b.cluster_polls.waiters) == 1)
    await stage.during(b.catalog.create_topic("t"))
    began_ms = stage.clock.monotonic_ms()
    await send(stage, "b")
    [got] = await stage.during(waiting)
    assert got.system_properties.receipt_handle.startswith("e1.b.")
    assert stage.clock.monotonic_ms() - began_ms <= 20


async def test_one_message_wakes_one_poll_and_who_polls_there_comes_first(stage: Any) -> None:
    a, b, c = await pair(stage, "a", "b", "c")
    far = [receiving(stage, "a", client=f"f{number}") for number in range(5)]
    near = receiving(stage, "b", client="near")
    await stage.until(lambda: len(b.cluster_polls.waiters) == 1 and len(b.long_polls.table) == 1)
    await send(stage, "b")
    assert len(await stage.during(near)) == 1
    await settled(stage)
    assert not any(task.done() for task in far)
    assert a.cluster_polls.fetches == 0
    await send(stage, "b")
    await stage.until(lambda: any(task.done() for task in far))
    await settled(stage)
    assert sum(task.done() for task in far) == 1
    await send(stage, "c", 3)
    await stage.until(lambda: sum(task.done() for task in far) == 2)
    for task in far:
        task.cancel()
    await asyncio.gather(*far, return_exceptions=True)
    await settled(stage)
    for broker in (a, b, c):
        assert not broker.cluster_polls.waiters
        broker.long_polls.table.check()


async def test_a_real_queue_is_never_answered_from_elsewhere_and_a_push_poll_only_when_nobody_is_nearer(
    stage: Any,
) -> None:
    a, b = await pair(stage)
    queue = receiving(stage, "a", auto_renew=True, poll_ms=700, queue_id=0)
    await stage.until(lambda: len(a.long_polls.table) == 1)
    push = receiving(stage, "a", client="p", auto_renew=True)
    await stage.until(lambda: len(b.cluster_polls.waiters) == 1)
    began_ms = stage.clock.monotonic_ms()
    await send(stage, "b")
    [got] = await stage.during(push)
    assert stage.clock.monotonic_ms() - began_ms >= 50
    assert got.system_properties.receipt_handle.startswith("e1.b.")
    assert await stage.during(queue) == []


async def test_a_cancelled_receive_lets_another_one_have_the_message(stage: Any) -> None:
    """Checklist 33, over brokers."""
    a, b = await pair(stage)
    first = receiving(stage, "a", client="one")
    await stage.until(lambda: len(b.cluster_polls.waiters) == 1)
    second = receiving(stage, "a", client="two")
    await stage.until(lambda: len(a.long_polls.table) == 2)
    ready = a.long_polls.ready_elsewhere

    def cancel_then(*args: Any, **options: Any) -> bool:
        woke: bool = ready(*args, **options)
        first.cancel()
        return woke

    a.cluster_polls.on_elsewhere = cancel_then
    await send(stage, "b")
    [got] = await stage.during(second)
    assert got.system_properties.delivery_attempt == 1


async def test_a_peer_that_ends_or_does_not_know_the_call_is_not_waited_on_and_comes_back(stage: Any) -> None:
    a, b = await pair(stage)
    waiting = receiving(stage)
    await stage.until(lambda: len(b.cluster_polls.waiters) == 1)
    stage.net.stop("b:8081")
    await stage.until(lambda: not b.cluster_polls.waiters)
    await settled(stage)
    assert not waiting.done()
    stage.net.serve("b:8081", [one for one in b.rpcs() if "Peers" not in one.method])
    await stage.clock.advance(3_000)
    assert not waiting.done()
    stage.net.serve("b:8081", b.rpcs())
    await stage.until(lambda: len(b.cluster_polls.waiters) == 1)
    await send(stage, "b")
    assert len(await stage.during(waiting)) == 1
    a.catalog.routes.snapshot("nameserver", "n", [], stage.clock.monotonic_ms())
    a.cluster.routes_changed()
    await stage.until(lambda: not a.cluster_polls._lines)


async def test_a_call_that_broke_takes_nothing_of_what_the_next_one_tells(stage: Any) -> None:
    """gRPC may read the requests of a broken call for some time."""
    line = _Line("b", "b:8081", "1")
    broken = line.begin().requests("a")
    await anext(broken)
    stale = asyncio.ensure_future(anext(broken, b"over"))
    await settled(stage)
    present = line.begin().requests("a")
    await anext(present)
    line.tell(Want("g", "t", push=False), 1)
    response = peers_pb2.InterestRequest.FromString(await stage.during(asyncio.ensure_future(anext(present))))
    assert [waiting.count for waiting in response.waiting] == [1]
    assert await stage.during(stale) == b"over"


async def test_a_line_that_ends_while_its_group_is_made_leaves_no_waiter(stage: Any) -> None:
    _, b = await pair(stage)
    polls = b.cluster_polls
    listener = polls._listeners["a"]
    made = b.catalog.ensure_group

    async def slowly(name: str) -> Any:
        group = await made(name)
        polls.left(listener)
        return group

    b.catalog.ensure_group = slowly
    await stage.during(polls.announced(listener, Want("late", "t", False), 1))
    assert len(polls.waiters) == 0


async def test_parked_polls_send_nothing_at_rest(stage: Any) -> None:
    a, b = await pair(stage)
    waiting = [receiving(stage, "a", client=str(number), poll_ms=30_000) for number in range(50)]
    await stage.until(lambda: len(a.long_polls.table) == 50)
    await settled(stage)
    assert b.cluster_polls.waiters.waits(next(iter(b.cluster_polls.waiters.wants("t"))))
    looks = a.cluster_polls._news.count
    await stage.clock.advance(10_000)
    assert a.cluster_polls._news.count == looks
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_one_request_settles_messages_of_several_brokers(stage: Any) -> None:
    """Contract 3.10: one entry for each, in order, and one verdict over all."""
    a, b = await pair(stage, default_start_from="FIRST")
    for name in ("a", "b"):
        await send(stage, name)
    handles = []
    for _ in range(2):
        [got] = await stage.during(receiving(stage, batch=1))
        handles.append(got.system_properties.receipt_handle)
    assert {handle[:5] for handle in handles} == {"e1.a.", "e1.b."}

    async def ack(*texts: str) -> Any:
        request = ack_request("g", "t")
        for text in texts:
            request.entries.add(message_id=text[-3:], receipt_handle=text)
        return await stage.ask("AckMessage", request, service_pb2.AckMessageResponse, broker="a")

    for _ in range(2):
        answer = await ack(*handles)
        assert answer.status.code == 20000
        assert [(entry.status.code, entry.receipt_handle) for entry in answer.entries] == [
            (20000, handle) for handle in handles
        ]
    mixed = await ack(handles[1], "nonsense", handles[0])
    assert mixed.status.code == 30000
    assert [entry.status.code for entry in mixed.entries] == [20000, 40013, 20000]
    stage.net.stop("b:8081")
    gone = await ack(*handles)
    assert sorted(entry.status.code == 20000 for entry in gone.entries) == [False, True]
    for broker in (a, b):
        group, topic = broker.catalog.groups.get("g"), broker.catalog.topics.get("t")
        assert broker.ledger.progress.inflight(group.group_id, topic.topic_id, 0) == 0


async def settle(stage: Any, how: str, *handles: str) -> None:
    """One call at broker `a` that ends these deliveries."""
    request: Any
    match how:
        case "AckMessage":
            request = service_pb2.AckMessageRequest()
            for handle in handles:
                request.entries.add(receipt_handle=handle)
        case "ChangeInvisibleDuration":
            request = service_pb2.ChangeInvisibleDurationRequest(receipt_handle=handles[0])
            set_duration_ms(request.invisible_duration, 10_000)
        case _:
            request = service_pb2.ForwardMessageToDeadLetterQueueRequest(receipt_handle=handles[0])
    request.group.name, request.topic.name = "g", "t"
    answer = await stage.ask(how, request, getattr(service_pb2, f"{how}Response"))
    assert answer.status.code == 20000


async def fetched(stage: Any, b: Any, *, push: bool = True) -> str:
    """The handle of a message of `b` that a client received at `a`."""
    waiting = receiving(stage, "a", auto_renew=push)
    await stage.until(lambda: len(b.cluster_polls.waiters) == 1)
    await send(stage, "b")
    [got] = await stage.during(waiting)
    handle: str = got.system_properties.receipt_handle
    assert handle.startswith("e1.b.")
    return handle


@pytest.mark.parametrize("push", [False, True])
@pytest.mark.parametrize("how", ["AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue"])
async def test_a_broker_that_ends_waits_for_the_acks_of_what_it_fetched(stage: Any, push: bool, how: str) -> None:
    """The client acknowledges at the address that it received from, which may never answer again."""
    a, b = await pair(stage)
    handle = await fetched(stage, b, push=push)
    a.ending.begin()
    waiting = asyncio.ensure_future(a.ending.nothing_in_hand(10_000))
    await stage.clock.advance(1_000)
    assert not waiting.done()
    await settle(stage, how, handle)
    began_ms = stage.clock.monotonic_ms()
    assert await stage.during(waiting) == 0
    assert stage.clock.monotonic_ms() - began_ms < 1_000


async def test_a_broker_that_ends_waits_until_an_ack_of_several_brokers_has_arrived(stage: Any) -> None:
    a, b = await pair(stage)
    away = await fetched(stage, b)
    await send(stage, "a")
    [here] = await stage.during(receiving(stage, "a", auto_renew=True))
    a.ending.begin()
    waiting = asyncio.ensure_future(a.ending.nothing_in_hand(10_000))
    await stage.clock.advance(1_000)
    assert not waiting.done()
    await settle(stage, "AckMessage", here.system_properties.receipt_handle, away)
    began_ms = stage.clock.monotonic_ms()
    assert await stage.during(waiting) == 0
    assert stage.clock.monotonic_ms() - began_ms < 1_000


async def test_a_broker_that_ends_waits_for_no_client_that_is_gone_and_for_nothing_old(stage: Any) -> None:
    a, b = await pair(stage)
    await fetched(stage, b)
    await stage.clock.advance(3_000)
    assert await stage.during(a.ending.nothing_in_hand(2_000)) == 0
    assert a.ending.fetched.clients_since(0) == ["c"]
    a.clients.end("c")
    began_ms = stage.clock.monotonic_ms()
    assert await stage.during(a.ending.nothing_in_hand(10_000)) == 0
    assert stage.clock.monotonic_ms() - began_ms < 100


async def test_a_fetch_that_is_under_way_when_its_broker_ends_gives_the_message_back(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await pair(stage)

    async def slowly(*parts: Any, **more: Any) -> Any:
        found = await fetch(*parts, **more)
        a.ending.begin()
        return found

    monkeypatch.setattr("evenq_broker.rpc.delivery.receive.fetch", slowly)
    waiting = receiving(stage, "a", auto_renew=True)
    await stage.until(lambda: len(b.cluster_polls.waiters) == 1)
    await send(stage, "b")
    assert await stage.during(waiting) == []
    assert a.ending.fetched.clients_since(0) == []
    [again] = await stage.during(receiving(stage, "b", auto_renew=True))
    assert again.system_properties.delivery_attempt == 1


@pytest.mark.parametrize("told_later", [False, True])
async def test_a_broker_that_ends_waits_for_no_fetched_message_that_its_client_did_not_take(
    stage: Any, told_later: bool
) -> None:
    a, b = await pair(stage)
    [receive] = [rpc for rpc in a.rpcs() if rpc.method == V2 + "ReceiveMessage"]
    request = receive_request("g", "t", queue=-1, poll_ms=10_000, batch_size=32, auto_renew=True)
    context = RpcContext(receive.method, [("x-mq-client-id", "c")], "127.0.0.1:1", None)
    frames = receive.handler(request.SerializeToString(), context)
    first = asyncio.ensure_future(anext(frames))
    await stage.until(lambda: len(b.cluster_polls.waiters) == 1)
    await send(stage, "b")
    await stage.during(first)
    assert a.ending.fetched.clients_since(0) == ["c"]
    if told_later:
        assert len([frame async for frame in frames]) == 2
        context.untaken()
    else:
        await frames.aclose()
    assert a.ending.fetched.clients_since(0) == []
    await settled(stage)
    [again] = await stage.during(receiving(stage, "b", auto_renew=True))
    assert again.system_properties.delivery_attempt == 1


def test_only_the_newest_fetched_messages_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenq_broker.loops.delivery.ending.FETCHED_MAX", 3)
    messages = FetchedMessages()
    messages.add("one", ["h1", "h2"], 10)
    messages.add("two", ["h3", "h4"], 20)
    assert messages.clients_since(0) == ["one", "two", "two"]
    assert messages.clients_since(11) == ["two", "two"]
    messages.settled(["h3", "unknown"])
    assert messages.clients_since(0) == ["one", "two"]
