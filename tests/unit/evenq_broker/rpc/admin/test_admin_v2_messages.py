"""Admin of v2, messages and questions to clients (checklist 45 of wire contract 8)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from zlib import crc32

import pytest
from evenq_broker.core.groups.members import Member, Protocol

from evenq.errors import Forbidden, MessageNotFound
from evenq.serving.auth.calls import ADMIN_V2
from evenq.serving.rpc import RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2, definition_pb2, service_pb2

OK = 20000


class Client:
    """A client's telemetry stream."""

    def __init__(self, stage: Any, name: str) -> None:
        self.stage = stage
        self.outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        settings = service_pb2.TelemetryCommand()
        settings.settings.publishing.topics.add().name = "t"
        self.outgoing.put_nowait(settings.SerializeToString())
        method = "/apache.rocketmq.v2.MessagingService/Telemetry"
        headers = {"x-mq-client-id": name}
        self.stream = stage.net.stream("a:8081", method, self._requests(), timeout_ms=None, metadata=headers)

    async def next(self) -> Any:
        return service_pb2.TelemetryCommand.FromString(await self.stage.during(anext(self.stream)))

    async def _requests(self) -> AsyncIterator[bytes]:
        while True:
            yield await self.outgoing.get()


async def connected(stage: Any, name: str = "c") -> Client:
    client = Client(stage, name)
    assert (await client.next()).HasField("settings")
    return client


async def stored(stage: Any, **fields: Any) -> str:
    request = admin_pb2.AdminSendMessageRequest(body=b"body", key="k", tag="tag", **fields)
    request.topic.name = "t"
    answer = await stage.ask(ADMIN_V2 + "AdminSendMessage", request, admin_pb2.AdminSendMessageResponse)
    assert answer.status.code == OK, answer
    return str(answer.message_id)


async def ask(stage: Any, name: str, request: Any) -> Any:
    return await stage.ask(ADMIN_V2 + name, request, getattr(admin_pb2, f"{name}Response"))


@pytest.mark.parametrize("field", ["thread_stack_trace", "print_thread_stack_trace_command"])
async def test_a_client_tells_its_stack_and_the_nonce_may_stand_in_either_field(stage: Any, field: str) -> None:
    broker = await stage.broker()
    client = await connected(stage)
    asking = asyncio.ensure_future(
        ask(stage, "PrintThreadStackTrace", admin_pb2.PrintThreadStackTraceRequest(client_id="c"))
    )
    command = await client.next()
    nonce = command.print_thread_stack_trace_command.nonce
    assert nonce
    for value in ("guessed", nonce):
        answer = service_pb2.TelemetryCommand()
        getattr(answer, field).nonce = value
        if field == "thread_stack_trace":
            answer.thread_stack_trace.thread_stack_trace = f"main {value}"
        else:
            answer.status.code = definition_pb2.NOT_IMPLEMENTED
        client.outgoing.put_nowait(answer.SerializeToString())
    got = await stage.during(asking)
    if field == "thread_stack_trace":
        assert (got.status.code, got.thread_stack_trace) == (OK, f"main {nonce}")
    else:
        assert got.status.code == 50100
    assert len(broker.clients.commands) == 0


async def test_a_client_that_is_silent_or_not_there_is_told_in_time(stage: Any) -> None:
    broker = await stage.broker()
    await connected(stage)
    started = stage.clock.monotonic_ms()
    silent = await ask(stage, "PrintThreadStackTrace", admin_pb2.PrintThreadStackTraceRequest(client_id="c"))
    assert silent.status.code == 40800
    assert stage.clock.monotonic_ms() - started < 5_000
    gone = await ask(stage, "PrintThreadStackTrace", admin_pb2.PrintThreadStackTraceRequest(client_id="gone"))
    assert (gone.status.code, "evenq client list" in gone.status.message) == (40400, True)
    broker.sessions.join("g", Member(client_id="own", protocol=Protocol.EVENQ))
    own = await ask(stage, "PrintThreadStackTrace", admin_pb2.PrintThreadStackTraceRequest(client_id="own"))
    assert own.status.code == 50100
    none = await ask(stage, "PrintThreadStackTrace", admin_pb2.PrintThreadStackTraceRequest())
    assert none.status.code == 40000


@pytest.mark.parametrize(
    ("code", "field"),
    [
        (OK, "verify_message_result"),
        (60000, "verify_message_result"),
        (50100, "verify_message_command"),
    ],
)
async def test_a_listener_judges_a_stored_message(stage: Any, code: Any, field: str) -> None:
    await stage.broker()
    message_id = await stored(stage)
    client = await connected(stage)
    request = admin_pb2.VerifyMessageRequest(client_id="c", message_id=message_id)
    request.topic.name = "t"
    asking = asyncio.ensure_future(ask(stage, "VerifyMessage", request))
    response = (await client.next()).verify_message_command
    system = response.message.system_properties
    assert (response.message.body, system.message_id, system.delivery_attempt) == (b"body", message_id, 1)
    assert system.receipt_handle
    assert system.body_digest.checksum == f"{crc32(b'body'):X}"
    answer = service_pb2.TelemetryCommand()
    answer.status.code = code
    getattr(answer, field).nonce = response.nonce
    client.outgoing.put_nowait(answer.SerializeToString())
    assert (await stage.during(asking)).status.code == code
    request.message_id = "nowhere"
    assert (await ask(stage, "VerifyMessage", request)).status.code == 40401


