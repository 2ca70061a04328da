"""Statement 46 of the conformance list: Go's clients that are no LITE ones break when they are notified that a lite subscription ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from evenq.model import MessageType
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as d
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2 as s

OK = 20000
LITE = {"LITE_PUSH_CONSUMER", "LITE_SIMPLE_CONSUMER"}


def notices(commands: list[Any]) -> list[str]:
    reported = [one for one in commands if one.HasField("notify_unsubscribe_lite_command")]
    return [one.notify_unsubscribe_lite_command.lite_topic for one in reported]


async def _settings(kind: int) -> AsyncIterator[bytes]:
    command = s.TelemetryCommand()
    command.settings.client_type = kind  # type: ignore[assignment]  # a number of the enum
    if kind == d.PRODUCER:
        command.settings.publishing.topics.add().name = "transaction"
    else:
        command.settings.subscription.group.name = "g"
    yield command.SerializeToString()
    await asyncio.Event().wait()


async def test_46_no_client_but_lite_ones_is_told_of_an_ended_lite_subscription(stage: Any) -> None:
    """Whatever ends it: its client, another one, silence, a goodbye, the lite topic's or the topic's end."""
    broker = await stage.broker(lite_topic_idle_ms=1_000, lite_subscription_ms=60_000, transaction_first_check_ms=1_000)
    for name, kind in (("p", MessageType.LITE), ("transaction", MessageType.TRANSACTION)):
        await stage.during(broker.catalog.create_topic(name, message_type=kind))
    events: dict[str, list[Any]] = {}

    async def listen(name: str, kind: int) -> None:
        headers = {"x-mq-client-id": name, "x-mq-language": "GO"}
        method = "/apache.rocketmq.v2.MessagingService/Telemetry"
        stream = stage.net.stream("a:8081", method, _settings(kind), timeout_ms=None, metadata=headers)
        async for frame in stream:
            events.setdefault(name, []).append(s.TelemetryCommand.FromString(frame))

    kinds = {name: number for name, number in d.ClientType.items() if number}
    listening = [asyncio.ensure_future(listen(name, number)) for name, number in kinds.items()]
    await stage.until(lambda: len(events) == len(kinds))

    async def sync(client: str, action: int, *names: str) -> None:
        request = s.SyncLiteSubscriptionRequest(lite_topic_set=names)
        request.action = action  # type: ignore[assignment]  # a number of the enum
        request.topic.name, request.group.name = "p", "g"
        answer = await stage.ask("SyncLiteSubscription", request, s.SyncLiteSubscriptionResponse, client=client)
        assert answer.status.code == OK

    half = s.SendMessageRequest()
    half.messages.add(body=b"x").topic.name = "transaction"
    half.messages[0].system_properties.message_id = "id"
    half.messages[0].system_properties.message_type = d.TRANSACTION
    await stage.ask("SendMessage", half, s.SendMessageResponse, client="PRODUCER")
    await stage.until(lambda: len(events["PRODUCER"]) > 1, limit_ms=60_000)
    assert events["PRODUCER"][-1].HasField("recover_orphaned_transaction_command"), "commands do arrive"
    for turn in range(2):
        for client in kinds:
            await sync(client, 0, "x", "y", "z")
            await sync(client, 1, "x")
            await sync(client, 2, "y")
        await stage.clock.advance((turn + 1) * 100_000)  # subscriptions and lite topics are over
    for client in kinds:
        await sync(client, 0, "x")
    bye = s.NotifyClientTerminationRequest()
    bye.group.name = "g"
    gone = "LITE_PUSH_CONSUMER"
    await stage.ask("NotifyClientTermination", bye, s.NotifyClientTerminationResponse, client=gone)
    assert not any(notices(commands) for commands in events.values()), (
        "a client that knows that it is over is not notified"
    )
    await stage.during(broker.catalog.delete_topic("p"))
    await stage.until(lambda: notices(events["LITE_SIMPLE_CONSUMER"]) == ["x"])
    assert {name for name, commands in events.items() if notices(commands)} == {"LITE_SIMPLE_CONSUMER"}, (
        "it was subscribed; the other lite client had said goodbye"
    )
    assert len(broker.lite.subscriptions) == 0
    for task in listening:
        task.cancel()
    await asyncio.gather(*listening, return_exceptions=True)


async def listened(stage: Any) -> tuple[list[Any], asyncio.Task[None]]:
    """What a lite consumer gets on its stream, after the first event; and the task to cancel."""
    events: list[Any] = []

    async def listen() -> None:
        headers = {"x-mq-client-id": "c", "x-mq-language": "JAVA"}
        method = "/apache.rocketmq.v2.MessagingService/Telemetry"
        requests = _settings(d.LITE_PUSH_CONSUMER)
        async for frame in stage.net.stream("a:8081", method, requests, timeout_ms=None, metadata=headers):
            events.append(s.TelemetryCommand.FromString(frame))  # noqa: PERF401  one by one, as they come

    listening = asyncio.ensure_future(listen())
    await stage.until(lambda: events)
    return events, listening


async def test_a_client_with_very_many_lite_topics_is_told_of_each(stage: Any) -> None:
    """More of them than a stream's outbox takes at once."""
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("p", message_type=MessageType.LITE))
    events, listening = await listened(stage)
    names = [f"n{number}" for number in range(1_000)]
    request = s.SyncLiteSubscriptionRequest(lite_topic_set=names, action=d.COMPLETE_ADD)
    request.topic.name, request.group.name = "p", "g"
    answer = await stage.ask("SyncLiteSubscription", request, s.SyncLiteSubscriptionResponse)
    assert answer.status.code == OK
    await stage.during(broker.catalog.delete_topic("p"))
    await stage.until(lambda: len(notices(events)) == len(names))
    assert notices(events) == names
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)


async def test_46_a_client_that_repeats_a_set_of_a_deleted_topic_is_told_on_its_stream(stage: Any) -> None:
    """Its stream was not open when the topic was deleted; official SDKs take an error of a repeated set for a hiccup."""
    await stage.broker()
    events, listening = await listened(stage)
    request = s.SyncLiteSubscriptionRequest(lite_topic_set=["x", "y"], action=d.COMPLETE_ADD)
    request.topic.name, request.group.name = "deleted", "g"
    answer = await stage.ask("SyncLiteSubscription", request, s.SyncLiteSubscriptionResponse)
    assert answer.status.code == d.TOPIC_NOT_FOUND
    await stage.until(lambda: notices(events) == ["x", "y"])
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
