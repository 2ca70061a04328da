"""The sync producer. Its work is done in the process's loop thread (`loops.background`); any number of threads may
share one.

    with evenq.Producer(endpoint="127.0.0.1:8081") as producer:
        result = producer.send(evenq.Message(topic="orders", body=b"..."))
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from evenq.client.loops.background import Background
from evenq.client.loops.gates import ThreadGate
from evenq.client.loops.sending import Item, Sending, SendResult
from evenq.client.options import ProducerOptions
from evenq.client.wiring import Encoder, Ground, new_client_id, producer_calls
from evenq.errors import ConnectionFailed, RequestTimeout
from evenq.model import Message

__all__ = ["Producer"]


class Producer:
    """Sends messages. Thread-safe; usable at once; close it, or leave its `with` block, to wait for what is pending."""

    def __init__(
        self,
        *,
        endpoint: str = "127.0.0.1:8081",
        options: ProducerOptions | None = None,
        client_id: str = "",
        ground: Ground | None = None,
    ) -> None:
        """`endpoint` is the access point, `host:port`, or several joined with `;`. `ground` is for tests."""
        self.options = options or ProducerOptions()
        self._ground = ground or Ground.real()
        self.client_id = client_id or new_client_id(self._ground.clock)
        self._encoder = Encoder(self._ground.clock)
        self._gate = ThreadGate(messages_max=self.options.pending_messages, bytes_max=self.options.pending_bytes)
        self._inbox: deque[Item] = deque()
        self._rung = False
        self._closed = False
        self._background = Background.shared()
        self._background.run(self._open(endpoint))

    def send(self, message: Message) -> SendResult:
        """Send one and wait until it is stored. Retries by itself (`options.max_attempts`).

        Raises the last error: TopicNotFound, BodyTooLarge, IllegalMessageTag ..., ConnectionFailed, RequestTimeout
        (it may or may not be stored).
        """
        return self._take(message, urgent=True).result()

    def send_async(self, message: Message) -> Future[SendResult]:
        """Send one, gathered with others for up to `options.linger_ms`. Waits only if too much is pending.

        The future's callbacks run in the SDK's loop thread: keep them short, and make no sync call of the SDK there.
        """
        return self._take(message, urgent=False)

    def send_batch(self, messages: Iterable[Message]) -> list[SendResult]:
        """Send many, spread over the queues, and wait for all. Raises the first error after all were answered."""
        futures = [self._take(message, urgent=False) for message in messages]
        self._background.call_soon(self._flush)
        failures = [error for future in futures if (error := future.exception()) is not None]
        if failures:
            raise failures[0]
        return [future.result() for future in futures]

    def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until everything given so far is answered. Raises RequestTimeout after `timeout_ms`."""
        self._background.check()
        self._background.call_soon(self._flush)
        if not self._gate.wait_empty(timeout_ms):
            raise RequestTimeout(f"{self._gate.messages} messages are not acknowledged after {timeout_ms} ms")

    def close(self, timeout_ms: int = 30_000) -> None:
        """Flush, at most `timeout_ms`, then end the connections; what is pending then fails. Closing twice is no
        error.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self.flush(timeout_ms)
        finally:
            self._background.run(self._shut())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self, message: Message, *, urgent: bool) -> Future[SendResult]:
        if self._closed:
            raise ConnectionFailed("this producer is closed; make a new one")
        self._background.check()
        encoded = self._encoder.encode(message)
        self._gate.enter(len(encoded.content))
        future: Future[SendResult] = Future()
        self._inbox.append(
            Item(message.topic, message.message_group, encoded.message_id, encoded.content, future, urgent=urgent)
        )
        if not self._rung:  # one wake-up of the loop for many messages; the loop clears the flag before it looks
            self._rung = True
            self._background.call_soon(self._empty_inbox)
        return future

    async def _open(self, endpoint: str) -> None:
        self._calls = producer_calls(self._ground, endpoint, self.client_id, self.options.timeout_ms)
        self._sending = Sending(
            self._calls,
            clock=self._ground.clock,
            rng=self._ground.rng,
            options=self.options,
            left=self._gate.leave,
        )

    def _empty_inbox(self) -> None:
        self._rung = False
        items: list[Item] = []
        while self._inbox:
            items.append(self._inbox.popleft())
        self._sending.submit(items)

    def _flush(self) -> None:
        self._empty_inbox()
        self._sending.flush()

    async def _shut(self) -> None:
        self._empty_inbox()
        await self._sending.close()
        if self._ground.net is None:
            await self._calls.net.close()
