"""Queues without a server: memory, embedded and local engine with one interface (semantics LQ-1).

    with evenq.local.open("data") as queues:
        queues.producer("orders").send(b"hello")
        for message in (consumer := queues.consumer("orders", group="billing")).poll(timeout=1):
            consumer.ack(message)

It needs neither gRPC nor protobuf, and importing it is cheap. The guide is docs/guides/local_queues.md.
"""

from evenq.local.consumer import Consumer
from evenq.local.messages import Message
from evenq.local.options import EngineName, Flush, LocalOptions
from evenq.local.producer import Producer
from evenq.local.queues import LocalQueues
from evenq.local.queues import open_queues as open  # noqa: A004  # read as evenq.local.open
from evenq.local.reading import GetResult
from evenq.local.statuses import AppendStatus, GetStatus, PutStatus, ReadStatus

__all__ = [
    "AppendStatus",
    "Consumer",
    "EngineName",
    "Flush",
    "GetResult",
    "GetStatus",
    "LocalOptions",
    "LocalQueues",
    "Message",
    "Producer",
    "PutStatus",
    "ReadStatus",
    "open",
]
