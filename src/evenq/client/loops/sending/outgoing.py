"""Entries of the producer's loop, each with the future of its sender: a message, or a block of messages for one queue.

A block that is not stored by its first call becomes single messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from evenq.client.core.calls import StoredBatch
from evenq.client.core.clients.observer import SendObservation
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

log = logging.getLogger(__name__)

CLOSED_MS = 3_000
"""Time after the first rejection by a closed queue in which rejections are not counted: the route may be old."""
LEADERLESS_MS = 10_000
"""Time in which failures of a group without a leader are not counted; later it has too few copies."""
LOST = (ConnectionFailed, RequestTimeout, PersistenceTimeout)
"""Errors of a try during which the leader of a broker group dies or is deposed."""
Selector = Callable[[Sequence[MessageQueue]], MessageQueue]
"""Chooses one of a topic's queues, sorted by broker and id, in the SDK's loop: it must not block."""


@dataclass(frozen=True, slots=True)
class Encoded:
    message_id: str
    content: bytes


@dataclass(frozen=True, slots=True)
class SendResult:
    """The place of an acknowledged message."""

    message_id: str
    queue: MessageQueue
    """Queue id -1: the server chose the queue and did not report it (a server without evenq.v1)."""
    offset: QueueOffset
    recall_handle: str = ""
    """Handle of a delayed message; cancels it with `recall` of the producer or `Admin.recall_message`."""


class Settle(Protocol):
    """A future of asyncio or of threads."""

    def set_result(self, result: SendResult, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


Outcomes = list[SendResult | BaseException]
"""One outcome for each message of a block, in order."""


class BlockFuture(Protocol):
    """The future of a block. It never gets an exception: errors are outcomes."""

    def set_result(self, result: Outcomes, /) -> None: ...


class OnewayResult:
    """Replaces the future of a one-way message."""

    __slots__ = ("message_id", "observation", "topic", "troubles")

    def __init__(self, message_id: str, topic: str, troubles: Troubles, observation: SendObservation | None) -> None:
        self.message_id = message_id
        self.topic = topic
        self.troubles = troubles
        self.observation = observation

    def set_result(self, result: SendResult, /) -> None:
        if self.observation is not None:
            self.observation.stored(result.message_id, result.queue)
        self.troubles.well(f"sending one-way to topic {self.topic}")

    def set_exception(self, exception: BaseException, /) -> None:
        """Reports that a message may be lost: once, not for each message."""
        if self.observation is not None:
            self.observation.failed(exception)
        if isinstance(exception, Error):
            self.troubles.failed(f"sending one-way to topic {self.topic}", exception)
        log.debug("one-way message %s to topic %s was not acknowledged: %s", self.message_id, self.topic, exception)


class Item:
    __slots__ = (
        "alone",
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
        """`tries_max` 0: `max_attempts` of the options."""
        self.topic = message.topic
        self.key = message.message_group if message.message_group is not None else sharding_key
        self.selector = selector
        self.priority = message.priority
        self.lite_topic = message.lite_topic
        delayed = message.delivery_ms is not None or message.delay is not None or message.delay_level > 0
        self.apart = delayed or message.lite_topic is not None
        """True: the server chooses its queue, and it needs a call of its own kind."""
        self.message_id = message_id
        self.encoded = encoded
        self.future = future
        self.urgent = urgent
        self.tries_max = tries_max
        self.alone = False
        """True once a batch with it was refused: one of the batch is invalid, and the calls show which."""
        self.attempts = 0
        """Failed tries that count."""
        self.tries = 0
        """All failed tries."""
        self.error: Error | None = None
        self.refused_ms = 0
        """When a closed queue first rejected it; 0: never."""
        self.leaderless_ms = 0
        """When its broker group first had no leader, or too few copies; 0: never."""
        self.unready_ms = 0
        """Begin of the current series of HaNotAvailable; 0: the last try did not end so."""
        self.failed: MessageQueue | None = None
        self.queue: MessageQueue | None = None
        self.until_ms = 0
        """Deadline of the send, monotonic ms."""
        self.counted = False
        """True once it is pending in the loop."""
        self.done = False

    def count_failure(self, error: Error, queue: MessageQueue, *, closed: bool, group: bool, now_ms: int) -> bool:
        """Counts a failed try at a queue that is `closed`, or of a broker `group` with copies. True: for the first time
        the item met a closed queue, or a group without a leader.
        """
        self.failed, self.error = queue, error
        self.tries += 1
        refused = isinstance(error, HaNotAvailable)
        lost = group and isinstance(error, LOST) and not self.tries_max  # `tries_max`: each try counts
        news = (closed and not self.refused_ms) or ((refused or lost) and not self.leaderless_ms)
        if closed:
            self.refused_ms = self.refused_ms or now_ms
        if refused or lost:
            self.leaderless_ms = self.leaderless_ms or now_ms
        self.unready_ms = (self.unready_ms or now_ms) if refused else 0
        # The move of a queue or a change of its leader uses no attempts, but only for some seconds (decisions 63 and
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
        """Returns the time since its broker group first had no leader, ms."""
        return now_ms - self.leaderless_ms if self.leaderless_ms else 0

    def finds_no_leader(self, error: Error) -> bool:
        """True if its broker group is changing its leader."""
        return isinstance(error, (HaNotAvailable, *LOST)) and self.leaderless_ms > 0

    @property
    def pinned(self) -> bool:
        """True: retries use the same queue."""
        return self.key is not None or self.selector is not None

    def pinned_to(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        """Returns the queue of a pinned message, by its key or its selector. Raises BadRequest."""
        if self.selector is None:
            assert self.key is not None, "it is pinned"
            return queue_of_group(self.key, queues)
        try:
            queue = self.selector(queues)
        except Exception as error:  # a user's function
            raise BadRequest(f"the selector failed for a message of {self.topic}: {error!r}") from error
        if queue not in queues:
            raise BadRequest(f"the selector chose {queue}, not one of the {len(queues)} queues of {self.topic}")
        return queue

    @property
    def count(self) -> int:
        return 1

    @property
    def size(self) -> int:
        return len(self.encoded)


class SendBlock:
    """Messages of one `send_batch` for one queue, none of them pinned or apart: one entry with one future."""

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

    alone = False
    """A refused block becomes single messages."""
    future: BlockFuture
    """Set by the caller before it submits the block."""

    def __init__(self, topic: str, queue: MessageQueue) -> None:
        self.topic = topic
        self.queue = queue
        self.message_ids: list[str] = []
        self.contents: list[bytes] = []
        self.size = 0
        self.urgent = False
        self.attempts = 0
        self.until_ms = 0
        """Deadline of the send, monotonic ms."""
        self.counted = False
        """True once it is pending in the loop."""
        self.done = False
        """True once it is settled, or was split into single messages."""

    @property
    def count(self) -> int:
        return len(self.contents)

    def add(self, message_id: str, content: bytes) -> None:
        self.message_ids.append(message_id)
        self.contents.append(content)
        self.size += len(content)

    def singles(self) -> list[Item]:
        """Splits it into single messages; the block's future is done when all of them are settled."""
        self.done = True
        parts = _Parts(self.future, self.count)
        items = []
        for at, (message_id, content) in enumerate(zip(self.message_ids, self.contents, strict=True)):
            # `Item` reads only properties that messages of blocks lack: message group, delivery time and the like.
            message = Message(topic=self.topic, body=b"", message_id=message_id)
            item = Item(message, message_id, content, _BlockPart(parts, at), urgent=False)
            item.until_ms, item.counted, item.queue = self.until_ms, self.counted, self.queue
            items.append(item)
        return items


