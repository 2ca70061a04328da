"""CloudEvents in messages, as the RocketMQ module of the CloudEvents SDK for Java writes and reads them.

    from cloudevents.http import CloudEvent
    from evenq.cloudevents import from_message, to_message

    event = CloudEvent({"type": "com.example.order.paid", "source": "/shop"}, {"order": 17})
    producer.send(to_message(event, topic="orders"))

In binary mode each attribute is a property with the prefix `CE_`, `datacontenttype` is `CE_contenttype`, and the body
is the data. In structured mode the body is the event in JSON, and `CE_contenttype` is `application/cloudevents+json`. A
body cannot be empty: one zero byte stands for an event without data. It needs `pip install "evenq[cloudevents]"`.

The event classes are those of the package `cloudevents`. Its JSON functions are not used: they parse binary data that
looks like JSON, and their errors do not name the message. The guide is docs/guides/cloudevents.md.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, Literal, TypeVar, cast, overload

from evenq.errors import BadRequest
from evenq.model import Message, ReceivedMessage
from evenq.runtime.extras import missing

try:
    from cloudevents.abstract import CloudEvent as AnyEvent
    from cloudevents.exceptions import GenericException
    from cloudevents.http import CloudEvent
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(missing("evenq.cloudevents", "cloudevents"), name=error.name) from error

__all__ = ["IllegalCloudEvent", "from_message", "is_event", "to_message"]

Event = TypeVar("Event", bound=AnyEvent)
Mode = Literal["binary", "structured"]

PREFIX = "CE_"
CONTENT_TYPE = "CE_contenttype"
STRUCTURED = "application/cloudevents+json"
NO_DATA = b"\0"
VERSIONS = ("1.0", "0.3")
REQUIRED = ("id", "source", "type")
RESERVED = ("contenttype", "data", "data_base64")
"""Names that an attribute cannot have: its property or JSON member has another meaning."""
NAME = re.compile(r"[a-z0-9]+\Z")
INTEGER = range(-(1 << 31), 1 << 31)
"""CloudEvents 1.0.2, type system."""


class IllegalCloudEvent(BadRequest):
    """An event that a message cannot hold, or a message that is not an event."""


def to_message(
    event: AnyEvent,
    *,
    topic: str,
    mode: Mode = "binary",
    tag: str | None = None,
    keys: Sequence[str] = (),
    message_group: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> Message:
    """Returns the message of an event. Other fields, such as a delay, are set with `dataclasses.replace`.

    Data of bytes is sent as it is, text of another content type than JSON as UTF-8, everything else as JSON. JSON data
    without a `datacontenttype` gets `application/json` in binary mode, which is the meaning of an event without one.
    Raises IllegalCloudEvent for an event that lacks a required attribute, or has one whose name or value is not valid.
    """
    attributes = _attributes(event)
    more = dict(properties or {})
    for key in more:
        if key.startswith(PREFIX):
            raise IllegalCloudEvent(
                f"the property {key!r:.80} starts with {PREFIX}, as attributes do; name it otherwise"
            )
    match mode:
        case "binary":
            body, own = _binary(attributes, event.get_data())
        case "structured":
            body, own = _structured(attributes, event.get_data()), {CONTENT_TYPE: STRUCTURED}
        case _:
            raise BadRequest(f"mode is {mode!r:.80}; give 'binary' or 'structured'")
    return Message(
        topic=topic, body=body, properties={**more, **own}, tag=tag, keys=tuple(keys), message_group=message_group
    )


def is_event(message: Message | ReceivedMessage) -> bool:
    """Returns whether the message says that it is a CloudEvent, in either mode; `from_message` may refuse it."""
    properties = message.properties
    return PREFIX + "specversion" in properties or _is_envelope(properties.get(CONTENT_TYPE, ""))


@overload
def from_message(message: Message | ReceivedMessage, *, extensions: Collection[str] = ()) -> CloudEvent: ...


@overload
def from_message(
    message: Message | ReceivedMessage, event_type: type[Event], *, extensions: Collection[str] = ()
) -> Event: ...


def from_message(
    message: Message | ReceivedMessage,
    event_type: type[AnyEvent] = CloudEvent,
    *,
    extensions: Collection[str] = (),
) -> AnyEvent:
    """Returns the event of a message in either mode. JSON data is parsed, data of text and XML decoded, other data is
    bytes; None: the event has no data. A missing time is None.

    `event_type`: the class, such as `cloudevents.pydantic.CloudEvent`. `extensions`: names of properties without a
    prefix to take as extensions, which is how the Java module writes them. Raises IllegalCloudEvent if the message is
    not an event, or not a valid one.
    """
    content_type = message.properties.get(CONTENT_TYPE, "")
    if _is_envelope(content_type):
        attributes, data = _from_envelope(message, content_type)
    elif PREFIX + "specversion" in message.properties:
        attributes, data = _from_properties(message, extensions)
    else:
        raise IllegalCloudEvent(
            f"{_name(message)} is not a CloudEvent: it has neither the property {PREFIX}specversion (binary mode) nor "
            f"{CONTENT_TYPE}={STRUCTURED} (structured mode)"
        )
    _check_required(_name(message), attributes)
    try:
        # Without a value here, the class of the package sets the present time.
        return event_type.create({"time": None, **attributes}, data)
    except (GenericException, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise IllegalCloudEvent(f"{_name(message)} is not a valid CloudEvent: {reason:.300}") from error


def _attributes(event: AnyEvent) -> dict[str, str | int | bool]:
    """Returns the attributes that have a value, as their JSON values."""
    if not isinstance(event, AnyEvent):
        raise IllegalCloudEvent(
            f"the event is a {type(event).__name__}; give a CloudEvent of cloudevents.http or cloudevents.pydantic"
        )
    attributes = {}
    for name, value in event.get_attributes().items():
        if value is None:
            continue
        if not NAME.match(name) or name in RESERVED:
            raise IllegalCloudEvent(
                f"the event has the attribute {name!r:.80}; a name is of lower-case letters and digits, and not "
                f"{' or '.join(RESERVED)}"
            )
        attributes[name] = _value(name, value)
    _check_required("the event", attributes)
    return attributes


def _check_required(what: str, attributes: Mapping[str, object]) -> None:
    version = attributes.get("specversion")
    if version not in VERSIONS:
        raise IllegalCloudEvent(f"{what} has the specversion {version!r:.80}; supported are {' and '.join(VERSIONS)}")
    for name in REQUIRED:
        value = attributes.get(name)
        if not isinstance(value, str) or not value:
            raise IllegalCloudEvent(f"{what} has the {name} {value!r:.80}; a CloudEvent needs {', '.join(REQUIRED)}")


def _value(name: str, value: object) -> str | int | bool:
    """Returns a value of the type system of CloudEvents as JSON has it."""
    if isinstance(value, Enum):
        value = value.value
    match value:
        case bool():
            return value
        case int() if value in INTEGER:
            return value
        case datetime() if value.tzinfo is not None:
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case str() if all(character >= " " and character != "\x7f" for character in value):
            return value
    raise IllegalCloudEvent(
        f"the attribute {name} of the event is {value!r:.80} ({type(value).__name__}); give a text without control "
        "characters, a bool, an int of 32 bits, bytes, or a datetime with its time zone"
    )


def _binary(attributes: Mapping[str, str | int | bool], data: object) -> tuple[bytes, dict[str, str]]:
    content_type = str(attributes.get("datacontenttype", ""))
    properties = {PREFIX + name: _text(value) for name, value in attributes.items() if name != "datacontenttype"}
    if data is None:
        body = NO_DATA
    elif isinstance(data, bytes | bytearray | memoryview):
        body = bytes(data)
        if body in {b"", NO_DATA}:
            raise IllegalCloudEvent(
                f"the data of the event is {body!r}; a message has no empty body, and one zero byte means no data: "
                "give None, or use mode='structured'"
            )
    elif isinstance(data, str) and content_type and not _is_json(content_type):
        body = data.encode()
        if body in {b"", NO_DATA}:
            raise IllegalCloudEvent("the data of the event is an empty text; give None, or use mode='structured'")
    else:
        _check_json(content_type, data)
        body = _dumped("the data of the event", data)
        content_type = content_type or "application/json"
    return body, {**properties, **({CONTENT_TYPE: content_type} if content_type else {})}


def _structured(attributes: Mapping[str, str | int | bool], data: object) -> bytes:
    content_type = str(attributes.get("datacontenttype", ""))
    envelope: dict[str, object] = dict(attributes)
    if isinstance(data, bytes | bytearray | memoryview):
        encoded = base64.b64encode(bytes(data)).decode()
        if attributes["specversion"] == "0.3":
            envelope |= {"datacontentencoding": "base64", "data": encoded}
        else:
            envelope["data_base64"] = encoded
    elif data is not None:
        if not isinstance(data, str):
            _check_json(content_type, data)
        envelope["data"] = data
    return _dumped("the event", envelope)


def _check_json(content_type: str, data: object) -> None:
    if content_type and not _is_json(content_type):
        raise IllegalCloudEvent(
            f"the data of the event is a {type(data).__name__} and its datacontenttype is {content_type!r:.80}; give "
            "bytes or a text, or another datacontenttype"
        )


def _dumped(what: str, value: object) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise IllegalCloudEvent(f"{what} cannot be written as JSON: {error}; give bytes, or plain values") from error


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _from_properties(message: Message | ReceivedMessage, extensions: Collection[str]) -> tuple[dict[str, Any], object]:
    attributes: dict[str, Any] = {}
    for key, value in message.properties.items():
        name = key.removeprefix(PREFIX)
        if key == CONTENT_TYPE:
            attributes["datacontenttype"] = value
        elif key.startswith(PREFIX):
            attributes[_checked(message, name)] = value
        elif key in extensions:
            attributes.setdefault(_checked(message, key), value)
    body = message.body
    return attributes, None if body in {b"", NO_DATA} else _data(
        message, body, message.properties.get(CONTENT_TYPE, "")
    )


def _from_envelope(message: Message | ReceivedMessage, content_type: str) -> tuple[dict[str, Any], object]:
    if _media_type(content_type) != STRUCTURED:
        raise IllegalCloudEvent(
            f"{_name(message)} holds CloudEvents as {content_type!r:.80}; supported is {STRUCTURED}, one per message"
        )
    envelope = _parsed(message, "the body", message.body)
    if not isinstance(envelope, dict):
        raise IllegalCloudEvent(
            f"{_name(message)} is not a CloudEvent: its body is {envelope!r:.80}, not a JSON object"
        )
    coded, plain = envelope.pop("data_base64", None), envelope.pop("data", None)
    if coded is not None and plain is not None:
        raise IllegalCloudEvent(f"{_name(message)} is not a valid CloudEvent: it has both data and data_base64")
    attributes = {_checked(message, name): value for name, value in envelope.items() if value is not None}
    for name, value in attributes.items():
        if not isinstance(value, str | int | bool):
            raise IllegalCloudEvent(
                f"{_name(message)} is not a valid CloudEvent: its attribute {name} is {value!r:.80}, not a text, a "
                "whole number or a bool"
            )
    of_data = str(attributes.get("datacontenttype", ""))
    if attributes.get("specversion") == "0.3" and attributes.get("datacontentencoding") == "base64":
        del attributes["datacontentencoding"]
        coded, plain = plain, None
    if coded is not None:
        return attributes, _data(message, _decoded(message, coded), of_data)
    return attributes, plain


def _data(message: Message | ReceivedMessage, data: bytes, content_type: str) -> object:
    if _is_json(content_type):
        return _parsed(message, "the data", data)
    if not _is_text(content_type):
        return data
    charset = re.search(r";\s*charset\s*=\s*\"?([\w.:-]+)", content_type, re.IGNORECASE)
    try:
        return data.decode(charset[1] if charset else "utf-8")
    except (LookupError, ValueError) as error:
        raise IllegalCloudEvent(
            f"{_name(message)}: the data cannot be decoded as {content_type!r:.80}: {error}"
        ) from error


def _parsed(message: Message | ReceivedMessage, what: str, text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise IllegalCloudEvent(f"{_name(message)}: {what} is not valid JSON: {error}") from error


def _decoded(message: Message | ReceivedMessage, text: object) -> bytes:
    try:
        return base64.b64decode(cast("str", text), validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise IllegalCloudEvent(f"{_name(message)}: the data is not valid base64: {error}") from error


def _checked(message: Message | ReceivedMessage, name: str) -> str:
    if not NAME.match(name) or name in RESERVED:
        raise IllegalCloudEvent(
            f"{_name(message)} is not a valid CloudEvent: the attribute name {name!r:.80} is not of lower-case letters "
            "and digits, or reserved"
        )
    return name


def _is_envelope(content_type: str) -> bool:
    return _media_type(content_type).startswith("application/cloudevents")


def _is_json(content_type: str) -> bool:
    media_type = _media_type(content_type)
    return media_type.endswith(("/json", "+json"))


def _is_text(content_type: str) -> bool:
    media_type = _media_type(content_type)
    return media_type.startswith("text/") or media_type.endswith(("/xml", "+xml"))


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _name(message: Message | ReceivedMessage) -> str:
    return (
        f"message {message.message_id} of topic {message.topic}"
        if message.message_id
        else f"a message of topic {message.topic}"
    )
