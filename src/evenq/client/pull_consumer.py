"""The sync pull consumer: the program fetches messages when it wants them, and may choose where to read (CS-11, RB-49).

with evenq.PullConsumer(group="billing", subscriptions={"orders": "*"}) as consumer:
    for message in consumer.poll():
        print(message.body)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from evenq.client.async_pull_consumer import PullClient
from evenq.client.faces import SyncFace
from evenq.client.loops.clients.user_code import in_thread
from evenq.model import FilterExpression, MessageQueue, ReceivedMessage

__all__ = ["PullConsumer"]


class PullConsumer(SyncFace, PullClient):
    """Shares a group's queues as a push consumer does, or reads queues that the program chooses. One poll at a time."""

    _awaited_by = "evenq.aio.PullConsumer"

    def start(self) -> Self:
        """Join the group and begin to fetch ahead; returns at once. Starting twice is an error."""
        self._lifetime.check_new()
        self._callbacks = ThreadPoolExecutor(1, thread_name_prefix="evenq-on-rebalance")
        self._in_loop(self._open)
        return self

    def close(self, *, consumed: bool = True) -> None:
        """Leave the group in bounded time. With automatic commits the messages of the last poll count as consumed,
        unless `consumed` is False (leaving a `with` block by an exception); then they are delivered again. Closing
        twice is no error.
        """
        if self._lifetime.end():
            self._run(self._shut(consumed=consumed))
            self._callbacks.shutdown(wait=False, cancel_futures=True)

    def poll(self, max_messages: int = 32, *, wait_ms: int = 15_000) -> list[ReceivedMessage]:
        """Return up to `max_messages` (1 .. 10,000) of one queue in offset order. Waits up to `wait_ms`, then returns
        an empty list.

        With automatic commits, the messages of the previous poll count as consumed now. Raises Unsupported while
        another thread polls.
        """
        polling = self._running()
        try:
            return self._background.run_or_cancel(polling.poll(max_messages, wait_ms))
        except KeyboardInterrupt:  # what it may have taken must not count as consumed
            self._background.call_soon(polling.interrupt)
            raise

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store progress now: after everything polled, or at these offsets (the next ones to read; they may go
        backward). Raises PreconditionFailed for a queue that this consumer does not own, ConnectionFailed if a broker
        did not store it.
        """
        self._run(self._running().commit(offsets))

    def committed(self, queue: MessageQueue) -> int:
        """The group's stored offset, read from where it is stored; -1 if there is none (OF-8)."""
        return self._run(self._running().committed(queue))

    def assign(
        self, queues: Sequence[MessageQueue], expression: str | FilterExpression = "*", *, timeout_ms: int = 10_000
    ) -> None:
        """Read exactly these queues from the group's stored offsets on, without sharing them; returns when they are
        ready. Raises RequestTimeout, and Unsupported on a consumer that subscribes.
        """
        self._run(self._assign(queues, expression, timeout_ms))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue at the oldest message that is kept."""
        self._run(self._running().seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue at the end: read only messages that are stored from now on."""
        self._run(self._running().seek_to_end(queue))

    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset stored at or after a time, ms since the epoch."""
        return self._run(self._running().offset_at(queue, timestamp_ms))

    def queues_of(self, topic: str) -> list[MessageQueue]:
        """All readable queues of a topic, sorted, for `assign`."""
        return self._run(self._running().queues_of(topic))

    def __enter__(self) -> Self:
        return self if self._lifetime.started else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(consumed=kind is None)

    async def _notify(self, callback: Callable[..., object], *arguments: object) -> object:
        return await in_thread(self._callbacks, callback, *arguments)
