"""The asyncio API of the SDK: the names and arguments of `evenq`, with `await`. A client belongs to the event loop in
which it was created.

    async with evenq.aio.Producer(endpoint="127.0.0.1:8081") as producer:
        result = await producer.send(evenq.Message(topic="orders", body=b"..."))
"""

from __future__ import annotations

from evenq.client.async_admin import Admin
from evenq.client.async_lite_consumer import LitePushConsumer, LiteSimpleConsumer
from evenq.client.async_producer import Producer
from evenq.client.async_pull_consumer import PullConsumer
from evenq.client.async_push_consumer import Listener, OnError, OnRebalance, PushConsumer
from evenq.client.async_simple_consumer import SimpleConsumer
from evenq.model import Message

__all__ = [
    "Admin",
    "Listener",
    "LitePushConsumer",
    "LiteSimpleConsumer",
    "Message",
    "OnError",
    "OnRebalance",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "SimpleConsumer",
]
