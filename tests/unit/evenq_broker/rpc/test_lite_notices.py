"""Statement 46 of the conformance list: Go's clients that are no LITE ones break when told that a lite subscription ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from evenq.model import MessageType
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as d
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2 as s

Run = Callable[[Callable[[Any], Awaitable[None]]], None]
OK = 20000
LITE = {"LITE_PUSH_CONSUMER", "LITE_SIMPLE_CONSUMER"}


async def _settings(kind: int) -> AsyncIterator[bytes]:
    command = s.TelemetryCommand()
    command.settings.client_type = kind  # type: ignore[assignment]  # a number of the enum
    if kind == d.PRODUCER:
        command.settings.publishing.topics.add().name = "transaction"
    else:
        command.settings.subscription.group.name = "g"
    yield command.SerializeToString()
    await asyncio.Event().wait()


def test_46_no_client_but_lite_ones_is_told_of_an_ended_lite_subscription(run: Run) -> None:
    """Whatever ends it: its client, another one, silence, a goodbye, the lite topic's or the topic's end."""

    async def story(stage: Any) -> None:
        broker = await stage.broker(
            lite_topic_idle_ms=1_000, lite_subscription_ms=60_000, transaction_first_check_ms=1_000
        )
        for name, kind in (("p", MessageType.LITE), ("transaction", MessageType.TRANSACTION)):
            await stage.passing(broker.create_topic(name, message_type=kind))
        told: dict[str, list[Any]] = {}

        async def listen(name: str, kind: int) -> None:
            headers = {"x-mq-client-id": name, "x-mq-language": "GO"}
            method = "/apache.rocketmq.v2.MessagingService/Telemetry"
            stream = stage.net.stream("a:8081", method, _settings(kind), timeout_ms=None, metadata=headers)
            async for frame in stream:
                told.setdefault(name, []).append(s.TelemetryCommand.FromString(frame))

        kinds = {name: number for name, number in d.ClientType.items() if number}
        listening = [asyncio.ensure_future(listen(name, number)) for name, number in kinds.items()]
        await stage.until(lambda: len(told) == len(kinds))

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
        await stage.until(lambda: len(told["PRODUCER"]) > 1, limit_ms=60_000)
        assert told["PRODUCER"][-1].HasField("recover_orphaned_transaction_command"), "commands do arrive"
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
        await stage.passing(broker.delete_topic("p"))
        for name, commands in told.items():
            notices = [one for one in commands if one.HasField("notify_unsubscribe_lite_command")]
            assert name in LITE or not notices
        for task in listening:
            task.cancel()
        await asyncio.gather(*listening, return_exceptions=True)

    run(story)
