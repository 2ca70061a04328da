"""Publish commands: the fields of an evenq message that FastStream's own publish command lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack

from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand, PublishCommand, Response

from evenq.client.core.sending.requests import reply_to
from evenq.errors import IllegalPropertyKey
from evenq.faststream.messages import CONTENT_TYPE, CORRELATION_ID, REPLY_TO
from evenq.model import Message, ReceivedMessage

REQUEST_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishFields:
    """Fields of `evenq.Message` beside topic, body and properties, with the same meanings and limits."""

    tag: str | None = None
    keys: Sequence[str] = ()
    message_group: str | None = None
    delivery_ms: int | datetime | None = None
    delay: timedelta | int | None = None
    priority: int | None = None
    lite_topic: str | None = None
    message_id: str = ""

    def over(self, default: PublishFields) -> PublishFields:
        """Returns these fields with the default's tag and message group where it has none."""
        return replace(
            self,
            tag=default.tag if self.tag is None else self.tag,
            message_group=default.message_group if self.message_group is None else self.message_group,
        )


class FieldArguments(TypedDict, total=False):
    """`PublishFields` as arguments of `publish` and of `EvenqResponse`; type checkers and editors know them by name."""

    tag: str | None
    keys: Sequence[str]
    message_group: str | None
    delivery_ms: int | datetime | None
    delay: timedelta | int | None
    priority: int | None
    lite_topic: str | None
    message_id: str


class EvenqResponse(Response):
    """Result of a handler, for its publishers and its reply: a body with the fields of an evenq message."""

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **fields: Unpack[FieldArguments],
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.fields = PublishFields(**fields)

    def as_publish_command(self) -> EvenqPublishCommand:
        return EvenqPublishCommand(
            self.body,
            topic="",
            headers=self.headers,
            correlation_id=self.correlation_id,
            fields=self.fields,
            _publish_type=PublishType.PUBLISH,
        )


class EvenqPublishCommand(BatchPublishCommand):
    """One message, or several with the same headers and fields."""

    def __init__(
        self,
        body: Any,
        /,
        *bodies: Any,
        topic: str,
        _publish_type: PublishType,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        fields: PublishFields | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        request: ReceivedMessage | None = None,
    ) -> None:
        """`request`: the message that this one answers."""
        super().__init__(
            body,
            *bodies,
            destination=topic,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            _publish_type=_publish_type,
        )
        self.fields = fields or PublishFields()
        self.timeout_s = timeout_s
        self.request = request

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> EvenqPublishCommand:
        """Returns the command of a handler's result. `batch`: a list is several messages."""
        if isinstance(cmd, EvenqPublishCommand) and not batch:
            return cmd
        body, more = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *more,
            topic=cmd.destination,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
            fields=cmd.fields if isinstance(cmd, EvenqPublishCommand) else None,
            _publish_type=cmd.publish_type,
        )

    def single(self, body: Any) -> EvenqPublishCommand:
        """Returns the command for one body of a batch; an `EvenqResponse` has headers and fields of its own."""
        own = body if isinstance(body, EvenqResponse) else None
        return EvenqPublishCommand(
            body if own is None else own.body,
            topic=self.destination,
            headers=self.headers if own is None else {**self.headers, **own.headers},
            correlation_id=(own and own.correlation_id) or self.correlation_id,
            reply_to=self.reply_to,
            fields=self.fields if own is None else own.fields.over(self.fields),
            _publish_type=self.publish_type,
        )

    def message(self, content: bytes, content_type: str | None) -> Message:
        """Returns one message of the command. Raises the errors of `evenq.Message`, IllegalPropertyKey for a header
        that is not a text.
        """
        properties = {
            **({CONTENT_TYPE: content_type} if content_type else {}),
            **({CORRELATION_ID: self.correlation_id} if self.correlation_id else {}),
            **({REPLY_TO: self.reply_to} if self.reply_to else {}),
            **_texts(self.headers),
        }
        if self.request is not None:
            return reply_to(self.request, content, properties=properties)
        return Message(
            topic=self.destination,
            body=content,
            properties=properties,
            tag=self.fields.tag,
            keys=self.fields.keys,
            message_group=self.fields.message_group,
            delivery_ms=self.fields.delivery_ms,
            delay=self.fields.delay,
            priority=self.fields.priority,
            lite_topic=self.fields.lite_topic,
            message_id=self.fields.message_id,
        )


def _texts(headers: Mapping[str, Any]) -> dict[str, str]:
    for name, value in headers.items():
        if not isinstance(value, str):
            raise IllegalPropertyKey(
                f"header {name!r} is {value!r:.80} ({type(value).__name__}); headers are properties of the message: "
                f"give a text, as in {{{name!r}: {str(value)!r:.80}}}"
            )
    return dict(headers)
