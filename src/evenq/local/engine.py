"""What the three engines share: their tables of queues and the rules of putting and getting.

An engine keeps messages of (name, queue id) in the order of their coming and answers reads by offset. Who reads what,
and how far they are, is not its business (`progress`). Every method may be called by any thread.
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

__all__ = ["CLOSED", "Engine", "FileFailed", "PutResult"]

CLOSED = "the queues are closed: open them again"

log = logging.getLogger(__name__)


class FileFailed(StorePoisoned):
    """A new file for messages could not be made (LQ-21, CREATE_MAPEDFILE_FAILED)."""


@dataclass(frozen=True, slots=True)
class PutResult:
    """What became of a batch; `error` has the sentence."""

    status: PutStatus
    error: Error | None = None


class Engine(ABC):
    """Keeps messages. `put` raises errors; `put_message` and `get_message` answer by the documents' statuses."""

    def __init__(self, options: LocalOptions, clock: Clock) -> None:
        self.options = options
        self.clock = clock
        self.cache = Cache(options.cache_bytes_max)
        self.topics: dict[str, Topic] = {}
        self.finished_by_all: Callable[[Queue], int] = lambda _: 0
        """Offset up to which all groups of a queue are through; set by the owner of their progress."""
        self.failure: str | None = None
        """Why nothing is taken any more."""
        self._table_lock = threading.Lock()

    # The table of queues

    def topic(self, name: str) -> Topic:
        """The topic or queue of that name, made if it is new. Raises IllegalTopic: names become folders."""
        topic = self.topics.get(name)
        if topic is None:
            problem = topic_problem(name)
            if problem:
                raise IllegalTopic(problem)
            with self._table_lock:
                topic = self.topics.setdefault(name, Topic(name))
        return topic

    def queue(self, name: str, queue_id: int) -> QueueTail:
        """One queue, made if it is new; two threads that make the same one get the same one (LQ-49)."""
        topic = self.topic(name)
        queue = topic.queues.get(queue_id)
        if queue is None:
            if not 0 <= queue_id < self.options.queues_max:
                raise BadRequest(f"queue id {queue_id} is outside 0 to {self.options.queues_max - 1} (queues_max)")
            queue = self._found_queue(name, queue_id)
        return queue

    def _found_queue(self, name: str, queue_id: int) -> QueueTail:
        """The same without the limit, for queues that are on disk already."""
        topic = self.topic(name)
        with self._table_lock:
            queue = topic.queues.get(queue_id)
            if queue is None:
                queue = topic.queues[queue_id] = self._make_queue(topic, queue_id)
        return queue

    def queues(self) -> list[QueueTail]:
        """All queues there are, in order."""
        topics = sorted(self.topics.items())
        return [queue for _, topic in topics for _, queue in sorted(topic.queues.items())]

    def _make_queue(self, topic: Topic, queue_id: int) -> QueueTail:
        return QueueTail(topic, queue_id)

    # Putting

    def check(self) -> None:
        """Raises StorePoisoned after a write failed or the queues were closed."""
        if self.failure is not None:
            raise StorePoisoned(self.failure)

    def fail(self, error: OSError, folder: str) -> StoreError:
        """A write failed: take nothing more. The error to raise."""
        kind = FileFailed if isinstance(error, CreateFailed) else StorePoisoned
        if self.failure is None:
            self.failure = (
                f"writing to {folder} failed ({error.strerror}), so what is on disk is unknown: close the queues, see "
                "to the disk, open them again"
            )
            log.error("%s", self.failure, extra={"reason": self.failure, "new_file": kind is FileFailed})
        return kind(self.failure)

    def interrupted(self, error: BaseException) -> None:
        """What must happen whole ended in its middle (Ctrl-C in the user's thread, say): take nothing more."""
        if self.failure is None and not isinstance(error, Error):
            self.failure = (
                f"a send or flush was interrupted in its middle ({error!r}): close the queues and open them again; the "
                "next start finds what was stored"
            )

    @abstractmethod
    def put(self, queue: QueueTail, messages: list[Message], wait_ms: int = 0) -> None:
        """Store messages in order, all of them, and return when they are as safe as the options say. The messages
        then know their places (LQ-25). Errors: BodyTooLarge, PropertiesTooLarge (nothing is stored), StorePoisoned.
        """

    def put_message(self, name: str, queue_id: int, messages: Sequence[Message]) -> PutResult:
        """The same, answered by a status (LQ-21)."""
        try:
            self.put(self.queue(name, queue_id), list(messages))
        except (PropertiesTooLarge, PayloadTooLarge) as error:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, error)
        except FileFailed as error:
            return PutResult(PutStatus.CREATE_MAPEDFILE_FAILED, error)
        except Error as error:
            return PutResult(PutStatus.UNKNOWN_ERROR, error)
        return PutResult(PutStatus.PUT_OK)

    # Getting

    def get_message(self, name: str, queue_id: int, offset: int, count: int = 32) -> GetResult:
        """Up to `count` messages of a queue from `offset` on (LQ-58 to LQ-70); a queue that is not there is empty."""
        topic = self.topics.get(name)
        queue = topic.queues.get(queue_id) if topic else None
        if queue is None:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, [])
        return self.read(queue, offset, count)

    def read(self, queue: QueueTail, offset: int, count: int) -> GetResult:
        """`get_message` of a queue that is at hand."""
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
        """Read what memory does not have any more."""

    # Keeping

    def progressed(self, queue: Queue) -> None:  # noqa: B027  # only one engine needs it
        """A group has finished messages of a queue."""

    def flush(self, *, everything: bool = False) -> None:  # noqa: B027  # nothing to do in memory
        """Make what was put so far safe, and do what is due, or all there is. Called by one thread at a time."""

    def state(self) -> dict[str, Any]:
        """What the next start must know besides the files; saved with the progress of the groups, after `flush`.
        `inner` is the newest offset of each queue that is sure (LQ-51).
        """
        return {"inner": {}}

    def close(self) -> None:
        """Let the files go; later calls are refused."""
        self.failure = self.failure or CLOSED
