"""Clients that do harm: they never acknowledge, send back for ever, vanish by the thousand, or live with clocks that jump.

Most of it plays on a whole broker behind a net without sockets, with a clock that the test moves; at the end a process
with real connections (EVENQ_TEST_SCALE=full: 10,000 of them, else 1,000; `--log-cli-level=INFO` tells the figures).
What this file does not show is shown by test_bad_input.py (names, sizes, handles, bytes), test_conformance.py (a
telemetry stream that is not read) and unit/evenq_broker/rpc/test_error_codes.py (the lists of error codes).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import re
import socket
import struct
import sys
import threading
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.broker import Broker
from evenq_broker.settings import BrokerSettings
from evenq_proofs.loop_net import LoopNet
from evenq_proofs.v2_requests import ack_request, consumer_settings, nack_request, receive_request

import evenq
from evenq.model import BrokerAddress, MessageType
from evenq.model.retry import RetryKind, RetryPolicy
from evenq.runtime.clock import FakeClock, SystemClock
from evenq.testing import LocalCluster
from evenq.testing.node import Node
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as d
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2 as s
from evenq.wire.stubs.evenq.v1 import data_pb2, dead_letters_pb2

log = logging.getLogger(__name__)

V2 = "/apache.rocketmq.v2.MessagingService/"
OK, NOTHING, INVALID = 20000, 40401, 40013
HOUR = 3_600_000
JUMP = 300_000
"""Five minutes, far beyond the delay of a message: each second of a virtual clock costs processor time, too."""
MANY = 10_000 if os.environ.get("EVENQ_TEST_SCALE") == "full" else 1_000
FEW = 10_000 if os.environ.get("EVENQ_TEST_SCALE") == "full" else 2_000


class Hall:
    """Brokers and their clients on one net and one clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.during, self.until = self.clock.during, self.clock.until
        self.net = LoopNet(self.clock)
        self.brokers: list[Broker] = []

    async def open(self, name: str = "a", **settings: Any) -> Broker:
        fields = {"default_start_from": "FIRST", "error_hold_ms": 0, "default_queues": 1, **settings}
        broker = Broker(
            BrokerSettings(broker_name=name, **fields), clock=self.clock, rng=random.Random(1), net=self.net
        )
        await broker.open()
        self.net.serve(f"{name}:8081", broker.rpcs())
        self.brokers.append(broker)
        await self.during(broker.start([BrokerAddress("default", name, 8081)]))
        return broker

    async def call(self, name: str, request: Any, response: Any, *, client: str = "c", to: str = "a") -> Any:
        method = name if name.startswith("/") else V2 + name
        headers = {"x-mq-client-id": client, "x-mq-language": "JAVA"}
        result = request.SerializeToString()
        call = self.net.unary(f"{to}:8081", method, result, timeout_ms=60_000, metadata=headers)
        return response.FromString(await self.during(call))

    async def send(self, *bodies: str, topic: str = "t", lane: str = "", delay_ms: int = 0, to: str = "a") -> Any:
        request = s.SendMessageRequest()
        for body in bodies:
            one = request.messages.add(body=body.encode())
            one.topic.name = topic
            one.system_properties.message_id = f"id-{body}"
            if lane:
                one.system_properties.message_group = lane
            if delay_ms:
                due_ms = self.clock.now_ms() + delay_ms
                one.system_properties.delivery_timestamp.seconds = due_ms // 1000
                one.system_properties.delivery_timestamp.nanos = due_ms % 1000 * 1_000_000
        answer = await self.call("SendMessage", request, s.SendMessageResponse, to=to)
        assert answer.status.code == OK, answer.status.message
        return answer

    def receiving(
        self, topic: str = "t", group: str = "g", *, poll_ms: int = 0, invisible_ms: int = 10_000, push: bool = False,
        client: str = "c", batch: int = 32, attempt: str = "",
    ) -> Any:  # fmt: skip
        request = receive_request(
            group,
            topic,
            queue=-1,
            poll_ms=poll_ms,
            invisible_ms=None if push else invisible_ms,
            batch_size=batch,
            auto_renew=push,
            attempt_id=attempt,
        )
        headers = {"x-mq-client-id": client, "x-mq-language": "JAVA"}
        result = request.SerializeToString()
        stream = self.net.stream("a:8081", V2 + "ReceiveMessage", result, timeout_ms=120_000, metadata=headers)

        async def collect() -> list[Any]:
            frames = [s.ReceiveMessageResponse.FromString(frame) async for frame in stream]
            return [frame.message for frame in frames if frame.HasField("message")]

        return collect()

    async def receive(self, *args: Any, **options: Any) -> list[Any]:
        found: list[Any] = await self.during(self.receiving(*args, **options))
        return found

    async def ack(self, *handles: str, topic: str = "t", group: str = "g", client: str = "c", to: str = "a") -> int:
        request = ack_request(group, topic)
        for handle in handles:
            request.entries.add(message_id="id", receipt_handle=handle)
        answer = await self.call("AckMessage", request, s.AckMessageResponse, client=client, to=to)
        assert {entry.status.code for entry in answer.entries} == {answer.status.code}
        return int(answer.status.code)

    async def nack(self, handle: str, *, topic: str = "t", group: str = "g", client: str = "c") -> int:
        request = nack_request(group, topic, handle, 0)
        answer = await self.call("ChangeInvisibleDuration", request, s.ChangeInvisibleDurationResponse, client=client)
        return int(answer.status.code)

    async def beat(self, client: str = "c") -> None:
        request = s.HeartbeatRequest(client_type=d.PUSH_CONSUMER)
        request.group.name = "g"
        assert (await self.call("Heartbeat", request, s.HeartbeatResponse, client=client)).status.code == OK


