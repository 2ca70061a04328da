"""The sync simple consumer: receive, work, acknowledge; the server keeps track of each message (wire contract 5.1).

with evenq.SimpleConsumer(group="billing", subscriptions={"orders": "*"}) as consumer:
    for message in consumer.receive():
        consumer.ack(message)
"""

from __future__ import annotations

from collections.abc import Mapping

from evenq.client.loops.background import Background
from evenq.client.options import SimpleOptions
from evenq.client.plans import simple_plan
from evenq.client.wiring import Ground, new_client_id, receiving_parts
from evenq.model import FilterExpression, ReceivedMessage, StartFrom
from evenq.runtime.closing import Closing
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Tls

__all__ = ["SimpleConsumer"]


class SimpleConsumer(Closing):
    """Members of a group share all messages one by one; nothing is assigned. Thread-safe."""

    def __init__(
        self,
        *,
        group: str,
        subscriptions: Mapping[str, str | FilterExpression],
        endpoint: str = "",
        start_from: StartFrom | str | None = None,
        start_timestamp_ms: int | str = 0,
        options: SimpleOptions | None = None,
        client_id: str = "",
        credentials: Credentials | None = None,
        tls: Tls | bool | None = None,
        ground: Ground | None = None,
    ) -> None:
        """Usable at once. `start_from` as in `evenq.PushConsumer`: where the group begins on a topic that it never
        read, at the first receive. Raises IllegalGroup, IllegalTopic, BadRequest.
        """
        self._plan = simple_plan(
            group=group, subscriptions=subscriptions, start_from=start_from, start_timestamp_ms=start_timestamp_ms,
            options=options,
        )  # fmt: skip
        self._ground = Ground.of(ground, credentials, endpoint=endpoint, tls=tls)
        self.client_id = client_id or new_client_id(self._ground.clock)
        self._closed = False
        self._background = Background.shared()
        self._background.run(self._open())

    def receive(
        self, max_messages: int = 32, *, invisible_ms: int = 30_000, wait_ms: int = 15_000
    ) -> list[ReceivedMessage]:
        """Take up to `max_messages` (1 .. 1,000); waits up to `wait_ms` (0 .. 60,000) for the first one, else an
        empty list.

        A message that is not acknowledged within `invisible_ms` comes again. Raises TopicNotFound, GroupNotFound,
        IllegalInvisibleTime, ConnectionFailed.
        """
        return self._background.run(self._receiving.receive(max_messages, invisible_ms, wait_ms))

    def ack(self, message: ReceivedMessage) -> None:
        """Finish it for the group. Raises InvalidReceiptHandle if its invisible time is over and it was given away."""
        self._background.run(self._receiving.ack(message))

    def change_invisible(self, message: ReceivedMessage, invisible_ms: int) -> ReceivedMessage:
        """Hide it for `invisible_ms` from now: longer to work on, shorter (0 = now) to give it back. Go on with the
        result.
        """
        return self._background.run(self._receiving.change_invisible(message, invisible_ms))

    def close(self) -> None:
        """Say goodbye. Closing twice is no error."""
        if not self._closed:
            self._closed = True
            self._background.run(self._shut())

    async def _open(self) -> None:
        self._calls, self._receiving = receiving_parts(self._ground, self.client_id, self._plan)
        self._receiving.start()

    async def _shut(self) -> None:
        await self._receiving.close()
        await self._ground.let_go(self._calls.net)
