"""Transactions on the wire, with calls of `apache.rocketmq.v2` alone (wire contract 3.7, 3.13, 4.5)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable

from evenq.client.core.transactions.half_messages import Check, HalfMessage
from evenq.client.rpc.calls import Calls
from evenq.client.rpc.messages import decode
from evenq.client.rpc.transport import V2
from evenq.errors import BadRequest, InternalError
from evenq.model import MessageQueue, TransactionResolution
from evenq.runtime.net import close_frames
from evenq.runtime.version import __version__
from evenq.wire.convert import set_duration_ms
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2

_RESOLUTIONS = {
    TransactionResolution.COMMIT: v2.COMMIT,
    TransactionResolution.ROLLBACK: v2.ROLLBACK,
    TransactionResolution.UNKNOWN: v2.TRANSACTION_RESOLUTION_UNSPECIFIED,
}


class RpcTransactionCalls(Calls):
    """Calls of a producer of transactions."""

    async def send_half(self, address: str, queue: MessageQueue, message_id: str, encoded: bytes) -> HalfMessage:
        """Stores an encoded message as a half message."""
        request = service_pb2.SendMessageRequest()
        message = request.messages.add()
        message.ParseFromString(encoded)
        message.system_properties.message_type = v2.TRANSACTION
        message.system_properties.queue_id = max(0, queue.queue_id)
        data = await self.unary(address, V2 + "SendMessage", request.SerializeToString())
        response = service_pb2.SendMessageResponse.FromString(data)
        check(response.status)
        if len(response.entries) != 1 or not response.entries[0].transaction_id:
            raise InternalError(f"{address} stored a transaction message and returned no transaction id")
        check(response.entries[0].status)
        return HalfMessage(queue.topic, message_id, response.entries[0].transaction_id, address)

    async def end_transaction(self, half: HalfMessage, resolution: TransactionResolution, *, checked: bool) -> None:
        """Ends a transaction at the broker that keeps it, or that sent the check. Raises InvalidTransactionId."""
        request = _ending(half, resolution, checked=checked)
        _ended(await self.unary(half.address, V2 + "EndTransaction", request))

    async def end_transaction_anywhere(self, half: HalfMessage, resolution: TransactionResolution) -> None:
        """Ends a transaction through the access point, which forwards the decision."""
        _ended(await self.at_access_point(V2 + "EndTransaction", _ending(half, resolution, checked=False)))

    async def checks(self, address: str, tellings: AsyncIterator[Iterable[str]]) -> AsyncGenerator[Check, None]:
        """Opens the telemetry stream of a producer; yields the broker's checks of open transactions. Each of `tellings`
        names the topics of this producer.
        """
        frames = self.stream(address, V2 + "Telemetry", self._settings(tellings), timeout_ms=None)
        try:
            async for frame in frames:
                command = service_pb2.TelemetryCommand.FromString(frame)
                if command.HasField("recover_orphaned_transaction_command"):
                    recovery = command.recover_orphaned_transaction_command
                    message = decode(recovery.message, broker_name="")
                    half = HalfMessage(message.topic, message.message_id, recovery.transaction_id, address)
                    yield Check(half, message)
        finally:
            await close_frames(frames)

    async def _settings(self, tellings: AsyncIterator[Iterable[str]]) -> AsyncIterator[bytes]:
        async for topics in tellings:
            command = service_pb2.TelemetryCommand()
            settings = command.settings
            settings.client_type = v2.PRODUCER
            settings.access_point.CopyFrom(self.endpoints())
            settings.user_agent.language, settings.user_agent.version = v2.PYTHON, __version__
            set_duration_ms(settings.request_timeout, self.timeout_ms)
            settings.publishing.SetInParent()
            for topic in topics:
                settings.publishing.topics.add().name = topic
            yield command.SerializeToString()


GIVEN_UP_MARKS = ("REAL_TOPIC", "TRANSACTION_CHECK_TIMES")
"""Properties that a broker adds when it gives a transaction up."""


def half_message_of(given_up: v2.Message) -> v2.Message:
    """Returns the half message, with its first id, of a transaction that was given up. Raises BadRequest for a message
    that is not one.
    """
    system = given_up.system_properties
    topic = system.dead_letter_queue.topic or given_up.user_properties.get("REAL_TOPIC", "")
    if not topic or not system.message_id:
        raise BadRequest(
            "this message names no topic that it was sent to, so it is not a transaction that was given up"
        )
    again = v2.Message(body=given_up.body)
    again.topic.name = topic
    again.user_properties.update(
        {name: value for name, value in given_up.user_properties.items() if name not in GIVEN_UP_MARKS}
    )
    kept = again.system_properties
    kept.message_id = system.message_id
    kept.message_type = v2.TRANSACTION
    kept.keys.extend(system.keys)
    kept.body_encoding = system.body_encoding
    kept.born_timestamp.CopyFrom(system.born_timestamp)
    kept.born_host = system.born_host
    for name in ("tag", "trace_context", "body_digest"):
        if system.HasField(name):
            kept.MergeFrom(v2.SystemProperties(**{name: getattr(system, name)}))
    return again


def _ending(half: HalfMessage, resolution: TransactionResolution, *, checked: bool) -> bytes:
    request = service_pb2.EndTransactionRequest(
        message_id=half.message_id,
        transaction_id=half.transaction_id,
        resolution=_RESOLUTIONS[resolution],
        source=v2.SOURCE_SERVER_CHECK if checked else v2.SOURCE_CLIENT,
    )
    request.topic.name = half.topic
    return request.SerializeToString()


def _ended(data: bytes) -> None:
    check(service_pb2.EndTransactionResponse.FromString(data).status)
