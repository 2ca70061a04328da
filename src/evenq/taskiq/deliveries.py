"""Messages that a worker holds: those of running tasks, and those that wait for a free slot of the worker.

A message is hidden from other workers for `invisible_ms`. Most tasks are shorter, and nothing has to be done for them.
For longer ones the time is renewed when a third of it has passed, so two renewals may fail. When a worker is killed,
nobody renews, and the server delivers the message to another worker.

Invariants: the calls for one message run one after another, because each renewal replaces its receipt handle; a
message that was acknowledged or given back is not renewed; none is renewed for longer than `held_ms_max`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from evenq.errors import Error, InvalidReceiptHandle, PreconditionFailed
from evenq.model import ReceivedMessage
from evenq.runtime.backoff import Backoff
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

log = logging.getLogger(__name__)

RENEWALS_AT_ONCE = 32
LOOKS = 4
"""Looks for due renewals in the third of the invisible time."""


class Settling(Protocol):
    """The calls of a simple consumer that end or prolong a delivery."""

    async def ack(self, *messages: ReceivedMessage) -> None: ...

    async def change_invisible(self, message: ReceivedMessage, invisible_ms: int) -> ReceivedMessage: ...


@dataclass(slots=True, eq=False)
class HeldMessage:
    """One held message."""

    message: ReceivedMessage
    """With the newest receipt handle."""
    since_ms: int
    """Monotonic time of the delivery."""
    renewed_ms: int
    """Monotonic time of the delivery or of the last renewal."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    ended: bool = False


class Deliveries:
    """All held messages of one worker process; used in one event loop."""

    def __init__(
        self,
        consumer: Settling,
        *,
        clock: Clock,
        rng: random.Random,
        invisible_ms: int,
        held_ms_max: int,
        who: str,
    ) -> None:
        """`who` starts the log lines, such as `group workers`."""
        self._consumer = consumer
        self._clock = clock
        self._rng = rng
        self._invisible_ms = invisible_ms
        self._held_ms_max = held_ms_max
        self._who = who
        self._held: set[HeldMessage] = set()
        self._renewer = spawn(self._renew_all(), name="evenq-taskiq-renewals")

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, message: ReceivedMessage) -> HeldMessage:
        """Renews the message from now on until it is acknowledged or given back."""
        now_ms = self._clock.monotonic_ms()
        delivery = HeldMessage(message, now_ms, now_ms)
        self._held.add(delivery)
        return delivery

    async def ack(self, delivery: HeldMessage) -> None:
        """Acknowledges the message; while no broker answers, repeatedly for `invisible_ms`.

        Raises InvalidReceiptHandle if it was delivered to another worker meanwhile, and the last error of the calls
        otherwise. The message is then redelivered.
        """
        async with delivery.turn:
            if delivery.ended:
                raise InvalidReceiptHandle(
                    f"the delivery of message {delivery.message.message_id} ended before it was acknowledged, so its "
                    "task runs again; the log names the reason"
                )
            try:
                await self._acknowledged(delivery.message)
            finally:
                self._end(delivery)

    async def give_back(self, deliveries: Iterable[HeldMessage]) -> None:
        """Lets other workers have the messages now. Failures are logged: they get them after the invisible time."""
        await asyncio.gather(*map(self._give_back, list(deliveries)))

    async def close(self, within_ms: int) -> None:
        """Ends the renewals and gives back what is held. Waits at most `within_ms`."""
        self._renewer.cancel()
        await asyncio.gather(self._renewer, return_exceptions=True)
        if not self._held:
            return
        log.warning(
            "%s: the worker ends with %d unfinished tasks, which run again on another worker",
            self._who,
            len(self._held),
        )
        try:
            async with asyncio.timeout(within_ms / 1_000):
                await self.give_back(self._held)
        except TimeoutError:
            log.warning("%s: %d messages could not be given back in %d ms", self._who, len(self._held), within_ms)

    async def _acknowledged(self, message: ReceivedMessage) -> None:
        until_ms = self._clock.monotonic_ms() + self._invisible_ms
        pauses = Backoff(self._rng, first_ms=50, max_ms=2_000)
        while True:
            try:
                await self._consumer.ack(message)
            except Error as error:
                passing = error.retryable or isinstance(error, PreconditionFailed)
                if not passing or self._clock.monotonic_ms() >= until_ms:
                    raise
                log.debug("%s: acknowledging is repeated: %s", self._who, error)
                await self._clock.sleep_ms(pauses.next_ms())
            else:
                return

    async def _give_back(self, delivery: HeldMessage) -> None:
        async with delivery.turn:
            if delivery.ended:
                return
            self._end(delivery)
            try:
                await self._consumer.change_invisible(delivery.message, 0)
            except Error as error:
                log.info(
                    "%s: message %s is redelivered after its invisible time: %s",
                    self._who,
                    delivery.message.message_id,
                    error,
                )

    def _end(self, delivery: HeldMessage) -> None:
        delivery.ended = True
        self._held.discard(delivery)

    async def _renew_all(self) -> None:
        third_ms = self._invisible_ms // 3
        slots = asyncio.Semaphore(RENEWALS_AT_ONCE)
        while True:
            await self._clock.sleep_ms(max(1, third_ms // LOOKS))
            now_ms = self._clock.monotonic_ms()
            due = [one for one in self._held if now_ms - one.renewed_ms >= third_ms and not one.turn.locked()]
            await asyncio.gather(*(self._renew(one, slots) for one in due))

    async def _renew(self, delivery: HeldMessage, slots: asyncio.Semaphore) -> None:
        async with slots, delivery.turn:
            if delivery.ended:
                return
            now_ms = self._clock.monotonic_ms()
            if now_ms - delivery.since_ms >= self._held_ms_max:
                log.error(
                    "%s: the task of message %s runs for more than %d s; its message is redelivered",
                    self._who,
                    delivery.message.message_id,
                    self._held_ms_max // 1_000,
                )
                self._end(delivery)
                return
            try:
                delivery.message = await self._consumer.change_invisible(delivery.message, self._invisible_ms)
            except InvalidReceiptHandle as error:
                log.warning(
                    "%s: message %s was delivered to another worker too, because its invisible time ended: %s",
                    self._who,
                    delivery.message.message_id,
                    error,
                )
                self._end(delivery)
            except Error as error:  # the next look tries again
                log.info("%s: renewing message %s fails: %s", self._who, delivery.message.message_id, error)
            else:
                delivery.renewed_ms = now_ms
