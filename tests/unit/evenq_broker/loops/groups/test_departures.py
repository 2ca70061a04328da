"""A dead client's messages come again soon at every broker, and a living one keeps its own (wire contract 3.6, 5.1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.core.clients.client_table import RUST, RUST_MS
from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.core.groups.members import Member, Protocol
from evenq_broker.loops.groups.departures import NAMES_MAX
from evenq_broker.store_settings import StoreSettings
from evenq_proofs.v2_requests import consumer_settings, receive_messages, receive_request, send_request

from evenq.model import BrokerAddress
from evenq.wire.convert import set_duration_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from tests.unit.evenq_broker.conftest import know

V2 = "/apache.rocketmq.v2.MessagingService/"
LOST_MS = 13_000
SOON_MS = 3_000


async def pair(stage: Any, **settings: Any) -> list[Any]:
    """Brokers `a` and `b` with topic `t`, one queue each, and one message at `b`."""
    brokers = [await stage.broker(name, default_queues=1, default_start_from="FIRST", **settings) for name in "ab"]
    for broker in brokers:
        await stage.during(broker.catalog.create_topic("t"))
    know(*brokers)
    await send(stage)
    return brokers


async def send(stage: Any, broker: str = "b") -> None:
    request = send_request("t", "id", b"hello")
    await stage.ask("SendMessage", request, service_pb2.SendMessageResponse, broker=broker)


async def receive(
    stage: Any, *, broker: str = "b", through: str = "", client: str = "c", poll_ms: int = 0, language: str = "JAVA"
) -> int:
    """A push consumer's receive of the queue at `broker`; the number of messages. Nothing else is sent there."""
    request = receive_request("g", "t", batch_size=32, auto_renew=True)
    request.message_queue.broker.name = broker
    set_duration_ms(request.long_polling_timeout, poll_ms)
    headers = {"x-mq-client-id": client, "x-mq-language": language}

    reading = receive_messages(stage.net, f"{through or broker}:8081", request, metadata=headers)
    return len(await stage.during(reading))


def heartbeat() -> service_pb2.HeartbeatRequest:
    request = service_pb2.HeartbeatRequest(client_type=definition_pb2.PUSH_CONSUMER)
    request.group.name = "g"
    return request


async def beat(stage: Any, *, broker: str = "a", client: str = "c") -> None:
    await stage.ask("Heartbeat", heartbeat(), service_pb2.HeartbeatResponse, broker=broker, client=client)


async def beats(stage: Any, *, client: str = "c") -> None:
    """Heartbeats at broker `a`, also while the clock runs on because a broker takes its time to start."""
    headers, data = {"x-mq-client-id": client, "x-mq-language": "JAVA"}, heartbeat().SerializeToString()
    while True:
        await stage.net.unary("a:8081", V2 + "Heartbeat", data, timeout_ms=60_000, metadata=headers)
        await stage.clock.sleep_ms(5_000)


async def goodbye(stage: Any, *, broker: str = "a", client: str = "c") -> None:
    request, response = service_pb2.NotifyClientTerminationRequest(), service_pb2.NotifyClientTerminationResponse
    await stage.ask("NotifyClientTermination", request, response, broker=broker, client=client)


async def telemetry(stage: Any, *, broker: str = "a", client: str = "c") -> asyncio.Task[None]:
    """An open telemetry stream; to be cancelled."""

    async def requests() -> AsyncIterator[bytes]:
        command = consumer_settings(definition_pb2.PUSH_CONSUMER, "g", "t")
        yield command.SerializeToString()
        await asyncio.Event().wait()

    async def read() -> None:
        headers = {"x-mq-client-id": client, "x-mq-language": "JAVA"}
        async for _ in stage.net.stream(
            f"{broker}:8081", V2 + "Telemetry", requests(), timeout_ms=None, metadata=headers
        ):
            pass

    task = asyncio.ensure_future(read())
    found = next(one for one in stage.brokers if one.runtime.settings.broker_name == broker)
    await stage.until(lambda: found.clients.streams.reaches(client))
    return task