def handle(received: Any) -> str:
    return str(received.system_properties.receipt_handle)


def bodies(received: list[Any]) -> list[str]:
    return [one.body.decode() for one in received]


@pytest.fixture
async def hall() -> AsyncIterator[Hall]:
    hall = Hall()
    try:
        yield hall
        for broker in hall.brokers:
            broker.ledger.progress.check()
    finally:
        for broker in hall.brokers:
            await hall.during(broker.close())


# ------------------------------------------------------------------------------------------------ who never finishes


@pytest.mark.slow
async def test_a_consumer_that_never_acks_holds_a_bounded_part_and_others_go_on(hall: Hall) -> None:
    broker = await hall.open(inflight_max=50)
    await hall.during(broker.catalog.create_topic("t", queues=1))
    for start in range(0, 200, 50):
        await hall.send(*(str(number) for number in range(start, start + 50)))
    held: list[Any] = []
    while got := await hall.receive(invisible_ms=HOUR):
        held += got
    assert len(held) == 50
    topic, group = broker.catalog.topics.get("t"), broker.catalog.groups.get("g")
    assert topic is not None
    assert group is not None
    assert broker.ledger.progress.inflight(group.group_id, topic.topic_id, 0) == 50
    taken: list[str] = []
    while got := await hall.receive(group="diligent"):
        taken += bodies(got)
        assert await hall.ack(*map(handle, got), group="diligent") == OK
    assert sorted(taken, key=int) == [str(number) for number in range(200)], "the other group sees everything"
    waiting = asyncio.ensure_future(hall.receiving(poll_ms=30_000))
    await hall.clock.advance(100)
    assert not waiting.done()
    assert await hall.ack(handle(held[7])) == OK
    assert bodies(await hall.during(waiting)) == ["50"], "one ack, one more message, at once"
    await hall.clock.advance(HOUR)
    assert len(await hall.receive()) == 32, "the rest comes again in the end"


