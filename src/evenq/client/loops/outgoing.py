"""What the producer's loop sends, with the future of its sender, and what became of it: one message each, or a
block of them for one queue, which becomes single messages when it is not simply stored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from evenq.client.loops.troubles import Troubles
from evenq.errors import ConnectionFailed, Error, HaNotAvailable, QueueClosed
from evenq.model import Message, MessageQueue, QueueOffset

__all__ = [
    "BlockFuture",
    "Encoded",
    "Entry",
    "Item",
    "Nobody",
    "Outcomes",
    "Selector",
    "SendBlock",
    "SendResult",
    "Settle",
    "goes_anywhere",
    "singles_of",
]

log = logging.getLogger(__name__)

CLOSED_MS = 3_000
"""A queue was closed, and the route does not say so yet: refusals within this time, ms, are not counted as tries."""
LEADERLESS_MS = 10_000
"""A broker group takes nothing while another copy becomes its leader: as with CLOSED_MS. Within ten seconds it does, or
too few copies are left.
"""
Selector = Callable[[Sequence[MessageQueue]], MessageQueue]
"""Chooses one of a topic's queues, sorted by broker and id; called in the SDK's loop, so it is quick and waits for
nothing.
"""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A message ready to travel."""

    message_id: str
    content: bytes


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


Outcomes = list[SendResult | BaseException]
"""One for each message of a block, in its order."""


class BlockFuture(Protocol):
    """A block's future, of either kind. It never gets an exception: errors are outcomes."""

    def set_result(self, result: Outcomes, /) -> None: ...


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
        "leaderless_ms",
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
        self.leaderless_ms = 0
        """When a broker group without a leader, or with too few copies, first refused it; 0: never."""
        self.failed: MessageQueue | None = None
        """The queue of the last try."""
        self.queue: MessageQueue | None = None
        self.until_ms = 0
        """By the loop's clock."""
        self.counted = False
        """True from when it is pending in the loop."""
        self.done = False

    def count_failure(self, error: Error, queue: MessageQueue, *, closed: bool, now_ms: int) -> bool:
        """An attempt at the queue failed. True: the queue is closed, or has no leader, and that is news."""
        self.failed = queue
        news = (closed and not self.refused_ms) or (isinstance(error, HaNotAvailable) and not self.leaderless_ms)
        if closed:
            self.refused_ms = self.refused_ms or now_ms
        if isinstance(error, HaNotAvailable):
            self.leaderless_ms = self.leaderless_ms or now_ms
        if isinstance(error, QueueClosed):
            free = now_ms - self.refused_ms <= CLOSED_MS
        else:
            free = self.finds_no_leader(error) and self.leaderless_for(now_ms) <= LEADERLESS_MS
        if not free:
            self.attempts += 1
        return news

    def leaderless_for(self, now_ms: int) -> int:
        """How long its broker group has been without a leader, ms."""
        return now_ms - self.leaderless_ms if self.leaderless_ms else 0

    def finds_no_leader(self, error: Error) -> bool:
        """True if its broker group changes its leader: nothing was written, and the old leader may be gone by now."""
        return isinstance(error, HaNotAvailable | ConnectionFailed) and self.leaderless_ms > 0

    @property
    def pinned(self) -> bool:
        """True: it keeps its queue."""
        return self.key is not None or self.selector is not None

    @property
    def count(self) -> int:
        """One message."""
        return 1

    @property
    def size(self) -> int:
        """Its bytes on the wire."""
        return len(self.encoded)


class SendBlock:
    """Messages of one `send_batch` for one queue, none of them pinned or apart: one entry, one future, one step."""

    __slots__ = (
        "attempts",
        "contents",
        "counted",
        "done",
        "future",
        "message_ids",
        "queue",
        "size",
        "topic",
        "until_ms",
        "urgent",
    )

    future: BlockFuture
    """Set by the caller that hands the block over."""

    def __init__(self, topic: str, queue: MessageQueue) -> None:
        self.topic = topic
        self.queue = queue
        self.message_ids: list[str] = []
        self.contents: list[bytes] = []
        """The encoded messages."""
        self.size = 0
        self.urgent = False
        self.attempts = 0
        self.until_ms = 0
        """By the loop's clock."""
        self.counted = False
        """True from when it is pending in the loop."""
        self.done = False
        """True when it is settled, or its messages go on one by one."""

    @property
    def count(self) -> int:
        """Its messages."""
        return len(self.contents)

    def add(self, message_id: str, content: bytes) -> None:
        """One message more."""
        self.message_ids.append(message_id)
        self.contents.append(content)
        self.size += len(content)

    def singles(self) -> list[Item]:
        """Its messages, each by itself; the block's future is done when all of them are settled."""
        self.done = True
        parts = _Parts(self.future, self.count)
        items = []
        for at, (message_id, content) in enumerate(zip(self.message_ids, self.contents, strict=True)):
            item = Item(  # of the message it looks only at what blocks do not have: a group, a time and the like
                Message(topic=self.topic, body=b"", message_id=message_id), message_id, content, _BlockPart(parts, at),
                urgent=False,
            )  # fmt: skip
            item.until_ms, item.counted, item.queue = self.until_ms, self.counted, self.queue
            items.append(item)
        return items


class _Parts:
    """The outcomes of a block whose messages go on one by one."""

    __slots__ = ("future", "left", "outcomes")

    def __init__(self, future: BlockFuture, count: int) -> None:
        self.future = future
        self.left = count
        self.outcomes: list[SendResult | BaseException | None] = [None] * count

    def settled(self, at: int, outcome: SendResult | BaseException) -> None:
        """One more; after the last one the future is done. Raises what a future that is done raises."""
        self.outcomes[at] = outcome
        self.left -= 1
        if not self.left:
            self.future.set_result([outcome for outcome in self.outcomes if outcome is not None])


class _BlockPart:
    """Stands where the future of one message would."""

    __slots__ = ("at", "parts")

    def __init__(self, parts: _Parts, at: int) -> None:
        self.parts = parts
        self.at = at

    def set_result(self, result: SendResult, /) -> None:
        """It is stored."""
        self.parts.settled(self.at, result)

    def set_exception(self, exception: BaseException, /) -> None:
        """It is not, or nobody knows."""
        self.parts.settled(self.at, exception)


Entry = Item | SendBlock


def singles_of(entries: Iterable[Entry]) -> list[Item]:
    """What is not settled of them, message for message."""
    singles: list[Item] = []
    for entry in entries:
        if isinstance(entry, Item):
            singles.append(entry)
        elif not entry.done:
            singles += entry.singles()
    return singles


def goes_anywhere(message: Message) -> bool:
    """True if any queue will do; others keep their order, or are placed by the server."""
    return (
        message.message_group is None
        and message.delivery_ms is None
        and not message.delay_level
        and message.priority is None
        and message.lite_topic is None
    )
