"""Settles messages after listener calls (CC-5 to CC-7, OC-14 to OC-17, RD-1).

**Problem.** Each message of a finished call is done, or must be delivered again, or belongs to the dead letters. A
message may also end the process in which its listener runs. Then no result arrives, and without a count at the broker
it would be delivered for ever.

**Idea.** A failed message is settled by the kind of its consumer:

    concurrent            given back to its broker, which redelivers it through the retry topic to any member
    concurrent, "local"   kept and run here again after 1 s, 2 s, 4 s ... (`retry_first_ms`, `retry_max_ms`)
    ordered               it and all messages behind it wait for `suspend_ms` (OC-15); after the last attempt it is
                          given back for the dead letters (OC-16)
    broadcasting          skipped, because there are no retries

A broker may have stored a return whose answer is lost, so the message does not run here again: it would be delivered
twice, with two counts. The call is repeated, with pauses of 1 s, 2 s, 4 s ..., while this member owns the queue; the
broker stores one copy. The message is kept and runs here again (CC-6) only if the broker refused the return, as one
without that call does, or if `RETURNS_MAX` calls got no answer although the locks are still confirmed.

A delivery that repeats one of the same queue, or is the message's last, is counted at the broker before the call
(decision 22). So neither a hand-over nor the end of the process gives a message more deliveries than it may have.

**Invariants.**
- A message is finished only after its listener succeeded or its broker took it back; in broadcasting also after a
  failure.
- A result sends a message to the dead letters only if it is about that message alone: the only one of its chunk, or
  named in a `Retry`. Otherwise it runs once more alone, because a neighbour may have failed.
- Before a counted delivery begins, the finished ones among the counted messages of its queue are reported to the
  broker. Otherwise the next owner would take them for victims of a crash.

**Example.** A concurrent chunk holds the first deliveries of offsets 10, 11 and 12; the result is a `Retry` of 11.
10 and 12 are finished. 11 is given back, and 13 can be committed. If the answer is lost, 11 stays, only 11 can be
committed, and the call is repeated after 1 s. If the broker refuses it, 11 runs here again after 1 s as delivery 2,
which is counted first.

Called by `loops.listening` after each chunk and by its scan for overdue messages (CC-12).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum

from evenq.client.core.calls import FINISHED
from evenq.client.core.reading.outcome import Retry, failures
from evenq.client.core.reading.process_queue import ProcessQueue
from evenq.client.options import PushOptions
from evenq.errors import Error, IllegalOffset
from evenq.model import QueueOffset, ReceivedMessage
from evenq.runtime.clock import Clock

log = logging.getLogger(__name__)

SendBack = Callable[[ProcessQueue, ReceivedMessage, int, int], Awaitable[None]]
"""Gives a message back after a number of attempts, with a delay level; -1 is the dead-letter topic. Raises Error."""
Count = Callable[[ProcessQueue, Mapping[int, int]], Awaitable[None]]
"""Counts deliveries of a queue's messages, by offset, at its broker. Raises Error."""
DEAD = -1
COUNTED_MAX = 1_000
"""Most counts of one call; brokers accept more."""
RETURNS_MAX = 16
"""Most calls for one return that get no answer, in 11 minutes; then the message runs here again."""


class Returned(Enum):
    """Outcome of a call that gives a message back."""

    YES = "the broker has it"
    NO = "the broker refused it, or cannot take it"
    GONE = "the broker has deleted the message, so a return never succeeds"
    UNKNOWN = "without an answer, or another call may succeed"


_NEXT = {
    Returned.NO: "it stays in this process",
    Returned.GONE: "retention has deleted it",
    Returned.UNKNOWN: "the call is repeated",
}
"""The consequence of a failed return, for the log."""


def _is_settled(returned: Returned, level: int) -> bool:
    """True if nothing is left to do for the message. Without attempts a deleted one can become nothing any more."""
    return returned is Returned.YES or (returned is Returned.GONE and level == DEAD)


