"""What becomes of messages that a listener did or did not finish (CC-5 to CC-7, OC-14 to OC-17, RD-1).

Called by `loops.listening` after each chunk, and by its scan for overdue messages. Concurrent: a failed message is
given back to the broker, which brings it again through the retry topic; if that fails, or retries are local, it stays
in hand and runs here again. Ordered: the failed message and all behind it wait, and after the last attempt it is given
back for the dead letters. Broadcasting has no retries.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from evenq.client.core.outcome import Retry, failures
from evenq.client.core.process_queue import ProcessQueue
from evenq.client.options import PushOptions
from evenq.errors import Error
from evenq.model import ReceivedMessage
from evenq.runtime.clock import Clock

__all__ = ["SendBack", "Settling"]

log = logging.getLogger(__name__)

SendBack = Callable[[ReceivedMessage, int, int], Awaitable[None]]
"""Give a message back after so many attempts, with a delay level; -1 is the dead-letter topic. Raises Error."""
DEAD = -1


class Settling:
    """One consumer's rules."""

    def __init__(
        self,
        *,
        clock: Clock,
        ordered: bool,
        options: PushOptions,
        max_attempts: Callable[[], int],
        send_back: SendBack | None,
        again: Callable[[ProcessQueue, int], None],
    ) -> None:
        """`send_back` None: there are no retries. `again(queue, delay_ms)`: the queue has something to do later."""
        self._clock = clock
        self._ordered = ordered
        self._options = options
        self._max_attempts = max_attempts
        self._send_back = send_back
        self._again = again

    async def settle(self, queue: ProcessQueue, chunk: Sequence[ReceivedMessage], told: object) -> None:
        """The listener had the chunk and said `told`."""
        failed, level = failures(told, chunk)
        sure = len(chunk) == 1 or (isinstance(told, Retry) and told.messages is not None)
        if self._send_back is None:
            self._let_go(queue, failed)
            failed = []
        if self._ordered and failed:
            await self._ordered_failed(queue, chunk, failed[0], level, sure=sure)
            return
        bad = {message.queue_offset for message in failed}
        for message in chunk:
            if message.queue_offset not in bad:
                queue.finish(message.queue_offset)
        for message in failed:
            await self._failed(queue, message, level, sure=sure)

    async def overdue(self, queue: ProcessQueue, message: ReceivedMessage) -> None:
        """A listener has had the message for too long: send it back, then take it out of the snapshot (CC-12)."""
        attempts = queue.attempts(message)
        level = DEAD if attempts >= self._max_attempts() else 0
        if await self._sent_back(queue, message, attempts, level):
            log.warning(
                "a listener has had message %s (%s, offset %d, attempt %d) for too long, it was sent back",
                message.message_id, queue.queue, message.queue_offset, attempts,
            )  # fmt: skip
            queue.expire(message.queue_offset)

    async def _failed(self, queue: ProcessQueue, message: ReceivedMessage, level: int, *, sure: bool) -> None:
        attempts = queue.attempts(message)
        over = level < 0 or attempts >= self._max_attempts()
        if (over and not sure) or (not over and self._options.retry == "local"):
            self._later(queue, message, attempts)
        elif await self._sent_back(queue, message, attempts, DEAD if over else level):
            queue.finish(message.queue_offset)
        else:  # CC-6
            delay_ms = self._delay_ms(1)
            queue.postpone(message.queue_offset, retry_ms=self._clock.monotonic_ms() + delay_ms)
            self._again(queue, delay_ms)

    def _later(self, queue: ProcessQueue, message: ReceivedMessage, attempts: int) -> None:
        delay_ms = self._delay_ms(attempts)
        queue.fail(message.queue_offset, retry_ms=self._clock.monotonic_ms() + delay_ms)
        self._again(queue, delay_ms)

    async def _ordered_failed(
        self,
        queue: ProcessQueue,
        chunk: Sequence[ReceivedMessage],
        first: ReceivedMessage,
        level: int,
        *,
        sure: bool,
    ) -> None:
        """What lies before the first failed message is done; it and all behind it wait (OC-15)."""
        rest = [message for message in chunk if message.queue_offset >= first.queue_offset]
        for message in chunk[: len(chunk) - len(rest)]:
            queue.finish(message.queue_offset)
        attempts = queue.attempts(first)
        if sure and (level < 0 or attempts >= self._max_attempts()):
            if await self._sent_back(queue, first, attempts, DEAD):  # OC-16
                queue.finish(first.queue_offset)
                rest = rest[1:]
            if not rest:
                return
        pause_ms = self._options.suspend_ms
        queue.suspend(rest, resume_ms=self._clock.monotonic_ms() + pause_ms)
        self._again(queue, pause_ms)

    async def _sent_back(self, queue: ProcessQueue, message: ReceivedMessage, attempts: int, level: int) -> bool:
        assert self._send_back is not None
        try:
            await self._send_back(message, attempts, level)
        except Error as error:
            log.warning(
                "message %s (%s, offset %d) could not be sent back, it is tried here again: %s",
                message.message_id, queue.queue, message.queue_offset, error,
            )  # fmt: skip
            return False
        return True

    def _let_go(self, queue: ProcessQueue, failed: Sequence[ReceivedMessage]) -> None:
        for message in failed:
            log.warning(
                "the listener failed for message %s (%s, offset %d); broadcasting has no retries, it is left (RD-1)",
                message.message_id, queue.queue, message.queue_offset,
            )  # fmt: skip

    def _delay_ms(self, attempts: int) -> int:
        return min(self._options.retry_max_ms, self._options.retry_first_ms << min(max(attempts, 1) - 1, 30))
