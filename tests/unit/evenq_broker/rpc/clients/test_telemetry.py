"""What each kind of client, in each language, has to be (wire contract 4.3, 4.4)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from evenq_broker.rpc.clients.telemetry import settings_reply
from evenq_proofs.v2_requests import receive_request, v2_message

from evenq.errors import BadRequest
from evenq.model.retry import CLASSIC_RETRY, RetryKind, RetryPolicy
from evenq.serving.rpc import RpcContext
from evenq.wire.convert import duration_ms_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2

LANGUAGES = ("JAVA", "GO", "PYTHON", "CPP", "DOTNET", "RUST", "HTTP")
PUSH, SIMPLE = definition_pb2.PUSH_CONSUMER, definition_pb2.SIMPLE_CONSUMER
LITE = definition_pb2.LITE_PUSH_CONSUMER
OK = 20000


def consumer(client_type: int = PUSH, group: str = "g") -> definition_pb2.Settings:
    settings = definition_pb2.Settings(client_type=client_type)  # type: ignore[arg-type]  # a number of the enum
    settings.subscription.group.name = group
    settings.subscription.subscriptions.add().topic.name = "t"
    return settings


def reply(broker: Any, response: definition_pb2.Settings, language: str = "JAVA") -> definition_pb2.Settings:
    context = RpcContext("m", [("x-mq-client-id", "c"), ("x-mq-language", language)], "127.0.0.1:1", None)
    command = service_pb2.TelemetryCommand.FromString(settings_reply(broker.kernel, response, context))
    assert command.status.code == definition_pb2.OK
    return command.settings


def opened(stage: Any, language: str = "JAVA") -> AsyncIterator[bytes]:
    """A stream of client `c`, which says its settings once and never ends it."""

    async def requests() -> AsyncIterator[bytes]:
        yield service_pb2.TelemetryCommand(settings=consumer()).SerializeToString()
        await asyncio.Event().wait()

    headers = {"x-mq-client-id": "c", "x-mq-language": language}
    method = "/apache.rocketmq.v2.MessagingService/Telemetry"
    frames: AsyncIterator[bytes] = stage.net.stream("a:8081", method, requests(), timeout_ms=None, metadata=headers)
    return frames


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_push_consumer_gets_a_policy_that_its_language_understands(stage: Any, language: str) -> None:
    broker = await stage.broker()
    policy = reply(broker, consumer(), language).backoff_policy
    assert policy.max_attempts == 17
    if language == "HTTP":  # Node.js reads seconds as milliseconds
        assert policy.exponential_backoff.initial.seconds == 10_000
        assert policy.exponential_backoff.multiplier == 2
        assert policy.exponential_backoff.max.seconds == 2 * 3_600_000
    else:
        assert list(map(duration_ms_of, policy.customized_backoff.next)) == CLASSIC_RETRY.pauses_ms(16)


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_groups_own_policy_is_told_in_the_words_of_each_language(stage: Any, language: str) -> None:
    """Wire contract 4.4; checklist 43 for Node.js."""
    broker = await stage.broker()
    grows = RetryPolicy(kind=RetryKind.EXPONENTIAL, initial_ms=1_500, max_ms=5_000, multiplier=3.0)
    listed = RetryPolicy(kind=RetryKind.CUSTOMIZED, delays_ms=(200, 2_500, 2_500))
    await stage.during(broker.catalog.create_group("grows", retry=grows, max_attempts=6))
    await stage.during(broker.catalog.create_group("listed", retry=listed))
    policy = reply(broker, consumer(group="grows"), language).backoff_policy
    assert policy.max_attempts == 6
    if language in {"PYTHON", "CPP"}:
        pauses = list(map(duration_ms_of, policy.customized_backoff.next))
        assert pauses == ([2_000, 5_000, 5_000] if language == "PYTHON" else [1_500, 4_500, 5_000])
    else:
        scale = 1_000 if language == "HTTP" else 1
        assert duration_ms_of(policy.exponential_backoff.initial) == 1_500 * scale
        assert duration_ms_of(policy.exponential_backoff.max) == 5_000 * scale
        assert policy.exponential_backoff.multiplier == 3.0
    policy = reply(broker, consumer(group="listed"), language).backoff_policy
    if language == "HTTP":
        assert policy.exponential_backoff.initial.seconds == 200
        assert policy.exponential_backoff.max.seconds == 2_500
    else:
        pauses = list(map(duration_ms_of, policy.customized_backoff.next))
        assert pauses == ([1_000, 3_000] if language == "PYTHON" else [200, 2_500])


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_producer_always_gets_an_exponential_policy_and_a_body_limit(stage: Any, language: str) -> None:
    broker = await stage.broker(body_bytes_max=5_000)
    response = definition_pb2.Settings(client_type=definition_pb2.PRODUCER)
    response.publishing.topics.add().name = "t"
    response.publishing.max_body_size = 128 << 20
    settings = reply(broker, response, language)
    assert settings.publishing.max_body_size == 5_000
    assert settings.publishing.validate_message_type
    assert [topic.name for topic in settings.publishing.topics] == ["t"]
    policy = settings.backoff_policy
    assert policy.max_attempts == 3
    assert duration_ms_of(policy.exponential_backoff.initial) == 10
    assert duration_ms_of(policy.exponential_backoff.max) == 1_000


async def test_the_groups_own_configuration_is_told(stage: Any) -> None:
    broker = await stage.broker(receive_batch_max=16, poll_default_ms=9_000)
    await stage.during(broker.catalog.create_group("ordered", ordered=True, max_attempts=4))
    ordered = reply(broker, consumer(group="ordered"))
    assert (ordered.subscription.fifo, ordered.backoff_policy.max_attempts) == (True, 4)
    assert ordered.subscription.receive_batch_size == 16
    assert duration_ms_of(ordered.subscription.long_polling_timeout) == 9_000
    assert not reply(broker, consumer(group="unknown")).subscription.fifo


async def test_a_simple_consumer_keeps_its_own_poll_and_a_lite_one_gets_its_quota(stage: Any) -> None:
    broker = await stage.broker()
    own = consumer(SIMPLE)
    own.subscription.long_polling_timeout.seconds = 3
    assert reply(broker, own).subscription.long_polling_timeout.seconds == 3
    assert duration_ms_of(reply(broker, consumer(SIMPLE)).subscription.long_polling_timeout) == 5_000
    assert reply(broker, consumer(LITE)).subscription.lite_subscription_quota == 2_000


async def test_what_the_client_said_comes_back(stage: Any) -> None:
    broker = await stage.broker()
    result = consumer()
    result.access_point.addresses.add(host="here", port=1)
    result.user_agent.version = "5.0.7"
    result.request_timeout.seconds = 7
    answer = reply(broker, result)
    for name in ("access_point", "user_agent", "request_timeout", "client_type"):
        assert getattr(answer, name) == getattr(result, name)
    assert answer.subscription.subscriptions == result.subscription.subscriptions


async def test_each_settings_of_a_stream_is_answered_and_makes_the_client_a_member(stage: Any) -> None:
    broker = await stage.broker()

    async def report() -> Any:
        for _ in range(3):
            yield service_pb2.TelemetryCommand(settings=consumer()).SerializeToString()
        yield service_pb2.TelemetryCommand(status=definition_pb2.Status(code=definition_pb2.OK)).SerializeToString()

    async def collect() -> int:
        method = "/apache.rocketmq.v2.MessagingService/Telemetry"
        headers = {"x-mq-client-id": "c"}
        stream = stage.net.stream("a:8081", method, report(), timeout_ms=5_000, metadata=headers)
        return len([frame async for frame in stream])

    assert await stage.during(collect()) == 3
    assert broker.clients.table.get("c").subscriptions == {"t": "*"}
    assert [member.client_id for member in broker.membership.members.members("g")] == ["c"]


@pytest.mark.parametrize(("language", "polls_left"), [("JAVA", 0), ("RUST", 1)])
async def test_a_client_that_ends_its_stream_has_its_polls_answered_at_once(
    stage: Any, language: str, polls_left: int
) -> None:
    """It leaves, and most SDKs wait for their polls first. Streams of Rust are short by design."""
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t"))
    over = asyncio.Event()

    async def requests() -> AsyncIterator[bytes]:
        yield service_pb2.TelemetryCommand(settings=consumer()).SerializeToString()
        await over.wait()

    headers = {"x-mq-client-id": "c", "x-mq-language": language}
    method = "/apache.rocketmq.v2.MessagingService/Telemetry"
    frames = stage.net.stream("a:8081", method, requests(), timeout_ms=None, metadata=headers)
    await stage.during(anext(frames))
    asked = receive_request("g", "t", batch_size=1, auto_renew=True)
    poll = asyncio.ensure_future(
        stage.frames("ReceiveMessage", asked, service_pb2.ReceiveMessageResponse, language=language)
    )
    await stage.until(lambda: len(broker.long_polls.table) == 1)
    started = stage.clock.monotonic_ms()
    over.set()
    with pytest.raises(StopAsyncIteration):
        await stage.during(anext(frames))
    await stage.during(stage.clock.sleep_ms(100))
    assert len(broker.long_polls.table) == polls_left
    await stage.during(poll)
    assert (stage.clock.monotonic_ms() - started < 200) is (polls_left == 0)


async def test_streams_behind_the_goodbye_are_answered_and_ended_and_make_no_member(stage: Any) -> None:
    """Java and Node.js open a broken stream again although the client was closed in between. Java waits for its end."""
    broker = await stage.broker()

    def members() -> list[str]:
        return [member.client_id for member in broker.membership.members.members("g")]

    first = opened(stage)
    await stage.during(anext(first))
    assert members() == ["c"]
    goodbye = service_pb2.NotifyClientTerminationRequest()
    await stage.ask("NotifyClientTermination", goodbye, service_pb2.NotifyClientTerminationResponse)
    for _ in range(2):
        late = opened(stage)
        command = service_pb2.TelemetryCommand.FromString(await stage.during(anext(late)))
        assert command.status.code == definition_pb2.OK
        with pytest.raises(StopAsyncIteration):
            await stage.during(anext(late))
        assert broker.clients.table.get("c") is None
        assert members() == []
    # Another client that was given the same id calls, and opens its stream again.
    beat = service_pb2.HeartbeatRequest(client_type=PUSH)  # type: ignore[arg-type]  # a number of the enum
    beat.group.name = "g"
    await stage.ask("Heartbeat", beat, service_pb2.HeartbeatResponse)
    again = opened(stage)
    await stage.during(anext(again))
    assert broker.clients.table.get("c").subscriptions == {"t": "*"}
    assert broker.clients.streams.reaches("c")
    assert members() == ["c"]


@pytest.mark.parametrize(("language", "beats", "lives"), [("JAVA", 0, False), ("JAVA", 1, True), ("GO", 0, True)])
async def test_a_stream_of_java_whose_client_calls_nothing_else_is_ended(
    stage: Any, language: str, beats: int, lives: bool
) -> None:
    """Its client was closed while the broker was away: nobody heard the goodbye, and it waits for the stream's end."""
    broker = await stage.broker(client_lost_ms=5_000)
    beat = service_pb2.HeartbeatRequest(client_type=PUSH)  # type: ignore[arg-type]  # a number of the enum
    await stage.ask("Heartbeat", beat, service_pb2.HeartbeatResponse)  # before does not count
    frames = opened(stage, language)
    await stage.during(anext(frames))
    for _ in range(beats):
        await stage.ask("Heartbeat", beat, service_pb2.HeartbeatResponse)
    await stage.during(stage.clock.sleep_ms(4_900))
    assert broker.clients.streams.reaches("c")
    await stage.during(stage.clock.sleep_ms(1_500))
    assert broker.clients.streams.reaches("c") is lives


