"""No caller is answered that something is done before its record is safe: every call that changes what a broker keeps (D4).

The store's answer is held back; as long as it is, no call may end. Then it comes, and each ends with OK. And when the
store fails instead, no call says OK.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from evenq_broker.broker import Broker
from evenq_broker.core.groups.members import Member, Protocol

from evenq.errors import HaNotAvailable, StoreError
from evenq.runtime.tasks import spawn
from evenq.wire.convert import set_duration_ms
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2 as v2_admin
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2 as v2
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2, data_pb2, groups_pb2

Run = Callable[[Callable[[Any], Awaitable[None]]], None]
MESSAGING, ADMIN_V2 = "/apache.rocketmq.v2.MessagingService/", "/apache.rocketmq.v2.Admin/"
DATA, GROUPS, ADMIN = "/evenq.v1.Data/", "/evenq.v1.Groups/", "/evenq.v1.Admin/"
QUEUE = common_pb2.Queue(topic="t", broker_name="a", queue_id=0)
MEMBER = "member"
DRAIN = admin_pb2.DrainBrokerRequest(broker_name="a", change=admin_pb2.DrainBrokerRequest.DRAIN)


class Gate:
    """Stands before the store's answer to state records."""

    def __init__(self, broker: Broker) -> None:
        self._append = broker.ledger.store.append_state
        self._kept: list[tuple[asyncio.Future[None], asyncio.Future[None]]] = []
        self.records = 0
        broker.ledger.store.append_state = self._held  # type: ignore[method-assign]

    def _held(self, payload: bytes) -> asyncio.Future[None]:
        self.records += 1
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._kept.append((self._append(payload), answer))
        return answer

    async def open(self) -> None:
        """Let what is safe be known; the next records pass at once."""
        kept, self._kept = self._kept, []
        for stored, answer in kept:
            await stored
            answer.set_result(None)

    async def fail(self) -> None:
        """The disk says no instead."""
        kept, self._kept = self._kept, []
        for stored, answer in kept:
            await stored
            answer.set_exception(StoreError("the disk is gone"))


def ack(handle: str) -> Any:
    request = v2.AckMessageRequest()
    request.group.name, request.topic.name = "g", "t"
    request.entries.add(message_id="id", receipt_handle=handle)
    return request


def nack(handle: str) -> Any:
    request = v2.ChangeInvisibleDurationRequest(receipt_handle=handle)
    request.group.name, request.topic.name = "g", "t"
    set_duration_ms(request.invisible_duration, 0)
    return request


def forward(handle: str) -> Any:
    request = v2.ForwardMessageToDeadLetterQueueRequest(receipt_handle=handle)
    request.group.name, request.topic.name = "g", "t"
    return request


def update_offset(_: str) -> Any:
    request = v2.UpdateOffsetRequest(offset=1)
    request.group.name, request.message_queue.topic.name = "g", "t"
    return request


def reset_group(_: str) -> Any:
    request = v2_admin.ResetGroupOffsetRequest()
    request.group.name, request.topic.name = "g", "t"
    request.reset_timestamp.seconds = 1
    return request


def send_back(_: str) -> Any:
    return data_pb2.SendBackRequest(group="g", queue=QUEUE, queue_offset=0, attempts=99)


def commit(_: str) -> Any:
    return data_pb2.CommitOffsetsRequest(
        group="own", client_id="", offsets=[data_pb2.CommitOffset(queue=QUEUE, offset=1)]
    )


def lock(_: str) -> Any:
    return groups_pb2.LockQueuesRequest(group="own", client_id=MEMBER, queues=[QUEUE])


def reset(_: str) -> Any:
    return admin_pb2.ResetOffsetsRequest(group="g", topic="t", to=admin_pb2.EARLIEST)


CALLS: dict[str, tuple[str, Callable[[str], Any], type[Any]]] = {
    "ack": (MESSAGING + "AckMessage", ack, v2.AckMessageResponse),
    "nack": (MESSAGING + "ChangeInvisibleDuration", nack, v2.ChangeInvisibleDurationResponse),
    "forward": (MESSAGING + "ForwardMessageToDeadLetterQueue", forward, v2.ForwardMessageToDeadLetterQueueResponse),
    "update offset": (MESSAGING + "UpdateOffset", update_offset, v2.UpdateOffsetResponse),
    "reset group": (ADMIN_V2 + "ResetGroupOffset", reset_group, v2_admin.ResetGroupOffsetResponse),
    "commit": (DATA + "CommitOffsets", commit, data_pb2.CommitOffsetsResponse),
    "lock": (GROUPS + "LockQueues", lock, groups_pb2.LockQueuesResponse),
    "reset": (ADMIN + "ResetOffsets", reset, admin_pb2.ResetOffsetsResponse),
    "create topic": (
        ADMIN + "CreateTopic",
        lambda _: admin_pb2.CreateTopicRequest(topic="new", queues=1),
        admin_pb2.CreateTopicResponse,
    ),
    "delete topic": (
        ADMIN + "DeleteTopic",
        lambda _: admin_pb2.DeleteTopicRequest(topic="other"),
        admin_pb2.DeleteTopicResponse,
    ),
    "create group": (
        ADMIN + "CreateGroup",
        lambda _: admin_pb2.CreateGroupRequest(group="new"),
        admin_pb2.CreateGroupResponse,
    ),
    "drain": (ADMIN + "DrainBroker", lambda _: DRAIN, admin_pb2.DrainBrokerResponse),
}


