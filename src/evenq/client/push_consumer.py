"""Push consumer with sync calls: calls a listener in a pool of threads (semantics 8, 9, 12, 14, 16).

def listen(messages):
    for message in messages:
        print(message.body)

# Runs until SIGTERM or Ctrl-C.
evenq.PushConsumer(group="billing", listener=listen, subscriptions={"orders": "*"}).run()
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from evenq.client.async_push_consumer import PushClient
from evenq.client.faces import SyncFace, observed_listener
from evenq.client.loops.clients.user_code import in_thread, listened
from evenq.client.running import SyncRun
from evenq.model import ReceivedMessage


class PushConsumer(SyncRun, SyncFace, PushClient):
    """One member of a consumer group. Delivery is at least once (TQ-10); orderly joins and leaves repeat no message."""

    _awaited_by = "evenq.aio.PushConsumer"

    def start(self) -> Self:
        """Joins the group and begins to read; returns before queues are granted. Starting twice is an error."""
        self._lifetime.check_new()
        self._threads = ThreadPoolExecutor(self._plan.slots, thread_name_prefix="evenq-listener")
        self._callbacks = ThreadPoolExecutor(1, thread_name_prefix="evenq-callbacks")
        self._in_loop(self._open)
        return self

    def close(self) -> None:
        """Leaves the group: waits for listeners (at most `options.drain_ms`), commits, releases the queues."""
        if self._lifetime.end():
            self._run_end(self._shut())
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._callbacks.shutdown(wait=False, cancel_futures=True)
            self._ended()

    def __enter__(self) -> Self:
        return self if self._lifetime.started else self.start()

    async def _listen(self, messages: list[ReceivedMessage]) -> object:
        listener = observed_listener(self._identity, self._listener)
        return await listened(self._threads, listener, messages, instead=self._awaited_by)

    async def _notify(self, callback: Callable[..., object], *arguments: object) -> object:
        return await in_thread(self._callbacks, callback, *arguments)
