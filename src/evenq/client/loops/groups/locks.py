"""The locks of one consumer's queues at their brokers: taken, renewed, let go.

Used by `loops.ownership`. A lock is the right to read: a member that stands in line for it waits in a call of its own,
and after a call whose end is unclear nothing is held here that could not also be held there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from evenq.client.core.calls import ConsumerCalls, LockAnswer
from evenq.client.core.reading.process_queue import ProcessQueue
from evenq.client.loops.clients.troubles import Troubles
from evenq.client.loops.groups.sessions import BrokerSessions
from evenq.client.loops.reading.read_plan import ReadPlan
from evenq.errors import Error
from evenq.model import Generation, MessageQueue

__all__ = ["Locks"]


class Locks:
    """What one consumer asks its brokers about locks."""

    def __init__(
        self,
        read_plan: ReadPlan,
        *,
        calls: ConsumerCalls,
        sessions: BrokerSessions,
        address: Callable[[MessageQueue], Awaitable[str]],
        generation: Callable[[str], Generation],
        on_answer: Callable[[MessageQueue, LockAnswer | None], None],
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
        troubles: Troubles,
    ) -> None:
        """`on_answer(queue, answer)` is called for each lock that was requested; None: it was not granted."""
        self._calls = calls
        self._sessions = sessions
        self._address = address
        self._generation = generation
        self._group = read_plan.group
        self._wait_ms = read_plan.options.lock_wait_ms
        self._on_answer = on_answer
        self._spawn = spawn
        self._troubles = troubles
        self._owed: set[MessageQueue] = set()
        """Locks that may be ours although we let them go."""

    async def take(self, broker_name: str, queues: list[MessageQueue]) -> None:
        """First all at once without waiting, then each one that is held by another member in its own waiting call."""
        if not self._sessions.up(broker_name):
            for queue in queues:
                self._on_answer(queue, None)  # the Welcome wakes the next round
            return
        # One call for all without waiting: a waiting call is answered only when its last queue is free.
        taken = await self._try(broker_name, queues, wait_ms=0)
        for queue in queues:
            granted = taken.get(queue)
            if granted is not None:
                self._on_answer(queue, granted)
            else:
                self._spawn(self._wait(broker_name, queue), f"evenq-lock-{queue}")

    async def renew(self, queues: Sequence[MessageQueue], answered: Callable[[LockAnswer], None]) -> bool:
        """Take the locks of a broker's queues, which should be ours, anew; True: of some the holder is not known.

        `answered` hears of each at once: what is not ours any more must not be read while others are asked for.
        """
        unclear = False
        for topic in sorted({queue.topic for queue in queues}):
            try:
                answers = await self._ask([queue for queue in queues if queue.topic == topic], wait_ms=0, anew=False)
            except Error as error:  # the session breaks as well and asks again once it is back
                self._troubles.failed_at(topic, queues[0].broker_name, error)
                unclear = True
                continue
            for locked in answers:
                answered(locked)
        return unclear

    async def release(self, queue: MessageQueue) -> None:
        """Let go; if that is unclear it is owed."""
        try:
            await self._calls.unlock(await self._address(queue), self._group, [queue])
        except Error as error:  # the lock ends with the session, but the session may survive what broke this call
            self._troubles.failed_at(queue.topic, queue.broker_name, error)
            self._owed.add(queue)
        else:
            self._owed.discard(queue)

    def owed(self, is_assigned: Callable[[MessageQueue], bool]) -> list[MessageQueue]:
        """Queues that are still to be let go; those that are `is_assigned` again are not."""
        self._owed = {queue for queue in self._owed if not is_assigned(queue)}
        return sorted(self._owed)

    async def count_deliveries(self, process: ProcessQueue, counts: Mapping[int, int], *, given_until: int) -> None:
        """Let a queue's broker note how often messages were delivered. Raises what the call does, and reports it."""
        queue = process.queue
        try:
            await self._calls.count_deliveries(
                await self._address(queue),
                self._group,
                queue,
                counts,
                given_until=given_until,
                generation=self._generation(queue.topic),
                uid=process.uid,
            )
        except Error as error:
            self._troubles.failed_at(queue.topic, queue.broker_name, error)
            raise

    async def _wait(self, broker_name: str, queue: MessageQueue) -> None:
        taken = await self._try(broker_name, [queue], wait_ms=self._wait_ms)
        self._on_answer(queue, taken.get(queue))

    async def _try(
        self, broker_name: str, queues: list[MessageQueue], *, wait_ms: int
    ) -> dict[MessageQueue, LockAnswer]:
        """The queues that were granted, with the answers. After an unclear end nothing is held."""
        try:
            answers = await self._ask(queues, wait_ms=wait_ms, anew=True)
            return {locked.queue: locked for locked in answers if locked.granted}
        except Error as error:
            self._troubles.failed_at(queues[0].topic, broker_name, error)
            for queue in queues:  # it may have been granted without our hearing of it
                await self.release(queue)
            return {}

    async def _ask(self, queues: list[MessageQueue], *, wait_ms: int, anew: bool) -> list[LockAnswer]:
        return await self._calls.lock(
            await self._address(queues[0]),
            self._group,
            queues,
            wait_ms=wait_ms,
            generation=self._generation(queues[0].topic),
            anew=anew,
        )
