"""Simple consumer with sync calls: receive, process, acknowledge. The server tracks each message (wire contract 5.1).

with evenq.SimpleConsumer(group="billing", subscriptions={"orders": "*"}) as consumer:
    for message in consumer:
        print(message.body)
"""

from __future__ import annotations

from evenq.client.async_simple_consumer import MessageIterator, SimpleClient
from evenq.client.core.clients.observer import observed_receive, observed_settle
from evenq.client.faces import SyncFace
from evenq.client.loops.consumers.iterating import MessageLoop
from evenq.client.loops.sending.outgoing import Encoded, SendResult
from evenq.client.transaction import ConsumerTransaction
from evenq.model import ReceivedMessage


class SimpleConsumer(SyncFace, SimpleClient):
    """Simple consumer: members of a group share single messages and own no queues. Thread-safe; no start is needed."""

    def receive(
        self, max_messages: int = 32, *, invisible_ms: int = 30_000, wait_ms: int = 15_000
    ) -> list[ReceivedMessage]:
        """Receives up to `max_messages` (1 .. 1,000). Waits up to `wait_ms` (0 .. 60,000) for the first one, then
        returns an empty list.

        A message that is not acknowledged within `invisible_ms` is redelivered. Raises TopicNotFound, GroupNotFound,
        IllegalInvisibleTime, ConnectionFailed, and, as all calls do, Unsupported after `close`.
        """
        receive = self._running().receive
        with observed_receive(self._identity) as receiving:
            return receiving.received(self._background.run_or_cancel(receive(max_messages, invisible_ms, wait_ms)))

    def ack(self, *messages: ReceivedMessage) -> None:
        """Acknowledges messages for the group. Those of one broker and topic take one call, which is much faster than
        one each.

        Raises InvalidReceiptHandle if the invisible time of one has ended and it was redelivered; the others are
        acknowledged. While a broker with copies changes its leader, the call is retried for `options.timeout_ms`. After
        HaNotAvailable or ConnectionFailed messages may be acknowledged or not; acknowledging them again is allowed.
        """
        with observed_settle(self._identity, "ack", messages):
            self._run(self._settling().ack(*messages))

    def transaction(self) -> ConsumerTransaction:
        """Returns a transaction for `with`: at the end of the block, all messages of its `send` are stored and all of
        its `ack` acknowledged, or none. After an exception in the block nothing is, and the messages are redelivered
        when their invisible time has ended. In a loop over the messages, call `ack` first in the block. See
        docs/guides/exactly_once.md.

        The acknowledged messages are of one broker, as those of one `receive` are, and the topics have queues there. At
        the end the block raises InvalidReceiptHandle if a delivery has ended, and other errors if something is refused:
        then nothing is stored. The call is retried for `options.timeout_ms`. After ConnectionFailed, RequestTimeout or
        HaNotAvailable all of it may be stored, or nothing; if nothing is, the messages are redelivered.
        """
        self._lifetime.check_open()

        def commit(acked: list[ReceivedMessage], sent: list[Encoded]) -> list[SendResult]:
            with observed_settle(self._identity, "ack", acked):
                return self._run(self._settling().transact(acked, sent))

        return ConsumerTransaction(self._encoder, self._leave, commit)

    def change_invisible(
        self, message: ReceivedMessage, invisible_ms: int, *, suspend: bool = False
    ) -> ReceivedMessage:
        """Hides a message for `invisible_ms` from now: longer to have more time, shorter (0 = now) to return it. Use
        the returned message from then on. `suspend`: this delivery counts as no attempt, as for a message that nobody
        has looked at. Retried as `ack`.
        """
        with observed_settle(self._identity, "change_invisible", [message]):
            return self._run(self._settling().change_invisible(message, invisible_ms, suspend=suspend))

    def messages(
        self, max_messages: int = 32, *, invisible_ms: int = 30_000, idle_ms: int | None = None
    ) -> MessageIterator:
        """Returns an iterator over the messages, for one `for` statement at a time. `for message in consumer` calls it
        without arguments.

        A message is acknowledged when the loop takes the next one. After an exception or a `break` it takes none: the
        message is redelivered when its invisible duration has ended, unless the body acknowledged it itself, or changed
        its invisible duration. Messages that were received and not yet taken are redelivered immediately.

        At most `max_messages` (1 .. 1,000) are received together; a slow body gets fewer, down to one. They are hidden
        for `invisible_ms` (1,000 .. 43,200,000), which is extended while the body runs, for at most
        `options.consume_timeout_ms`. The loop waits for messages without a limit, or ends after `idle_ms` (0 ..
        86,400,000) without one; it also ends after `stop()` of the iterator, and when the consumer is closed.

        Outages are waited for. Raises errors that a retry cannot solve (TopicNotFound, Forbidden ...), and
        ConnectionFailed or RequestTimeout if an outage lasts until the end of `idle_ms`.
        """
        self._lifetime.check_open()
        loop = self._in_loop(
            MessageLoop, self._loops, max_messages=max_messages, invisible_ms=invisible_ms, idle_ms=idle_ms
        )
        return MessageIterator(self._background, loop)

    def __iter__(self) -> MessageIterator:
        return self.messages()

    def close(self) -> None:
        """Ends the loops over the messages and leaves the group. A second call does nothing."""
        if self._lifetime.end():
            self._run_end(self._shut())

    def _begin(self) -> None:
        self._in_loop(self._receiving.start)