async def sent(stage: Any, *bodies: bytes) -> None:
    request = service_pb2.SendMessageRequest(messages=[v2_message("t", body.decode(), body) for body in bodies])
    await stage.ask("SendMessage", request, service_pb2.SendMessageResponse)


async def received(stage: Any, client: str = "c", role: str = "") -> list[bytes]:
    request = receive_request("g", "t", queue=-1, poll_ms=0, batch_size=32, auto_renew=True)
    frames = await stage.frames("ReceiveMessage", request, service_pb2.ReceiveMessageResponse, client=client, role=role)
    return [frame.message.body for frame in frames if frame.HasField("message")]


@pytest.mark.parametrize("young", [True, False])
async def test_rb_46_a_new_group_begins_with_its_first_settings_and_reads_a_young_queue_whole(
    stage: Any, young: bool
) -> None:
    """RB-46: an SDK sends them before its start returns, and receives some time later."""
    broker = await stage.broker(default_queues=1, **({} if young else {"young_from_first": False}))
    await sent(stage, b"before")
    stream = opened(stage)
    assert service_pb2.TelemetryCommand.FromString(await stage.during(anext(stream))).HasField("settings")
    assert broker.catalog.groups.get("g") is not None
    await sent(stage, b"between")
    assert await received(stage) == ([b"before", b"between"] if young else [b"between"])
    await stream.aclose()  # type: ignore[attr-defined]  # it is a generator