async def assigned(stage: Any, *, client: str = "c", language: str = "JAVA") -> int:
    """Number of queues that broker `b` assigns to the client; nothing else is sent there."""
    request = service_pb2.QueryAssignmentRequest()
    request.topic.name, request.group.name = "t", "g"
    request.endpoints.addresses.add(host="b", port=8081)
    headers = {"x-mq-client-id": client, "x-mq-language": language}
    call = stage.net.unary(
        "b:8081", V2 + "QueryAssignment", request.SerializeToString(), timeout_ms=60_000, metadata=headers
    )
    answer = service_pb2.QueryAssignmentResponse.FromString(await stage.during(call))
    return len(answer.assignments)


def members(broker: Any) -> list[str]:
    """Client ids of the group's members at the broker."""
    return [member.client_id for member in broker.membership.members.members("g")]


async def is_ready_within(stage: Any, broker: Any, limit_ms: int) -> bool:
    """Whether the message is deliverable again at the latest after that time."""
    for _ in range(limit_ms // 250):
        if any(queue.ready for queue in broker.ledger.progress.queues()):
            return True
        await stage.clock.advance(250)
    return any(queue.ready for queue in broker.ledger.progress.queues())


async def test_a_goodbye_reaches_a_broker_that_knows_the_client_by_receives_only(stage: Any) -> None:
    _, b = await pair(stage)
    await beat(stage)
    assert await receive(stage, through="a") == 1
    await stage.clock.advance(5_000)
    await goodbye(stage)
    assert await is_ready_within(stage, b, SOON_MS)
    assert b.clients.table.get("c") is None
    assert members(b) == []


@pytest.mark.parametrize("knows_it", ["b", "d"])
async def test_a_goodbye_is_reported_to_every_other_broker(stage: Any, knows_it: str) -> None:
    a, b = await pair(stage)
    d = await stage.broker("d")
    know(a, b, d)
    broker = b if knows_it == "b" else d
    broker.clients.table.seen("c", broker.runtime.now_ms())
    await beat(stage)
    await goodbye(stage)
    await stage.clock.advance(SOON_MS)
    assert broker.clients.table.get("c") is None


async def test_a_client_that_dies_is_ended_at_a_broker_that_knows_it_by_receives_only(stage: Any) -> None:
    a, b = await pair(stage)
    stream = await telemetry(stage)
    assert await receive(stage, through="a") == 1
    for _ in range(30):
        await beat(stage)
        await stage.clock.advance(10_000)
    assert not any(queue.ready for queue in b.ledger.progress.queues()), "it lives, as the other broker knows"
    await beat(stage)
    stream.cancel()
    assert await is_ready_within(stage, b, LOST_MS + 2_000)
    await stage.until(lambda: a.clients.table.get("c") is None)
    await stage.until(lambda: members(b) == [])


async def test_a_client_that_dies_after_a_call_to_another_broker_is_ended_in_one_time_and_not_in_two(
    stage: Any,
) -> None:
    _, b = await pair(stage)
    assert await receive(stage) == 1
    await stage.clock.advance(1_000)
    await beat(stage)
    assert await is_ready_within(stage, b, LOST_MS + 2_000)


async def test_a_client_that_calls_another_broker_alone_is_kept(stage: Any) -> None:
    _, b = await pair(stage)
    assert await receive(stage) == 1
    for _ in range(60):
        await stage.clock.advance(10_000)
        await beat(stage)
    assert not any(queue.ready for queue in b.ledger.progress.queues())


async def test_a_client_that_lost_its_stream_to_one_broker_is_kept_while_it_lives_at_another(stage: Any) -> None:
    _, b = await pair(stage)
    stream, other = await telemetry(stage, broker="b"), await telemetry(stage)
    assert await receive(stage) == 1
    stream.cancel()
    for _ in range(20):
        await beat(stage)
        await stage.clock.advance(10_000)
    assert not any(queue.ready for queue in b.ledger.progress.queues())
    other.cancel()
    assert await is_ready_within(stage, b, 2 * LOST_MS)


async def test_a_report_that_arrives_after_a_client_of_that_id_came_back_ends_nothing(stage: Any) -> None:
    _, b = await pair(stage)
    assert await receive(stage) == 1
    b.departures.answer(["c"], [])
    await stage.clock.advance(500)
    assert await receive(stage) == 0, "it calls"
    for _ in range(6):
        await stage.clock.advance(10_000)
        await beat(stage, broker="b")
    assert not any(queue.ready for queue in b.ledger.progress.queues())


async def test_a_client_that_calls_while_others_say_that_it_is_gone_is_kept(stage: Any) -> None:
    a, b = await pair(stage)
    assert await receive(stage) == 1
    await beat(stage)
    await goodbye(stage)
    ask = b.cluster.peers.ask

    async def asked(*given: Any, **more: Any) -> Any:
        answer = await ask(*given, **more)
        await b.runtime.clock.sleep_ms(5)
        b.clients.table.seen("c", b.runtime.now_ms())
        return answer

    b.cluster.peers.ask = asked
    assert not await is_ready_within(stage, b, SOON_MS)
    assert a.clients.table.said_goodbye("c", a.runtime.now_ms())


async def test_a_reported_client_that_waits_here_is_made_to_call_again(stage: Any) -> None:
    _, b = await pair(stage)
    assert await receive(stage) == 1
    waiting = asyncio.ensure_future(receive(stage, poll_ms=20_000))
    await stage.until(lambda: b.long_polls.table.waits("c"))
    began_ms = stage.clock.monotonic_ms()
    b.departures.answer(["c"], [])
    assert await stage.during(waiting) == 0
    assert stage.clock.monotonic_ms() - began_ms < 100


async def test_a_client_is_not_ended_while_a_broker_does_not_say_whether_it_lives_there(stage: Any) -> None:
    a, b = await pair(stage, client_silence_ms=60_000)
    gone = RegisteredBroker(name="x", addresses=(BrokerAddress("default", "nowhere", 1),))
    views = [*b.catalog.routes.brokers(), gone]
    b.catalog.routes.snapshot("nameserver", "n", views, stage.clock.monotonic_ms())
    assert await receive(stage) == 1
    assert not await is_ready_within(stage, b, 2 * LOST_MS)
    know(a, b)
    b.catalog.routes.snapshot("nameserver", "n", [one for one in views if one is not gone], stage.clock.monotonic_ms())
    assert await is_ready_within(stage, b, SOON_MS)


async def test_a_client_that_only_asked_a_broker_for_its_queues_is_no_member_there_after_its_goodbye(
    stage: Any,
) -> None:
    """Its stream and its heartbeats are at the other one. As a ghost it would keep queues that nobody reads."""
    _, b = await pair(stage)
    assert await assigned(stage) == 1
    assert members(b) == ["c"]
    await goodbye(stage)
    await stage.clock.advance(SOON_MS)
    assert not members(b)


async def dividing(stage: Any, **config: Any) -> Any:
    """Broker `b`, whose group divides its queues."""
    _, b = await pair(stage)
    await stage.during(b.catalog.create_group("g", **(config or {"strategy": "AVG"})))
    return b


@pytest.mark.parametrize(("had_a_stream", "waited"), [(False, False), (True, False), (True, True)])
async def test_a_member_that_dies_without_a_stream_and_without_messages_leaves_its_queues_to_others(
    stage: Any, had_a_stream: bool, waited: bool
) -> None:
    """As after a restart of the broker: the client calls, and dies before it opens a stream (sim seed 2011640)."""
    b = await dividing(stage)
    if had_a_stream:
        stream = await telemetry(stage, broker="b")
        stream.cancel()
        await stage.until(lambda: not b.clients.streams.reaches("c"))
    dies_ms = stage.clock.monotonic_ms()
    assert await assigned(stage, client="c") == 1
    if waited:
        assert await receive(stage, client="other") == 1
        assert await receive(stage, poll_ms=5_000) == 0
    while not await assigned(stage, client="d"):
        assert stage.clock.monotonic_ms() - dies_ms < LOST_MS + SOON_MS
        await stage.clock.advance(1_000)
    assert stage.clock.monotonic_ms() - dies_ms >= LOST_MS
    assert "c" not in members(b)


async def test_a_member_of_rust_that_dies_without_messages_leaves_its_queues_when_its_heartbeats_are_missing(
    stage: Any,
) -> None:
    b = await dividing(stage)
    await assigned(stage, language=RUST)
    await stage.clock.advance(LOST_MS + RUST_MS - 1_000)
    assert members(b) == ["c"]
    await stage.clock.advance(SOON_MS)
    assert not members(b)


async def test_a_member_without_messages_is_kept_while_it_lives_at_another_broker(stage: Any) -> None:
    b = await dividing(stage)
    await assigned(stage)
    for _ in range(5):
        await stage.clock.advance(10_000)
        await beat(stage)
    assert members(b) == ["c"]


async def test_a_silent_member_has_a_share_only_where_queues_are_divided(stage: Any) -> None:
    """By the strategy of the group, or by the one that members of the evenq protocol send."""
    b = await dividing(stage, ordered=False)
    await assigned(stage)
    assert not b.sessions.has_share_v2("c")
    session = b.sessions.join("g", Member(client_id="owner", protocol=Protocol.EVENQ))
    assert b.sessions.has_share_v2("c")
    b.sessions.leave(session)
    assert not b.sessions.has_share_v2("c")
    await stage.during(b.catalog.create_group("g", strategy="AVG"))
    assert b.sessions.has_share_v2("c")
    assert not b.sessions.has_share_v2("unknown")


async def test_a_client_of_rust_may_be_silent_for_longer_because_its_heartbeats_are_rare(stage: Any) -> None:
    _, b = await pair(stage)
    assert await receive(stage, language=RUST) == 1
    assert not await is_ready_within(stage, b, LOST_MS + RUST_MS - 1_000)
    assert await is_ready_within(stage, b, SOON_MS)


async def test_ends_are_asked_for_and_reported_in_bounded_parts(stage: Any) -> None:
    a, _ = await pair(stage)
    names = [f"c{number}" for number in range(NAMES_MAX + 5)]
    for name in names:
        a.clients.table.seen(name, a.runtime.now_ms())
    assert len(a.departures.answer([], names).alive) == NAMES_MAX
    a.departures.answer(names, [])
    assert not a.clients.table.is_suspect(names[-1])
    assert a.clients.table.is_suspect(names[0])


async def restarted(stage: Any, path: Path, *, client: Callable[[], Awaitable[object]]) -> Any:
    """Broker `b` is stopped while client `c` holds its message, and started again after `client` has acted."""
    store = StoreSettings(path=path, disk_free_min_bytes=0, disk_used_max_ratio=1)
    settings = {"default_queues": 1, "default_start_from": "FIRST", "attempt_keep_ms": 0, "store": store}
    a, b = await stage.broker("a", default_queues=1), await stage.broker("b", **settings)
    await send(stage)
    assert await receive(stage) == 1
    # Something is stored later: what was delivered last before a stop may not have reached its client.
    await stage.clock.advance(1_000)
    await stage.during(b.catalog.create_group("later"))
    stage.net.stop("b:8081")
    await stage.end(b)
    await client()
    again = stage.made("b", **settings)
    await again.open()
    assert again.ledger.progress.clients() == {"c"}
    assert await stage.during(again.ending.nothing_in_hand(10_000)) == 0, "a stop does not wait for it"
    await stage.begin(again)
    know(a, again)
    return again


@pytest.mark.parametrize("said", [True, False])
async def test_what_a_client_held_before_a_restart_comes_again_soon_if_no_broker_knows_it(
    stage: Any, tmp_path: Path, said: bool
) -> None:
    async def ends() -> None:
        if said:
            await beat(stage)
            await goodbye(stage)

    again = await restarted(stage, tmp_path, client=ends)
    await stage.until(lambda: any(queue.ready for queue in again.ledger.progress.queues()))
    assert said or again.runtime.now_ms() - again.runtime.started_ms >= LOST_MS, "it may still come back"


async def test_what_a_living_client_held_before_a_restart_stays_its_own(stage: Any, tmp_path: Path) -> None:
    tasks: list[asyncio.Task[None]] = []

    async def lives() -> None:
        tasks.extend((await telemetry(stage), asyncio.ensure_future(beats(stage))))

    again = await restarted(stage, tmp_path, client=lives)
    for _ in range(30):
        await stage.clock.advance(10_000)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert again.ledger.progress.clients() == {"c"}
    assert not any(queue.ready for queue in again.ledger.progress.queues())