async def test_messages_are_searched_by_id_key_and_time_in_pages(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=2))
    sent = [await stored(stage) for _ in range(5)]

    async def query(**result: Any) -> Any:
        request = admin_pb2.ListMessageRequest(**result)
        request.topic.name = "t"
        return await stage.ask(ADMIN_V2 + "QueryMessage", request, admin_pb2.ListMessageResponse)

    def ids(answer: Any) -> list[str]:
        return [message.system_properties.message_id for message in answer.messages]

    assert ids(await query(message_id=sent[2])) == [sent[2]]
    assert sorted(ids(await query(message_key="k"))) == sorted(sent)
    everything = ids(await query())
    assert sorted(everything) == sorted(sent)
    first = await query(page_size=2)
    second = await query(page_size=2, scroll_id=first.scroll_id)
    assert ids(first) + ids(second) == everything[:4]
    assert ids(await query(page_size=2, page_num=2)) == everything[2:4]
    assert (await query(scroll_id="rubbish")).status.code == 40000
    assert (await query(page_size=600, page_num=3)).status.code == 40000
    assert (await query(lite_topic="x")).status.code == 50100


async def test_a_sent_message_fits_its_topic(stage: Any) -> None:
    broker = await stage.broker()
    message_id = await stored(stage, user_properties={"a": "b"})
    [found] = await stage.during(broker.ledger.store.find(1, message_id.encode()))
    system = definition_pb2.SystemProperties.FromString(found.system)
    assert (system.tag, list(system.keys), system.message_type) == ("tag", ["k"], definition_pb2.NORMAL)
    request = admin_pb2.AdminSendMessageRequest()
    request.topic.name = "t"
    empty = await stage.ask(ADMIN_V2 + "AdminSendMessage", request, admin_pb2.AdminSendMessageResponse)
    assert empty.status.code == 41302


async def test_what_the_brokers_know_of_a_member_is_told(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=1))
    await stage.during(broker.catalog.create_group("g"))
    broker.sessions.join("g", Member(client_id="own", protocol=Protocol.EVENQ, language="PYTHON"))
    broker.ledger.progress.commit(1, 1, 0, 0)
    request = admin_pb2.GetConsumerRunningInfoRequest(client_id="own")
    request.group.name = "g"
    info = (await ask(stage, "GetConsumerRunningInfo", request)).consumer_running_info
    assert (info.properties["language"], info.properties["kind"]) == ("PYTHON", "EVENQ_CONSUMER")
    assert [item.message_queue.topic.name for item in info.message_queue_table] == ["t"]
    request.client_id = "gone"
    assert (await ask(stage, "GetConsumerRunningInfo", request)).status.code == 40400


async def test_a_listener_of_another_group_gets_no_message_and_the_caller_must_be_one_who_may_read_it(
    stage: Any,
) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("other", queues=1))
    message_id = await stored(stage)
    client = await connected(stage)
    request = admin_pb2.VerifyMessageRequest(client_id="c", message_id=message_id)
    request.topic.name, request.group.name = "t", "g"
    response = await ask(stage, "VerifyMessage", request)
    assert (response.status.code, "no client 'c' in group g" in response.status.message) == (40400, True)
    broker.sessions.seen_v2(RpcContext("", [("x-mq-client-id", "c")], "", None), "g", definition_pb2.PUSH_CONSUMER)
    with pytest.raises(Forbidden, match="consume on topic t"):
        await stage.as_user(
            "topic:t operate; group:g operate",
            ADMIN_V2 + "VerifyMessage",
            request,
            admin_pb2.VerifyMessageResponse,
        )
    request.topic.name = ""
    with pytest.raises(MessageNotFound):
        await stage.as_user(
            "topic:other consume; group:g operate",
            ADMIN_V2 + "VerifyMessage",
            request,
            admin_pb2.VerifyMessageResponse,
        )
    asking = asyncio.ensure_future(ask(stage, "VerifyMessage", request))
    assert (await client.next()).verify_message_command.message.body == b"body"
    asking.cancel()


async def test_messages_are_found_for_those_who_may_consume_their_topic(stage: Any) -> None:
    await stage.broker()
    message_id = await stored(stage)
    request = admin_pb2.ListMessageRequest(message_id=message_id)

    async def bodies(grants: str) -> list[bytes]:
        answer = await stage.as_user(grants, ADMIN_V2 + "QueryMessage", request, admin_pb2.ListMessageResponse)
        return [one.body for one in answer.messages]

    assert await bodies("topic:t consume") == [b"body"]
    assert await bodies("topic:t describe,publish,operate") == []
