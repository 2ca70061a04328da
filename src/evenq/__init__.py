"""evenq: a message queue that keeps the load even.

The names of the Python SDK with sync calls; `evenq.aio` has the same names for asyncio.

    with evenq.Producer(endpoint="127.0.0.1:8081") as producer:
        producer.send(evenq.Message(topic="orders", body=b"..."))

Each name is imported at its first use, because every server and tool imports this package and must stay light.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from evenq.runtime.version import __version__

if TYPE_CHECKING:
    from evenq import errors
    from evenq.client.admin import Admin
    from evenq.client.codecs.avro_codec import AvroCodec
    from evenq.client.codecs.codec import Codec, JsonCodec
    from evenq.client.codecs.decoding import Decoded, decoded
    from evenq.client.codecs.pydantic_codec import PydanticCodec
    from evenq.client.core.lite.events import Suspend
    from evenq.client.core.reading.outcome import Retry
    from evenq.client.core.sending.requests import reply_to
    from evenq.client.lite_consumer import LitePushConsumer, LiteSimpleConsumer
    from evenq.client.loops.sending.outgoing import SendResult
    from evenq.client.options import LiteOptions, ProducerOptions, PullOptions, PushOptions, SimpleOptions
    from evenq.client.producer import Producer
    from evenq.client.pull_consumer import PullConsumer
    from evenq.client.push_consumer import PushConsumer
    from evenq.client.simple_consumer import SimpleConsumer
    from evenq.errors import Error
    from evenq.model import (
        FilterExpression,
        FilterType,
        Message,
        MessageModel,
        MessageQueue,
        MessageType,
        QueueOffset,
        ReceivedMessage,
        StartFrom,
        TransactionResolution,
    )
    from evenq.wire.credentials import Credentials
    from evenq.wire.tls import Tls


_HOMES = {
    "Admin": "evenq.client.admin",
    "AvroCodec": "evenq.client.codecs.avro_codec",
    "Codec": "evenq.client.codecs.codec",
    "Credentials": "evenq.wire.credentials",
    "Decoded": "evenq.client.codecs.decoding",
    "Error": "evenq.errors",
    "FilterExpression": "evenq.model",
    "FilterType": "evenq.model",
    "JsonCodec": "evenq.client.codecs.codec",
    "LiteOptions": "evenq.client.options",
    "LitePushConsumer": "evenq.client.lite_consumer",
    "LiteSimpleConsumer": "evenq.client.lite_consumer",
    "Message": "evenq.model",
    "MessageModel": "evenq.model",
    "MessageQueue": "evenq.model",
    "MessageType": "evenq.model",
    "Producer": "evenq.client.producer",
    "ProducerOptions": "evenq.client.options",
    "PullConsumer": "evenq.client.pull_consumer",
    "PullOptions": "evenq.client.options",
    "PushConsumer": "evenq.client.push_consumer",
    "PushOptions": "evenq.client.options",
    "PydanticCodec": "evenq.client.codecs.pydantic_codec",
    "QueueOffset": "evenq.model",
    "ReceivedMessage": "evenq.model",
    "Retry": "evenq.client.core.reading.outcome",
    "SendResult": "evenq.client.loops.sending.outgoing",
    "SimpleConsumer": "evenq.client.simple_consumer",
    "SimpleOptions": "evenq.client.options",
    "StartFrom": "evenq.model",
    "Suspend": "evenq.client.core.lite.events",
    "Tls": "evenq.wire.tls",
    "TransactionResolution": "evenq.model",
    "decoded": "evenq.client.codecs.decoding",
    "reply_to": "evenq.client.core.sending.requests",
}

__all__ = [
    "Admin",
    "AvroCodec",
    "Codec",
    "Credentials",
    "Decoded",
    "Error",
    "FilterExpression",
    "FilterType",
    "JsonCodec",
    "LiteOptions",
    "LitePushConsumer",
    "LiteSimpleConsumer",
    "Message",
    "MessageModel",
    "MessageQueue",
    "MessageType",
    "Producer",
    "ProducerOptions",
    "PullConsumer",
    "PullOptions",
    "PushConsumer",
    "PushOptions",
    "PydanticCodec",
    "QueueOffset",
    "ReceivedMessage",
    "Retry",
    "SendResult",
    "SimpleConsumer",
    "SimpleOptions",
    "StartFrom",
    "Suspend",
    "Tls",
    "TransactionResolution",
    "__version__",
    "decoded",
    "errors",
    "reply_to",
]


def __getattr__(name: str) -> object:
    if name in {"errors", "aio", "otel"}:
        return import_module(f"evenq.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'evenq' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