async def test_every_ack_but_the_right_one_changes_nothing(hall: Hall) -> None:
    """Another group's, topic's, queue's and broker's handle, forged ones, and the right one twice."""
    broker = await hall.open()
    for topic in ("t", "u"):
        await hall.during(broker.catalog.create_topic(topic, queues=2))
        for number in range(4):
            await hall.send(f"{topic}{number}", topic=topic)
    mine, theirs = await hall.receive(batch=4), await hall.receive(group="other", batch=4)
    elsewhere = await hall.receive("u", batch=4)
    good = handle(mine[0])
    before = [(queue.committed, len(queue.pending)) for queue in broker.ledger.progress.queues()]
    prefix, _, digits = good.rpartition(".")
    fields, checksum = digits[:-32], digits[-32:]
    other = handle(mine[1]).rpartition(".")[2]
    for bad in (
        handle(theirs[0]), handle(elsewhere[0]), good.replace(".a.", ".b."), good.replace(".a.", ".nowhere."),
        f"{prefix}.{other[:-32]}{checksum}", f"{prefix}.{fields}{other[-32:]}", f"{prefix}.{fields[::-1]}{checksum}",
        f"{prefix}.{'0' * len(digits)}", f"{prefix}.{'f' * len(digits)}", f"{prefix}.", good + "00", good.upper(), "",
        " " + good, good + "\n", "e1.a.é", "e1.." + digits,
    ):  # fmt: skip
        assert await hall.ack(bad) == INVALID, bad
        assert await hall.nack(bad) == INVALID, bad
    assert await hall.ack(handle(theirs[0]), group="nobody") == INVALID
    assert before == [(queue.committed, len(queue.pending)) for queue in broker.ledger.progress.queues()]
    assert [await hall.ack(good), await hall.ack(good), await hall.nack(good)] == [OK, OK, INVALID]
    await hall.clock.advance(10_001)
    assert len(await hall.receive()) == 3


# ------------------------------------------------------------------------------------------------ circles of retries


def letters(hall: Hall, group: str = "g") -> int:
    topic = hall.brokers[0].catalog.topics.get(f"%DLQ%{group}")
    return 0 if topic is None else hall.brokers[0].ledger.store.queue_range(topic.topic_id, 0)[1]


async def test_a_member_that_sends_back_for_ever_and_always_says_it_was_the_first_time_is_stopped(hall: Hall) -> None:
    """RD-3, RD-5: also when it consumes its own retry topic."""
    broker = await hall.open(delay_levels="1s 1s 1s 1s")
    await hall.during(broker.catalog.create_group("g", max_attempts=4))
    await hall.send("poison")
    request = data_pb2.SendBackRequest(group="g", attempts=0)
    request.queue.topic = "t"
    retries = "%RETRY%g"
    for turn in range(10):
        answer = await hall.call("/evenq.v1.Data/SendBack", request, data_pb2.SendBackResponse)
        assert answer.status.code == OK, answer.status.message
        if answer.dead_lettered:
            break
        await hall.until(lambda: broker.catalog.topics.get(retries) is not None)
        topic = broker.catalog.topics.get(retries)
        assert topic is not None
        number, count = topic.topic_id, turn + 1
        await hall.until(lambda: broker.ledger.store.queue_range(number, 0)[1] == count)  # noqa: B023  of this turn
        request.queue.topic, request.queue_offset = retries, turn
    assert (turn, letters(hall)) == (3, 1)


@pytest.mark.slow
async def test_a_replayed_dead_letter_that_dies_again_is_one_letter_more_and_waits(hall: Hall) -> None:
    broker = await hall.open()
    pauses = RetryPolicy(kind=RetryKind.CUSTOMIZED, delays_ms=(10,))
    await hall.during(broker.catalog.create_group("g", max_attempts=2, retry=pauses))
    await hall.send("poison")

    async def dies() -> int:
        taken = 0
        for _ in range(10):
            for one in await hall.receive(push=True):
                taken += 1
                assert await hall.nack(handle(one)) == OK
            await hall.clock.advance(20)
        return taken

    assert await dies() == 2
    for turn in range(1, 4):
        assert letters(hall) == turn
        replay = dead_letters_pb2.ReplayDeadLettersRequest(group="g").SerializeToString()
        stream = hall.net.stream("a:8081", "/evenq.v1.DeadLetters/Replay", replay, timeout_ms=60_000)

        async def follow(frames: AsyncIterator[bytes] = stream) -> int:
            return len([frame async for frame in frames])

        assert await hall.during(follow()) >= 1
        assert await dies() == 2, "delivered as often as the first time, and not for ever"
    await hall.clock.advance(HOUR)
    assert (letters(hall), await hall.receive()) == (4, [])