class Settler:
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
        """`send_back` None: there are no retries. `again(queue, delay_ms)` schedules the queue later."""
        self._clock = clock
        self._options = options
        self._max_attempts = max_attempts
        self._send_back = send_back
        self._count = count
        self._finished: dict[ProcessQueue, list[int]] = {}
        """By queue: offsets of counted messages that are finished, not yet reported to the broker."""
        self._reports: dict[ProcessQueue, asyncio.Future[bool]] = {}
        """Running reports of them, with their outcome."""
        self._again = again

    async def begin(self, queue: ProcessQueue, chunk: Sequence[ReceivedMessage]) -> bool:
        """Counts deliveries before a listener gets the chunk. False: it must not get it now."""
        if self._send_back is None:  # broadcasting counts nothing
            return True
        most = self._max_attempts()
        deliveries = queue.to_count(chunk, attempts_max=most)
        if not deliveries:
            return True
        if len(chunk) == 1 and await self._left_to_broker(
            queue, chunk[0], used_up=queue.used_up(chunk[0], attempts_max=most)
        ):
            return False
        # In this order: counted and not finished is the mark of a dead process, so finished messages are reported
        # first.
        if await self._report_finished(queue) and await self._counted(queue, deliveries):
            queue.begun(deliveries)
            return True
        delay_ms = self._options.suspend_ms if queue.ordered else self._delay_ms(1)
        queue.put_back(chunk, retry_ms=self._clock.monotonic_ms() + delay_ms)
        self._again(queue, delay_ms)
        return False

    async def _left_to_broker(self, queue: ProcessQueue, message: ReceivedMessage, *, used_up: bool) -> bool:
        """Gives a message back that had all deliveries, or whose return got no answer. False: a listener gets it."""
        offset = message.queue_offset
        level = queue.in_doubt(offset)
        if level is None and not used_up:
            return False
        level = DEAD if level is None else level
        returned = await self._sent_back(queue, message, message.delivery_attempt - 1, level)
        if _is_settled(returned, level):
            self._finish(queue, offset)
            return True
        times = queue.doubt(offset, level)
        if not used_up and (returned is not Returned.UNKNOWN or times > RETURNS_MAX):
            queue.believe(offset)
            return False
        delay_ms = self._delay_ms(times)
        queue.put_back([message], retry_ms=self._clock.monotonic_ms() + delay_ms)
        self._again(queue, delay_ms)
        return True

    async def settle(self, queue: ProcessQueue, chunk: Sequence[ReceivedMessage], result: object) -> None:
        """Settles a chunk by the listener's `result`."""
        failed, level = failures(result, chunk)
        # A result that names no messages is about the whole chunk: a message may have failed only because of a
        # neighbour, so it runs once more alone before it goes to the dead letters.
        sure = len(chunk) == 1 or (isinstance(result, Retry) and result.messages is not None)
        if self._send_back is None:
            self._let_go(queue, failed)  # broadcasting
            failed = []
        if queue.ordered and failed:
            await self._ordered_failed(queue, chunk, failed, level, sure=sure)
            return
        bad = {message.queue_offset for message in failed}
        finish = self._finish if queue.counted else ProcessQueue.finish
        for message in chunk:
            if message.queue_offset not in bad:
                finish(queue, message.queue_offset)
        for message in failed:
            await self._failed(queue, message, level, sure=sure)
        if queue in self._finished and chunk[0].delivery_attempt >= self._max_attempts():
            await self._report_finished(queue)  # a neighbour may end this process before the next report

    def outlook(self, queue: ProcessQueue, message: ReceivedMessage) -> str:
        """Returns the next step for a message that failed alone, as a text for the log."""
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
        """Sends a message back that a listener has had for too long, then removes it (CC-12)."""
        attempts = message.delivery_attempt
        level = DEAD if attempts >= self._max_attempts() else 0
        returned = await self._sent_back(queue, message, attempts, level)
        if returned in {Returned.YES, Returned.GONE}:
            log.warning(
                "a listener has worked on message %s (%s, offset %d, attempt %d) for too long, %s",
                message.message_id,
                queue.queue,
                message.queue_offset,
                attempts,
                "its queue continues without it" if returned is Returned.GONE else "it will be retried",
            )
            queue.expire(message.queue_offset)

    async def _failed(self, queue: ProcessQueue, message: ReceivedMessage, level: int, *, sure: bool) -> None:
        attempts = message.delivery_attempt
        over = level < 0 or attempts >= self._max_attempts()
        if (over and not sure) or (not over and self._options.retry == "local"):  # alone; or by option
            await self._later(queue, message, self._delay_ms(attempts))
        elif await self._given_back(queue, message, attempts, DEAD if over else level):
            self._finish(queue, message.queue_offset)
        else:  # kept (CC-6)
            await self._later(queue, message, self._delay_ms(1))

    async def _later(self, queue: ProcessQueue, message: ReceivedMessage, delay_ms: int) -> None:
        await self._counted(queue, {message.queue_offset: message.delivery_attempt})
        queue.fail(message.queue_offset, retry_ms=self._clock.monotonic_ms() + delay_ms)
        self._again(queue, delay_ms)

    async def _ordered_failed(
        self,
        queue: ProcessQueue,
        chunk: Sequence[ReceivedMessage],
        failed: Sequence[ReceivedMessage],
        level: int,
        *,
        sure: bool,
    ) -> None:
        """Settles the chunk in order, up to the first message that must be delivered again: it and all behind it wait
        (OC-15). A message that goes to the dead letters blocks nothing.
        """
        bad = {message.queue_offset for message in failed}
        rest = deque(chunk)
        for message in chunk:
            attempts = message.delivery_attempt
            if message.queue_offset in bad:
                over = sure and (level < 0 or attempts >= self._max_attempts())  # the last attempt, or given up
                if not over or not await self._given_back(queue, message, attempts, DEAD):  # OC-16
                    break
            self._finish(queue, message.queue_offset)
            rest.popleft()
        else:
            return
        await self._counted(queue, {message.queue_offset: message.delivery_attempt for message in rest})
        pause_ms = self._options.suspend_ms
        queue.suspend(rest, resume_ms=self._clock.monotonic_ms() + pause_ms)
        self._again(queue, pause_ms)

    async def _given_back(self, queue: ProcessQueue, message: ReceivedMessage, attempts: int, level: int) -> bool:
        """Gives a message back. False: it must be kept; `begin` repeats a return that got no answer."""
        returned = await self._sent_back(queue, message, attempts, level)
        if returned is Returned.UNKNOWN:
            queue.doubt(message.queue_offset, level)
        return _is_settled(returned, level)

    async def _sent_back(self, queue: ProcessQueue, message: ReceivedMessage, attempts: int, level: int) -> Returned:
        assert self._send_back is not None
        try:
            await self._send_back(queue, message, attempts, level)
        except Error as error:
            gone = isinstance(error, IllegalOffset)
            returned = Returned.GONE if gone else Returned.UNKNOWN if error.retryable else Returned.NO
            lost = _is_settled(returned, level)
            log.log(
                logging.ERROR if lost else logging.WARNING,
                "message %s (%s, offset %d) could not be sent back for a retry, %s: %s",
                message.message_id,
                queue.queue,
                message.queue_offset,
                "it is given up, as retention has deleted it" if lost else _NEXT[returned],
                error,
            )
            return returned
        return Returned.YES

    def _finish(self, queue: ProcessQueue, offset: QueueOffset) -> None:
        if offset in queue.counted:
            self._finished.setdefault(queue, []).append(offset)
        queue.finish(offset)

    async def _report_finished(self, mine: ProcessQueue) -> bool:
        """Reports finished messages before a delivery begins that may end this process. True: none of `mine` is left.

        Otherwise the next owner would take counted messages for victims of the crash, even if only a commit is missing.
        """
        # Of the other queues only those that no other delivery reports now: a slow broker delays one delivery.
        queues = [queue for queue in self._finished if queue is mine or queue not in self._reports]
        reported = await asyncio.gather(*(self._report(queue) for queue in queues))
        return mine not in queues or reported[queues.index(mine)]

    async def _report(self, queue: ProcessQueue) -> bool:
        """Reports the finished messages of one queue, in one series of calls for all that wait for it. True: all are
        reported.
        """
        if queue in self._reports:  # it includes those that were finished meanwhile
            return await asyncio.shield(self._reports[queue])
        offsets = self._finished.get(queue)
        if offsets is None:  # another report ended before this one began
            return True
        self._reports[queue] = outcome = asyncio.get_running_loop().create_future()
        reported = False
        try:
            while offsets and not queue.dropped:
                some = offsets[:COUNTED_MAX]
                if not await self._counted(queue, dict.fromkeys(some, FINISHED)):
                    return False
                del offsets[: len(some)]
            del self._finished[queue]
            reported = not offsets
            return reported
        finally:
            del self._reports[queue]
            outcome.set_result(reported)

    async def _counted(self, queue: ProcessQueue, deliveries: Mapping[int, int]) -> bool:
        """Counts deliveries. False: it failed, and they must begin later; the call has reported the error."""
        try:
            await self._count(queue, deliveries)
        except Error:
            return False
        return True

    def _let_go(self, queue: ProcessQueue, failed: Sequence[ReceivedMessage]) -> None:
        for message in failed:
            log.warning(
                "the listener failed for message %s (%s, offset %d); broadcasting has no retries: skipped (RD-1)",
                message.message_id,
                queue.queue,
                message.queue_offset,
            )

    def _delay_ms(self, attempts: int) -> int:
        return min(self._options.retry_max_ms, self._options.retry_first_ms << min(max(attempts, 1) - 1, 30))
