"""The messages that handlers receive, and the parsers that make them from deliveries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faststream.message import StreamMessage, decode_message

from evenq.client.core.sending.requests import REPLY_TOPIC
from evenq.faststream.deliveries import EvenqDelivery
from evenq.model import MessageQueue, QueueOffset, ReceivedMessage

if TYPE_CHECKING:
    from faststream._internal.basic_types import DecodedMessage

CONTENT_TYPE, CORRELATION_ID, REPLY_TO = "content-type", "correlation_id", "reply_to"
"""Properties of a message that carry FastStream's own headers, by the names that its other brokers use."""


class _Settling(StreamMessage[Any]):
    """The part that both messages share. `raw_message` is what evenq's SDK received."""

    def __init__(self, delivery: EvenqDelivery, **fields: Any) -> None:
        super().__init__(**fields)
        self.delivery = delivery
        self.group = delivery.group
        """The consumer group of the subscriber."""

    async def ack(self) -> None:
        """Marks the message as consumed. Only the first outcome of a message counts."""
        await self.delivery.ack()
        await super().ack()

    async def nack(self, delay_level: int = 0) -> None:
        """Has the message redelivered; see `EvenqDelivery.nack`."""
        await self.delivery.nack(delay_level)
        await super().nack()

    async def reject(self) -> None:
        """Has the message moved to the dead-letter topic, without further attempts."""
        await self.delivery.reject()
        await super().reject()


class EvenqMessage(_Settling):
    """One message. `headers` are its properties."""

    raw_message: ReceivedMessage

    @property
    def topic(self) -> str:
        return self.raw_message.topic

    @property
    def tag(self) -> str | None:
        return self.raw_message.tag

    @property
    def keys(self) -> tuple[str, ...]:
        return self.raw_message.keys

    @property
    def message_group(self) -> str | None:
        """The ordering key."""
        return self.raw_message.message_group

    @property
    def attempt(self) -> int:
        """1 for the first delivery to the group."""
        return self.raw_message.delivery_attempt

    @property
    def queue(self) -> MessageQueue:
        return self.raw_message.queue

    @property
    def queue_offset(self) -> QueueOffset:
        return self.raw_message.queue_offset

    @property
    def born_ms(self) -> int:
        """Ms since the epoch, by the producer's clock."""
        return self.raw_message.born_ms


class EvenqBatchMessage(_Settling):
    """The messages of one call of a batch subscriber: all of one queue, in offset order."""

    raw_message: list[ReceivedMessage]


async def parse_message(delivery: EvenqDelivery) -> EvenqMessage:
    """Returns the message of a delivery of one."""
    raw = delivery.message
    return EvenqMessage(delivery, raw_message=raw, body=raw.body, **_envelope(raw))


async def decode(message: StreamMessage[Any]) -> DecodedMessage:
    """Returns the decoded body: JSON or text by its content type; without one JSON if it is, otherwise the bytes."""
    return decode_message(message)


async def parse_batch(delivery: EvenqDelivery) -> EvenqBatchMessage:
    """Returns the message of a batch; headers and ids are those of the first one."""
    return EvenqBatchMessage(
        delivery,
        raw_message=delivery.messages,
        body=[message.body for message in delivery.messages],
        batch_headers=[dict(message.properties) for message in delivery.messages],
        **{**_envelope(delivery.message), "reply_to": ""},  # its requests may have different senders
    )


async def decode_batch(message: StreamMessage[Any]) -> list[DecodedMessage]:
    """Returns the decoded bodies. FastStream recognises a batch subscriber by the name of this function."""
    delivery = message.delivery if isinstance(message, EvenqBatchMessage) else message.raw_message
    singles = (EvenqDelivery([one], group=delivery.group) for one in delivery.messages)
    return [decode_message(await parse_message(single)) for single in singles]


def _envelope(raw: ReceivedMessage) -> dict[str, Any]:
    headers = dict(raw.properties)
    return {
        "headers": headers,
        "reply_to": headers.get(REPLY_TOPIC) or headers.get(REPLY_TO, ""),
        "content_type": headers.get(CONTENT_TYPE),
        "correlation_id": headers.get(CORRELATION_ID),
        "message_id": raw.message_id,
    }
