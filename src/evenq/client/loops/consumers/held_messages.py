"""Messages that a worker holds: renewed while their tasks run or wait, then acknowledged or given back.

The adapters for taskiq and Celery use it over simple consumers.

**Problem.** A received message is hidden from other workers for `invisible_ms`. A task may run for longer, its
acknowledgement may meet an outage, and a worker that ends must not keep what it has not begun.

**Idea.** Most tasks are shorter than the time, and nothing has to be done for them. For longer ones it is renewed when
a third of it has passed, so two renewals may fail. When a worker is killed, nobody renews, and the server delivers the
message to another worker. Acknowledgements for one broker wait for the call that runs and are sent together in the
next one: a single one is sent immediately, and many short tasks do not cost a call each.

**Invariants.**

- The calls for one message run one after another, because each renewal replaces its receipt handle.
- A message that was acknowledged or given back is not renewed; none is renewed for longer than `held_ms_max`.
- Acknowledgements are repeated during an outage, for `patience_ms` at most. A repetition is harmless, and without it
  the task would run twice. A broker that is away does not delay those of the others.
- While a grant or key is missing, they are repeated for as long as the message is hidden, at most `invisible_ms` after
  its last renewal: the renewals are refused, too. If it returns later, another worker has the message.

**Example.** Tasks 1, 2 and 3 end while no call runs: 1 is sent, then 2 and 3 in one call. The handle of 2 is too old:
the call is repeated for each of them, so only the acknowledgement of 2 fails.

Everything runs in one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from evenq.client.loops.clients.troubles import DENIED, Troubles, is_permanent
from evenq.errors import Error, InvalidReceiptHandle
from evenq.model import ReceivedMessage
from evenq.runtime.backoff import Backoff
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

log = logging.getLogger(__name__)

RENEWALS_AT_ONCE = 32
LOOKS = 4
"""Looks for due renewals in the third of the invisible time."""
ACKS_MAX = 1_000
"""Most acknowledgements of one call."""


class SettlingConsumer(Protocol):
    """The calls of a simple consumer that settle messages."""

    async def ack(self, *messages: ReceivedMessage) -> None: ...

    async def change_invisible(
        self, message: ReceivedMessage, invisible_ms: int, *, suspend: bool = False
    ) -> ReceivedMessage: ...


@dataclass(frozen=True, slots=True, eq=False)
class MessageSource:
    """The consumer that received messages, and how its failures are reported."""

    consumer: SettlingConsumer
    who: str
    """Begins log lines, such as `group workers`."""
    troubles: Troubles


@dataclass(slots=True, eq=False)
class HeldMessage:
    """One held message."""

    message: ReceivedMessage
    """With the newest receipt handle."""
    source: MessageSource
    since_ms: int
    """Monotonic time of the delivery."""
    renewed_ms: int
    """Monotonic time of the delivery or of the last renewal."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    ended: bool = False


@dataclass(slots=True, eq=False)
class _Ack:
    held: HeldMessage
    until_ms: int
    done: asyncio.Future[None]

    def fail(self, error: Error) -> None:
        if not self.done.done():  # its waiter may have been cancelled
            self.done.set_exception(error)


