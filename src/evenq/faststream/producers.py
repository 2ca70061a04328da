"""The producer behind `broker.publish`: it encodes bodies and sends them with the asyncio producer of evenq."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import IncorrectState

from evenq.aio import Producer
from evenq.client.loops.sending.outgoing import SendResult
from evenq.faststream.commands import EvenqPublishCommand
from evenq.faststream.deliveries import EvenqDelivery
from evenq.faststream.messages import decode, parse_message
from evenq.model import Message

if TYPE_CHECKING:
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import CustomCallable

JSON = "application/json"
EMPTY_BODIES = {None: b"null", "": b'""'}
"""A broker refuses an empty body, and FastStream's encoding of these two values is one."""


class EvenqProducer(ProducerProto[EvenqPublishCommand]):
    """Sends commands. Usable between `connect` and `disconnect`."""

    def __init__(self, *, parser: CustomCallable | None, decoder: CustomCallable | None) -> None:
        self._parser = ParserComposition(parser, parse_message)
        self._decoder = ParserComposition(decoder, decode)
        self.codec: CodecProto = DefaultCodec()
        self.serializer: SerializerProto | None = None
        self._producer: Producer | None = None

    def connect(self, producer: Producer, serializer: SerializerProto | None, codec: CodecProto | None) -> None:
        self._producer = producer
        self.serializer = serializer
        self.codec = codec or DefaultCodec()

    def disconnect(self) -> None:
        self._producer = None

    async def publish(self, cmd: EvenqPublishCommand) -> SendResult:
        """Returns when the message is stored. Raises as `evenq.aio.Producer.send`."""
        return await self._connected().send(await self.encoded(cmd))

    async def publish_batch(self, cmd: EvenqPublishCommand) -> list[SendResult]:
        """Returns when all messages are stored. Raises as `evenq.aio.Producer.send_batch`."""
        producer = self._connected()
        return await producer.send_batch([await self.encoded(cmd.single(body)) for body in cmd.batch_bodies])

    async def request(self, cmd: EvenqPublishCommand) -> EvenqDelivery:
        """Returns the reply. Raises RequestTimeout, and as `evenq.aio.Producer.request`."""
        message = await self.encoded(cmd)
        reply = await self._connected().request(message, timeout_ms=max(1, round(cmd.timeout_s * 1000)))
        return EvenqDelivery([reply], group="")

    async def encoded(self, cmd: EvenqPublishCommand) -> Message:
        """Returns the message with the encoded body."""
        body: Any = cmd.body
        content, content_type = await self.codec.encode(body, self.serializer)
        if not content and (body is None or body == ""):
            content, content_type = EMPTY_BODIES[body], JSON
        return cmd.message(content, content_type)

    def _connected(self) -> Producer:
        if self._producer is None:
            raise IncorrectState("the broker is not connected; use `async with broker`, or `await broker.connect()`")
        return self._producer
