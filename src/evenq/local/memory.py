"""The memory engine (LQ-10 to LQ-14): bounded lists, a lock for each queue, nothing on disk.

Messages that all groups of a name have finished are dropped when space is needed. If none can be dropped, `put` waits
for the consumers and then refuses: an accepted message is never dropped before every group has finished it.
"""

from __future__ import annotations

import threading

from evenq.errors import TooManyRequests
from evenq.local.engine import Engine
from evenq.local.messages import Message, Queue
from evenq.local.options import LocalOptions
from evenq.local.reading import GetResult
from evenq.local.records import check_size
from evenq.local.statuses import GetStatus
from evenq.local.tail import QueueTail, Topic
from evenq.runtime.clock import Clock


class _Bucket(QueueTail):
    __slots__ = ("bytes", "room")

    def __init__(self, topic: Topic, queue_id: int) -> None:
        super().__init__(topic, queue_id)
        self.bytes = 0
        self.room = threading.Condition(threading.Lock())


class MemoryEngine(Engine):
    def __init__(self, options: LocalOptions, clock: Clock) -> None:
        super().__init__(options, clock)
        self._pulled: dict[tuple[str, Queue], int] = {}
        self._pull_lock = threading.Lock()

    def _make_queue(self, topic: Topic, queue_id: int) -> QueueTail:
        return _Bucket(topic, queue_id)

    def put(self, queue: QueueTail, messages: list[Message], wait_ms: int = 0) -> None:
        """Appends in order. A full queue waits up to `wait_ms`, then raises TooManyRequests after storing a part."""
        assert isinstance(queue, _Bucket)
        sizes = [message.memory_bytes for message in messages]
        for size in sizes:
            check_size(size, min(self.options.message_bytes_max, self.options.bucket_bytes_max))
        now = self.clock.now_ms()
        self.check()
        with queue.room:
            for message, size in zip(messages, sizes, strict=True):
                if queue.bytes + size > self.options.bucket_bytes_max:
                    self._make_room(queue, size, wait_ms)
                message.offset, message.stored_ms = queue.next, now
                try:
                    queue.tail[1].append(message)
                    queue.next = queue.end = message.offset + 1
                    queue.bytes += size
                except BaseException as error:
                    self.interrupted(error)
                    raise
        if queue.topic.bells:
            queue.topic.ring(queue.key)

    def _make_room(self, queue: _Bucket, size: int, wait_ms: int) -> None:
        if queue.topic.bells:
            queue.topic.ring(queue.key)
        end = self.clock.monotonic_ms() + wait_ms
        while not self._drop_finished(queue, size):
            left = end - self.clock.monotonic_ms()
            if left <= 0 or not queue.room.wait(left / 1000):
                if self._drop_finished(queue, size):
                    return
                raise TooManyRequests(
                    f"queue {queue.key} holds {queue.bytes} bytes that a group has not finished, the limit is "
                    f"{self.options.bucket_bytes_max} (bucket_bytes_max): consume, or send with a longer timeout"
                )

    def _drop_finished(self, queue: _Bucket, size: int) -> bool:
        """Drops messages that every group has finished; True if `size` bytes fit then."""
        finished = self.finished_by_all(queue.key)
        while queue.min < finished and queue.bytes + size > self.options.bucket_bytes_max:
            queue.min += 1
            queue.bytes -= queue.forget_first().memory_bytes
        return queue.bytes + size <= self.options.bucket_bytes_max

    def progressed(self, queue: Queue) -> None:
        bucket = self.topics[queue[0]].queues[queue[1]]
        assert isinstance(bucket, _Bucket)
        if bucket.bytes * 2 > self.options.bucket_bytes_max:
            with bucket.room:
                bucket.room.notify_all()

    def _read_files(self, queue: QueueTail, offset: int, count: int, minimum: int, end: int) -> GetResult:  # noqa: ARG002
        # The message was dropped between the check of the range and the read of the list.
        return GetResult(GetStatus.MESSAGE_WAS_REMOVING, queue.min, queue.min, end, [])

    def pull_message(self, reader: str, name: str) -> Message | None:
        """Returns the next message of queue 0 of `name` for an attached reader; None if there is none. The offset moves
        with the pull (LQ-11): at most once. Consumers with acknowledgement do not use this.
        """
        topic = self.topics.get(name)
        queue = topic.queues.get(0) if topic else None
        if queue is None:
            return None
        key = (reader, queue.key)
        with self._pull_lock:
            offset = max(self._pulled.get(key, 0), queue.min)
            messages = queue.recent(offset, 1)
            if not messages:
                return None
            self._pulled[key] = offset + 1
        return messages[0]