async def prepared(stage: Any) -> tuple[Broker, str]:
    """A broker with a message in flight to group `g`, topic `other`, and a member of group `own`; the handle."""
    broker: Broker = await stage.broker(default_start_from="FIRST", default_queues=1)
    send = v2.SendMessageRequest()
    message = send.messages.add(body=b"x")
    message.topic.name, message.system_properties.message_id = "t", "id"
    await stage.ask("SendMessage", send, v2.SendMessageResponse)
    create = admin_pb2.CreateTopicRequest(topic="other", queues=1)
    await stage.call(ADMIN + "CreateTopic", create, admin_pb2.CreateTopicResponse)
    for group in ("g", "own"):
        made = admin_pb2.CreateGroupRequest(group=group)
        await stage.call(ADMIN + "CreateGroup", made, admin_pb2.CreateGroupResponse)
    member = Member(client_id=MEMBER, protocol=Protocol.EVENQ)
    broker.membership.members.join("own", member, now_ms=stage.clock.monotonic_ms(), lease_ms=3_600_000)
    receive = v2.ReceiveMessageRequest(batch_size=1)
    receive.group.name, receive.message_queue.topic.name = "g", "t"
    set_duration_ms(receive.invisible_duration, 60_000)
    frames = await stage.frames("ReceiveMessage", receive, v2.ReceiveMessageResponse)
    (handle,) = [f.message.system_properties.receipt_handle for f in frames if f.HasField("message")]
    return broker, handle


def started(stage: Any, name: str, handle: str) -> tuple[asyncio.Task[Any], type[Any]]:
    method, make, response = (CALLS | QUESTIONS)[name]
    headers = {"x-mq-client-id": MEMBER, "x-mq-language": "JAVA"}
    call = stage.net.unary("a:8081", method, make(handle).SerializeToString(), timeout_ms=600_000, metadata=headers)
    return spawn(call, name=name), response


@pytest.mark.parametrize("name", CALLS)
def test_no_call_ends_before_its_record_is_safe(run: Run, name: str) -> None:
    async def story(stage: Any) -> None:
        broker, handle = await prepared(stage)
        gate = Gate(broker)
        call, response = started(stage, name, handle)
        await stage.clock.advance(2_000)
        assert gate.records > 0, "it wrote nothing, so this test proves nothing"
        assert not call.done(), "answered before the record was on disk"
        for _ in range(20):
            await gate.open()
            await stage.clock.advance(200)
        answer = response.FromString(await call)
        assert answer.status.code == 20000, answer.status

    run(story)


@pytest.mark.parametrize("name", CALLS)
def test_no_call_says_ok_when_the_record_could_not_be_written(run: Run, name: str) -> None:
    async def story(stage: Any) -> None:
        broker, handle = await prepared(stage)
        gate = Gate(broker)
        call, response = started(stage, name, handle)
        for _ in range(20):
            await stage.clock.advance(100)
            await gate.fail()
        await stage.clock.advance(60_000)
        assert call.done()
        answer = response.FromString(call.result())
        if name == "lock":
            assert not any(queue.granted for queue in answer.queues), answer
            return
        entries = [entry.status.code for entry in getattr(answer, "entries", ())]
        assert 20000 not in [answer.status.code, *entries], answer

    run(story)


def is_ok(response: type[Any], call: asyncio.Task[Any], name: str) -> bool:
    """Whether a caller was answered that it is done."""
    answer = response.FromString(call.result())
    if name == "lock":
        return any(queue.granted for queue in answer.queues)
    entries = [entry.status.code for entry in getattr(answer, "entries", ())]
    return 20000 in (entries or [answer.status.code])


@pytest.mark.parametrize("name", CALLS)
def test_the_same_call_again_is_not_told_ok_while_the_record_of_the_first_is_not_safe(run: Run, name: str) -> None:
    async def story(stage: Any) -> None:
        broker, handle = await prepared(stage)
        gate = Gate(broker)
        first, response = started(stage, name, handle)
        await stage.clock.advance(2_000)
        again, _ = started(stage, name, handle)
        await stage.clock.advance(2_000)
        assert not first.done()
        assert not (again.done() and is_ok(response, again, name)), "a failover would take that back"
        for _ in range(20):
            await gate.open()
            await stage.clock.advance(200)
        assert is_ok(response, first, name)
        await again

    run(story)


