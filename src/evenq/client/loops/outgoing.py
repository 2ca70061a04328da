"""What the producer's loop sends: one message each, with the future of whoever sent it, and what became of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from evenq.client.loops.troubles import Troubles
from evenq.errors import Error
from evenq.model import Message, MessageQueue, QueueOffset

__all__ = ["Item", "Nobody", "Selector", "SendResult", "Settle"]

log = logging.getLogger(__name__)

Selector = Callable[[Sequence[MessageQueue]], MessageQueue]
"""Chooses one of a topic's queues, sorted by broker and id; called in the SDK's loop, so it is quick and waits for
nothing.
"""


@dataclass(frozen=True, slots=True)
class SendResult:
    """Where an acknowledged message is."""

    message_id: str
    queue: MessageQueue
    """Queue id -1: the server chose the queue and did not say (a server without evenq.v1)."""
    offset: QueueOffset
    recall_handle: str = ""
    """Of a delayed message: takes it back before its time, with `Admin.recall_message`."""


class Settle(Protocol):
    """A future of either kind."""

    def set_result(self, result: SendResult, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


class Nobody:
    """Stands where a future would, for a message whose sender does not ask what became of it."""

    __slots__ = ("message_id", "topic", "troubles")

    def __init__(self, message_id: str, topic: str, troubles: Troubles) -> None:
        self.message_id = message_id
        self.topic = topic
        self.troubles = troubles

    def set_result(self, _result: SendResult, /) -> None:
        """It is stored."""
        self.troubles.well(f"sending one-way to topic {self.topic}")

    def set_exception(self, exception: BaseException, /) -> None:
        """It may be lost. Said once, not for each message."""
        if isinstance(exception, Error):
            self.troubles.failed(f"sending one-way to topic {self.topic}", exception)
        log.debug("one-way message %s to topic %s was not acknowledged: %s", self.message_id, self.topic, exception)


class Item:
    """One message on its way."""

    __slots__ = (
        "apart",
        "attempts",
        "counted",
        "done",
        "encoded",
        "failed",
        "future",
        "key",
        "lite_topic",
        "message_id",
        "priority",
        "queue",
        "refused_ms",
        "selector",
        "topic",
        "tries_max",
        "until_ms",
        "urgent",
    )

    def __init__(
        self,
        message: Message,
        message_id: str,
        encoded: bytes,
        future: Settle,
        *,
        urgent: bool,
        sharding_key: str | None = None,
        selector: Selector | None = None,
        tries_max: int = 0,
    ) -> None:
        """`tries_max` 0: as many as the options say."""
        self.topic = message.topic
        self.key = message.message_group if message.message_group is not None else sharding_key
        self.selector = selector
        self.priority = message.priority
        self.lite_topic = message.lite_topic
        self.apart = message.delivery_ms is not None or message.delay_level > 0 or message.lite_topic is not None
        """True: the server places it, by another call."""
        self.message_id = message_id
        self.encoded = encoded
        self.future = future
        self.urgent = urgent
        self.tries_max = tries_max
        self.attempts = 0
        self.refused_ms = 0
        """When a closed queue first refused it; 0: never."""
        self.failed: MessageQueue | None = None
        """The queue of the last try."""
        self.queue: MessageQueue | None = None
        self.until_ms = 0
        """By the loop's clock."""
        self.counted = False
        """True from when it is pending in the loop."""
        self.done = False

    @property
    def pinned(self) -> bool:
        """True: it keeps its queue."""
        return self.key is not None or self.selector is not None