class _Parts:
    """The outcomes of a block that was split."""

    __slots__ = ("future", "left", "outcomes")

    def __init__(self, future: BlockFuture, count: int) -> None:
        self.future = future
        self.left = count
        self.outcomes: list[SendResult | BaseException | None] = [None] * count

    def settled(self, at: int, outcome: SendResult | BaseException) -> None:
        """Sets the outcome of a message; the last one completes the future. Raises errors of the future."""
        self.outcomes[at] = outcome
        self.left -= 1
        if not self.left:
            self.future.set_result([outcome for outcome in self.outcomes if outcome is not None])


class _BlockPart:
    """Replaces the future of one message of a split block."""

    __slots__ = ("at", "parts")

    def __init__(self, parts: _Parts, at: int) -> None:
        self.parts = parts
        self.at = at

    def set_result(self, result: SendResult, /) -> None:
        self.parts.settled(self.at, result)

    def set_exception(self, exception: BaseException, /) -> None:
        self.parts.settled(self.at, exception)


Entry = Item | SendBlock


def singles_of(entries: Iterable[Entry]) -> list[Item]:
    """Returns the unsettled messages of the entries; blocks are split."""
    singles: list[Item] = []
    for entry in entries:
        if isinstance(entry, Item):
            singles.append(entry)
        elif not entry.done:
            singles += entry.singles()
    return singles


def goes_anywhere(message: Message) -> bool:
    """True if any queue is allowed: the message has no order, and the server does not choose its queue."""
    return (
        message.message_group is None
        and message.delivery_ms is None
        and message.delay is None
        and not message.delay_level
        and message.priority is None
        and message.lite_topic is None
    )


def result_of(message_id: str, stored: StoredBatch, number: int) -> SendResult:
    """Returns the result of the message with this number in a stored batch."""
    queue = stored.queue
    if stored.queue_ids:
        queue = MessageQueue(queue.topic, queue.broker_name, stored.queue_ids[number])
    recall_handle = stored.recall_handles[number] if stored.recall_handles else ""
    return SendResult(message_id, queue, QueueOffset(stored.offsets[number]), recall_handle)
