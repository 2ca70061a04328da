"""The locks of one consumer's queues at their brokers: taken, renewed, released.

Used by `loops.ownership`. A lock is the right to read. A member waits for each held lock in a separate call. After a
call without an answer, the member releases the lock, because it may have been granted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evenq.client.core.calls import LockAnswer
from evenq.client.core.reading.process_queue import ProcessQueue
from evenq.client.loops.clients.troubles import Troubles
from evenq.client.loops.groups.sessions import BrokerSessions
from evenq.client.loops.reading.read_plan import ReadPlan
from evenq.errors import Error, PreconditionFailed
from evenq.model import Generation, MessageQueue

if TYPE_CHECKING:
    from evenq.client.rpc.sessions import RpcConsumerCalls


class Locks:
    """The lock requests of one consumer."""

    def __init__(
        self,
        read_plan: ReadPlan,
        *,
        calls: RpcConsumerCalls,
        sessions: BrokerSessions,
        address: Callable[[MessageQueue], Awaitable[str]],
        generation: Callable[[str], Generation],
        on_answer: Callable[[MessageQueue, LockAnswer | None], None],
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
        fenced: Callable[[str], None],
        troubles: Troubles,
    ) -> None:
        """`on_answer(queue, answer)` is called for each requested lock; None: it was not granted.

        `fenced` is called with the broker that rejected counts.
        """
        self._calls = calls
        self._sessions = sessions
        self._address = address
        self._generation = generation
        self._group = read_plan.group
        self._wait_ms = read_plan.options.lock_wait_ms
        self._on_answer = on_answer
        self._spawn = spawn
        self._fenced = fenced
        self._troubles = troubles
        self._owed: set[MessageQueue] = set()
        """Locks that may still be held, because their release was not answered."""

    async def take(self, broker_name: str, queues: list[MessageQueue]) -> None:
        """Requests all locks in one call without waiting, then each one that another member holds in a waiting call."""
        if not self._sessions.up(broker_name):
            for queue in queues:
                self._on_answer(queue, None)  # the Welcome starts the next round
            return
        # Without waiting: a waiting call is answered only when its last queue is free.
        taken = await self._try(broker_name, queues, wait_ms=0)
        for queue in queues:
            granted = taken.get(queue)
            if granted is not None:
                self._on_answer(queue, granted)
            else:
                self._spawn(self._wait(broker_name, queue), f"evenq-lock-{queue}")

    async def renew(self, queues: Sequence[MessageQueue], answered: Callable[[LockAnswer], None]) -> bool:
        """Requests the locks of one broker's owned queues again. True: some were not answered.

        `answered` is called for each answer immediately: a lost queue must not be read while others are requested.
        """
        unclear = False
        for topic in sorted({queue.topic for queue in queues}):
            try:
                answers = await self._ask([queue for queue in queues if queue.topic == topic], wait_ms=0, anew=False)
            except Error as error:  # the session breaks as well, and they are requested again once it is back
                self._troubles.failed_at(topic, queues[0].broker_name, error)
                unclear = True
                continue
            for locked in answers:
                answered(locked)
        return unclear

    async def release(self, queue: MessageQueue) -> None:
        """Releases a lock; without an answer it stays owed."""
        try:
            await self._calls.unlock(await self._address(queue), self._group, [queue])
        except Error as error:  # the lock ends with the session, which may survive this failure
            self._troubles.failed_at(queue.topic, queue.broker_name, error)
            self._owed.add(queue)
        else:
            self._owed.discard(queue)

    def owed(self, is_assigned: Callable[[MessageQueue], bool]) -> list[MessageQueue]:
        """Returns the queues whose locks must still be released, without those that are assigned again."""
        self._owed = {queue for queue in self._owed if not is_assigned(queue)}
        return sorted(self._owed)

    async def count_deliveries(self, process: ProcessQueue, counts: Mapping[int, int], *, given_until: int = 0) -> None:
        """Counts deliveries at the queue's broker. Raises and reports the call's errors."""
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
            if isinstance(error, PreconditionFailed):
                self._fenced(queue.broker_name)
            raise

    async def _wait(self, broker_name: str, queue: MessageQueue) -> None:
        taken = await self._try(broker_name, [queue], wait_ms=self._wait_ms)
        self._on_answer(queue, taken.get(queue))

    async def _try(
        self, broker_name: str, queues: list[MessageQueue], *, wait_ms: int
    ) -> dict[MessageQueue, LockAnswer]:
        """Requests locks; returns the granted ones. After a failure all are released."""
        try:
            answers = await self._ask(queues, wait_ms=wait_ms, anew=True)
            return {locked.queue: locked for locked in answers if locked.granted}
        except Error as error:
            self._troubles.failed_at(queues[0].topic, broker_name, error)
            for queue in queues:  # it may have been granted
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
