"""The messages of a simple consumer as an iterator: `for message in consumer`.

Problem. The body of a `for` loop returns nothing. That it ended well is known only when the loop takes the next
message; after an exception or a `break` it takes none. Meanwhile the message must stay hidden, however long the body
runs, and so must the messages that were received with it.

Idea. `MessageLoop.next` first acknowledges the message of the body that has just ended, then returns the next one. A
task prolongs the invisible duration of all messages that the loop holds. How many are received together depends on the
time that the body takes: a slow one gets single messages, so that other members get the rest.

Invariants:
- A message is acknowledged only by a `next` after it, or by the body itself. A message that the body acknowledged, or
  whose invisible duration it changed, is left alone by the loop.
- A loop that is abandoned (its iterator is gone) or closed gives the messages that no body has seen back, without
  counting a delivery. The message of the last body stays hidden for the rest of its invisible duration: this is the
  pause before it is redelivered.
- No message is prolonged for longer than `consume_timeout_ms`.

Everything runs in the client's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress

from evenq.client.core.clients.observer import ClientIdentity, observed_receive, observed_settle
from evenq.client.core.reading.chunks import ChunkSizer
from evenq.client.loops.clients.troubles import DENIED, Troubles
from evenq.client.loops.consumers.receiving import ReceiveLoop
from evenq.client.loops.sending.outgoing import Encoded, SendResult
from evenq.client.options import SimpleOptions
from evenq.errors import BadRequest, Error, InvalidReceiptHandle, Unsupported
from evenq.model import ReceivedMessage
from evenq.runtime.backoff import Backoff
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

log = logging.getLogger(__name__)

WAIT_MS = 15_000
"""Longest long poll of one receive."""
INVISIBLE_MIN_MS = 1_000
IDLE_MAX_MS = 86_400_000


class _HiddenMessage:
    __slots__ = ("changing", "message", "since_ms", "taken")

    def __init__(self, message: ReceivedMessage, since_ms: int) -> None:
        self.message = message
        """With the newest handle."""
        self.since_ms = since_ms
        self.taken = False
        """The body settled it itself, or it belongs to another member by now."""
        self.changing = asyncio.Lock()


class MessageLoops:
    """The loops of one consumer, and the calls of their bodies that settle messages."""

    def __init__(
        self,
        receiving: ReceiveLoop,
        *,
        identity: ClientIdentity,
        clock: Clock,
        rng: random.Random,
        options: SimpleOptions,
    ) -> None:
        self.receiving = receiving
        self.identity = identity
        self.clock = clock
        self.rng = rng
        self.options = options
        self.closed = False
        self.held: dict[str, _HiddenMessage] = {}
        """By the receipt handle that a body got."""
        self.open: set[MessageLoop] = set()

    async def ack(self, *messages: ReceivedMessage) -> None:
        """Acknowledges messages, those that loops hold by their newest handles."""
        async with self._taken(*messages) as newest:
            await self.receiving.ack(*newest)

    async def transact(self, messages: Sequence[ReceivedMessage], sent: Sequence[Encoded]) -> list[SendResult]:
        """Commits a transaction; if that fails, loops leave its messages for redelivery."""
        async with self._taken(*messages) as newest:
            return await self.receiving.transact(newest, sent)

    def leave(self, messages: Iterable[ReceivedMessage]) -> None:
        """Leaves messages for redelivery: the transaction that acknowledges them failed."""
        for message in messages:
            held = self.held.get(message.receipt_handle)
            if held is not None:
                held.taken = True

    async def change_invisible(
        self, message: ReceivedMessage, invisible_ms: int, *, suspend: bool = False
    ) -> ReceivedMessage:
        """Hides a message for `invisible_ms` from now; a loop that holds it leaves it alone from then on. `suspend`:
        the delivery counts as no attempt.
        """
        async with self._taken(message) as newest:
            return await self.receiving.change_invisible(newest[0], invisible_ms, suspend=suspend)

    async def close(self) -> None:
        """Ends all loops. Messages that no body has seen are given back."""
        self.closed = True
        await asyncio.gather(*(loop.abandoned() for loop in list(self.open)))

    @asynccontextmanager
    async def _taken(self, *messages: ReceivedMessage) -> AsyncIterator[list[ReceivedMessage]]:
        newest: list[ReceivedMessage] = []
        for message in messages:
            held = self.held.get(message.receipt_handle)
            if held is None:
                newest.append(message)
                continue
            async with held.changing:  # its answer may contain the handle that settling needs
                held.taken = True
                newest.append(held.message)
        yield newest


class MessageLoop:
    """One `for` loop over the messages."""

    def __init__(self, loops: MessageLoops, *, max_messages: int, invisible_ms: int, idle_ms: int | None) -> None:
        """Raises BadRequest for a number out of its range."""
        for name, value, low, high in (
            ("max_messages", max_messages, 1, 1_000),
            ("invisible_ms", invisible_ms, INVISIBLE_MIN_MS, 43_200_000),
            ("idle_ms", 0 if idle_ms is None else idle_ms, 0, IDLE_MAX_MS),
        ):
            if not isinstance(value, int) or not low <= value <= high:
                raise BadRequest(f"{name} is {value!r:.80}, the range is {low} to {high}")
        self._loops = loops
        self._clock = loops.clock
        self._invisible_ms = invisible_ms
        self._idle_ms = idle_ms
        self._sizer = ChunkSizer(max_messages)
        self._current: _HiddenMessage | None = None
        self._given = ""
        """Receipt handle of the current message, as the body got it."""
        self._next: deque[_HiddenMessage] = deque()
        self._stopped = False
        self._busy = False
        self._receiving: asyncio.Task[list[ReceivedMessage]] | None = None
        self._prolonging: asyncio.Task[None] | None = None
        self._abandoning: asyncio.Task[None] | None = None
        self._troubles = Troubles(loops.clock, who=f"group {loops.identity.group}")
        loops.open.add(self)

    async def next(self) -> ReceivedMessage | None:
        """Acknowledges the previous message and returns the next one. None: the loop ends, because of `stop`, the
        consumer's `close`, or `idle_ms` without a message. Raises an error that a retry cannot solve.
        """
        if self._busy:
            raise Unsupported("another thread or task takes a message of this iterator; give each its own")
        self._busy = True
        try:
            await self._finish()
            if self._stopped or not (self._next or await self._fill()):
                self.abandon()
                return None
            held = self._current = self._next.popleft()
            held.since_ms = self._clock.monotonic_ms()
            self._given = held.message.receipt_handle
            self._loops.held[self._given] = held
            if self._prolonging is None:
                self._prolonging = spawn(self._prolong(), name="evenq-prolong")
            return held.message
        finally:
            self._busy = False

    def skip(self) -> None:
        """Leaves the current message for redelivery: a new `for` statement begins, and its predecessor did not end
        well.
        """
        self._current = None
        self._loops.held.pop(self._given, None)

    def stop(self) -> None:
        """Lets the loop end: the next `next` acknowledges the previous message and returns None."""
        self._stopped = True
        if self._receiving is not None:
            self._receiving.cancel()

    def abandon(self) -> None:
        """Ends the loop; called when its iterator is gone."""
        if self._abandoning is None:
            self._abandoning = spawn(self._abandon(), name="evenq-abandon-loop")

    async def abandoned(self) -> None:
        """Ends the loop, and waits until the messages that no body has seen are given back."""
        self.abandon()
        if self._abandoning is not None:
            await self._abandoning

    async def _abandon(self) -> None:
        self.stop()
        self.skip()
        if self._prolonging is not None:
            self._prolonging.cancel()
            await asyncio.gather(self._prolonging, return_exceptions=True)
        unseen = [held for held in self._next if not held.taken]
        self._next.clear()
        await asyncio.gather(*map(self._give_back, unseen))
        self._loops.open.discard(self)

    async def _give_back(self, held: _HiddenMessage) -> None:
        try:
            await self._loops.receiving.change_invisible(held.message, 0, suspend=True)
        except Error as error:
            log.info("message %s was not given back, it is redelivered later: %s", held.message.message_id, error)

    async def _finish(self) -> None:
        """Acknowledges the message of the body that has ended, unless the body settled it."""
        held = self._current
        if held is None or self._loops.closed:
            return
        self._sizer.learn(1, self._clock.monotonic_ms() - held.since_ms)
        async with held.changing:
            if not held.taken:
                with observed_settle(self._loops.identity, "ack", [held.message]):
                    await self._acked(held.message)
        self.skip()

    async def _acked(self, message: ReceivedMessage) -> None:
        """Repeats the acknowledgement while the message is surely hidden: it was prolonged at most a third of the
        invisible duration ago.
        """
        until_ms = self._clock.monotonic_ms() + self._invisible_ms // 2
        backoff = Backoff(self._loops.rng, first_ms=50, max_ms=1_000)
        while True:
            try:
                await self._loops.receiving.ack(message)
            except Error as error:
                pause_ms = backoff.next_ms()
                waits = error.retryable or isinstance(error, DENIED)
                if waits and self._clock.monotonic_ms() + pause_ms < until_ms:
                    if not error.retryable:
                        self._troubles.failed("an acknowledgement", error)
                    await self._clock.sleep_ms(pause_ms)
                    continue
                if not error.retryable and not isinstance(error, InvalidReceiptHandle):
                    raise
                log.warning(
                    "group %s: message %s was processed and could not be acknowledged, it will be delivered again: %s",
                    self._loops.identity.group,
                    message.message_id,
                    error,
                )
                return
            self._troubles.well("an acknowledgement")
            return

    async def _fill(self) -> bool:
        """Receives messages. False: the loop ends."""
        receiving = self._receiving = spawn(self._receive(), name="evenq-receive")
        try:
            messages = await receiving
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # the caller is gone: its messages must not be taken for it
                receiving.cancel()
                await asyncio.gather(receiving, return_exceptions=True)
                raise
            return False
        finally:
            self._receiving = None
        now_ms = self._clock.monotonic_ms()
        self._next.extend(_HiddenMessage(message, now_ms) for message in messages)
        return bool(messages)

    async def _receive(self) -> list[ReceivedMessage]:
        """Returns messages, or an empty list after `idle_ms`. Outages are waited for; at the end of `idle_ms` their
        error is raised, because a loop that ends says that nothing is left.
        """
        began_ms = self._clock.monotonic_ms()
        backoff = Backoff(self._loops.rng, first_ms=100, max_ms=2_000)
        while True:
            left_ms = WAIT_MS if self._idle_ms is None else began_ms + self._idle_ms - self._clock.monotonic_ms()
            wait_ms = max(0, min(WAIT_MS, left_ms))
            try:
                with observed_receive(self._loops.identity) as receiving:
                    messages = receiving.received(
                        await self._loops.receiving.receive(self._sizer.size, self._invisible_ms, wait_ms)
                    )
            except Error as error:
                if not error.retryable or (self._idle_ms is not None and left_ms <= 0):
                    raise
                self._troubles.failed("receiving", error)
                await self._clock.sleep_ms(backoff.next_ms())
                continue
            self._troubles.well("receiving")
            backoff.reset()
            if messages or (self._idle_ms is not None and left_ms <= wait_ms):
                return messages

    async def _prolong(self) -> None:
        """Keeps the messages hidden that the loop holds."""
        while True:
            # A third: after one or two failed calls there is time for another before a message is visible.
            await self._clock.sleep_ms(self._invisible_ms // 3)
            for held in [*([self._current] if self._current is not None else []), *self._next]:
                async with held.changing:
                    await self._prolong_one(held)

    async def _prolong_one(self, held: _HiddenMessage) -> None:
        if held.taken or (held is not self._current and held not in self._next):
            return
        timeout_ms = self._loops.options.consume_timeout_ms
        if self._clock.monotonic_ms() - held.since_ms >= timeout_ms:
            log.warning(
                "group %s: message %s is processed for longer than consume_timeout_ms (%d), it will be delivered again",
                self._loops.identity.group,
                held.message.message_id,
                timeout_ms,
            )
            self._lost(held)
            return
        try:
            held.message = await self._loops.receiving.change_invisible(held.message, self._invisible_ms)
        except Error as error:
            log.info("the invisible duration of message %s was not extended: %s", held.message.message_id, error)
            if not error.retryable and not isinstance(error, DENIED):
                self._lost(held)

    def _lost(self, held: _HiddenMessage) -> None:
        """Another member gets the message: it is not acknowledged here, and no body sees it."""
        held.taken = True
        with suppress(ValueError):
            self._next.remove(held)
