"""evenq: a message queue that keeps the load even.

The names of the Python SDK's sync face; `evenq.aio` has the same ones for asyncio. They load at their first use,
because every server and tool imports this package on its way to another room.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from evenq.runtime.version import __version__

if TYPE_CHECKING:
    from evenq import errors
    from evenq.client.admin import Admin
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
    "Credentials": "evenq.wire.credentials",
    "Error": "evenq.errors",
    "FilterExpression": "evenq.model",
    "FilterType": "evenq.model",
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
    "reply_to": "evenq.client.core.sending.requests",
}

__all__ = [
    "Admin",
    "Credentials",
    "Error",
    "FilterExpression",
    "FilterType",
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
    "errors",
    "reply_to",
]


def __getattr__(name: str) -> object:
    if name in {"errors", "aio"}:
        return import_module(f"evenq.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'evenq' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
