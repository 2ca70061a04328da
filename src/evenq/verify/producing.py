"""Senders: they number messages, and retry until they get an answer.

An attempt of the SDK has its own retries. When all fail, the same message with the same id is sent again, so that the
broker can recognize it. A half message is not sent twice: its checker rolls it back.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Final

from evenq import aio
from evenq.client.transaction import AsyncTransaction
from evenq.errors import BadRequest, Error, Forbidden, Unauthorized
from evenq.model import Message, ReceivedMessage, TransactionResolution
from evenq.runtime.clock import Clock
from evenq.verify.plan import Kind, Plan
from evenq.verify.tally import Tally

HOPELESS: Final = (BadRequest, Forbidden, Unauthorized)
PAUSE_FIRST_MS: Final = 50
PAUSE_MAX_MS: Final = 1_000
SENDERS: Final = 4
PRIORITIES: Final = 5
SEQUENCES: Final = (Kind.FIFO, Kind.LITE)
COMMIT, ROLLBACK, UNKNOWN = TransactionResolution.COMMIT, TransactionResolution.ROLLBACK, TransactionResolution.UNKNOWN


def number_of(body: bytes) -> int:
    """Returns the number of a message; -1 for a foreign body."""
    head, _, _ = body.partition(b" ")
    return int(head) if head.isdigit() else -1


def streams_of(plan: Plan) -> list[str]:
    return [f"stream-{number}" for number in range(plan.streams)]


class Sender:
    def __init__(self, plan: Plan, kind: Kind, topic: str, tally: Tally, *, clock: Clock, rng: random.Random) -> None:
        self._plan = plan
        self._kind = kind
        self._topic = topic
        self._tally = tally
        self._clock = clock
        self._rng = rng
        self._stop_ms = 0
        self._give_up_ms = 0
        self._producer: aio.Producer

    def stories(self, producer: aio.Producer, *, stop_ms: int, give_up_ms: int) -> list[Callable[[], Awaitable[None]]]:
        """Returns concurrent loops that send until `stop_ms` and retry until `give_up_ms` (both monotonic)."""
        self._producer, self._stop_ms, self._give_up_ms = producer, stop_ms, give_up_ms
        if self._kind in SEQUENCES:
            return [self._story(name, self._plan.streams) for name in streams_of(self._plan)]
        return [self._story("", SENDERS) for _ in range(SENDERS)]

    async def check(self, message: ReceivedMessage) -> TransactionResolution:
        """Answers a broker's check of an open transaction."""
        expected = self._tally.decision(number_of(message.body))
        return UNKNOWN if expected is None else COMMIT if expected else ROLLBACK

    def _story(self, stream: str, side_by_side: int) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            pause_ms = 1_000 * side_by_side / self._plan.rate
            due_ms = self._clock.monotonic_ms() + self._rng.random() * pause_ms
            while (now_ms := self._clock.monotonic_ms()) < self._stop_ms:
                if now_ms < due_ms:
                    await self._clock.sleep_ms(min(due_ms, self._stop_ms) - now_ms)
                    continue
                due_ms = max(
                    due_ms + pause_ms, now_ms - 1_000
                )  # after an outage: send at most one second's messages in addition
                await (self._transaction() if self._kind is Kind.TRANSACTION else self._one(stream))

        return run

    async def _one(self, stream: str) -> None:
        wait_ms = self._rng.randint(self._plan.delay_min_ms, self._plan.delay_max_ms)
        due_ms = self._clock.now_ms() + wait_ms if self._kind is Kind.DELAY else 0
        number = self._tally.begin(stream=stream, due_ms=due_ms, begun_ms=self._clock.now_ms())
        message = self._message(number, stream=stream, due_ms=due_ms)

        async def attempt() -> None:
            self._tally.tried(number)
            await self._producer.send(message)

        try:
            if await self._surely(attempt):
                self._tally.stored(number)
            else:
                self._tally.unsure(number)
        except HOPELESS as error:
            self._tally.refused(number, str(error))

    async def _transaction(self) -> None:
        """Commits six of ten, rolls two back, and leaves two to the checker, which commits one of them."""
        number = self._tally.begin(expected=None)
        self._tally.tried(number)
        try:
            transaction = await self._producer.begin_transaction(self._message(number))
        except HOPELESS as error:
            self._tally.refused(number, str(error))
            return
        except Error:
            self._tally.unsure(number)
            self._tally.decided(number, expected=False)
            return
        self._tally.stored(number)
        story = number % 10
        self._tally.decided(number, expected=story < 6 or story == 8)
        if story < 8:
            await self._end(number, transaction, transaction.commit if story < 6 else transaction.rollback)

    async def _end(self, number: int, transaction: AsyncTransaction, end: Callable[[], Awaitable[None]]) -> None:
        try:
            await self._surely(end)  # if no broker answers, the checker decides
        except HOPELESS as error:
            self._tally.refused(number, f"end of transaction {transaction.transaction_id}: {error}")

    async def _surely(self, attempt: Callable[[], Awaitable[None]]) -> bool:
        """Retries until there is an answer or `give_up_ms`. Raises errors that a retry cannot solve."""
        pause_ms = PAUSE_FIRST_MS
        while True:
            try:
                await attempt()
            except HOPELESS:
                raise
            except Error:
                if self._clock.monotonic_ms() + pause_ms > self._give_up_ms:
                    return False
                await self._clock.sleep_ms(pause_ms)
                pause_ms = min(2 * pause_ms, PAUSE_MAX_MS)
            else:
                return True

    def _message(self, number: int, *, stream: str = "", due_ms: int = 0) -> Message:
        head = f"{number} {self._topic} ".encode()
        return Message(
            topic=self._topic,
            body=head + b"." * (self._plan.body_bytes - len(head)),
            keys=(f"{self._kind}-{number}",),
            message_group=stream if self._kind is Kind.FIFO else None,
            lite_topic=stream if self._kind is Kind.LITE else None,
            delivery_ms=due_ms or None,
            priority=number % PRIORITIES if self._kind is Kind.PRIORITY else None,
            message_id=f"01{self._rng.getrandbits(128):032X}",
        )
