"""Base of the three engines: their tables of queues and the rules of putting and getting.

An engine keeps the messages of (name, queue id) in the order of their arrival and answers reads by offset. The progress
of groups is kept elsewhere (`progress`). Every method may be called by any thread.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from evenq.errors import BadRequest, Error, IllegalTopic, PayloadTooLarge, PropertiesTooLarge, StoreError, StorePoisoned
from evenq.local import reading
from evenq.local.messages import Message, Queue
from evenq.local.options import LocalOptions
from evenq.local.partitions import CreateFailed
from evenq.local.reading import GetResult
from evenq.local.statuses import GetStatus, PutStatus
from evenq.local.tail import Cache, QueueTail, Topic
from evenq.model.names import topic_problem
from evenq.runtime.clock import Clock

CLOSED = "the queues are closed: open them again"

log = logging.getLogger(__name__)


class FileFailed(StorePoisoned):
    """A new file for messages could not be made (LQ-21, CREATE_MAPEDFILE_FAILED)."""


@dataclass(frozen=True, slots=True)
class PutResult:
    """Outcome of a batch; `error` has the text."""

    status: PutStatus
    error: Error | None = None


class Engine(ABC):
    """Store of messages. `put` raises errors; `put_message` and `get_message` return the reference's statuses."""

    def __init__(self, options: LocalOptions, clock: Clock) -> None:
        self.options = options
        self.clock = clock
        self.cache = Cache(options.cache_bytes_max)
        self.topics: dict[str, Topic] = {}
        self.finished_by_all: Callable[[Queue], int] = lambda _: 0
        """Returns the offset up to which all groups have finished a queue; set by the owner of their progress."""
        self.failure: str | None = None
        """Reason why no more messages are accepted."""
        self._table_lock = threading.Lock()

    def topic(self, name: str) -> Topic:
        """Returns the topic or queue of that name, created if new. Raises IllegalTopic: names become folders."""
        topic = self.topics.get(name)
        if topic is None:
            problem = topic_problem(name)
            if problem:
                raise IllegalTopic(problem)
            with self._table_lock:
                topic = self.topics.setdefault(name, Topic(name))
        return topic

    def queue(self, name: str, queue_id: int) -> QueueTail:
        """Returns one queue, created if new; concurrent calls return the same one (LQ-49)."""
        topic = self.topic(name)
        queue = topic.queues.get(queue_id)
        if queue is None:
            if not 0 <= queue_id < self.options.queues_max:
                raise BadRequest(f"queue id {queue_id} is outside 0 to {self.options.queues_max - 1} (queues_max)")
            queue = self._found_queue(name, queue_id)
        return queue

    def _found_queue(self, name: str, queue_id: int) -> QueueTail:
        """Returns the queue without checking the limit, for queues that are on disk already."""
        topic = self.topic(name)
        with self._table_lock:
            queue = topic.queues.get(queue_id)
            if queue is None:
                queue = topic.queues[queue_id] = self._make_queue(topic, queue_id)
        return queue

    def queues(self) -> list[QueueTail]:
        """Returns all queues, sorted."""
        topics = sorted(self.topics.items())
        return [queue for _, topic in topics for _, queue in sorted(topic.queues.items())]

    def _make_queue(self, topic: Topic, queue_id: int) -> QueueTail:
        return QueueTail(topic, queue_id)

    def check(self) -> None:
        """Raises StorePoisoned after a failed write or after `close`."""
        if self.failure is not None:
            raise StorePoisoned(self.failure)

    def fail(self, error: OSError, folder: str) -> StoreError:
        """Notes that a write failed, so that no more messages are accepted; returns the error to raise."""
        kind = FileFailed if isinstance(error, CreateFailed) else StorePoisoned
        if self.failure is None:
            self.failure = (
                f"writing to {folder} failed ({error.strerror}), so what is on disk is unknown: close the queues, "
                "check the disk, open them again"
            )
            log.error("%s", self.failure, extra={"reason": self.failure, "new_file": kind is FileFailed})
        return kind(self.failure)

    def interrupted(self, error: BaseException) -> None:
        """Accepts no more messages after an atomic step was interrupted, for example by Ctrl-C in the user's thread."""
        if self.failure is None and not isinstance(error, Error):
            self.failure = (
                f"a send or flush was interrupted in its middle ({error!r}): close the queues and open them again; the "
                "next start finds what was stored"
            )

    @abstractmethod
    def put(self, queue: QueueTail, messages: list[Message], wait_ms: int = 0) -> None:
        """Stores all messages in order and returns when they are as safe as the options require. The messages then have
        their offsets (LQ-25). Raises BodyTooLarge, PropertiesTooLarge (nothing is stored), StorePoisoned.
        """

    def put_message(self, name: str, queue_id: int, messages: Sequence[Message]) -> PutResult:
        """Stores messages; returns a status (LQ-21)."""
        try:
            self.put(self.queue(name, queue_id), list(messages))
        except (PropertiesTooLarge, PayloadTooLarge) as error:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, error)
        except FileFailed as error:
            return PutResult(PutStatus.CREATE_MAPEDFILE_FAILED, error)
        except Error as error:
            return PutResult(PutStatus.UNKNOWN_ERROR, error)
        return PutResult(PutStatus.PUT_OK)

    def get_message(self, name: str, queue_id: int, offset: int, count: int = 32) -> GetResult:
        """Returns up to `count` messages from `offset` on (LQ-58 to LQ-70); an unknown queue is empty."""
        topic = self.topics.get(name)
        queue = topic.queues.get(queue_id) if topic else None
        if queue is None:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, [])
        return self.read(queue, offset, count)

    def read(self, queue: QueueTail, offset: int, count: int) -> GetResult:
        """Reads as `get_message`, from a known queue."""
        options = self.options
        minimum, end = queue.min, queue.end
        refused = reading.refusal(minimum, end, offset, overflow_to_zero=options.overflow_to_zero)
        if refused is not None:
            return refused
        messages = queue.recent(offset, min(count, options.batch_messages_memory, end - offset))
        if messages:
            messages = reading.within(messages, options.batch_bytes_memory)
            return GetResult(GetStatus.FOUND, offset + len(messages), minimum, end, messages)
        return self._read_files(queue, offset, count, minimum, end)

    @abstractmethod
    def _read_files(self, queue: QueueTail, offset: int, count: int, minimum: int, end: int) -> GetResult:
        """Reads messages that memory no longer has."""

    def progressed(self, queue: Queue) -> None:  # noqa: B027  # only one engine needs it
        """Called when a group has finished messages of a queue."""

    def flush(self, *, everything: bool = False) -> None:  # noqa: B027  # nothing to do in memory
        """Syncs what was put so far, and does other work that is due, or all of it. Called by one thread at a time."""

    def state(self) -> dict[str, Any]:
        """Returns the state that the next start needs beside the files; it is saved with the progress of the groups,
        after `flush`. `inner` is the newest offset of each queue that is surely on disk (LQ-51).
        """
        return {"inner": {}}

    def close(self) -> None:
        """Closes the files; later calls are refused."""
        self.failure = self.failure or CLOSED
