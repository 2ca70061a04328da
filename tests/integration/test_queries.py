"""Offsets, messages, traces and clients as an operator meets them: two brokers in processes of their own, commands typed
in a shell, consumers of both protocols alive meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from evenq_proofs.command_line import EVENQ, run_evenq
from evenq_proofs.waiting import until

from evenq import Admin, Message, Producer, PushConsumer, ReceivedMessage, SimpleConsumer
from evenq.testing.free_ports import FreePorts
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2, definition_pb2, service_pb2

DEADLINE_S = 60
TOPIC = "orders"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Two brokers, a nameserver and a rebalancer, each its own process; the second broker's address."""
    with FreePorts() as ports:
        port = ports.take()
        words = [
            "up",
            "--processes",
            "--brokers",
            "2",
            "--port",
            str(port),
            "--metrics-port",
            "0",
            "--topic",
            f"{TOPIC}:2",
        ]
        process = subprocess.Popen([*EVENQ, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready "), line
            yield line.split()[1]
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=DEADLINE_S)


@pytest.fixture
def evenq(endpoint: str) -> Callable[..., str]:
    return partial(run_evenq, endpoint=endpoint)


def send(endpoint: str, count: int, mark: str) -> list[str]:
    with Producer(endpoint=endpoint) as producer:
        sent = [
            producer.send(Message(topic=TOPIC, body=f"{mark} {n}".encode(), tag=mark, keys=(mark,)))
            for n in range(count)
        ]
    return [one.message_id for one in sent]


@pytest.mark.slow
def test_a_live_simple_consumer_gets_everything_again_after_a_reset(endpoint: str, evenq: Callable[..., str]) -> None:
    evenq("group", "create", "simple", "--from", "first")
    ids = set(send(endpoint, 12, "simple"))
    with SimpleConsumer(group="simple", endpoint=endpoint, subscriptions={TOPIC: "simple"}) as consumer:

        def all_of_them() -> set[str]:
            got: set[str] = set()
            deadline = time.monotonic() + DEADLINE_S
            while got != ids and time.monotonic() < deadline:
                for message in consumer.receive(32, invisible_ms=60_000, wait_ms=1_000):
                    got.add(message.message_id)
                    consumer.ack(message)
            return got

        assert all_of_them() == ids
        plan = json.loads(evenq("offset", "reset", "simple", "--topic", TOPIC, "--to", "earliest", "--json"))
        assert (plan["done"], len(plan["moves"])) == (False, 4)
        assert {move["result"] for move in plan["moves"]} <= {"would move", "stays"}
        assert consumer.receive(1, wait_ms=300) == [], "a plan changes nothing"
        done = json.loads(evenq("offset", "reset", "simple", "--topic", TOPIC, "--to", "earliest", "--yes", "--json"))
        assert done["done"]
        assert {move["broker"] for move in done["moves"]} == {"broker-a", "broker-b"}
        assert all_of_them() == ids
    with Admin(endpoint=endpoint) as admin:
        planned = admin.reset_offsets("simple", topic=TOPIC, to="earliest")
        assert {move.queue.broker_name for move in planned} == {"broker-a", "broker-b"}
        assert any(move.after < move.before for move in planned)
    shown = json.loads(evenq("offset", "show", "simple", "--json"))
    assert shown["lag"] == 0
    evenq("offset", "clone", "copy-of-it", "--from", "simple", code=3)
    evenq("group", "create", "copy-of-it")
    cloned = json.loads(evenq("offset", "clone", "copy-of-it", "--from", "simple", "--yes", "--json"))
    assert [move["after"] for move in cloned["moves"]] == [queue["committed"] for queue in shown["queues"]]


@pytest.mark.slow
def test_a_live_owner_begins_again_and_does_not_undo_the_reset(endpoint: str, evenq: Callable[..., str]) -> None:
    evenq("group", "create", "owner", "--from", "first")
    ids = set(send(endpoint, 12, "owner"))
    seen: list[str] = []
    lock = threading.Lock()

    def listen(messages: Sequence[ReceivedMessage]) -> None:
        with lock:
            seen.extend(message.message_id for message in messages)

    consumer = PushConsumer(
        group="owner", endpoint=endpoint, subscriptions={TOPIC: "owner"}, listener=listen, start_from="FIRST"
    )
    with consumer:
        until(lambda: ids <= set(seen))
        until(lambda: json.loads(evenq("offset", "show", "owner", "--json"))["lag"] == 0)
        with lock:
            seen.clear()
        moved = json.loads(evenq("offset", "reset", "owner", "--topic", TOPIC, "--to", "1h", "--yes", "--json"))
        assert moved["done"]
        assert all(move["owner"] for move in moved["moves"])
        until(lambda: ids <= set(seen))
        until(lambda: json.loads(evenq("offset", "show", "owner", "--json"))["lag"] == 0)
        clients = json.loads(evenq("client", "list", "--group", "owner", "--json"))
        assert [client["kind"] for client in clients] == ["evenq consumer"]
        shown = json.loads(evenq("client", "show", clients[0]["client_id"], "--json"))
        assert len(shown["queues"]) == 4
        assert "accept no commands" in evenq("client", "stack", clients[0]["client_id"], code=4)


@pytest.mark.slow
def test_messages_are_found_shown_and_traced_at_whatever_broker_they_are(
    endpoint: str, evenq: Callable[..., str]
) -> None:
    evenq("group", "create", "traced", "--from", "first")
    ids = send(endpoint, 8, "trace")
    rows = [json.loads(line) for line in evenq("message", "find", TOPIC, "--key", "trace", "--json").splitlines()]
    assert {row["message_id"] for row in rows} == set(ids)
    assert {row["broker"] for row in rows} == {"broker-a", "broker-b"}
    by_time = evenq("message", "find", TOPIC, "--from", "10m", "--limit", "1000", "--json").splitlines()
    assert set(ids) <= {json.loads(line)["message_id"] for line in by_time}
    one = json.loads(evenq("message", "get", ids[3], "--json"))
    assert (one["body"], one["tag"]) == ("trace 3", "trace")
    place = ("--topic", TOPIC, "--queue", f"{one['broker']}/{one['queue']}", "--offset", str(one["offset"]))
    assert json.loads(evenq("message", "get", *place, "--json"))["message_id"] == ids[3]
    assert "trace 3" in evenq("message", "get", ids[3])
    tail = [json.loads(line) for line in evenq("message", "tail", TOPIC, "--limit", "8", "--json").splitlines()]
    assert {row["message_id"] for row in tail} == set(ids)
    with SimpleConsumer(group="traced", endpoint=endpoint, subscriptions={TOPIC: "trace"}) as consumer:
        got: dict[str, Any] = {}
        until(
            lambda: (
                got.update({m.message_id: m for m in consumer.receive(32, wait_ms=500, invisible_ms=600_000)})
                or set(got) >= set(ids)
            )
        )
        consumer.ack(got[ids[0]])
        [copy] = json.loads(evenq("message", "trace", ids[0], "--group", "traced", "--json"))["copies"]
        assert [event["what"] for event in copy["events"]] == ["STORED", "DELIVERED", "ACKNOWLEDGED"]
        assert copy["events"][1]["client_id"]
        assert copy["groups"][0]["state"] == "FINISHED"
        [held] = json.loads(evenq("message", "trace", ids[1], "--group", "traced", "--json"))["copies"]
        assert held["groups"][0]["state"] == "IN_FLIGHT"
    assert "evenq message find" in evenq("message", "get", "no-such-id", code=3)
    assert "evenq topic list" in evenq("message", "find", "no-such-topic", code=3)


@pytest.mark.slow
async def test_the_pull_path_and_the_admin_service_of_v2_work_at_a_broker_that_has_nothing_of_it(
    endpoint: str, evenq: Callable[..., str], net: GrpcNet
) -> None:
    """Wire contract 7, 1.3, 8.45: every call at every broker."""
    host, _, port = endpoint.partition(":")
    other = f"{host}:{int(port) + 1}"
    for group in ("pulled", "behind"):
        evenq("group", "create", group, "--from", "first")
    ids = send(endpoint, 8, "pull")
    await pull_everything(net, other, ids)
    await ask_for_a_stack(net, endpoint, other)


MESSAGING, ADMIN = "/apache.rocketmq.v2.MessagingService/", "/apache.rocketmq.v2.Admin/"


async def call(net: GrpcNet, address: str, method: str, request: Any, response: Any) -> Any:
    return response.FromString(await net.unary(address, method, request.SerializeToString(), timeout_ms=60_000))


async def pull_everything(net: GrpcNet, address: str, ids: list[str]) -> None:
    found: set[str] = set()
    for broker in ("broker-a", "broker-b"):
        for queue_id in range(2):
            queue = definition_pb2.MessageQueue(id=queue_id)
            queue.topic.name, queue.broker.name = TOPIC, broker
            group = definition_pb2.Resource(name="pulled")
            begin = await call(
                net,
                address,
                MESSAGING + "QueryOffset",
                service_pb2.QueryOffsetRequest(message_queue=queue, query_offset_policy=definition_pb2.BEGINNING),
                service_pb2.QueryOffsetResponse,
            )
            pull = service_pb2.PullMessageRequest(group=group, message_queue=queue, offset=begin.offset, batch_size=32)
            frames = [
                service_pb2.PullMessageResponse.FromString(frame)
                async for frame in net.stream(
                    address, MESSAGING + "PullMessage", pull.SerializeToString(), timeout_ms=60_000
                )
            ]
            assert [frames[0].status.code, frames[-1].WhichOneof("content")] == [20000, "next_offset"]
            found.update(frame.message.system_properties.message_id for frame in frames if frame.HasField("message"))
            for name, offset in (("pulled", frames[-1].next_offset), ("behind", begin.offset)):
                update = service_pb2.UpdateOffsetRequest(message_queue=queue, offset=offset)
                update.group.name = name
                stored = await call(net, address, MESSAGING + "UpdateOffset", update, service_pb2.UpdateOffsetResponse)
                assert stored.status.code == 20000
            asked = service_pb2.GetOffsetRequest(group=group, message_queue=queue)
            got = await call(net, address, MESSAGING + "GetOffset", asked, service_pb2.GetOffsetResponse)
            assert (got.status.code, got.offset) == (20000, frames[-1].next_offset)
    assert set(ids) <= found


async def ask_for_a_stack(net: GrpcNet, home: str, other: str) -> None:
    outgoing: asyncio.Queue[bytes] = asyncio.Queue()
    settings = service_pb2.TelemetryCommand()
    settings.settings.client_type = definition_pb2.PRODUCER
    settings.settings.publishing.topics.add().name = TOPIC
    outgoing.put_nowait(settings.SerializeToString())

    async def requests() -> AsyncIterator[bytes]:
        while True:
            yield await outgoing.get()

    headers = {"x-mq-client-id": "asked", "x-mq-language": "JAVA"}
    stream = net.stream(home, MESSAGING + "Telemetry", requests(), timeout_ms=None, metadata=headers)
    assert service_pb2.TelemetryCommand.FromString(await anext(stream)).HasField("settings")
    question = admin_pb2.PrintThreadStackTraceRequest(client_id="asked")
    asking = asyncio.ensure_future(
        call(net, other, ADMIN + "PrintThreadStackTrace", question, admin_pb2.PrintThreadStackTraceResponse)
    )
    command = service_pb2.TelemetryCommand.FromString(await anext(stream))
    answer = service_pb2.TelemetryCommand()
    answer.thread_stack_trace.nonce = command.print_thread_stack_trace_command.nonce
    answer.thread_stack_trace.thread_stack_trace = "main: waits"
    outgoing.put_nowait(answer.SerializeToString())
    response = await asking
    assert (response.status.code, response.thread_stack_trace) == (20000, "main: waits")
    span = admin_pb2.QueryTimeSpanRequest(group=definition_pb2.Resource(name="pulled"))
    spans = await call(net, other, ADMIN + "QueryTimeSpan", span, admin_pb2.QueryTimeSpanResponse)
    assert {one.message_queue.broker.name for one in spans.queue_time_span_list} == {"broker-a", "broker-b"}
    backlog = admin_pb2.DescribeGroupAccumulationRequest(group=definition_pb2.Resource(name="behind"))
    whole = await call(
        net, other, ADMIN + "DescribeGroupAccumulation", backlog, admin_pb2.DescribeGroupAccumulationResponse
    )
    assert whole.accumulation.accumulation >= 8
    await stream.aclose()