async def test_a_push_consumer_of_dead_letters_that_always_fails_comes_to_an_end(hall: Hall) -> None:
    """Of its own group's letters, which stay where they are, and of another group's."""
    broker = await hall.open()
    for group in ("g", "h"):
        await hall.during(broker.catalog.create_group(group, max_attempts=2))
    await hall.send("poison")
    taken = {"t": 0, "%DLQ%g": 0}
    for _ in range(20):
        for topic, group in (("t", "g"), ("%DLQ%g", "g"), ("%DLQ%g", "h")):
            for one in await hall.receive(topic, group, push=True):
                taken[topic] += 1
                assert await hall.nack(handle(one), topic=topic, group=group) == OK
        await hall.clock.advance(50)
    assert taken == {"t": 2, "%DLQ%g": 4}
    assert (letters(hall, "g"), letters(hall, "h")) == (1, 1)


# ------------------------------------------------------------------------------------------------ clocks


@pytest.mark.parametrize("jump_ms", [HOUR, pytest.param(-HOUR, marks=pytest.mark.slow)], ids=["forward", "back"])
async def test_a_clock_that_jumps_by_an_hour_moves_no_delivery_no_poll_and_no_life(hall: Hall, jump_ms: int) -> None:
    broker = await hall.open()
    await hall.send("held", "pushed")
    [held] = await hall.receive(batch=1, invisible_ms=10_000)
    [pushed] = await hall.receive(batch=1, push=True, client="living")
    await hall.during(broker.catalog.create_topic("empty"))
    poll = asyncio.ensure_future(hall.receiving("empty", poll_ms=5_000))
    await hall.clock.advance(1_000)
    hall.clock.jump_wall(jump_ms)
    await hall.clock.advance(1_000)
    assert await hall.receive() == [], "neither delivery has ended"
    assert broker.clients.table.get("living") is not None
    assert not poll.done()
    await hall.clock.advance(3_200)
    assert poll.done()
    assert await hall.ack(handle(pushed)) == OK
    await hall.clock.advance(4_600)
    assert await hall.receive() == []
    await hall.clock.advance(400)
    [again] = await hall.receive()
    assert (again.body, again.system_properties.delivery_attempt) == (held.body, 2)
    assert await hall.ack(handle(again)) == OK


@pytest.mark.parametrize("jump_ms", [JUMP, pytest.param(-JUMP, marks=pytest.mark.slow)], ids=["forward", "back"])
async def test_a_delayed_message_follows_the_clock_on_the_wall_and_comes_once(hall: Hall, jump_ms: int) -> None:
    """Its time is one that people wrote down: after a jump it is due when the clock says so."""
    broker = await hall.open()
    await hall.during(broker.catalog.create_topic("t", queues=1, message_type=MessageType.DELAY))
    await hall.receive()
    await hall.send("later", delay_ms=60_000)
    await hall.clock.advance(10_000)
    hall.clock.jump_wall(jump_ms)
    left_ms = 0 if jump_ms > 0 else 50_000 + JUMP
    if left_ms:
        await hall.clock.advance(left_ms - 1_000)
        assert await hall.receive() == []
        await hall.clock.advance(1_000)
    await hall.clock.advance(500)
    assert bodies(await hall.receive()) == ["later"]
    hall.clock.jump_wall(-jump_ms)
    await hall.clock.advance(2 * JUMP)
    [again] = await hall.receive()
    assert again.system_properties.delivery_attempt == 2, "the same delivery again, not a second message"


# ------------------------------------------------------------------------------------------------ who vanishes