class HeldMessages:
    """All held messages of one worker."""

    def __init__(
        self,
        *,
        clock: Clock,
        rng: random.Random,
        invisible_ms: int,
        patience_ms: int,
        held_ms_max: int | None = None,
        who: str,
    ) -> None:
        """`patience_ms`: time for which an acknowledgement is repeated. `held_ms_max`: longest time for which a message
        is renewed; None: until it ends. `who` begins the log lines of `close`.
        """
        self._clock = clock
        self._rng = rng
        self._invisible_ms = invisible_ms
        self._patience_ms = patience_ms
        self._held_ms_max = held_ms_max
        self._who = who
        self._held: set[HeldMessage] = set()
        self._lanes: dict[tuple[MessageSource, str], deque[_Ack]] = {}
        """Acknowledgements that wait, by consumer and broker; each has a task in `_tasks`."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewer = spawn(self._renew_all(), name="evenq-renewals")

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, message: ReceivedMessage, source: MessageSource) -> HeldMessage:
        """Renews the message from now on until it is acknowledged or given back."""
        now_ms = self._clock.monotonic_ms()
        held = HeldMessage(message, source, now_ms, now_ms)
        self._held.add(held)
        return held

    def ack(self, held: HeldMessage) -> asyncio.Future[None]:
        """Acknowledges the message in the background; the result need not be awaited, but its error retrieved.

        The error is InvalidReceiptHandle if the message was delivered to another worker meanwhile, or the last one of
        the calls. The message is then redelivered.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lane = (held.source, held.message.queue.broker_name)
        waiting = self._lanes.get(lane)
        if waiting is None:
            waiting = self._lanes[lane] = deque()
            self._begin(self._acknowledge_all(lane, waiting), "acks")
        waiting.append(_Ack(held, self._clock.monotonic_ms() + self._patience_ms, done))
        return done

    def give_back(self, messages: Iterable[HeldMessage], *, unseen: bool = False) -> asyncio.Task[None]:
        """Lets other workers have the messages now. Failures are logged: they get them after the invisible time.

        `unseen`: no task of them began, so their deliveries do not count as attempts.
        """
        return self._begin(self._give_back_all(list(messages), unseen), "returns")

    async def close(self, within_ms: int) -> None:
        """Ends the renewals, sends the acknowledgements and gives back what is held. Waits at most `within_ms`."""
        self._renewer.cancel()
        await asyncio.gather(self._renewer, return_exceptions=True)
        try:
            async with asyncio.timeout(within_ms / 1_000):
                while self._tasks:
                    await asyncio.wait(self._tasks)
                if self._held:
                    log.warning(
                        "%s: the worker ends with %d unfinished tasks, which run again on another worker",
                        self._who,
                        len(self._held),
                    )
                    await self.give_back(self._held)
        except TimeoutError:
            unsent = sum(map(len, self._lanes.values()))
            log.warning(
                "%s: %d messages could not be given back in %d ms, and %d acknowledgements not sent",
                self._who,
                len(self._held),
                within_ms,
                unsent,
            )
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = spawn(work, name=f"evenq-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _end(self, held: HeldMessage) -> None:
        held.ended = True
        self._held.discard(held)

    async def _acknowledge_all(self, lane: tuple[MessageSource, str], waiting: deque[_Ack]) -> None:
        """Sends what waits for one broker, until nothing does."""
        pauses = Backoff(self._rng, first_ms=50, max_ms=2_000)
        ready: list[_Ack] = []
        try:
            while waiting or ready:
                while waiting and len(ready) < ACKS_MAX:
                    if await self._ends(waiting[0]):
                        ready.append(waiting[0])
                    waiting.popleft()
                ready = await self._acknowledge(lane[0], ready)
                if ready:
                    await self._clock.sleep_ms(pauses.next_ms())
                else:
                    pauses.reset()
        finally:
            del self._lanes[lane]
            for ack in (*ready, *waiting):
                ack.done.cancel()

    async def _ends(self, ack: _Ack) -> bool:
        """Ends renewing a message before it is acknowledged; False: it ended before."""
        async with ack.held.turn:  # a renewal that runs ends first, and the handle is its result
            if not ack.held.ended:
                self._end(ack.held)
                return True
        ack.fail(
            InvalidReceiptHandle(
                f"the delivery of message {ack.held.message.message_id} ended before it was acknowledged, so its "
                "task runs again; the log names the reason"
            )
        )
        return False

    async def _acknowledge(self, source: MessageSource, acks: list[_Ack]) -> list[_Ack]:
        """Acknowledges in one call; returns what has to be repeated."""
        if not acks:
            return []
        try:
            await source.consumer.ack(*(ack.held.message for ack in acks))
        except InvalidReceiptHandle as error:
            if len(acks) > 1:  # of one of them
                return [again for ack in acks for again in await self._acknowledge(source, [ack])]
            acks[0].fail(error)
        except Error as error:
            now_ms = self._clock.monotonic_ms()
            ended = [ack for ack in acks if self._gives_up(ack, error, now_ms)]
            for ack in ended:
                ack.fail(error)
            if len(ended) < len(acks):
                source.troubles.failed("an acknowledgement", error)
            return [ack for ack in acks if ack not in ended]
        else:
            source.troubles.well("an acknowledgement")
            for ack in acks:
                if not ack.done.done():
                    ack.done.set_result(None)
        return []

    def _gives_up(self, ack: _Ack, error: Error, now_ms: int) -> bool:
        if isinstance(error, DENIED):
            return now_ms >= min(ack.until_ms, ack.held.renewed_ms + self._invisible_ms)
        return is_permanent(error) or now_ms >= ack.until_ms

    async def _give_back_all(self, messages: list[HeldMessage], unseen: bool) -> None:
        await asyncio.gather(*(self._give_back(held, unseen) for held in messages))

    async def _give_back(self, held: HeldMessage, unseen: bool) -> None:
        async with held.turn:
            if held.ended:
                return
            self._end(held)
            try:
                await held.source.consumer.change_invisible(held.message, 0, suspend=unseen)
            except InvalidReceiptHandle:
                pass  # it was delivered again already
            except Error as error:
                log.warning(
                    "%s: message %s could not be returned and is redelivered after its invisible time: %s",
                    held.source.who,
                    held.message.message_id,
                    error,
                )

    async def _renew_all(self) -> None:
        third_ms = self._invisible_ms // 3
        slots = asyncio.Semaphore(RENEWALS_AT_ONCE)
        while True:
            await self._clock.sleep_ms(max(1, third_ms // LOOKS))
            now_ms = self._clock.monotonic_ms()
            due = [one for one in self._held if now_ms - one.renewed_ms >= third_ms and not one.turn.locked()]
            await asyncio.gather(*(self._renew(one, slots) for one in due))

    async def _renew(self, held: HeldMessage, slots: asyncio.Semaphore) -> None:
        source = held.source
        async with slots, held.turn:
            if held.ended:
                return
            now_ms = self._clock.monotonic_ms()
            if self._held_ms_max is not None and now_ms - held.since_ms >= self._held_ms_max:
                log.error(
                    "%s: the task of message %s runs for more than %d s; its message is redelivered",
                    source.who,
                    held.message.message_id,
                    self._held_ms_max // 1_000,
                )
                self._end(held)
                return
            try:
                held.message = await source.consumer.change_invisible(held.message, self._invisible_ms)
            except InvalidReceiptHandle as error:
                log.warning(
                    "%s: message %s may be delivered to another worker too, its task has not ended: %s",
                    source.who,
                    held.message.message_id,
                    error,
                )
                self._end(held)
            except Error as error:  # the next look tries again
                source.troubles.failed("a renewal", error)
            else:
                held.renewed_ms = now_ms
                source.troubles.well("a renewal")
