"""What a consumer of lite topics says on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from evenq.client.core.lite.events import LiteAction, LiteConnected, LiteEnded, LiteEvent, LiteStart, LiteStartKind
from evenq.client.rpc.lite import RpcLiteCalls
from evenq.client.rpc.messages import decode, encode
from evenq.errors import LiteSubscriptionQuotaExceeded
from evenq.model import Message, ReceivedMessage
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2

OK = v2.Status(code=v2.OK)


class Net:
    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[str, str, bytes]] = []
        self.sent: list[Any] = []

    async def unary(self, address: str, method: str, request: bytes, **_: Any) -> bytes:
        self.calls.append((address, method.rpartition("/")[2], request))
        answer: bytes = self.answers.pop(0).SerializeToString()
        return answer

    async def stream(self, address: str, method: str, requests: AsyncIterator[bytes], **_: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            self.sent.append(service_pb2.TelemetryCommand.FromString(request))
        for answer in self.answers:
            yield answer.SerializeToString()

    async def close(self) -> None:
        pass


def calls(net: Net, *, push: bool = False) -> RpcLiteCalls:
    return RpcLiteCalls(net, endpoint="ap:1", client_id="c", timeout_ms=3_000, push=push)  # type: ignore[arg-type]  # a part of Net


def received() -> ReceivedMessage:
    wire = v2.Message.FromString(
        encode(Message(topic="p", body=b"b", lite_topic="x"), message_id="id", born_ms=1, born_host="h")
    )
    assert wire.system_properties.message_type == v2.LITE
    wire.system_properties.receipt_handle = "handle"
    return decode(wire, broker_name="a")


@pytest.mark.parametrize(
    ("start", "field", "value"),
    [
        (LiteStart(LiteStartKind.FIRST), "policy", v2.OffsetOption.MIN),
        (LiteStart(LiteStartKind.LAST), "policy", v2.OffsetOption.MAX),
        (LiteStart(LiteStartKind.OFFSET, 0), "offset", 0),
        (LiteStart(LiteStartKind.TAIL, 3), "tail_n", 3),
        (LiteStart(LiteStartKind.TIMESTAMP, 5), "timestamp", 5),
    ],
)
def test_a_start_is_an_offset_option(start: LiteStart, field: str, value: int) -> None:
    net = Net(service_pb2.SyncLiteSubscriptionResponse(status=OK))
    asyncio.run(calls(net).sync_lite(LiteAction.ADD, "p", "g", ["x"], start=start))
    [(address, method, request)] = net.calls
    asked = service_pb2.SyncLiteSubscriptionRequest.FromString(request)
    assert (address, method, asked.action) == ("ap:1", "SyncLiteSubscription", v2.PARTIAL_ADD)
    assert (asked.topic.name, asked.group.name, list(asked.lite_topic_set)) == ("p", "g", ["x"])
    assert asked.offset_option.WhichOneof("offset_type") == field
    assert getattr(asked.offset_option, field) == value


def test_a_set_without_a_start_may_be_told_to_a_named_broker() -> None:
    net = Net(service_pb2.SyncLiteSubscriptionResponse(status=OK))
    asyncio.run(calls(net).sync_lite(LiteAction.ALL, "p", "g", [], address="b:1"))
    [(address, _, request)] = net.calls
    asked = service_pb2.SyncLiteSubscriptionRequest.FromString(request)
    assert (address, asked.action, asked.HasField("offset_option")) == ("b:1", v2.COMPLETE_ADD, False)


def test_a_quota_is_an_error() -> None:
    status = v2.Status(code=v2.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, message="the limit is 2")
    net = Net(service_pb2.SyncLiteSubscriptionResponse(status=status))
    with pytest.raises(LiteSubscriptionQuotaExceeded, match="the limit is 2"):
        asyncio.run(calls(net).sync_lite(LiteAction.ADD, "p", "g", ["x"]))


@pytest.mark.parametrize(("push", "kind"), [(True, v2.LITE_PUSH_CONSUMER), (False, v2.LITE_SIMPLE_CONSUMER)])
def test_the_line_says_what_the_client_is_and_hears_what_ended(push: bool, kind: int) -> None:
    ended = service_pb2.TelemetryCommand()
    ended.notify_unsubscribe_lite_command.lite_topic = "x"
    settings = service_pb2.TelemetryCommand(status=OK)
    settings.settings.subscription.lite_subscription_quota = 5
    net = Net(settings, ended, settings)

    async def tellings() -> AsyncIterator[None]:
        yield None

    async def hear() -> list[LiteEvent]:
        return [event async for event in calls(net, push=push).lite_events("b:1", "g", "p", tellings())]

    assert asyncio.run(hear()) == [LiteConnected(), LiteEnded("x")]
    [result] = net.sent
    assert result.settings.client_type == kind
    assert result.settings.subscription.group.name == "g"
    assert [entry.topic.name for entry in result.settings.subscription.subscriptions] == ["p"]


async def test_whatever_settles_a_message_repeats_its_lite_topic() -> None:
    """Wire contract 5.6."""
    ack = service_pb2.AckMessageResponse(status=OK)
    change = service_pb2.ChangeInvisibleDurationResponse(status=OK, receipt_handle="next")
    net = Net(ack, change, change, service_pb2.ForwardMessageToDeadLetterQueueResponse(status=OK))
    message = received()
    assert message.lite_topic == "x"
    wire = calls(net)
    await wire.ack("a:1", "g", message)
    assert await wire.change_invisible("a:1", "g", message, 5, suspend=True) == "next"
    await wire.change_invisible("a:1", "g", message, 5)
    await wire.bury("a:1", "g", message)
    requests = [request for _, _, request in net.calls]
    assert service_pb2.AckMessageRequest.FromString(requests[0]).entries[0].lite_topic == "x"
    suspended, changed = (service_pb2.ChangeInvisibleDurationRequest.FromString(one) for one in requests[1:3])
    assert (suspended.lite_topic, suspended.suspend, changed.HasField("suspend")) == ("x", True, False)
    assert service_pb2.ForwardMessageToDeadLetterQueueRequest.FromString(requests[3]).lite_topic == "x"
