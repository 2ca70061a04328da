"""Receive, acknowledge, hide: the v2 calls of a simple consumer (wire contract 3.5 to 3.11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenq.client.rpc.calls import DATA, Calls
from evenq.client.rpc.messages import decode, repeated
from evenq.client.rpc.translation import model_queue
from evenq.client.rpc.transport import V2
from evenq.errors import MessageNotFound
from evenq.model import FilterExpression, FilterType, MessageQueue, QueueOffset, ReceivedMessage
from evenq.runtime.net import Net
from evenq.wire.convert import set_duration_ms
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import data_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

MESSAGE_NOT_FOUND = MessageNotFound.code


class RpcSimpleCalls(Calls):
    """Calls of a simple consumer."""

    client_type: v2.ClientType.ValueType = v2.SIMPLE_CONSUMER

    def __init__(self, net: Net, *, endpoint: str, client_id: str, timeout_ms: int = 3_000) -> None:
        super().__init__(net, endpoint=endpoint, client_id=client_id, timeout_ms=timeout_ms, reads=True)

    async def receive(
        self,
        address: str,
        group: str,
        queue: MessageQueue,
        *,
        expression: FilterExpression,
        batch_max: int,
        invisible_ms: int,
        wait_ms: int,
    ) -> list[ReceivedMessage]:
        request = service_pb2.ReceiveMessageRequest(batch_size=batch_max, auto_renew=False)
        request.group.name = group
        wire = request.message_queue
        wire.topic.name, wire.id, wire.broker.name = queue.topic, queue.queue_id, queue.broker_name
        wire.permission = v2.READ_WRITE
        request.filter_expression.type = v2.SQL if expression.type is FilterType.SQL else v2.TAG
        request.filter_expression.expression = expression.expression
        set_duration_ms(request.invisible_duration, invisible_ms)
        set_duration_ms(request.long_polling_timeout, wait_ms)
        frames: AsyncIterator[bytes] = self.stream(
            address,
            V2 + "ReceiveMessage",
            request.SerializeToString(),
            timeout_ms=wait_ms + self.timeout_ms,
        )
        messages: list[ReceivedMessage] = []
        async for frame in frames:
            response = service_pb2.ReceiveMessageResponse.FromString(frame)
            match response.WhichOneof("content"):
                case "status" if response.status.code != MESSAGE_NOT_FOUND:
                    check(response.status)
                case "message":
                    messages.append(decode(response.message, broker_name=queue.broker_name))
        return messages

    async def ack(self, address: str, group: str, *messages: ReceivedMessage) -> None:
        """Acknowledges 1 to 4,096 messages of one topic. Raises the first error; the other messages are finished."""
        request = service_pb2.AckMessageRequest()
        request.group.name, request.topic.name = group, messages[0].topic
        for message in messages:
            request.entries.add(
                message_id=message.message_id, receipt_handle=message.receipt_handle, lite_topic=message.lite_topic
            )
        data = await self.unary(address, V2 + "AckMessage", request.SerializeToString())
        response = service_pb2.AckMessageResponse.FromString(data)
        for entry in response.entries:
            check(entry.status)
        check(response.status)

    async def transact(
        self, address: str, group: str, messages: Sequence[ReceivedMessage], encoded: Sequence[bytes]
    ) -> list[tuple[MessageQueue, QueueOffset]]:
        """Stores encoded messages and acknowledges others, all or none. Returns their places, in the order of
        `encoded`.
        """
        head = data_pb2.TransactRequest(group=group)
        for message in messages:
            head.acks.add(topic=message.queue.topic, receipt_handle=message.receipt_handle)
        data = await self.unary(address, DATA + "Transact", head.SerializeToString() + repeated(3, encoded))
        response = data_pb2.TransactResponse.FromString(data)
        check(response.status)
        return [(model_queue(one.queue), QueueOffset(one.queue_offset)) for one in response.messages]

    async def change_invisible(
        self, address: str, group: str, message: ReceivedMessage, invisible_ms: int, *, suspend: bool = False
    ) -> str:
        """Hides a message for `invisible_ms` from now; returns its new handle. `suspend`: not counted as an attempt."""
        request = service_pb2.ChangeInvisibleDurationRequest(
            receipt_handle=message.receipt_handle,
            message_id=message.message_id,
            lite_topic=message.lite_topic,
            suspend=suspend or None,
        )
        request.group.name, request.topic.name = group, message.topic
        set_duration_ms(request.invisible_duration, invisible_ms)
        data = await self.unary(address, V2 + "ChangeInvisibleDuration", request.SerializeToString())
        response = service_pb2.ChangeInvisibleDurationResponse.FromString(data)
        check(response.status)
        return response.receipt_handle or message.receipt_handle

    async def heartbeat(self, address: str, group: str) -> None:
        request = service_pb2.HeartbeatRequest(client_type=self.client_type)
        request.group.name = group
        data = await self.unary(address, V2 + "Heartbeat", request.SerializeToString())
        check(service_pb2.HeartbeatResponse.FromString(data).status)

    async def terminate(self, address: str, group: str) -> None:
        request = service_pb2.NotifyClientTerminationRequest()
        request.group.name = group
        data = await self.unary(address, V2 + "NotifyClientTermination", request.SerializeToString())
        check(service_pb2.NotifyClientTerminationResponse.FromString(data).status)
