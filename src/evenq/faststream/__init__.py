"""evenq as a broker of FastStream: typed handlers for topics, on the asyncio SDK (`evenq.aio`).

    from evenq.faststream import EvenqBroker
    from faststream import FastStream

    broker = EvenqBroker("127.0.0.1:8081")
    app = FastStream(broker)

    @broker.subscriber("orders", group="billing")
    async def bill(order: Order) -> None: ...

It needs `pip install "evenq[faststream]"`. Without FastStream, or with a version outside of the range in
`evenq.faststream.supported`, the import raises Unsupported. The guide is docs/guides/faststream.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from evenq.faststream.supported import check_faststream

if TYPE_CHECKING:
    from evenq.faststream.broker import EvenqBroker
    from evenq.faststream.commands import EvenqResponse
    from evenq.faststream.deliveries import EvenqDelivery
    from evenq.faststream.messages import EvenqBatchMessage, EvenqMessage
    from evenq.faststream.publishers import EvenqPublisher
    from evenq.faststream.routers import EvenqRoute, EvenqRoutePublisher, EvenqRouter
    from evenq.faststream.subscribers import EvenqSubscriber
    from evenq.faststream.testing import TestEvenqBroker

_HOMES = {
    "EvenqBatchMessage": "messages",
    "EvenqBroker": "broker",
    "EvenqDelivery": "deliveries",
    "EvenqMessage": "messages",
    "EvenqPublisher": "publishers",
    "EvenqResponse": "commands",
    "EvenqRoute": "routers",
    "EvenqRoutePublisher": "routers",
    "EvenqRouter": "routers",
    "EvenqSubscriber": "subscribers",
    "TestEvenqBroker": "testing",
}

__all__ = [
    "EvenqBatchMessage",
    "EvenqBroker",
    "EvenqDelivery",
    "EvenqMessage",
    "EvenqPublisher",
    "EvenqResponse",
    "EvenqRoute",
    "EvenqRoutePublisher",
    "EvenqRouter",
    "EvenqSubscriber",
    "TestEvenqBroker",
]


check_faststream()


def __getattr__(name: str) -> object:
    if name == "annotations":
        return import_module("evenq.faststream.annotations")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'evenq.faststream' has no attribute {name!r}")
    value = getattr(import_module(f"evenq.faststream.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
