"""The sync simple consumer: receive, work, acknowledge; the server keeps track of each message (wire contract 5.1).

with evenq.SimpleConsumer(group="billing", subscriptions={"orders": "*"}) as consumer:
    for message in consumer.receive():
        consumer.ack(message)
"""

from __future__ import annotations

from evenq.client.async_simple_consumer import SimpleClient
from evenq.client.faces import SyncFace
from evenq.model import ReceivedMessage

__all__ = ["SimpleConsumer"]


class SimpleConsumer(SyncFace, SimpleClient):
    """Members of a group share all messages one by one; nothing is assigned. Thread-safe; usable at once."""

    def receive(
        self, max_messages: int = 32, *, invisible_ms: int = 30_000, wait_ms: int = 15_000
    ) -> list[ReceivedMessage]:
        """Take up to `max_messages` (1 .. 1,000); waits up to `wait_ms` (0 .. 60,000) for the first one, else an
        empty list.

        A message that is not acknowledged within `invisible_ms` comes again. Raises TopicNotFound, GroupNotFound,
        IllegalInvisibleTime, ConnectionFailed, and, as all calls do, Unsupported after `close`.
        """
        return self._background.run_or_cancel(self._running().receive(max_messages, invisible_ms, wait_ms))

    def ack(self, message: ReceivedMessage) -> None:
        """Finish it for the group. Raises InvalidReceiptHandle if its invisible time is over and it was given away."""
        self._run(self._running().ack(message))

    def change_invisible(self, message: ReceivedMessage, invisible_ms: int) -> ReceivedMessage:
        """Hide it for `invisible_ms` from now: longer to work on, shorter (0 = now) to give it back. Go on with the
        result.
        """
        return self._run(self._running().change_invisible(message, invisible_ms))

    def close(self) -> None:
        """Say goodbye. Closing twice is no error."""
        if self._lifetime.end():
            self._run(self._shut())

    def _begin(self) -> None:
        self._in_loop(self._receiving.start)
