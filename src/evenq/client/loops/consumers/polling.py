"""The engine of a pull consumer: a member of a group, or a reader of chosen queues, whose user calls `poll`.

Messages are fetched ahead into the process queues; `poll` takes them from there, queue by queue in turns. With
automatic commits the messages of a poll count as consumed at the next poll: if the user dies before, they are
redelivered. A queue that moves away waits for that, at most `drain_ms`. Without automatic commits only `commit` moves
progress, and a queue that moves away waits for the commit of its polled messages, also at most `drain_ms`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from evenq.client.core.calls import QueueRange
from evenq.client.core.reading.process_queue import ProcessQueue
from evenq.client.loops.clients.wakeup import Wakeup
from evenq.client.loops.groups.membership import MemberPlan, Membership
from evenq.client.loops.groups.rebalance_listener import RebalanceCallback
from evenq.client.loops.reading.table_reads import TableReads
from evenq.errors import BadRequest, ConnectionFailed, Error, PreconditionFailed, RequestTimeout, Unsupported
from evenq.model import FilterExpression, MessageQueue, QueueOffset, ReceivedMessage
from evenq.runtime.clock import Clock

if TYPE_CHECKING:
    from evenq.client.rpc.sessions import RpcConsumerCalls

log = logging.getLogger(__name__)

NEVER_MS = 1 << 60
ERRORS_MAX = 100


class PollLoop:
    """One running pull consumer, in one event loop, with one `poll` at a time."""

    def __init__(
        self,
        calls: RpcConsumerCalls,
        *,
        plan: MemberPlan,
        client_id: str,
        clock: Clock,
        rng: random.Random,
        tell: RebalanceCallback | None,
        table: TableReads | None = None,
    ) -> None:
        self._calls, self._table = calls, table
        if not plan.auto_commit and not plan.chosen:
            plan = replace(plan, finish=self._until_committed)
        self._plan = plan
        self._clock = clock
        self._member = Membership(
            calls,
            plan=plan,
            client_id=client_id,
            clock=clock,
            rng=rng,
            tell=tell,
            arrived=self._arrived,
            report=self._refused,
            table=table,
        )
        self._errors: deque[Error] = deque(maxlen=ERRORS_MAX)
        """Permanent errors that no poll has raised yet."""
        self._ready: deque[ProcessQueue] = deque()
        self._returned: list[tuple[ProcessQueue, list[ReceivedMessage]]] = []
        self._positions: dict[ProcessQueue, QueueOffset] = {}
        self._uncommitted: dict[ProcessQueue, QueueOffset] = {}
        """Without automatic commits: end of the polled messages that are not committed yet."""
        self._leaving: dict[ProcessQueue, Wakeup] = {}
        """Queues that move away and wait for the user's commit."""
        self._wakeup = Wakeup(clock)
        self._task: asyncio.Task[object] | None = None  # the running poll
        self._last: list[ReceivedMessage] = []

    def start(self) -> None:
        """Starts; the first rebalance follows immediately (CS-6)."""
        self._member.start()

    async def close(self, *, consumed: bool) -> None:
        """Commits, releases the queues and leaves. `consumed` False: messages of the last poll are redelivered."""
        if consumed and self._plan.auto_commit:
            self._consumed()
        for process, chunk in self._returned:
            for message in chunk:
                # Held and never due: it is not finished, so the last commit stays below it.
                process.postpone(message.queue_offset, retry_ms=NEVER_MS)
        self._returned.clear()
        self._uncommitted.clear()  # no commit can follow
        self._wake_leaving()
        await self._member.close()

    async def poll(self, max_messages: int, wait_ms: int) -> list[ReceivedMessage]:
        """Returns messages of one queue in order; empty after `wait_ms`. Raises each permanent error once."""
        if not 1 <= max_messages <= 10_000:
            raise BadRequest(f"max_messages is {max_messages}, the range is 1 to 10000")
        if wait_ms < 0:
            raise BadRequest(f"wait_ms is {wait_ms}, give 0 or more")
        if self._task is not None:
            raise Unsupported("another poll of this consumer is running; a consumer allows one poll at a time")
        self._task, self._last = asyncio.current_task(), []
        try:
            if self._plan.auto_commit:
                self._consumed()
            deadline_ms = self._clock.monotonic_ms() + wait_ms
            while not (chunk := self._take(max_messages)):
                if self._errors:  # after the held messages: one rejected topic must not block the others
                    raise self._errors.popleft()
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if left_ms <= 0:
                    break
                await self._wakeup.wait(left_ms)
            self._last = chunk
            return chunk
        finally:
            self._task = None

    def interrupt(self) -> None:
        """Ends the poll of a caller that does not wait any more; if it is just done, the next poll returns the same."""
        if self._task is not None:
            self._task.cancel()
        # The poll was done when its caller gave up: its messages have reached no user.
        elif self._last and self._member.held.process(self._last[0].queue) is not None:
            self.seek(self._last[0].queue, self._last[0].queue_offset)
        self._last = []

    async def commit(self, offsets: Mapping[MessageQueue, int] | None) -> None:
        """Stores the polled position, or these offsets, also backward. Raises PreconditionFailed, ConnectionFailed."""
        table = self._member.progress.table
        self._positions = {
            process: position
            for process, position in self._positions.items()
            if self._member.held.process(process.queue) is process or process in self._leaving
        }
        if offsets is None:
            if self._plan.auto_commit:
                self._consumed()
            for process, position in self._positions.items():
                if table.rewound(process.queue) and position <= table.memory(process.queue):
                    table.rewind(process.queue, position)
                table.advance(process.queue, position)
        for queue, offset in (offsets or {}).items():
            if not any(process.queue == queue for process in self._leaving):
                self._owned(queue)
            if offset < 0:
                raise BadRequest(f"offset {offset} of {queue} is negative; a committed offset is the next one to read")
            if offset < table.memory(queue):
                table.rewind(queue, QueueOffset(offset))
            else:
                table.advance(queue, QueueOffset(offset))
        for pause_ms in (50, 200, 0):  # a lost answer or the restart of a broker need not reach the user
            failed = await self._member.progress.report()
            missing = sorted(queue for queue in failed if offsets is None or queue in offsets)
            if not missing:
                break
            await self._clock.sleep_ms(pause_ms)
        self._forget_lost()
        self._uncommitted = {
            process: position
            for process, position in self._uncommitted.items()
            if process.queue in failed or table.memory(process.queue) < position
        }
        self._wake_leaving()
        if missing:
            raise ConnectionFailed(
                f"the offsets of {len(missing)} queues, such as {missing[0]}, were not stored; try again"
            )

    async def assign(self, queues: Sequence[MessageQueue], expression: FilterExpression, *, timeout_ms: int) -> None:
        """Reads exactly these queues, even if others do, and waits until all are ready. Raises RequestTimeout."""
        if not self._plan.chosen:
            raise Unsupported(f"this consumer of {self._plan.group} subscribes; assign needs one without subscriptions")
        self._member.choose(queues, expression)
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while set(self.owned()) != set(queues):
            if self._clock.monotonic_ms() >= deadline_ms:
                late = sorted(set(queues) ^ set(self.owned()))
                raise RequestTimeout(
                    f"{len(late)} of {len(queues)} queues, such as {late[0]}, were not ready within {timeout_ms} ms;"
                    " see the log for the reason"
                )
            if self._errors:
                raise self._errors.popleft()
            await self._clock.sleep_ms(5)

    def subscribe(self, topic: str, expression: FilterExpression) -> None:
        if self._plan.chosen:
            raise Unsupported(f"this consumer of {self._plan.group} reads chosen queues; give subscriptions to share")
        self._member.subscribe(topic, expression)

    def unsubscribe(self, topic: str) -> None:
        self._member.unsubscribe(topic)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Makes the next poll of the queue start at `offset`. Raises PreconditionFailed if it is not owned."""
        if offset < 0:
            raise BadRequest(f"offset {offset} of {queue} is negative; offsets begin at 0")
        old = self._owned(queue)
        self._returned = [(process, chunk) for process, chunk in self._returned if process is not old]
        self._positions.pop(old, None)
        self._uncommitted.pop(old, None)
        self._member.held.seek(queue, QueueOffset(offset))
        self._positions[self._owned(queue)] = QueueOffset(offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Seeks to the oldest message of table and log."""
        offsets = await self._range(queue)
        first = offsets.minimum
        self.seek(queue, first if self._table is None else await self._table.first(queue, offsets.uid, first))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Seeks behind the newest message."""
        self.seek(queue, (await self._range(queue)).maximum)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Returns the first offset in table and log that was stored at or after a time, ms since the epoch."""
        offsets = await self._range(queue, timestamp_ms)
        if self._table is None or offsets.at_timestamp > offsets.minimum:
            return offsets.at_timestamp
        return await self._table.offset_at(queue, offsets.uid, timestamp_ms, offsets.minimum)

    async def committed(self, queue: MessageQueue) -> int:
        """Returns the offset in the store; -1 if there is none (OF-8)."""
        return await self._member.progress.load(queue)

    def position(self, queue: MessageQueue) -> QueueOffset:
        """Returns the next offset that a poll returns. Raises PreconditionFailed if the queue is not owned."""
        return self._owned(queue).position

    def pause(self, queues: Iterable[MessageQueue], *, paused: bool) -> None:
        """Pauses or resumes these queues: no polls, no pulls."""
        self._member.ownership.pause(queues, paused=paused)
        self._wakeup.wake()

    async def queues_of(self, topic: str) -> list[MessageQueue]:
        return sorted((await self._member.routes.fresh(topic)).readable)

    def owned(self) -> list[MessageQueue]:
        return self._member.owned()

    def _refused(self, error: Error) -> None:
        self._errors.append(error)
        self._wakeup.wake()

    def _arrived(self, process: ProcessQueue) -> None:
        if process not in self._ready:
            self._ready.append(process)
        if process.due_ms() is None and self._plan.auto_commit:  # all filtered out: progress still advances
            self._member.progress.table.advance(process.queue, process.committable)
        self._wakeup.wake()

    def _take(self, count: int) -> list[ReceivedMessage]:
        for _ in range(len(self._ready)):
            process = self._ready.popleft()
            if self._member.held.process(process.queue) is not process:
                continue
            # Kept in the line, for when its locks are confirmed or the pause ends.
            if process.paused or not self._sure(process.queue):
                self._ready.append(process)
                continue
            chunk = process.take(count, now_ms=self._clock.monotonic_ms())
            if not chunk:
                continue
            self._ready.append(process)
            if self._plan.auto_commit:
                self._returned.append((process, chunk))
            else:
                for message in chunk:
                    process.finish(message.queue_offset)
                self._member.held.settled(process)
                if process not in self._uncommitted:
                    self._forget_lost()
                self._uncommitted[process] = process.position
            self._positions[process] = process.position
            return chunk
        return []

    def _sure(self, queue: MessageQueue) -> bool:
        """False if another member may own the queue (OC-18)."""
        return self._plan.chosen or not self._member.clustering or self._member.sessions.sure(queue.broker_name)

    async def _until_committed(self, process: ProcessQueue) -> None:
        """Waits for the user's commit of a queue that moves away, because the next owner starts there."""
        drain_ms = self._plan.options.drain_ms
        deadline_ms = self._clock.monotonic_ms() + drain_ms
        wakeup = self._leaving[process] = Wakeup(self._clock)
        try:
            while process in self._uncommitted:
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if left_ms <= 0:
                    log.warning(
                        "group %s: messages of %s were not committed within %d ms (drain_ms), they are delivered again",
                        self._plan.group,
                        process.queue,
                        drain_ms,
                    )
                    return
                await wakeup.wait(left_ms)
        finally:
            del self._leaving[process]
            self._uncommitted.pop(process, None)

    def _forget_lost(self) -> None:
        """Removes queues that were lost without a hand-over, such as those of a member that seemed dead."""
        held = set(self._member.held.processes())
        self._uncommitted = {process: at for process, at in self._uncommitted.items() if process in held}

    def _wake_leaving(self) -> None:
        for wakeup in self._leaving.values():
            wakeup.wake()

    def _consumed(self) -> None:
        for process, chunk in self._returned:
            for message in chunk:
                process.finish(message.queue_offset)
            self._member.held.settled(process)
        self._returned.clear()

    def _owned(self, queue: MessageQueue) -> ProcessQueue:
        process = self._member.held.process(queue)
        if process is None:
            raise PreconditionFailed(
                f"queue {queue} is not owned by this consumer now; `queues` returns those that are"
            )
        return process

    async def _range(self, queue: MessageQueue, timestamp_ms: int = 0) -> QueueRange:
        route = await self._member.routes.get(queue.topic)
        address = route.address_of(queue.broker_name)
        return await self._calls.query_offsets(address, self._plan.group, queue, timestamp_ms=timestamp_ms)
