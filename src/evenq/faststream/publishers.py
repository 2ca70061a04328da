"""Publishers: objects that send to one topic, as decorators of handlers or by `publisher.publish`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Unpack, cast

from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream.response.publish_type import PublishType

from evenq.client.core.sending.requests import CORRELATION
from evenq.client.loops.sending.outgoing import SendResult
from evenq.faststream.commands import REQUEST_TIMEOUT_S, EvenqPublishCommand, FieldArguments, PublishFields
from evenq.faststream.configs import EvenqPublisherConfig
from evenq.faststream.messages import EvenqMessage

if TYPE_CHECKING:
    from faststream._internal.producer import ProducerProto
    from faststream._internal.types import PublisherMiddleware
    from faststream.message import StreamMessage
    from faststream.response.response import PublishCommand


class EvenqPublisher(PublisherUsecase):
    """Sends to one topic. Its headers, tag and message group are defaults of each message."""

    def __init__(self, config: EvenqPublisherConfig, specification: PublisherSpecification[Any, Any]) -> None:
        super().__init__(config, specification)
        self._topic = config.topic
        self.headers = config.headers
        self.reply_to = config.reply_to
        self.fields = config.fields
        self.batch = config.batch

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of the routers."""
        return f"{self._outer_config.prefix}{self._topic}"

    async def publish(
        self,
        message: Any,
        topic: str = "",
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **fields: Unpack[FieldArguments],
    ) -> SendResult | list[SendResult]:
        """Sends a message, or, with `batch`, each item of a list; see `EvenqBroker.publish`. `topic`: another one than
        the publisher's, without prefixes.
        """
        cmd = EvenqPublishCommand(
            message,
            topic=topic or self.topic,
            headers=headers,
            correlation_id=correlation_id or self._outer_config.id_generator(),
            reply_to=reply_to,
            fields=PublishFields(**fields),
            _publish_type=PublishType.PUBLISH,
        )
        return cast("SendResult | list[SendResult]", await self._send(cmd, ()))

    async def request(
        self,
        message: Any,
        topic: str = "",
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        tag: str | None = None,
        timeout: float = REQUEST_TIMEOUT_S,
    ) -> EvenqMessage:
        """Sends a request and waits for its reply; see `EvenqBroker.request`. `topic` as in `publish`."""
        cmd = self._completed(
            EvenqPublishCommand(
                message,
                topic=topic or self.topic,
                headers=headers,
                correlation_id=correlation_id or self._outer_config.id_generator(),
                fields=PublishFields(tag=tag),
                timeout_s=timeout,
                _publish_type=PublishType.REQUEST,
            )
        )
        return cast("EvenqMessage", await self._basic_request(cmd, producer=self._outer_config.producer))

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware[Any]]) -> None:
        """Sends the result of a handler."""
        cmd.destination = self.topic
        await self._send(cmd, _extra_middlewares)

    async def _send(self, cmd: PublishCommand, middlewares: Iterable[PublisherMiddleware[Any]]) -> Any:
        own = self._completed(EvenqPublishCommand.from_cmd(cmd, batch=self.batch))
        send = self._basic_publish_batch if self.batch else self._basic_publish
        return await send(own, producer=self._outer_config.producer, _extra_middlewares=middlewares)

    def _completed(self, cmd: EvenqPublishCommand) -> EvenqPublishCommand:
        """Adds what this publisher has and the command lacks."""
        cmd.add_headers(self.headers, override=False)
        cmd.reply_to = cmd.reply_to or self.reply_to
        cmd.fields = cmd.fields.over(self.fields)
        return cmd


class EvenqReplyPublisher(FakePublisher):
    """Sends the result of a handler to the sender of the message: as the reply to a request of an SDK of evenq, or as a
    message to the topic that the header `reply_to` names.
    """

    def __init__(self, producer: ProducerProto[Any], message: StreamMessage[Any]) -> None:
        super().__init__(producer=producer)
        self._message = message

    def patch_command(self, cmd: PublishCommand) -> EvenqPublishCommand:
        own = EvenqPublishCommand.from_cmd(super().patch_command(cmd))
        if CORRELATION in self._message.headers:
            own.request = self._message.raw_message
        own.destination = self._message.reply_to
        return own
