"""What the producer's loop sends, with the future of its sender, and what became of it: one message each, or a
block of them for one queue, which becomes single messages when it is not simply stored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from evenq.client.core.calls import StoredBatch
from evenq.client.core.sending.queue_choice import queue_of_group
from evenq.client.loops.clients.troubles import Troubles
from evenq.errors import (
    BadRequest,
    ConnectionFailed,
    Error,
    HaNotAvailable,
    PersistenceTimeout,
    QueueClosed,
    RequestTimeout,
)
from evenq.model import Message, MessageQueue, QueueOffset

__all__ = [
    "BlockFuture",
    "Encoded",
    "Entry",
    "Item",
    "OnewayResult",
    "Outcomes",
    "Selector",
    "SendBlock",
    "SendResult",
    "Settle",
    "goes_anywhere",
    "result_of",
    "singles_of",
]

log = logging.getLogger(__name__)

CLOSED_MS = 3_000
"""A queue was closed, and the route does not say so yet: refusals within this time, ms, are not counted as tries."""
LEADERLESS_MS = 10_000
"""A broker group takes nothing while another copy becomes its leader: as with CLOSED_MS. Within ten seconds it does, or
too few copies are left.
"""
LOST = (ConnectionFailed, RequestTimeout, PersistenceTimeout)
"""What becomes of a try when the leader of a broker group dies, or is deposed, meanwhile."""
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
    """Of a delayed message: cancels it before it is due, with `recall` of the producer or `Admin.recall_message`."""


class Settle(Protocol):
    """A future of either kind."""

    def set_result(self, result: SendResult, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


Outcomes = list[SendResult | BaseException]
"""One for each message of a block, in its order."""


class BlockFuture(Protocol):
    """A block's future, of either kind. It never gets an exception: errors are outcomes."""

    def set_result(self, result: Outcomes, /) -> None: ...


class OnewayResult:
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
        "error",
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
        "tries",
        "tries_max",
        "unready_ms",
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
        delayed = message.delivery_ms is not None or message.delay is not None or message.delay_level > 0
        self.apart = delayed or message.lite_topic is not None
        """True: the server places it, by another call."""
        self.message_id = message_id
        self.encoded = encoded
        self.future = future
        self.urgent = urgent
        self.tries_max = tries_max
        self.attempts = 0
        """Tries that failed and count."""
        self.tries = 0
        """All that failed."""
        self.error: Error | None = None
        """Of the last one."""
        self.refused_ms = 0
        """When a closed queue first refused it; 0: never."""
        self.leaderless_ms = 0
        """When its broker group first had no leader, or too few copies; 0: never."""
        self.unready_ms = 0
        """Since when the group answers that it takes nothing; 0: the last try had another end."""
        self.failed: MessageQueue | None = None
        """The queue of the last try."""
        self.queue: MessageQueue | None = None
        self.until_ms = 0
        """By the loop's clock."""
        self.counted = False
        """True from when it is pending in the loop."""
        self.done = False

    def count_failure(self, error: Error, queue: MessageQueue, *, closed: bool, group: bool, now_ms: int) -> bool:
        """An attempt at the queue failed, which is `closed`, or of a broker `group` with copies. True: it is closed, or
        has no leader, and that is news.
        """
        self.failed, self.error = queue, error
        self.tries += 1
        refused = isinstance(error, HaNotAvailable)
        lost = group and isinstance(error, LOST) and not self.tries_max  # a single attempt is one
        news = (closed and not self.refused_ms) or ((refused or lost) and not self.leaderless_ms)
        if closed:
            self.refused_ms = self.refused_ms or now_ms
        if refused or lost:
            self.leaderless_ms = self.leaderless_ms or now_ms
        self.unready_ms = (self.unready_ms or now_ms) if refused else 0
        # A move of a queue or a change of its leader costs no attempts, but only for some seconds (decisions 63 and
        # 66).
        if isinstance(error, QueueClosed):
            free = now_ms - self.refused_ms <= CLOSED_MS
        elif refused:
            free = now_ms - self.unready_ms <= LEADERLESS_MS
        else:
            free = lost or (self.finds_no_leader(error) and self.leaderless_for(now_ms) <= LEADERLESS_MS)
        if not free:
            self.attempts += 1
        return news

    def leaderless_for(self, now_ms: int) -> int:
        """How long its broker group has been without a leader, ms."""
        return now_ms - self.leaderless_ms if self.leaderless_ms else 0

    def finds_no_leader(self, error: Error) -> bool:
        """True if its broker group changes its leader."""
        return isinstance(error, (HaNotAvailable, *LOST)) and self.leaderless_ms > 0

    @property
    def pinned(self) -> bool:
        """True: it keeps its queue."""
        return self.key is not None or self.selector is not None

    def pinned_to(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        """The queue of a message that keeps it, chosen by its key or its selector. Raises BadRequest."""
        if self.selector is None:
            assert self.key is not None, "it is pinned"
            return queue_of_group(self.key, queues)
        try:
            queue = self.selector(queues)
        except Exception as error:  # a user's function
            raise BadRequest(f"the selector failed for a message of {self.topic}: {error!r}") from error
        if queue not in queues:
            raise BadRequest(f"the selector chose {queue}, which is none of the {len(queues)} queues of {self.topic}")
        return queue

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
        """It is not, or it is not known."""
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
        and message.delay is None
        and not message.delay_level
        and message.priority is None
        and message.lite_topic is None
    )


def result_of(message_id: str, stored: StoredBatch, number: int) -> SendResult:
    """Where a message is: the one with this number in what was stored."""
    queue = stored.queue
    if stored.queue_ids:
        queue = MessageQueue(queue.topic, queue.broker_name, stored.queue_ids[number])
    recall_handle = stored.recall_handles[number] if stored.recall_handles else ""
    return SendResult(message_id, queue, QueueOffset(stored.offsets[number]), recall_handle)
