"""Pull consumer with sync calls: the program fetches messages, and may choose the queues (CS-11, RB-49).

with evenq.PullConsumer(group="billing", subscriptions={"orders": "*"}) as consumer:
    for message in consumer.poll():
        print(message.body)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from evenq.client.async_pull_consumer import LOOP_WAIT_MS, PullClient
from evenq.client.core.clients.observer import observed_receive, observed_settle
from evenq.client.faces import SyncFace
from evenq.client.loops.clients.user_code import in_thread
from evenq.errors import Unsupported
from evenq.model import FilterExpression, MessageQueue, ReceivedMessage


class PullConsumer(SyncFace, PullClient):
    """Pull consumer that shares a group's queues, or reads queues that the program chooses. One poll at a time."""

    _awaited_by = "evenq.aio.PullConsumer"

    def start(self) -> Self:
        """Joins the group and begins to fetch ahead; returns immediately. Starting twice is an error."""
        self._lifetime.check_new()
        self._callbacks = ThreadPoolExecutor(1, thread_name_prefix="evenq-on-rebalance")
        self._in_loop(self._open)
        return self

    def close(self, *, consumed: bool = True) -> None:
        """Leaves the group in bounded time. With automatic commits the messages of the last poll count as consumed.
        With `consumed` False, or after an exception in a `with` block, they are redelivered. A second call does
        nothing.
        """
        if self._lifetime.end():
            self._run_end(self._shut(consumed=consumed))
            self._callbacks.shutdown(wait=False, cancel_futures=True)

    def poll(self, max_messages: int = 32, *, wait_ms: int = 15_000) -> list[ReceivedMessage]:
        """Returns up to `max_messages` (1 .. 10,000) of one queue in offset order; an empty list if none arrives within
        `wait_ms`.

        With automatic commits, the messages of the previous poll count as consumed now. Raises Unsupported while
        another thread polls.
        """
        polling = self._running()
        try:
            with observed_receive(self._identity) as receiving:
                return receiving.received(self._background.run_or_cancel(polling.poll(max_messages, wait_ms)))
        except KeyboardInterrupt:  # messages that the poll may have taken must not count as consumed
            self._background.call_soon(polling.interrupt)
            raise

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Stores progress now: after everything polled, or at these offsets (the next ones to read; they may go
        backward). Raises PreconditionFailed for a queue that this consumer does not own, ConnectionFailed if a broker
        did not store it.
        """
        with observed_settle(self._identity, "commit"):
            self._run(self._running().commit(offsets))

    def committed(self, queue: MessageQueue) -> int:
        """Returns the group's offset, read from where it is stored; -1 if there is none (OF-8)."""
        return self._run(self._running().committed(queue))

    def assign(
        self, queues: Sequence[MessageQueue], expression: str | FilterExpression = "*", *, timeout_ms: int = 10_000
    ) -> None:
        """Reads exactly these queues, without sharing them, from the group's stored offsets on; returns when they are
        ready. Raises RequestTimeout, and Unsupported on a consumer that subscribes.
        """
        self._run(self._assign(queues, expression, timeout_ms))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continues at the oldest message that is kept, with `tables` also in the table."""
        self._run(self._running().seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Continues at the end: reads only messages that are stored from now on."""
        self._run(self._running().seek_to_end(queue))

    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Returns the first offset stored at or after a time, ms since the epoch."""
        return self._run(self._running().offset_at(queue, timestamp_ms))

    def queues_of(self, topic: str) -> list[MessageQueue]:
        """Returns all readable queues of a topic, sorted, for `assign`."""
        return self._run(self._running().queues_of(topic))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Yields messages one by one, as `poll(1)` returns them, until the consumer is closed. With automatic commits a
        message counts as consumed when the next one is taken, or at a clean end of the `with` block.
        """
        self._lifetime.check_running()
        while self._lifetime.running:
            try:
                messages = self.poll(1, wait_ms=LOOP_WAIT_MS)
            except Unsupported:
                if self._lifetime.running:
                    raise
                return
            yield from messages

    def __enter__(self) -> Self:
        return self if self._lifetime.started else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(consumed=kind is None)

    async def _notify(self, callback: Callable[..., object], *arguments: object) -> object:
        return await in_thread(self._callbacks, callback, *arguments)
