"""The raw message of FastStream's pipeline: the messages of one handler call receives, and what becomes of it.

FastStream parses a raw message more than once: for the handler, and again in its acknowledgement middleware when the
handler's parser failed. So the outcome belongs to the raw message and not to the parsed one. The first outcome counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from evenq.aio import SimpleConsumer
from evenq.client.core.reading.outcome import Retry
from evenq.errors import BadRequest
from evenq.model import ReceivedMessage
from evenq.model.delay_levels import CLASSIC

DEAD_LETTER = -1
"""Delay level of `Retry` for the dead-letter topic."""
FIRST_RETRY_LEVEL = 3
"""Ten seconds: the first pause of the classic retry (RD-1)."""


class Settled(Enum):
    """Outcome of a delivery."""

    ACKED = "acked"
    NACKED = "nacked"
    REJECTED = "rejected"


class EvenqDelivery:
    """Messages of one handler call: one, or several of a batch subscriber. The outcome is that of all of them.

    For members of a group: the SDK reads the outcome when the handler has returned, as the result of its listener.
    """

    def __init__(self, messages: Sequence[ReceivedMessage], *, group: str, ordered: bool = False) -> None:
        self.messages = list(messages)
        self.group = group
        self.settled: Settled | None = None
        self._ordered = ordered
        self._delay_level = 0

    @property
    def message(self) -> ReceivedMessage:
        """The first message, and the only one unless the subscriber reads batches."""
        return self.messages[0]

    async def ack(self) -> None:
        """Marks the messages as consumed."""
        self._settle(Settled.ACKED)

    async def nack(self, delay_level: int = 0) -> None:
        """Has the messages redelivered after the pause of `delay_level`, 0 to 18: 1 is a second, 18 two hours, 0 grows
        with the attempts. An ordered subscriber accepts only 0. Raises BadRequest.
        """
        if not isinstance(delay_level, int) or not 0 <= delay_level <= CLASSIC.highest:
            raise BadRequest(f"nack: delay_level is {delay_level!r}, give 0 (by the attempts) to {CLASSIC.highest}")
        if delay_level and self._ordered:
            raise BadRequest(
                f"nack: delay_level is {delay_level}, and an ordered subscriber retries in place; give 0, and set the "
                "pause with PushOptions.suspend_ms"
            )
        if self.settled is None:
            self._delay_level = delay_level
        self._settle(Settled.NACKED)

    async def reject(self) -> None:
        """Has the messages moved to the dead-letter topic of the group, without further attempts."""
        self._settle(Settled.REJECTED)

    def result(self) -> Retry | None:
        """Returns the result for the SDK's listener. Messages without an outcome are redelivered."""
        if self.settled is Settled.ACKED:
            return None
        if self.settled is Settled.REJECTED:
            return Retry(delay_level=DEAD_LETTER)
        return Retry(delay_level=self._delay_level)

    def _settle(self, settled: Settled) -> None:
        if self.settled is None:
            self.settled = settled


class ReceivedDelivery(EvenqDelivery):
    """A delivery that a simple consumer received: each outcome is a call to the broker."""

    def __init__(self, messages: Sequence[ReceivedMessage], *, group: str, consumer: SimpleConsumer) -> None:
        super().__init__(messages, group=group)
        self._consumer = consumer

    async def ack(self) -> None:
        if self.settled is None:
            await self._consumer.ack(*self.messages)
        await super().ack()

    async def nack(self, delay_level: int = 0) -> None:
        new = self.settled is None
        await super().nack(delay_level)
        if new:
            invisible_ms = CLASSIC.delay_ms(delay_level or FIRST_RETRY_LEVEL)
            for message in self.messages:
                await self._consumer.change_invisible(message, invisible_ms)

    async def reject(self) -> None:
        """Acknowledges the messages: a simple consumer has no call for the dead-letter topic."""
        if self.settled is None:
            await self._consumer.ack(*self.messages)
        await super().reject()