@pytest.mark.parametrize(("role", "found"), [("", [b"before", b"between"]), ("reader", [b"between"])])
async def test_rb_46_a_receive_before_the_settings_begins_as_they_do_and_one_of_our_own_sdk_does_not(
    stage: Any, role: str, found: list[bytes]
) -> None:
    """RB-46: settings may arrive after the first receive, or never. Our SDK reads from now on."""
    await stage.broker(default_queues=1)
    await sent(stage, b"before")
    seen = await received(stage, role=role)
    await sent(stage, b"between")
    assert seen + await received(stage, role=role) == found


async def test_rb_46_a_queue_that_lost_its_first_message_is_not_young(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await stage.broker(default_queues=1)
    await sent(stage, b"before")
    monkeypatch.setattr(broker.ledger.store, "read_hot", lambda *_, **__: None)  # its first message is on disk only
    stream = opened(stage)
    await stage.during(anext(stream))
    await sent(stage, b"between")
    assert await received(stage) == [b"between"]
    await stream.aclose()  # type: ignore[attr-defined]  # it is a generator


async def test_settings_of_a_topic_that_is_not_granted_begin_nothing(stage: Any) -> None:
    broker = await stage.broker(default_queues=1)
    await sent(stage, b"before")

    async def requests() -> AsyncIterator[bytes]:
        yield service_pb2.TelemetryCommand(settings=consumer()).SerializeToString()

    [rpc] = [one for one in broker.rpcs() if one.method.endswith("/Telemetry")]
    context = RpcContext(rpc.method, [("x-mq-client-id", "c"), ("x-mq-language", "JAVA")], "127.0.0.1:1", None)
    broker.sessions.seen_v2(context, "g", PUSH, ())
    context.refused = frozenset({("topic", "t")})
    async for _ in rpc.handler(requests(), context):
        pass
    assert list(broker.ledger.progress.queues()) == []
    assert broker.membership.members.members("g") == [], "it takes no part in the group's division any more"
    beat = service_pb2.HeartbeatRequest(client_type=definition_pb2.PUSH_CONSUMER)
    beat.group.name = "g"
    await stage.ask("Heartbeat", beat, service_pb2.HeartbeatResponse)
    assert broker.membership.members.members("g") == []


async def test_a_group_that_is_not_granted_is_answered_and_leaves_no_trace(stage: Any) -> None:
    """No group, no member, no client, and nothing is said of the group."""
    broker = await stage.broker()
    await stage.during(broker.catalog.create_group("ordered", ordered=True, max_attempts=4))
    handler = next(rpc.handler for rpc in broker.rpcs() if rpc.method.endswith("/Telemetry"))
    context = RpcContext("m", [("x-mq-client-id", "c"), ("x-mq-language", "JAVA")], "127.0.0.1:1", None)

    async def report() -> Any:
        for group in ("ordered", "new"):
            context.refused = frozenset({("group", group)})
            yield service_pb2.TelemetryCommand(settings=consumer(group=group)).SerializeToString()
        await asyncio.Event().wait()

    answers = handler(report(), context)
    for group in ("ordered", "new"):
        command = service_pb2.TelemetryCommand.FromString(await stage.during(anext(answers)))
        assert command.status.code == definition_pb2.OK
        assert command.settings.subscription.group.name == group
        assert not command.settings.subscription.fifo
        assert command.settings.backoff_policy.max_attempts == 17
    assert broker.clients.table.get("c") is None
    assert [broker.membership.members.members(group) for group in ("ordered", "new")] == [[], []]
    assert broker.catalog.groups.get("new") is None
    await answers.aclose()
    assert len(broker.clients.streams) == 0


async def test_a_producer_is_not_asked_about_half_messages_of_a_topic_that_is_not_granted(stage: Any) -> None:
    broker = await stage.broker()
    handler = next(rpc.handler for rpc in broker.rpcs() if rpc.method.endswith("/Telemetry"))
    context = RpcContext("m", [("x-mq-client-id", "c"), ("x-mq-language", "JAVA")], "127.0.0.1:1", None)
    context.refused = frozenset({("topic", "theirs")})
    publisher = definition_pb2.Settings(client_type=definition_pb2.PRODUCER)
    for name in ("mine", "theirs"):
        publisher.publishing.topics.add().name = name

    async def report() -> Any:
        yield service_pb2.TelemetryCommand(settings=publisher).SerializeToString()
        await asyncio.Event().wait()

    answers = handler(report(), context)
    command = service_pb2.TelemetryCommand.FromString(await stage.during(anext(answers)))
    assert [topic.name for topic in command.settings.publishing.topics] == ["mine", "theirs"]
    assert len(broker.clients.streams.producers("mine")) == 1
    assert broker.clients.streams.producers("theirs") == []
    await answers.aclose()


async def test_a_full_table_of_clients_is_no_reason_to_leave_one_without_settings(stage: Any) -> None:
    broker = await stage.broker(clients_max=1)
    broker.clients.table.seen("other", broker.runtime.now_ms())
    handler = next(rpc.handler for rpc in broker.rpcs() if rpc.method.endswith("/Telemetry"))
    context = RpcContext("m", [("x-mq-client-id", "c")], "127.0.0.1:1", None)

    async def report() -> Any:
        yield service_pb2.TelemetryCommand(settings=consumer()).SerializeToString()

    answers = [frame async for frame in handler(report(), context)]
    assert len(answers) == 1
    await asyncio.sleep(0)


async def test_a_request_that_is_no_command_ends_the_stream_and_says_why(stage: Any) -> None:
    broker = await stage.broker()
    handler = next(rpc.handler for rpc in broker.rpcs() if rpc.method.endswith("/Telemetry"))
    context = RpcContext("m", [("x-mq-client-id", "c")], "127.0.0.1:1", None)

    async def report() -> Any:
        yield service_pb2.TelemetryCommand(settings=consumer()).SerializeToString()
        yield b"\xff\xff"

    answers = handler(report(), context)
    assert await anext(answers)
    with pytest.raises(BadRequest, match="TelemetryCommand"):
        await anext(answers)
    assert len(broker.clients.streams) == 0


async def beat(stage: Any, *, client: str = "c", group: str = "g") -> int:
    request = service_pb2.HeartbeatRequest(client_type=definition_pb2.PUSH_CONSUMER)
    request.group.name = group
    return int((await stage.ask("Heartbeat", request, service_pb2.HeartbeatResponse, client=client)).status.code)


async def end(stage: Any, *, client: str = "c", language: str = "JAVA") -> int:
    request, response = service_pb2.NotifyClientTerminationRequest(), service_pb2.NotifyClientTerminationResponse
    answer = await stage.ask("NotifyClientTermination", request, response, client=client, language=language)
    return int(answer.status.code)


async def test_a_heartbeat_makes_and_keeps_a_member(stage: Any) -> None:
    broker = await stage.broker(client_silence_ms=5_000)
    for _ in range(4):
        assert await beat(stage) == OK
        await stage.clock.advance(4_000)
    client = broker.clients.table.get("c")
    assert (client.group, client.client_type) == ("g", definition_pb2.PUSH_CONSUMER)


async def test_a_client_without_an_id_or_group_is_answered_ok_and_remembered_as_far_as_it_goes(stage: Any) -> None:
    broker = await stage.broker()
    assert await beat(stage, client="") == OK
    assert len(broker.clients.table) == 0
    assert await beat(stage, group="") == OK
    assert broker.clients.table.get("c").group == ""
    assert await end(stage, client="") == OK
    assert await end(stage, client="never seen") == OK


async def test_a_goodbye_ends_the_membership_at_once(stage: Any) -> None:
    broker = await stage.broker()
    await beat(stage)
    await beat(stage, client="other")
    assert await end(stage) == OK
    assert broker.clients.table.get("c") is None
    assert [member.client_id for member in broker.membership.members.members("g")] == ["other"]


async def test_a_full_table_is_told(stage: Any) -> None:
    await stage.broker(clients_max=1)
    assert await beat(stage) == OK
    assert await beat(stage, client="second") == 42900