@pytest.mark.parametrize("name", CALLS)
def test_what_was_refused_once_is_told_ok_only_when_it_was_recorded_after_all(run: Run, name: str) -> None:
    async def story(stage: Any) -> None:
        broker, handle = await prepared(stage)
        store = broker.ledger.store
        store.refuse(HaNotAvailable("1 of 2 copies are in sync"))
        for _ in range(2):
            refused, response = started(stage, name, handle)
            await stage.clock.advance(60_000)
            assert not (refused.done() and is_ok(response, refused, name))
            refused.cancel()
        store.refuse(None)
        gate = Gate(broker)
        call, _ = started(stage, name, handle)
        await stage.clock.advance(2_000)
        if call.done():
            assert not is_ok(response, call, name) or gate.records == 0, "answered before the record was on disk"
        for _ in range(20):
            await gate.open()
            await stage.clock.advance(200)
        owed = broker.ledger.journal.safe()
        for _ in range(5):
            await stage.clock.advance(200)
            await gate.open()
        assert owed is None or owed.done(), "what was refused is in the log now"
        if call.done() and is_ok(response, call, name):
            assert gate.records > 0, "it was never written"

    run(story)


# Receives: they rest on their own record where there are copies (R12).


async def receiving(stage: Any) -> tuple[Broker, Gate, asyncio.Task[list[Any]]]:
    """A leader of copies with one message, and a receive of it that waits for its record."""
    broker, _ = await prepared(stage)
    send = v2.SendMessageRequest()
    message = send.messages.add(body=b"y")
    message.topic.name, message.system_properties.message_id = "t", "another"
    await stage.ask("SendMessage", send, v2.SendMessageResponse)
    broker.runtime.leadership = replace(broker.runtime.leadership, attach=lambda _: None)
    receive = v2.ReceiveMessageRequest(batch_size=1)
    receive.group.name, receive.message_queue.topic.name = "g", "t"
    set_duration_ms(receive.invisible_duration, 60_000)
    gate = Gate(broker)
    call = spawn(stage.frames("ReceiveMessage", receive, v2.ReceiveMessageResponse), name="receive")
    await stage.clock.advance(2_000)
    return broker, gate, call


def test_a_leader_of_copies_hands_out_nothing_before_the_delivery_is_committed(run: Run) -> None:
    async def story(stage: Any) -> None:
        _, gate, call = await receiving(stage)
        assert gate.records > 0
        assert not call.done(), "a successor would not know of this delivery"
        for _ in range(5):
            await gate.open()
            await stage.clock.advance(200)
        assert sum(frame.HasField("message") for frame in await call) == 1

    run(story)


def test_a_leader_that_was_deposed_meanwhile_hands_out_nothing(run: Run) -> None:
    async def story(stage: Any) -> None:
        _, gate, call = await receiving(stage)
        await gate.fail()
        await stage.clock.advance(1_000)
        frames = await call
        assert not any(frame.HasField("message") for frame in frames)
        assert [frame.status.code for frame in frames if frame.HasField("status")] != [20000]

    run(story)


# What changes nothing: a leader that was deposed while it did not run knows nothing of its successor.


def get_offset(_: str) -> Any:
    request = v2.GetOffsetRequest()
    request.group.name, request.message_queue.topic.name = "g", "t"
    return request


def query_offsets(_: str) -> Any:
    return data_pb2.QueryOffsetsRequest(group="g", queues=[QUEUE])


QUESTIONS: dict[str, tuple[str, Callable[[str], Any], type[Any]]] = {
    "get offset": (MESSAGING + "GetOffset", get_offset, v2.GetOffsetResponse),
    "query offsets": (DATA + "QueryOffsets", query_offsets, data_pb2.QueryOffsetsResponse),
}
CHANGE_NOTHING = ("ack", "forward", "update offset", "commit", "reset", "get offset", "query offsets")


@pytest.mark.parametrize("name", CHANGE_NOTHING)
def test_a_leader_of_copies_tells_and_confirms_progress_only_while_it_can_commit(run: Run, name: str) -> None:
    async def story(stage: Any) -> None:
        broker, handle = await prepared(stage)
        if name == "get offset":
            await stage.during(started(stage, "update offset", handle)[0])
        first, response = started(stage, name, handle)
        await stage.clock.advance(2_000)
        assert is_ok(response, first, name)
        broker.runtime.leadership = replace(broker.runtime.leadership, attach=lambda _: None)
        gate = Gate(broker)
        leads, _ = started(stage, name, handle)
        await stage.clock.advance(2_000)
        assert not (leads.done() and is_ok(response, leads, name)), "a successor may know better"
        for _ in range(20):
            await gate.open()
            await stage.clock.advance(200)
        assert is_ok(response, leads, name)
        deposed, _ = started(stage, name, handle)
        for _ in range(5):
            await stage.clock.advance(1_000)
            await gate.fail()
        assert not (deposed.done() and is_ok(response, deposed, name))
        deposed.cancel()

    run(story)
