"""What becomes of messages that a listener did or did not finish (CC-5 to CC-7, OC-14 to OC-17, RD-1).

Called by `loops.listening` after each chunk, and by its scan for overdue messages. Concurrent: a failed message is
given back to the broker, which brings it again through the retry topic; if that fails, or retries are local, it stays
in hand and runs here again. Ordered: the failed message and all behind it wait, and after the last attempt it is given
back for the dead letters. Broadcasting has no retries.

Attempts: what begins a delivery that is not the first is counted at the broker before the listener is called (`begin`),
so neither a hand-over nor the death of this process gives a message more deliveries than it may have.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from evenq.client.core.calls import FINISHED
from evenq.client.core.reading.outcome import Retry, failures
from evenq.client.core.reading.process_queue import ProcessQueue
from evenq.client.options import PushOptions
from evenq.errors import Error
from evenq.model import QueueOffset, ReceivedMessage
from evenq.runtime.clock import Clock

__all__ = ["Count", "SendBack", "Settler"]

log = logging.getLogger(__name__)

SendBack = Callable[[ProcessQueue, ReceivedMessage, int, int], Awaitable[None]]
"""Give a queue's message back after this number of attempts, with a delay level; -1 is the dead-letter topic. Raises
Error.
"""
Count = Callable[[ProcessQueue, Mapping[int, int]], Awaitable[None]]
"""Note deliveries of a queue's messages, by offset, at its broker. Raises Error."""
DEAD = -1
COUNTED_MAX = 1_000
"""In one call; brokers take more."""


