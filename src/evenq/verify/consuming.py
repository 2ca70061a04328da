"""Members of one kind's group: they receive, record and acknowledge until they are stopped.

An ack is retried until it is answered or the message was given to another member.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Final

from evenq import aio
from evenq.errors import BadRequest, Error
from evenq.model import ReceivedMessage
from evenq.runtime.clock import Clock
from evenq.verify.plan import Kind, Plan
from evenq.verify.producing import number_of
from evenq.verify.tally import Arrival, Tally

Consumer = aio.SimpleConsumer | aio.LiteSimpleConsumer

BATCH: Final = 32
WAIT_MS: Final = 1_000
PAUSE_MS: Final = 200


class Receiver:
    def __init__(self, plan: Plan, kind: Kind, tally: Tally, *, clock: Clock) -> None:
        self._plan = plan
        self._kind = kind
        self._tally = tally
        self._clock = clock
        self._stopping = False

    def stories(self, consumers: list[Consumer]) -> list[Callable[[], Awaitable[None]]]:
        """Returns a loop for each member, to run concurrently."""

        def story(consumer: Consumer) -> Callable[[], Awaitable[None]]:
            async def run() -> None:
                while not self._stopping:
                    await self._once(consumer)

            return run

        return [story(consumer) for consumer in consumers]

    def stop(self) -> None:
        """Makes the loops end after their current messages."""
        self._stopping = True

    async def _once(self, consumer: Consumer) -> None:
        try:
            messages = await consumer.receive(BATCH, invisible_ms=self._plan.invisible_ms, wait_ms=WAIT_MS)
        except Error:  # the broker is away; the watcher has seen it
            await self._clock.sleep_ms(PAUSE_MS)
            return
        now_ms = self._clock.now_ms()
        if self._kind is Kind.PRIORITY:
            self._judge_priorities(messages)
        arrivals = [self._arrival(message, now_ms) for message in messages]
        for arrival in arrivals:
            self._tally.arrived(arrival)
        await asyncio.gather(
            *(self._settle(consumer, message, arrival) for message, arrival in zip(messages, arrivals, strict=True))
        )
        if self._kind is Kind.PRIORITY:
            await self._clock.sleep_ms(PAUSE_MS)  # let messages gather, so that there is an order to check

    async def _settle(self, consumer: Consumer, message: ReceivedMessage, arrival: Arrival) -> None:
        while True:
            try:
                await consumer.ack(message)
            except BadRequest:  # another member has it
                return
            except Error:
                if self._clock.now_ms() >= arrival.until_ms:
                    return
                await self._clock.sleep_ms(PAUSE_MS)
            else:
                self._tally.acked(arrival)
                return

    def _arrival(self, message: ReceivedMessage, now_ms: int) -> Arrival:
        queue = message.queue
        # Any broker delivers a message of a lite topic, so the broker is not part of its place.
        at = queue.broker_name if message.lite_topic is None else message.lite_topic
        return Arrival(
            number=number_of(message.body),
            place=f"{at}/{queue.queue_id}:{message.queue_offset}",
            now_ms=now_ms,
            until_ms=now_ms + self._plan.invisible_ms,
        )

    def _judge_priorities(self, messages: list[ReceivedMessage]) -> None:
        """Checks that the first deliveries within one answer are in order of priority, the highest first."""
        fresh = [message for message in messages if message.delivery_attempt == 1]
        for before, after in itertools.pairwise(fresh):
            if (before.priority or 0) < (after.priority or 0):
                problem = f"{number_of(after.body)} of priority {after.priority} came after priority {before.priority}"
                self._tally.out_of_turn(problem)
