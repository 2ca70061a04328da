"""Consumers of lite topics with sync calls (wire contract 5.6): one receives and acknowledges, one calls a listener.

with evenq.LiteSimpleConsumer(group="screen", topic="chats", lite_topics=("ann",)) as consumer:
    for message in consumer.receive():
        consumer.ack(message)
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from evenq.client.async_lite_consumer import LiteClient, LitePushClient, LiteSimpleClient, OnUnsubscribed
from evenq.client.core.clients.observer import observed_receive, observed_settle
from evenq.client.core.lite.events import starting
from evenq.client.faces import SyncFace, observed_listener
from evenq.client.loops.clients.user_code import in_thread, listened
from evenq.client.running import SyncRun
from evenq.model import ReceivedMessage, StartFrom


class _SyncLite(SyncFace, LiteClient):
    def subscribe_lite(
        self,
        *lite_topics: str,
        start_from: StartFrom | str | None = None,
        start_timestamp_ms: int | str = 0,
        start_offset: int | None = None,
        start_tail: int | None = None,
    ) -> None:
        """Subscribes to more lite topics: to all that are named or, after an error, to none. Existing subscriptions
        stay.

        Without a start position the group continues where it was, or begins at the first message that is kept. The
        start is `start_from` (FIRST, LAST, or TIMESTAMP with `start_timestamp_ms`), `start_offset`, or `start_tail`
        (the last n messages). It applies to lite topics that exist and to which no other member of the group is
        subscribed. Raises LiteSubscriptionQuotaExceeded, IllegalLiteTopic, IllegalTopic (not a LITE topic), BadRequest,
        ConnectionFailed, RequestTimeout.
        """
        start = starting(start_from, start_timestamp_ms, start_offset, start_tail)
        self._run(self._running().subscribing.subscribe(lite_topics, start))

    def unsubscribe_lite(self, *lite_topics: str) -> None:
        """Unsubscribes from these lite topics. The group keeps its progress in them."""
        self._run(self._running().subscribing.unsubscribe(lite_topics))

    def close(self) -> None:
        """Finishes running calls and leaves the group, which ends the subscriptions. A second call does nothing."""
        if self._lifetime.end():
            self._run_end(self._shut())

    async def _unsubscribed(self, callback: OnUnsubscribed, lite_topic: str) -> object:
        return await in_thread(None, callback, lite_topic)


class LiteSimpleConsumer(_SyncLite, LiteSimpleClient):
    """Simple consumer of lite topics: receives messages and acknowledges them. Thread-safe; no start is needed.

    The next message of a lite topic is delivered when the previous one is acknowledged, whichever member of the group
    has it.
    """

    _awaited_by = "evenq.aio.LiteSimpleConsumer"

    def receive(
        self, max_messages: int = 32, *, invisible_ms: int = 30_000, wait_ms: int = 15_000
    ) -> list[ReceivedMessage]:
        """Receives as `SimpleConsumer.receive`; at most one message of each lite topic."""
        receive = self._running().receive
        with observed_receive(self._identity) as receiving:
            return receiving.received(self._background.run_or_cancel(receive(max_messages, invisible_ms, wait_ms)))

    def ack(self, *messages: ReceivedMessage) -> None:
        """Acknowledges as `SimpleConsumer.ack`; then the next messages of these lite topics are delivered."""
        with observed_settle(self._identity, "ack", messages):
            self._run(self._running().receiving.ack(*messages))

    def change_invisible(self, message: ReceivedMessage, invisible_ms: int) -> ReceivedMessage:
        """Hides a message as `SimpleConsumer.change_invisible`; its lite topic waits."""
        with observed_settle(self._identity, "change_invisible", [message]):
            return self._run(self._running().receiving.change_invisible(message, invisible_ms))

    def suspend(self, message: ReceivedMessage, pause_ms: int) -> None:
        """Pauses the lite topic: the message is redelivered after `pause_ms`, which does not count as an attempt."""
        with observed_settle(self._identity, "suspend", [message]):
            self._run(self._running().receiving.change_invisible(message, pause_ms, suspend=True))

    def _begin(self) -> None:
        self._run(self._open())


class LitePushConsumer(SyncRun, _SyncLite, LitePushClient):
    """Push consumer of lite topics: calls a listener in a pool of threads, with one message per call."""

    _awaited_by = "evenq.aio.LitePushConsumer"

    def start(self) -> Self:
        """Subscribes and begins to receive. Starting twice is an error. Raises as `subscribe_lite`."""
        self._lifetime.check_new()
        self._threads = ThreadPoolExecutor(self._plan.slots, thread_name_prefix="evenq-listener")
        self._run(self._open_listening())
        return self

    def close(self) -> None:
        """Waits for running listeners (at most `options.drain_ms`) and leaves the group. A second call does nothing."""
        started = self._lifetime.running
        super().close()
        if started:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._ended()

    def __enter__(self) -> Self:
        return self if self._lifetime.started else self.start()

    async def _listen(self, messages: list[ReceivedMessage]) -> object:
        listener = observed_listener(self._identity, self._listener)
        return await listened(self._threads, listener, messages, instead=self._awaited_by)

    async def _notify(self, callback: Callable[..., object], *arguments: object) -> object:
        return await in_thread(self._threads, callback, *arguments)