class Settler:
    """One consumer's rules."""

    def __init__(
        self,
        *,
        clock: Clock,
        options: PushOptions,
        max_attempts: Callable[[], int],
        send_back: SendBack | None,
        count: Count,
        again: Callable[[ProcessQueue, int], None],
    ) -> None:
        """`send_back` None: there are no retries. `again(queue, delay_ms)`: the queue has something to do later."""
        self._clock = clock
        self._options = options
        self._max_attempts = max_attempts
        self._send_back = send_back
        self._count = count
        self._finished: dict[ProcessQueue, list[int]] = {}
        """Counted messages that are done, which their brokers do not know yet."""
        self._again = again

    async def begin(self, queue: ProcessQueue, chunk: Sequence[ReceivedMessage]) -> bool:
        """Count what must be counted before a listener has the chunk. False: it must not have it now."""
        if self._send_back is None:
            return True
        most = self._max_attempts()
        deliveries = queue.to_count(chunk, attempts_max=most)
        if not deliveries:
            return True
        first = chunk[0]
        if len(chunk) == 1 and queue.used_up(first, attempts_max=most):
            if await self._sent_back(queue, first, first.delivery_attempt - 1, DEAD):
                self._finish(queue, first.queue_offset)
                return False
        # In this order: counted but not finished is what a dead process leaves behind, so what is done must be said
        # first.
        elif await self._report_finished(queue) and await self._counted(queue, deliveries):
            queue.begun(deliveries)
            return True
        delay_ms = self._options.suspend_ms if queue.ordered else self._delay_ms(1)
        queue.put_back(chunk, retry_ms=self._clock.monotonic_ms() + delay_ms)
        self._again(queue, delay_ms)
        return False

    async def settle(self, queue: ProcessQueue, chunk: Sequence[ReceivedMessage], result: object) -> None:
        """The listener had the chunk and said `result`."""
        failed, level = failures(result, chunk)
        # The listener speaks for the whole chunk, unless it names the failed ones: then a message may be at its last
        # attempt only because of a neighbour, so it runs once more alone before it goes to the dead letters.
        sure = len(chunk) == 1 or (isinstance(result, Retry) and result.messages is not None)
        if self._send_back is None:
            self._let_go(queue, failed)
            failed = []
        if queue.ordered and failed:
            await self._ordered_failed(queue, chunk, failed[0], level, sure=sure)
            return
        bad = {message.queue_offset for message in failed}
        finish = self._finish if queue.counted else ProcessQueue.finish
        for message in chunk:
            if message.queue_offset not in bad:
                finish(queue, message.queue_offset)
        for message in failed:
            await self._failed(queue, message, level, sure=sure)
        if queue in self._finished and chunk[0].delivery_attempt >= self._max_attempts():
            await self._report_finished(queue)  # a neighbour may end this process at any time, with no further delivery

    def outlook(self, queue: ProcessQueue, message: ReceivedMessage) -> str:
        """For the log: what happens next to a message that failed alone."""
        attempts = message.delivery_attempt
        if self._send_back is None:
            return "broadcasting has no retries, it is skipped"
        if attempts >= self._max_attempts():
            return "it goes to the dead letters"
        if queue.ordered:
            return f"it is delivered again in {self._options.suspend_ms} ms, and its queue waits"
        if self._options.retry == "local":
            return f"it is delivered again in {self._delay_ms(attempts)} ms"
        return "it is delivered again after the group's retry pause"

    async def overdue(self, queue: ProcessQueue, message: ReceivedMessage) -> None:
        """A listener has had the message for too long: send it back, then take it out of the snapshot (CC-12)."""
        attempts = message.delivery_attempt
        level = DEAD if attempts >= self._max_attempts() else 0
        if await self._sent_back(queue, message, attempts, level):
            log.warning(
                "a listener has worked on message %s (%s, offset %d, attempt %d) for too long, it will be retried",
                message.message_id, queue.queue, message.queue_offset, attempts,
            )  # fmt: skip
            queue.expire(message.queue_offset)

    async def _failed(self, queue: ProcessQueue, message: ReceivedMessage, level: int, *, sure: bool) -> None:
        attempts = message.delivery_attempt
        over = level < 0 or attempts >= self._max_attempts()
        if (over and not sure) or (not over and self._options.retry == "local"):
            await self._later(queue, message, self._delay_ms(attempts))
        elif await self._sent_back(queue, message, attempts, DEAD if over else level):
            self._finish(queue, message.queue_offset)
        else:  # CC-6
            await self._later(queue, message, self._delay_ms(1))

    async def _later(self, queue: ProcessQueue, message: ReceivedMessage, delay_ms: int) -> None:
        await self._counted(queue, {message.queue_offset: message.delivery_attempt})
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
            self._finish(queue, message.queue_offset)
        attempts = first.delivery_attempt
        if sure and (level < 0 or attempts >= self._max_attempts()):
            if await self._sent_back(queue, first, attempts, DEAD):  # OC-16
                self._finish(queue, first.queue_offset)
                rest = rest[1:]
            if not rest:
                return
        await self._counted(queue, {message.queue_offset: message.delivery_attempt for message in rest})
        pause_ms = self._options.suspend_ms
        queue.suspend(rest, resume_ms=self._clock.monotonic_ms() + pause_ms)
        self._again(queue, pause_ms)

    async def _sent_back(self, queue: ProcessQueue, message: ReceivedMessage, attempts: int, level: int) -> bool:
        assert self._send_back is not None
        try:
            await self._send_back(queue, message, attempts, level)
        except Error as error:
            log.warning(
                "message %s (%s, offset %d) could not be sent back for a retry, it is retried in this process: %s",
                message.message_id, queue.queue, message.queue_offset, error,
            )  # fmt: skip
            return False
        return True

    def _finish(self, queue: ProcessQueue, offset: QueueOffset) -> None:
        if offset in queue.counted:
            self._finished.setdefault(queue, []).append(offset)
        queue.finish(offset)

    async def _report_finished(self, mine: ProcessQueue) -> bool:
        """Say what is finished before something begins that may end this process: what was counted and is not said to
        be finished would be taken for its victim, also if only the next commit is missing.
        """
        finished, self._finished = self._finished, {}
        reported = True
        for queue, offsets in finished.items():
            while offsets and not queue.dropped:
                if not await self._counted(queue, dict.fromkeys(offsets[:COUNTED_MAX], FINISHED)):
                    self._finished.setdefault(queue, []).extend(offsets)
                    break
                del offsets[:COUNTED_MAX]
            reported = reported and (not offsets or queue is not mine)
        return reported

    async def _counted(self, queue: ProcessQueue, deliveries: Mapping[int, int]) -> bool:
        """False: they begin later. The error is reported where the call is made."""
        try:
            await self._count(queue, deliveries)
        except Error:
            return False
        return True

    def _let_go(self, queue: ProcessQueue, failed: Sequence[ReceivedMessage]) -> None:
        for message in failed:
            log.warning(
                "the listener failed for message %s (%s, offset %d); broadcasting has no retries: skipped (RD-1)",
                message.message_id, queue.queue, message.queue_offset,
            )  # fmt: skip

    def _delay_ms(self, attempts: int) -> int:
        return min(self._options.retry_max_ms, self._options.retry_first_ms << min(max(attempts, 1) - 1, 30))
