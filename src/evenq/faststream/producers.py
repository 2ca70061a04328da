"""The producer behind `broker.publish`: it encodes bodies and sends them with the asyncio producer of evenq."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import BatchCodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import IncorrectState

from evenq.aio import Producer
from evenq.client.loops.sending.outgoing import SendResult
from evenq.errors import RequestTimeout
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


class ReplyTimeout(RequestTimeout, TimeoutError):
    """No reply within the timeout of a request. It is a TimeoutError, which every broker of FastStream raises."""


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
        return await self._connected().send_batch(await self.encoded_batch(cmd))

    async def request(self, cmd: EvenqPublishCommand) -> EvenqDelivery:
        """Returns the reply. Raises ReplyTimeout, and as `evenq.aio.Producer.request`."""
        message = await self.encoded(cmd)
        try:
            reply = await self._connected().request(message, timeout_ms=max(1, round(cmd.timeout_s * 1000)))
        except RequestTimeout as error:
            raise ReplyTimeout(str(error)) from error
        return EvenqDelivery([reply], group="")

    async def encoded(self, cmd: EvenqPublishCommand) -> Message:
        """Returns the message with the encoded body."""
        return _message(cmd, *await self.codec.encode(cmd.body, self.serializer))

    async def encoded_batch(self, cmd: EvenqPublishCommand) -> list[Message]:
        """Returns the messages of a batch, with bodies encoded by the codec in one call if it has `encode_batch`."""
        singles = [cmd.single(body) for body in cmd.batch_bodies]
        if not isinstance(self.codec, BatchCodecProto):
            return [await self.encoded(single) for single in singles]
        contents = await self.codec.encode_batch([single.body for single in singles], self.serializer)
        return [_message(single, *encoded) for single, encoded in zip(singles, contents, strict=True)]

    def _connected(self) -> Producer:
        if self._producer is None:
            raise IncorrectState("the broker is not connected; use `async with broker`, or `await broker.connect()`")
        return self._producer


def _message(cmd: EvenqPublishCommand, content: bytes, content_type: str | None) -> Message:
    if not content and (cmd.body is None or cmd.body == ""):
        content, content_type = EMPTY_BODIES[cmd.body], JSON
    return cmd.message(content, content_type)