async def _settings(kind: int, group: str = "", *topics: str) -> AsyncIterator[bytes]:
    command = s.TelemetryCommand()
    command.settings.client_type = kind  # type: ignore[assignment]  # a number of the enum
    if group:
        command.settings.subscription.group.name = group
        entry = command.settings.subscription.subscriptions.add()
        entry.topic.name, entry.expression.expression = "t", "*"
    else:
        for topic in topics:
            command.settings.publishing.topics.add().name = topic
    yield command.SerializeToString()
    await asyncio.Event().wait()


def _traces(broker: Broker, name: str) -> list[str]:
    """Where in the broker's state a text begins with `name`: containers that can be reached from it."""
    found, seen = list[str](), set[int]()
    todo: list[tuple[Any, str]] = [(broker, "broker")]
    while todo:
        thing, path = todo.pop()
        if id(thing) in seen or isinstance(thing, type | asyncio.AbstractEventLoop | asyncio.Future):
            continue
        seen.add(id(thing))
        if isinstance(thing, str) and thing.startswith(name):
            found.append(path)
            continue
        inside: list[tuple[Any, str]] = []
        if isinstance(thing, dict):
            inside = [(one, f"{path}[]") for pair in list(thing.items()) for one in pair]
        elif isinstance(thing, list | tuple | set | frozenset) or type(thing).__name__ == "deque":
            inside = [(one, f"{path}[]") for one in list(thing)]
        elif type(thing).__module__.startswith("evenq"):
            names = [slot for cls in type(thing).__mro__ for slot in getattr(cls, "__slots__", ())]
            values = {**{slot: getattr(thing, slot, None) for slot in names}, **getattr(thing, "__dict__", {})}
            inside = [(value, f"{path}.{key}") for key, value in values.items()]
        todo.extend(inside)
    return found


