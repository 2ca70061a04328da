"""Arguments of handlers that FastStream fills in from the message.

from evenq.faststream.annotations import Attempt, Tag

@broker.subscriber("orders", group="billing")
async def bill(order: Order, tag: Tag, attempt: Attempt) -> None: ...
"""

from __future__ import annotations

from typing import Annotated

from faststream import Context
from faststream.annotations import ContextRepo, Logger
from faststream.params import NoCast

from evenq.faststream.broker import EvenqBroker as _Broker
from evenq.faststream.messages import EvenqBatchMessage as _BatchMessage
from evenq.faststream.messages import EvenqMessage as _Message
from evenq.model import MessageQueue

__all__ = [
    "Attempt",
    "ContextRepo",
    "EvenqBatchMessage",
    "EvenqBroker",
    "EvenqMessage",
    "Group",
    "Keys",
    "Logger",
    "MessageGroup",
    "MessageId",
    "NoCast",
    "Queue",
    "QueueOffset",
    "Tag",
    "Topic",
]

EvenqBroker = Annotated[_Broker, Context("broker")]
EvenqMessage = Annotated[_Message, Context("message")]
EvenqBatchMessage = Annotated[_BatchMessage, Context("message")]
MessageId = Annotated[str, Context("message.message_id")]
Topic = Annotated[str, Context("message.topic")]
Tag = Annotated[str | None, Context("message.tag")]
Keys = Annotated[tuple[str, ...], Context("message.keys")]
MessageGroup = Annotated[str | None, Context("message.message_group")]
Group = Annotated[str, Context("message.group")]
"""The consumer group."""
Attempt = Annotated[int, Context("message.attempt")]
"""1 for the first delivery to the group."""
Queue = Annotated[MessageQueue, Context("message.queue", cast=False)]
QueueOffset = Annotated[int, Context("message.queue_offset")]
