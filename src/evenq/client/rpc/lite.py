"""Calls of a consumer of lite topics: subscriptions, telemetry stream, dead letters (wire contract 3.12, 3.14, 4).

Invariant: several names are sent as a whole set. The official Python SDK sends one name in a PARTIAL_ADD as its
letters, so a broker reads several short names there as one name.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from evenq.client.core.lite.events import LiteAction, LiteConnected, LiteEnded, LiteEvent, LiteStart, LiteStartKind
from evenq.client.rpc.receiving import RpcSimpleCalls
from evenq.client.rpc.transport import V2
from evenq.model import ReceivedMessage
from evenq.runtime.net import Net, close_frames
from evenq.runtime.version import __version__
from evenq.wire.convert import set_duration_ms
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2

_ACTIONS = {
    LiteAction.ADD: v2.PARTIAL_ADD,
    LiteAction.REMOVE: v2.PARTIAL_REMOVE,
    LiteAction.ALL: v2.COMPLETE_ADD,
}


class RpcLiteCalls(RpcSimpleCalls):
    """Calls of a consumer of lite topics."""

    def __init__(self, net: Net, *, endpoint: str, client_id: str, timeout_ms: int, push: bool) -> None:
        super().__init__(net, endpoint=endpoint, client_id=client_id, timeout_ms=timeout_ms)
        self.client_type = v2.LITE_PUSH_CONSUMER if push else v2.LITE_SIMPLE_CONSUMER

    async def sync_lite(
        self,
        action: LiteAction,
        topic: str,
        group: str,
        names: Sequence[str],
        *,
        start: LiteStart | None = None,
        address: str = "",
    ) -> None:
        """Sends subscriptions to the access point or to `address`. Raises LiteSubscriptionQuotaExceeded,
        LiteTopicQuotaExceeded, IllegalLiteTopic, IllegalTopic.
        """
        request = service_pb2.SyncLiteSubscriptionRequest(action=_ACTIONS[action], lite_topic_set=names)
        request.topic.name, request.group.name = topic, group
        if start is not None:
            _fill(request.offset_option, start)
        body, method = request.SerializeToString(), V2 + "SyncLiteSubscription"
        data = await (self.unary(address, method, body) if address else self.at_access_point(method, body))
        check(service_pb2.SyncLiteSubscriptionResponse.FromString(data).status)

    async def lite_events(
        self, address: str, group: str, topic: str, tellings: AsyncIterator[None]
    ) -> AsyncGenerator[LiteEvent, None]:
        """Opens a stream to a broker; each request sends the settings again."""
        frames = self.stream(address, V2 + "Telemetry", self._settings(group, topic, tellings), timeout_ms=None)
        opened = False
        try:
            async for frame in frames:
                command = service_pb2.TelemetryCommand.FromString(frame)
                if command.HasField("notify_unsubscribe_lite_command"):
                    yield LiteEnded(command.notify_unsubscribe_lite_command.lite_topic)
                elif command.HasField("settings") and not opened:
                    opened = True
                    yield LiteConnected()
        finally:
            await close_frames(frames)

    async def bury(self, address: str, group: str, message: ReceivedMessage) -> None:
        """Moves a message to the dead-letter topic."""
        request = service_pb2.ForwardMessageToDeadLetterQueueRequest(
            receipt_handle=message.receipt_handle,
            message_id=message.message_id,
            delivery_attempt=message.delivery_attempt,
            max_delivery_attempts=message.delivery_attempt,
            lite_topic=message.lite_topic,
        )
        request.group.name, request.topic.name = group, message.topic
        data = await self.unary(address, V2 + "ForwardMessageToDeadLetterQueue", request.SerializeToString())
        check(service_pb2.ForwardMessageToDeadLetterQueueResponse.FromString(data).status)

    async def _settings(self, group: str, topic: str, tellings: AsyncIterator[None]) -> AsyncIterator[bytes]:
        async for _ in tellings:
            command = service_pb2.TelemetryCommand()
            settings = command.settings
            settings.client_type = self.client_type
            settings.access_point.CopyFrom(self.endpoints())
            settings.user_agent.language, settings.user_agent.version = v2.PYTHON, __version__
            set_duration_ms(settings.request_timeout, self.timeout_ms)
            settings.subscription.group.name = group
            entry = settings.subscription.subscriptions.add()
            entry.topic.name, entry.expression.type, entry.expression.expression = topic, v2.TAG, "*"
            yield command.SerializeToString()


def _fill(wire: v2.OffsetOption, start: LiteStart) -> None:
    match start.kind:
        case LiteStartKind.FIRST:
            wire.policy = v2.OffsetOption.MIN
        case LiteStartKind.LAST:
            wire.policy = v2.OffsetOption.MAX
        case LiteStartKind.OFFSET:
            wire.offset = start.value
        case LiteStartKind.TAIL:
            wire.tail_n = start.value
        case LiteStartKind.TIMESTAMP:
            wire.timestamp = start.value
