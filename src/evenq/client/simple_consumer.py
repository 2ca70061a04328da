"""The sync simple consumer: receive, process, acknowledge; the server keeps track of each message (wire contract 5.1).

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
    """Members of a group share all messages one by one, without owning queues. Thread-safe, and usable at once."""

    def receive(
        self, max_messages: int = 32, *, invisible_ms: int = 30_000, wait_ms: int = 15_000
    ) -> list[ReceivedMessage]:
        """Receive up to `max_messages` (1 .. 1,000). Waits up to `wait_ms` (0 .. 60,000) for the first one, then
        returns an empty list.

        A message that is not acknowledged within `invisible_ms` is delivered again. Raises TopicNotFound,
        GroupNotFound, IllegalInvisibleTime, ConnectionFailed, and, as all calls do, Unsupported after `close`.
        """
        return self._background.run_or_cancel(self._running().receive(max_messages, invisible_ms, wait_ms))

    def ack(self, *messages: ReceivedMessage) -> None:
        """Acknowledge them for the group; those of one broker and topic take one call, which is much faster than one by
        one. Raises InvalidReceiptHandle if the invisible time of one is over and it was delivered again; the others are
        acknowledged. While a broker with copies changes its leader, the call is made again for `timeout_ms`; what fails
        then (HaNotAvailable, ConnectionFailed) may be acknowledged or not, and may be acknowledged again.
        """
        self._run(self._running().ack(*messages))

    def change_invisible(self, message: ReceivedMessage, invisible_ms: int) -> ReceivedMessage:
        """Hide it for `invisible_ms` from now: longer to have more time, shorter (0 = now) to return it. Use the
        returned message from then on. Tried again as `ack`.
        """
        return self._run(self._running().change_invisible(message, invisible_ms))

    def close(self) -> None:
        """Leave the group. Closing twice is no error."""
        if self._lifetime.end():
            self._run(self._shut())

    def _begin(self) -> None:
        self._in_loop(self._receiving.start)
