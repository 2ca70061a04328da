"""The broker behind its real door, spoken to in raw `apache.rocketmq.v2`; and as a process that is killed.

Numbers in names and comments are the statements of wire-contract.md section 8.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.app import BrokerApp
from evenq_broker.settings import BrokerSettings
from evenq_proofs.v2_requests import (
    ack_request,
    consumer_settings,
    messages_of,
    nack_request,
    receive_frames,
    receive_request,
    v2_message,
)
from evenq_proofs.waiting import until_async

from evenq.errors import Error, RequestTimeout
from evenq.runtime.clock import SystemClock
from evenq.testing.free_ports import FreePorts
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2, definition_pb2, service_pb2

PORTS = FreePorts()
M = "/apache.rocketmq.v2.MessagingService/"
OK, MULTIPLE = 20000, 30000


class Talk:
    """A client that knows only the protocol."""

    def __init__(self, port: int, net: GrpcNet, client_id: str = "client-1", language: str = "JAVA") -> None:
        self.address = f"127.0.0.1:{port}"
        self.net = net
        self.metadata = {"x-mq-client-id": client_id, "x-mq-language": language}

    def other(self, client_id: str, language: str = "JAVA") -> Talk:
        return Talk(int(self.address.split(":")[1]), self.net, client_id, language)

    async def call(self, name: str, request: Any, response: Any, timeout_ms: int = 60_000) -> Any:
        method = name if name.startswith("/") else M + name
        data = await self.net.unary(
            self.address, method, request.SerializeToString(), timeout_ms=timeout_ms, metadata=self.metadata
        )
        return response.FromString(data)

    async def send(self, *messages: definition_pb2.Message) -> service_pb2.SendMessageResponse:
        request = service_pb2.SendMessageRequest(messages=messages)
        answer: service_pb2.SendMessageResponse = await self.call(
            "SendMessage", request, service_pb2.SendMessageResponse
        )
        return answer

    async def frames(
        self, topic: str = "orders", group: str = "g", *, batch: int = 32, poll_ms: int = 0, invisible_ms: int = 10_000,
        auto_renew: bool = False, tags: str = "*", queue_id: int = -1, timeout_ms: int = 120_000,
    ) -> list[service_pb2.ReceiveMessageResponse]:  # fmt: skip
        request = receive_request(
            group,
            topic,
            queue=queue_id,
            poll_ms=poll_ms,
            invisible_ms=None if auto_renew else invisible_ms,
            tags=tags,
            batch_size=batch,
            auto_renew=auto_renew,
        )
        return await receive_frames(self.net, self.address, request, timeout_ms=timeout_ms, metadata=self.metadata)

    async def receive(self, *args: Any, **options: Any) -> list[definition_pb2.Message]:
        return messages_of(await self.frames(*args, **options))

    async def code(self, *args: Any, **options: Any) -> int:
        return (await self.frames(*args, **options))[0].status.code

    async def ack(self, *handles: str, topic: str = "orders", group: str = "g") -> service_pb2.AckMessageResponse:
        request = ack_request(group, topic)
        for handle in handles:
            request.entries.add(message_id="id", receipt_handle=handle)
        answer: service_pb2.AckMessageResponse = await self.call("AckMessage", request, service_pb2.AckMessageResponse)
        return answer

    async def change(self, handle: str, invisible_ms: int, topic: str = "orders", group: str = "g") -> Any:
        request = nack_request(group, topic, handle, invisible_ms)
        return await self.call("ChangeInvisibleDuration", request, service_pb2.ChangeInvisibleDurationResponse)

    async def forward(self, handle: str, message_id: str = "", topic: str = "orders", group: str = "g") -> Any:
        request = service_pb2.ForwardMessageToDeadLetterQueueRequest(receipt_handle=handle, message_id=message_id)
        request.group.name, request.topic.name = group, topic
        return await self.call(
            "ForwardMessageToDeadLetterQueue", request, service_pb2.ForwardMessageToDeadLetterQueueResponse
        )


def message(number: int = 0, *, topic: str = "orders", body: bytes = b"hello", tag: str = "", lane: str = "") -> Any:
    made = v2_message(
        topic, f"01{number:032X}", body, message_type=definition_pb2.FIFO if lane else definition_pb2.NORMAL
    )
    if tag:
        made.system_properties.tag = tag
    if lane:
        made.system_properties.message_group = lane
    return made


def handle_of(received: definition_pb2.Message) -> str:
    return received.system_properties.receipt_handle


def offset_of(received: definition_pb2.Message) -> tuple[int, int]:
    return received.system_properties.queue_id, received.system_properties.queue_offset


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[tuple[Talk, BrokerApp]]:
    net = GrpcNet()
    options: dict[str, Any] = {"port": 0, "metrics_port": -1, "drain_ms": 100, "error_hold_ms": 20, **settings}
    app = BrokerApp(BrokerSettings(**options), clock=SystemClock(), rng=random.Random(7), net=net)
    await app.start()
    try:
        yield Talk(app.port, net), app
        app.broker.ledger.progress.check()
        app.broker.long_polls.table.check()
    finally:
        await app.close()
        await net.close()


def served(test: Callable[..., Awaitable[None]], **settings: Any) -> Callable[[], None]:
    """A test that gets a fresh broker in memory."""

    def run() -> None:
        async def main() -> None:
            async with running(**settings) as (talk, app):
                await test(talk, app)

        asyncio.run(main())

    run.__name__ = run.__qualname__ = test.__name__
    return run


async def begun(talk: Talk, topic: str = "orders", group: str = "g") -> None:
    """The group has begun to read, so it sees what is sent from now on."""
    assert await talk.receive(topic, group) == []


@served
async def test_a_message_arrives_as_sent_with_the_fields_that_sdks_need(talk: Talk, app: BrokerApp) -> None:
    await begun(talk)
    sent = message(1, body=b"payload", tag="red")
    sent.user_properties["color"] = "red"
    sent.system_properties.keys.append("k1")
    answer = await talk.send(sent)
    assert answer.status.code == OK
    assert [(entry.status.code, entry.message_id) for entry in answer.entries] == [(OK, f"01{1:032X}")]
    frames = await talk.frames()
    assert [frame.WhichOneof("content") for frame in frames] == ["status", "message", "delivery_timestamp"]  # 28
    got = frames[1].message
    system = got.system_properties
    assert (got.body, got.topic.name, dict(got.user_properties)) == (b"payload", "orders", {"color": "red"})
    assert (system.body_digest.type, system.body_digest.checksum) == (
        definition_pb2.CRC32,
        f"{zlib.crc32(b'payload'):X}",
    )  # 29
    assert system.body_encoding == definition_pb2.IDENTITY
    assert system.delivery_attempt == 1  # 30
    assert system.born_timestamp.seconds > 0
    assert system.store_timestamp.seconds > 0
    assert (system.tag, list(system.keys)) == ("red", ["k1"])
    assert len(system.receipt_handle) < 1024
    assert system.receipt_handle.isascii()


@served
async def test_an_empty_poll_is_one_frame_at_the_end_of_the_poll(talk: Talk, app: BrokerApp) -> None:
    await app.broker.catalog.create_topic("orders")
    started = time.monotonic()
    frames = await talk.frames(poll_ms=300)
    assert [frame.status.code for frame in frames] == [40401]  # 27
    assert 0.28 < time.monotonic() - started < 30
    for _ in range(60):  # on a busy machine an answer may need the 500 ms and more
        started = time.monotonic()
        with suppress(RequestTimeout):
            frames = await talk.frames(poll_ms=30_000, timeout_ms=1_000)
            assert [frame.status.code for frame in frames] == [40401]  # 27: deadline - 500 ms
            if time.monotonic() - started < 0.9:
                return
    raise AssertionError("no poll ended clearly before its caller's deadline")


@served
async def test_a_parked_poll_wakes_for_any_queue(talk: Talk, app: BrokerApp) -> None:
    await app.broker.catalog.create_topic("orders")
    await begun(talk)
    for number in range(8):  # all queues in turn; 31
        poll = asyncio.ensure_future(talk.receive(poll_ms=50_000, queue_id=0))
        await until_async(lambda: len(app.broker.long_polls.table) > 0)
        await talk.send(message(number))
        [got] = await asyncio.wait_for(poll, 60)
        assert (await talk.ack(handle_of(got))).status.code == OK


@served
async def test_acks_are_final_and_idempotent_at_both_levels(talk: Talk, app: BrokerApp) -> None:
    await begun(talk)
    await talk.send(*(message(number) for number in range(40)))
    got = await talk.receive(batch=32)
    assert len(got) == 32
    for _ in range(2):  # 37
        answer = await talk.ack(*map(handle_of, got))
        assert answer.status.code == OK
        assert {entry.status.code for entry in answer.entries} == {OK}
        assert len(answer.entries) == 32
    assert len(await talk.receive()) == 8
    assert await talk.receive() == []


@served
async def test_what_is_not_acknowledged_comes_again_with_the_next_attempt(talk: Talk, app: BrokerApp) -> None:
    await begun(talk)
    await talk.send(message(1))
    started = time.monotonic()
    [first] = await talk.receive(invisible_ms=200)
    [second] = await talk.receive(poll_ms=50_000)
    assert 0.2 <= time.monotonic() - started < 30
    assert second.system_properties.delivery_attempt == 2
    late = await talk.ack(handle_of(first))  # 38: its time is over
    assert late.status.code == 40013
    assert late.entries[0].status.code == 40013
    assert (await talk.ack(handle_of(second))).status.code == OK
    assert (await talk.other("r", "RUST").ack(handle_of(first))).status.code == OK  # 38


@served
async def test_a_nack_of_zero_makes_the_message_ready_at_once(talk: Talk, app: BrokerApp) -> None:
    await begun(talk)
    await talk.send(message(1))
    [first] = await talk.receive()
    answer = await talk.change(handle_of(first), 0)  # 40
    assert answer.status.code == OK
    [second] = await talk.receive()
    assert second.system_properties.delivery_attempt == 2
    refused = await talk.change(handle_of(first), 0)  # an earlier delivery may not disturb this one
    assert (refused.status.code, refused.receipt_handle) == (40013, handle_of(first))  # 39
    longer = await talk.change(handle_of(second), 20_000)
    assert longer.status.code == OK
    assert (await talk.ack(handle_of(second))).status.code == OK  # 37: the handle from before the change


@served
async def test_forged_and_foreign_handles_are_refused(talk: Talk, app: BrokerApp) -> None:
    await begun(talk)
    await begun(talk, group="other")
    await talk.send(message(1))
    [got] = await talk.receive()
    handle = handle_of(got)
    flipped = handle[:-1] + ("0" if handle[-1] != "0" else "1")
    for bad in (flipped, handle[:-2], "", "nonsense", "e1.broker-a." + "zz" * 49, "e1.elsewhere." + handle[12:]):
        answer = await talk.ack(bad)
        assert (answer.status.code, answer.entries[0].status.code) == (40013, 40013), bad
        changed = await talk.change(bad, 1_000)
        assert (changed.status.code, changed.receipt_handle) == (40013, bad)
        assert (await talk.forward(bad)).status.code == OK
    assert (await talk.ack(handle, group="other")).status.code == 40013
    mixed = await talk.ack(handle, flipped)
    assert mixed.status.code == MULTIPLE
    assert [entry.status.code for entry in mixed.entries] == [OK, 40013]


@served
async def test_tags_select_and_the_rest_is_skipped_for_the_group(talk: Talk, app: BrokerApp) -> None:
    await begun(talk)
    await talk.send(*(message(number, tag=("red", "blue", "green")[number % 3]) for number in range(12)))
    got = await talk.receive(tags="red || blue")
    assert sorted(one.system_properties.tag for one in got) == ["blue"] * 4 + ["red"] * 4
    assert await talk.receive() == []
    assert (await talk.code(tags="a|b")) == 40010


async def _unknown_names(talk: Talk, app: BrokerApp) -> None:
    assert await talk.code("nowhere") == 40402
    assert (await talk.send(message(1, topic="nowhere"))).entries[0].status.code == 40402
    await app.broker.catalog.create_topic("orders")
    assert await talk.code(group="nobody") == 40403


test_unknown_topics_and_groups_have_their_codes = served(
    _unknown_names, auto_create_topics=False, auto_create_groups=False
)


@served
async def test_each_bad_message_has_its_code_at_both_levels(talk: Talk, app: BrokerApp) -> None:  # 19, 22
    def with_(**fields: Any) -> definition_pb2.Message:
        made = message(1)
        for name, value in fields.items():
            setattr(made.system_properties, name, value)
        return made

    delayed = message(1)
    delayed.system_properties.delivery_timestamp.seconds = 4_000_000_000
    delayed.system_properties.message_type = definition_pb2.DELAY
    properties = message(1)
    properties.user_properties["\x01"] = "x"
    many = message(1)
    many.user_properties.update({str(number): "x" for number in range(129)})
    damaged = message(1)
    damaged.system_properties.body_digest.type = definition_pb2.MD5
    damaged.system_properties.body_digest.checksum = "0" * 32
    cases = [
        (message(1, body=b""), 41302),
        (message(1, body=b"x" * ((4 << 20) + 1)), 41301),
        (message(1, topic="bad name"), 40002),
        (message(1, topic=""), 40002),
        (with_(tag="a|b"), 40004),
        (with_(tag=" "), 40004),
        (with_(message_id=""), 40009),
        (message(1, lane="x" * 64), 40006),
        (message(1, lane="ok"), 40014),
        (delayed, 40014),
        (properties, 40007),
        (many, 43101),
        (damaged, 40016),
        (message(1, topic="%DLQ%g"), 40300),
    ]
    await talk.send(message(0))
    await app.broker.catalog.create_topic("%DLQ%g", system=True)
    for bad, code in cases:
        answer = await talk.send(bad)
        assert (answer.status.code, [entry.status.code for entry in answer.entries]) == (code, [code])
        assert answer.status.message
    mixed = await talk.send(message(2), message(3, body=b""))
    assert mixed.status.code == MULTIPLE
    assert [entry.status.code for entry in mixed.entries] == [OK, 41302]
    assert (await talk.send(message(2), message(3, topic="elsewhere"))).status.code == 40016
    assert (await talk.send()).status.code == 40016
    garbage = await talk.net.unary(talk.address, M + "SendMessage", b"\xff\xff\xff", timeout_ms=60_000)
    assert service_pb2.SendMessageResponse.FromString(garbage).status.code == 40000


@served
async def test_the_largest_body_with_the_largest_properties_passes(talk: Talk, app: BrokerApp) -> None:  # 6
    await begun(talk)
    sent = message(1, body=os.urandom(4 << 20))
    sent.user_properties["k" * 1_000] = "v" * 3_000
    sent.system_properties.tag = "t" * 2_384
    sent.system_properties.keys.extend(["k" * 5_000, "l" * 5_000])
    assert (await talk.send(sent)).status.code == OK
    [got] = await talk.receive()
    assert got.body == sent.body
    assert got.user_properties == sent.user_properties
    assert (got.system_properties.tag, got.system_properties.keys) == (
        sent.system_properties.tag, sent.system_properties.keys,
    )  # fmt: skip
    sent = message(2, body=bytes((4 << 20) + 1))
    assert (await talk.send(sent)).status.code == definition_pb2.MESSAGE_BODY_TOO_LARGE
    sent = message(3, body=b"x")
    sent.system_properties.keys.extend(["k" * 8_192, "l" * 8_193])
    assert (await talk.send(sent)).status.code == definition_pb2.MESSAGE_PROPERTIES_TOO_LARGE


async def _dead_letters(talk: Talk, app: BrokerApp) -> None:
    await begun(talk)
    await talk.send(message(5, body=b"poison"))
    for attempt in (1, 2, 3):  # 41
        [got] = await talk.receive()
        assert got.system_properties.delivery_attempt == attempt
        await talk.change(handle_of(got), 0)
    assert await talk.receive() == []
    app.broker.catalog.groups.get("g")
    await app.broker.catalog.create_group("undertaker")
    await until_async(lambda: app.broker.catalog.topics.get("%DLQ%g") is not None)
    dead = app.broker.catalog.topics.get("%DLQ%g")
    assert dead is not None
    await until_async(lambda: app.broker.ledger.store.queue_range(dead.topic_id, 0) == (0, 1))
    app.broker.ledger.progress.start(app.broker.catalog.groups.get("undertaker").group_id, dead.topic_id, 0, 0)  # type: ignore[union-attr]
    [buried] = await talk.receive("%DLQ%g", "undertaker")
    assert buried.body == b"poison"
    assert buried.system_properties.dead_letter_queue.topic == "orders"
    assert buried.system_properties.dead_letter_queue.message_id == f"01{5:032X}"
    assert app.broker.ledger.progress.lag(1, 1, 0, 0, 0) == 0


test_a_message_that_always_fails_ends_in_the_dead_letter_topic = served(_dead_letters, default_group_max_attempts=3)


@served
async def test_forwarding_settles_also_without_a_handle(talk: Talk, app: BrokerApp) -> None:  # 42
    await begun(talk)
    await talk.send(message(1), message(2))
    got = await talk.receive(invisible_ms=60_000)
    assert len(got) == 2
    assert (await talk.forward(handle_of(got[0]))).status.code == OK
    assert (await talk.forward("", message_id=got[1].system_properties.message_id)).status.code == OK
    assert (await talk.forward("", message_id="unknown")).status.code == OK
    group = app.broker.catalog.groups.get("g")
    topic = app.broker.catalog.topics.get("orders")
    assert group is not None
    assert topic is not None
    for one in got:
        queue_id, offset = offset_of(one)
        assert app.broker.ledger.progress.lag(group.group_id, topic.topic_id, queue_id, 0, offset + 1) == 0
    assert await talk.receive() == []


@served
async def test_push_deliveries_live_as_long_as_their_client(talk: Talk, app: BrokerApp) -> None:  # 35, 36, 49
    push = talk.other("pusher")
    await begun(talk)
    await talk.send(message(1))
    [got] = await push.receive(auto_renew=True)
    assert not got.system_properties.HasField("invisible_duration")
    poll = asyncio.ensure_future(push.frames(auto_renew=True, poll_ms=60_000))
    await until_async(lambda: len(app.broker.long_polls.table) > 0)
    started = time.monotonic()
    await push.call(
        "NotifyClientTermination",
        service_pb2.NotifyClientTerminationRequest(),
        service_pb2.NotifyClientTerminationResponse,
    )
    assert [frame.status.code for frame in await poll] == [40401]
    assert time.monotonic() - started < 30
    [again] = await talk.receive(poll_ms=60_000)
    assert again.system_properties.delivery_attempt == 2
    assert time.monotonic() - started < 60, "not after two minutes of silence"


@served
async def test_a_cancelled_receive_gives_back_what_nobody_saw(talk: Talk, app: BrokerApp) -> None:  # 33
    await app.broker.catalog.create_topic("orders")
    await begun(talk)
    poll = asyncio.ensure_future(talk.receive(poll_ms=5_000))
    await until_async(lambda: len(app.broker.long_polls.table) > 0)
    poll.cancel()
    await until_async(lambda: not len(app.broker.long_polls.table))
    await talk.send(message(1))
    [got] = await talk.receive(poll_ms=10_000)
    assert got.system_properties.delivery_attempt == 1


@served
async def test_overlapping_receives_lose_nothing_and_repeat_nothing(talk: Talk, app: BrokerApp) -> None:  # 32
    await begun(talk)
    seen: list[tuple[int, int]] = []

    async def consume() -> None:
        while len(seen) < 300:
            got = await talk.receive(batch=7, poll_ms=200)
            seen.extend(map(offset_of, got))
            if got:
                assert (await talk.ack(*map(handle_of, got))).status.code == OK

    consumers = [asyncio.ensure_future(consume()) for _ in range(6)]
    for first in range(0, 300, 10):
        await talk.send(*(message(number) for number in range(first, first + 10)))
    await asyncio.wait_for(asyncio.gather(*consumers), 60)
    assert len(seen) == len(set(seen)) == 300


@served
async def test_ordered_groups_get_a_message_group_one_by_one(talk: Talk, app: BrokerApp) -> None:  # 21, 42
    await app.broker.catalog.create_group("fifo", ordered=True)
    await talk.send(message(0, lane="a"))
    (first,) = await talk.receive(group="fifo")  # RB-46: a young queue is read whole
    assert (await talk.ack(handle_of(first), group="fifo")).status.code == OK
    await talk.send(*(message(number, lane="ab"[number % 2], body=str(number).encode()) for number in range(1, 9)))
    order: dict[str, list[bytes]] = {"a": [], "b": []}
    while sum(map(len, order.values())) < 8:
        got = await talk.receive(group="fifo", poll_ms=1_000)
        lanes = [one.system_properties.message_group for one in got]
        assert len(lanes) == len(set(lanes))
        for one in got:
            if one.body == b"3" and one.system_properties.delivery_attempt == 1:
                await talk.change(handle_of(one), 0, group="fifo")
                continue
            order[one.system_properties.message_group].append(one.body)
            assert (await talk.ack(handle_of(one), group="fifo")).status.code == OK
    assert order == {"a": [b"2", b"4", b"6", b"8"], "b": [b"1", b"3", b"5", b"7"]}


@served
async def test_telemetry_answers_each_settings_with_ok_and_the_same_shape(talk: Talk, app: BrokerApp) -> None:  # 8-10
    async def ask(command: service_pb2.TelemetryCommand, language: str) -> list[service_pb2.TelemetryCommand]:
        async def commands() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield command.SerializeToString()

        stream = talk.net.stream(
            talk.address, M + "Telemetry", commands(), timeout_ms=60_000,
            metadata={"x-mq-client-id": "t", "x-mq-language": language},
        )  # fmt: skip
        return [service_pb2.TelemetryCommand.FromString(frame) async for frame in stream]

    push = consumer_settings(definition_pb2.PUSH_CONSUMER, "g", "orders")
    for language in ("JAVA", "HTTP"):
        answers = await ask(push, language)
        assert len(answers) == 3
        settings = answers[0].settings
        assert answers[0].status.code == OK
        assert settings.subscription.subscriptions == push.settings.subscription.subscriptions
        assert settings.subscription.receive_batch_size == 32
        assert 0 < settings.subscription.long_polling_timeout.seconds <= 15
        assert settings.backoff_policy.max_attempts == 17
        if language == "HTTP":
            assert settings.backoff_policy.exponential_backoff.initial.seconds == 10_000
        else:
            assert [delay.seconds for delay in settings.backoff_policy.customized_backoff.next[:2]] == [10, 30]
    producer = service_pb2.TelemetryCommand()
    producer.settings.client_type = definition_pb2.PRODUCER
    producer.settings.publishing.topics.add().name = "orders"
    [answer, *_] = await ask(producer, "GO")
    assert answer.settings.publishing.max_body_size == 4 << 20
    assert answer.settings.backoff_policy.exponential_backoff.multiplier == 2


@served
async def test_the_rest_of_the_protocol_answers_with_its_code(talk: Talk, app: BrokerApp) -> None:
    s = service_pb2
    beat = await talk.other("").call("Heartbeat", s.HeartbeatRequest(), s.HeartbeatResponse)  # 50
    assert beat.status.code == OK
    end = await talk.call("EndTransaction", s.EndTransactionRequest(), s.EndTransactionResponse)
    assert end.status.code == 40008
    recall = await talk.call("RecallMessage", s.RecallMessageRequest(), s.RecallMessageResponse)
    assert recall.status.code == 40000
    lite = await talk.call("SyncLiteSubscription", s.SyncLiteSubscriptionRequest(), s.SyncLiteSubscriptionResponse)
    assert lite.status.code == 40002, "it names no topic"
    described = await talk.call(
        "/apache.rocketmq.v2.Admin/ListSubscription",
        admin_pb2.ListSubscriptionRequest(),
        admin_pb2.ListSubscriptionResponse,
    )
    assert described.status.code == OK
    level = admin_pb2.ChangeLogLevelRequest(level=admin_pb2.ChangeLogLevelRequest.INFO)
    changed = await talk.call("/apache.rocketmq.v2.Admin/ChangeLogLevel", level, admin_pb2.ChangeLogLevelResponse)
    assert changed.remark
    stats = await talk.call(
        "/apache.rocketmq.v2.Admin/GetProxyRuntimeStats",
        admin_pb2.GetProxyRuntimeStatsRequest(),
        admin_pb2.GetProxyRuntimeStatsResponse,
    )
    assert stats.status.code == OK


@served
async def test_the_pull_path_reads_and_keeps_offsets(talk: Talk, app: BrokerApp) -> None:
    s = service_pb2
    await app.broker.catalog.create_topic("one", queues=1)
    await app.broker.catalog.create_group("g")
    await talk.send(*(message(number, topic="one") for number in range(3)))
    queue = definition_pb2.MessageQueue(id=0)
    queue.topic.name = "one"
    group = definition_pb2.Resource(name="g")

    async def pull(offset: int) -> list[s.PullMessageResponse]:
        request = s.PullMessageRequest(group=group, message_queue=queue, offset=offset, batch_size=2)
        stream = talk.net.stream(talk.address, M + "PullMessage", request.SerializeToString(), timeout_ms=60_000)
        return [s.PullMessageResponse.FromString(frame) async for frame in stream]

    frames = await pull(0)
    assert [frame.WhichOneof("content") for frame in frames] == ["status", "message", "message", "next_offset"]
    assert frames[-1].next_offset == 2
    empty = await pull(3)
    assert (empty[0].status.code, empty[-1].next_offset) == (40401, 3)
    assert (await pull(9))[0].status.code == 40019
    get = s.GetOffsetRequest(group=group, message_queue=queue)
    assert (await talk.call("GetOffset", get, s.GetOffsetResponse)).status.code == 40404
    update = s.UpdateOffsetRequest(group=group, message_queue=queue, offset=2)
    assert (await talk.call("UpdateOffset", update, s.UpdateOffsetResponse)).status.code == OK
    assert (await talk.call("GetOffset", get, s.GetOffsetResponse)).offset == 2
    query = s.QueryOffsetRequest(message_queue=queue, query_offset_policy=definition_pb2.END)
    assert (await talk.call("QueryOffset", query, s.QueryOffsetResponse)).offset == 3


@served
async def test_namespaces_are_part_of_the_name(talk: Talk, app: BrokerApp) -> None:  # 48
    await begun(talk)
    spaced = message(1)
    spaced.topic.resource_namespace = "tenant"
    assert (await talk.send(spaced)).status.code == OK
    assert app.broker.catalog.topics.get("tenant%orders") is not None
    assert await talk.receive() == []


@pytest.mark.slow
async def test_after_kill_9_acknowledged_messages_and_acks_are_there(tmp_path: Path, net: GrpcNet) -> None:
    process, talk = await _process(tmp_path, net)
    await begun(talk)
    sent = [message(number, body=str(number).encode()) for number in range(50)]
    for one in sent:
        assert (await talk.send(one)).status.code == OK
    got = await talk.receive(batch=20, invisible_ms=60_000)
    assert len(got) == 20
    assert (await talk.ack(*map(handle_of, got[:10]))).status.code == OK
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    process, talk = await _process(tmp_path, net)
    assert (await talk.ack(*map(handle_of, got[:10]))).status.code == OK  # twice is OK
    assert (await talk.ack(*map(handle_of, got[10:15]))).status.code == OK  # handles survive
    seen = {one.body for one in await talk.receive(batch=32)}
    assert seen == {one.body for one in sent} - {one.body for one in got}
    [again, *_] = [(await talk.change(handle_of(one), 0)).status.code for one in got[15:]]
    assert again == OK
    rest = await talk.receive(batch=32)
    assert {one.body for one in rest} == {one.body for one in got[15:]}
    assert {one.system_properties.delivery_attempt for one in rest} == {2}
    process.terminate()
    assert process.wait(60) == 0


async def _process(folder: Path, net: GrpcNet) -> tuple[subprocess.Popen[bytes], Talk]:
    port = PORTS.take()
    options = ["--port", str(port), "--metrics-port", "-1", "--store.path", str(folder / "data"), "--drain-ms", "500",
               "--store.segment-bytes", str(16 << 20), "--store.disk-free-min-bytes", "0", "--store.disk-used-max-ratio", "1"]  # fmt: skip
    process = subprocess.Popen([sys.executable, "-m", "evenq_broker", *options], stderr=subprocess.DEVNULL)  # noqa: ASYNC220  starts at once
    talk = Talk(port, net)
    deadline = time.monotonic() + 60
    while True:
        try:
            await talk.call(
                "Heartbeat", service_pb2.HeartbeatRequest(), service_pb2.HeartbeatResponse, timeout_ms=5_000
            )
        except Error:
            assert process.poll() is None, "the broker ended"
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        else:
            return process, talk