@pytest.mark.slow  # a crowd
async def test_clients_that_vanish_by_the_thousand_leave_nothing_behind(hall: Hall) -> None:
    """Each opens telemetry, beats, has a push delivery or a parked poll, and is never heard of again."""
    broker = await hall.open(client_silence_ms=120_000, client_lost_ms=120_000, trace_bytes=0)
    await hall.during(broker.catalog.create_topic("t", queues=4))
    await hall.during(broker.catalog.create_topic("l", queues=1, message_type=MessageType.LITE))
    await hall.during(broker.catalog.create_topic("empty"))
    for start in range(0, FEW // 2, 100):
        await hall.send(*(str(number) for number in range(start, start + 100)))
    lost: list[asyncio.Task[Any]] = []

    async def ghost(number: int) -> None:
        client = f"ghost-{number}"
        headers = {"x-mq-client-id": client, "x-mq-language": "JAVA"}
        kind = d.PUSH_CONSUMER if number % 2 else d.PRODUCER
        telemetry = hall.net.stream(
            "a:8081", V2 + "Telemetry", _settings(kind, "g" if number % 2 else "", "t"), timeout_ms=None,
            metadata=headers,
        )  # fmt: skip
        await anext(telemetry)
        beat = s.HeartbeatRequest(client_type=kind)
        beat.group.name = "g" if number % 2 else ""
        await hall.net.unary("a:8081", V2 + "Heartbeat", beat.SerializeToString(), timeout_ms=9_000, metadata=headers)
        if number % 2:
            await hall.receiving(push=True, batch=1, client=client, attempt=f"ghost-{number}")
            if number % 50 == 1:
                sync = s.SyncLiteSubscriptionRequest(action=d.PARTIAL_ADD, lite_topic_set=[f"x{number}"])
                sync.topic.name, sync.group.name = "l", "g"
                result = sync.SerializeToString()
                method = V2 + "SyncLiteSubscription"
                await hall.net.unary("a:8081", method, result, timeout_ms=9_000, metadata=headers)
            await hall.receiving("empty", push=True, poll_ms=50_000, client=client)
        await asyncio.Event().wait()

    for start in range(0, FEW, 250):
        lost += [asyncio.ensure_future(ghost(number)) for number in range(start, start + 250)]
        await hall.clock.advance(10)
    await hall.until(
        lambda: len(broker.clients.streams) == FEW and len(broker.long_polls.table) == FEW // 2, step_ms=20
    )
    assert (len(broker.clients.table), len(broker.membership.members)) == (FEW, FEW // 2)
    assert len(_traces(broker, "ghost-")) >= FEW, "they are looked for where they are"
    while lost:
        lost.pop().cancel()
    await hall.clock.advance(1_000)
    assert (len(broker.clients.streams), len(broker.long_polls.table)) == (0, 0), "connections are gone"
    for _ in range(13):
        await hall.clock.advance(10_000)
    await hall.receive(client="living", attempt="living")
    assert (len(broker.clients.table), len(broker.membership.members)) == (1, 1)
    await hall.until(lambda: not _traces(broker, "ghost-"), step_ms=20, limit_ms=30_000)
    taken: set[str] = set()
    while got := await hall.receive(client="living"):
        assert {one.system_properties.delivery_attempt for one in got} <= {1, 2}
        taken.update(bodies(got))
        assert await hall.ack(*map(handle, got)) == OK
    await hall.clock.advance(11_000)
    while got := await hall.receive(client="living"):
        taken.update(bodies(got))
        assert await hall.ack(*map(handle, got)) == OK
    assert len(taken) == FEW // 2, "what they held came again"
    gc.collect()


# ------------------------------------------------------------------------------------------------ bad listeners


@pytest.mark.slow
def test_a_listener_that_exits_hangs_and_talks_nonsense_loses_nothing_and_ends_in_time(tmp_path: Path) -> None:
    """Our SDK in threads: what `sys.exit` and the like would do to the consumer's own loop."""
    release, done, lock = threading.Event(), set[bytes](), threading.Lock()

    def listen(messages: Sequence[evenq.ReceivedMessage]) -> object:
        [one] = messages
        if one.delivery_attempt == 1:
            match int(one.body) % 8:
                case 0:
                    sys.exit("the listener wants to leave")
                case 1:
                    raise StopIteration
                case 2:
                    raise asyncio.CancelledError
                case 3:
                    raise KeyboardInterrupt
                case 4:
                    return evenq.Retry([None])  # type: ignore[list-item]  # nonsense
                case 5:
                    return asyncio.sleep(0)  # never awaited: nothing was done
                case 6:
                    release.wait(250)
        with lock:
            done.add(one.body)
        return object()

    settings = {"DELAY_LEVELS": "1s 1s 1s 1s 1s", "STORE__DISK_FREE_MIN_BYTES": "0", "STORE__DISK_USED_MAX_RATIO": "1"}
    options = evenq.PushOptions(consume_batch=1, consume_timeout_ms=1_000, drain_ms=500)
    clock = SystemClock()
    with LocalCluster(nameservers=0, rebalancer=False, folder=tmp_path, broker_settings=settings) as cluster:
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            admin.create_topic("t", queues=2)
        with evenq.Producer(endpoint=cluster.endpoint) as producer:
            for number in range(24):
                producer.send(evenq.Message(topic="t", body=b"%d" % number))
        consumer = evenq.PushConsumer(
            group="g", endpoint=cluster.endpoint, listener=listen, subscriptions={"t": "*"}, start_from="FIRST",
            consume_threads=6, options=options,
        ).start()  # fmt: skip
        try:
            until_ms = clock.monotonic_ms() + 120_000
            while len(done) < 24:
                assert clock.monotonic_ms() < until_ms, sorted(done, key=int)
                asyncio.run(clock.sleep_ms(50))
            before_ms = clock.monotonic_ms()
            consumer.close()
            assert clock.monotonic_ms() - before_ms < 60_000, "three threads hang still, for minutes"
        finally:
            release.set()
            consumer.close()


# ------------------------------------------------------------------------------------------------ real connections


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _headers(method: str, client: str) -> bytes:
    pairs = [
        (":method", "POST"), (":scheme", "http"), (":path", V2 + method), (":authority", "a"), ("te", "trailers"),
        ("content-type", "application/grpc"), ("x-mq-client-id", client), ("x-mq-language", "JAVA"),
    ]  # fmt: skip
    return b"".join(
        b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode() for name, value in pairs
    )


def _call(stream: int, method: str, client: str, request: bytes, *, ended: bool) -> bytes:
    body = b"\0" + struct.pack(">I", len(request)) + request
    return _frame(1, 4, stream, _headers(method, client)) + _frame(0, int(ended), stream, body)


def vanishing(port: int, number: int) -> socket.socket:
    """A connection with an open telemetry stream, a heartbeat and a parked poll, made by hand: a channel would be
    dear.
    """
    client = f"ghost-{number}"
    settings = consumer_settings(d.SIMPLE_CONSUMER, "g")
    beat = s.HeartbeatRequest(client_type=d.SIMPLE_CONSUMER)
    beat.group.name = "g"
    poll = receive_request("g", "t", poll_ms=60_000, invisible_ms=10_000, batch_size=1)
    made = socket.create_connection(("127.0.0.1", port), timeout=60)
    made.sendall(
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b"")
        + _call(1, "Telemetry", client, settings.SerializeToString(), ended=False)
        + _call(3, "Heartbeat", client, beat.SerializeToString(), ended=True)
        + _call(5, "ReceiveMessage", client, poll.SerializeToString(), ended=True)
    )  # fmt: skip
    return made


class Gauge:
    """What the process holds."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.clock = SystemClock()

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.node.metrics_port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE))

    @property
    def files(self) -> int:
        return len(list(Path(f"/proc/{self.node.pid}/fd").iterdir()))

    @property
    def memory_mb(self) -> float:
        status = Path(f"/proc/{self.node.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024

    def until(self, state: Callable[[], bool], what: str) -> None:
        deadline_ms = self.clock.monotonic_ms() + 90_000
        while not state():
            assert self.clock.monotonic_ms() < deadline_ms, what
            asyncio.run(self.clock.sleep_ms(250))


@pytest.fixture
def gauge(tmp_path: Path) -> Iterator[Gauge]:
    # Longer than a crowd needs to come, also on a busy machine: a client that is silent for longer loses its poll.
    silence_ms = max(12_000, 4 * MANY)
    settings = {"CLIENT_SILENCE_MS": f"{silence_ms}", "STORE__DISK_FREE_MIN_BYTES": "0"}
    with LocalCluster(nameservers=0, rebalancer=False, folder=tmp_path, broker_settings=settings) as cluster:
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            admin.create_topic("t")
        yield Gauge(cluster.brokers[0])


@pytest.mark.slow  # a crowd
def test_connections_that_come_by_the_thousand_and_break_give_everything_back(gauge: Gauge) -> None:
    crowd: list[socket.socket] = []

    def wave() -> None:
        began_ms = gauge.clock.monotonic_ms()
        crowd.extend(vanishing(gauge.node.port, number) for number in range(MANY))
        gauge.until(lambda: gauge.metric("evenq_broker_polls_parked") == MANY, "all polls are parked")
        parked_ms = gauge.clock.monotonic_ms()
        log.info("%d parked after %d ms, %d MB", MANY, parked_ms - began_ms, gauge.memory_mb)
        assert gauge.metric("rocketmq_consumer_connections") == MANY
        assert gauge.files >= MANY
        ended_ms = gauge.clock.monotonic_ms()
        for one in crowd:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no goodbye
            one.close()
        crowd.clear()
        gauge.until(lambda: gauge.metric("evenq_broker_polls_parked") == 0, "no poll is left")
        gauge.until(lambda: gauge.metric("rocketmq_consumer_connections") == 0, "nobody is remembered")
        gauge.until(lambda: gauge.files <= files + 5, "file descriptors are back")
        log.info("all gone after %d ms, %d MB", gauge.clock.monotonic_ms() - ended_ms, gauge.memory_mb)

    files = gauge.files
    try:
        wave()
        after_first = gauge.memory_mb
        wave()
        assert gauge.memory_mb < after_first * 1.25 + 10, "a second crowd needs no more than the first"
    finally:
        for one in crowd:
            one.close()
    assert gauge.node.alive
    assert "Traceback" not in gauge.node.log_text()
