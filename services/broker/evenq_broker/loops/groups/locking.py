"""Queue locks at this broker, and the waits for them: the fence around every owner (TQ-9, OC-5 to OC-8, OC-18).

Called by `rpc.groups.groups` (lock, unlock), by `rpc.delivery.data` and `rpc.delivery.receive` (may this member read
and commit?) and by `loops.groups.sessions` when a member is gone. The lock table decides. A holder whose queue is
wanted is notified immediately. A released lock passes to the first waiter in the same step, and is durable before the
answer. Clients that receive and acknowledge (v2) hold no locks: they get nothing of a queue that a member of their
group holds. A member gets a queue only when their deliveries of it have ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import starmap

from evenq.errors import ConnectionFailed, PreconditionFailed
from evenq.model import NO_GENERATION, Generation, MessageQueue
from evenq.runtime.tasks import done_within
from evenq_broker.core.groups.fencing import QueueFence
from evenq_broker.core.groups.locks import Grant
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.core.state.records import Locked
from evenq_broker.loops.groups.mailbox import Session
from evenq_broker.loops.polls.waiting import LongPolls
from evenq_broker.loops.progress import counting as deliveries
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.state.signals import Signal

log = logging.getLogger(__name__)

WAITER_GAP_MS = 5_000
CLEARING_STEP_MS = 20


class QueueLocks:
    """The queue locks of one broker."""

    def __init__(
        self,
        kernel: Kernel,
        session_of: Callable[[str, str], Session | None],
        *,
        membership: GroupTables,
        long_polls: LongPolls,
    ) -> None:
        """`session_of(group, client id)` returns its open session, if there is one."""
        self._kernel = kernel
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._membership, self._long_polls = membership, long_polls
        self._session_of = session_of
        self._tickets: dict[int, asyncio.Future[bool]] = {}
        self.fencing = QueueFence(membership.locks, membership.members)
        self.leaving = False
        """True: the broker is closing and grants nothing any more."""
        self._freed = Signal()
        self._recording: asyncio.Future[None] | None = None
        """The newest record of locks: a grant is answered after it."""
        self._overdue: dict[tuple[str, MessageQueue], int] = {}
        """Held queues that a newer decision gives to a waiting member; since when, monotonic ms."""
        self._seen: dict[tuple[str, MessageQueue], int] = {}
        """When that was last so: members request queues in turns, with pauses in between."""
        self._clearing: dict[tuple[str, MessageQueue], tuple[str, int]] = {}
        """Held queues with deliveries of other clients: the waiting holder, and since when, monotonic ms."""

    async def lock(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        *,
        wait_ms: int,
        generation: Generation = NO_GENERATION,
        anew: bool = False,
    ) -> list[bool]:
        """Takes queues for a member, waiting up to `wait_ms` for their present holders. `anew`: it does not know queues
        that it holds already, as one that was killed and started again under its id.

        True for each queue that is its own now, without unacknowledged deliveries to receiving clients. Raises
        PreconditionFailed if the client is not a member here or its generation is outdated, ConnectionFailed while the
        broker is closing.
        """
        deadline_ms = self._runtime.clock.monotonic_ms() + wait_ms
        self.must_stay()
        self.must_be_member(group, client_id)
        locks = self._membership.locks
        # All of them before any is taken: a request under an older generation changes nothing.
        for queue in queues:
            self.must_not_be_stale(group, client_id, queue, generation)
        before = own = [queue for queue in queues if locks.holder(group, queue) == client_id]
        if anew:
            # Unfinished messages of the killed process must be redelivered, also to the member under its id.
            deliveries.vanished(self._kernel, group, own)
            own = []
        granted = [locks.acquire(group, client_id, queue, generation) for queue in queues]
        for queue, is_own in zip(queues, granted, strict=True):
            if is_own and (queue not in before or (anew and (group, queue) not in self._clearing)):
                self._begin_clearing(group, client_id, queue)
        if not all(granted) and wait_ms > 0:
            missing = [queue for queue, is_own in zip(queues, granted, strict=True) if not is_own]
            await self._wait(group, client_id, missing, wait_ms=wait_ms, generation=generation)
        for queue in queues:
            if queue not in own and locks.holder(group, queue) == client_id:
                deliveries.let_go(self._kernel, group, queue)
        # Recorded before the wait for other clients: after a restart in it, the queue must not go to another member.
        await self._safe()
        while [queue for queue in queues if self._is_in_hand(group, client_id, queue)]:
            left_ms = deadline_ms - self._runtime.clock.monotonic_ms()
            if left_ms <= 0:
                break
            await self._runtime.clock.sleep_ms(min(CLEARING_STEP_MS, left_ms))
        return [locks.holder(group, queue) == client_id and (group, queue) not in self._clearing for queue in queues]

    def is_kept(self, group: str, topic: str, queue_id: int, client_id: str) -> bool:
        """True if the queue is a member's: other clients that receive for the group get nothing of it."""
        locks = self._membership.locks
        if not locks.any_of(group):
            return False
        holder = locks.holder(group, MessageQueue(topic, self._runtime.settings.broker_name, queue_id))
        return holder not in {"", client_id}

    def _begin_clearing(self, group: str, client_id: str, queue: MessageQueue) -> None:
        """Notes the wait for other clients with the grant: the requesting call may end before its answer."""
        self._clearing[group, queue] = client_id, self._runtime.clock.monotonic_ms()

    def _is_in_hand(self, group: str, client_id: str, queue: MessageQueue) -> bool:
        """True while another client works on a message of the member's queue, for `revoke_ms` at most."""
        entry = self._clearing.get((group, queue))
        if entry is None or self._membership.locks.holder(group, queue) != client_id:
            return False
        since_ms = entry[1]
        if entry[0] == client_id and self._runtime.clock.monotonic_ms() - since_ms < self._runtime.settings.revoke_ms:
            config, topic = self._catalog.groups.get(group), self._catalog.topics.get(queue.topic)
            if config is not None and topic is not None:
                progress = self._ledger.progress.queue(config.group_id, topic.topic_id, queue.queue_id)
                if progress is not None and progress.in_hand(self._runtime.now_ms()):
                    return True
        del self._clearing[group, queue]
        deliveries.let_go(self._kernel, group, queue)
        return False

    async def _wait(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], *, wait_ms: int, generation: Generation
    ) -> None:
        locks = self._membership.locks
        waits: dict[int, asyncio.Future[bool]] = {}
        try:
            for queue in queues:
                ticket = locks.wait(group, client_id, queue, generation)
                waits[ticket] = self._tickets[ticket] = asyncio.get_running_loop().create_future()
                self._ask_holder(group, queue)
            everything: asyncio.Future[bool] = asyncio.ensure_future(_all_of(waits.values()))
            await done_within(everything, wait_ms, clock=self._runtime.clock)
        finally:
            for ticket in waits:
                locks.cancel(ticket)
                self._tickets.pop(ticket, None)

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Releases queues; the member that waits longest gets each immediately."""
        for queue in queues:
            if self._membership.locks.holder(group, queue) == client_id:
                deliveries.let_go(self._kernel, group, queue)
            self._granted(self._membership.locks.release(group, client_id, queue))
        self._freed.notify()

    def leave(self) -> None:
        """Ends grants and waits: the broker is closing."""
        self.leaving = True
        for ticket, future in self._tickets.items():
            self._membership.locks.cancel(ticket)
            if not future.done():
                future.set_result(False)

    async def let_go(self, members: Iterable[tuple[str, str]], limit_ms: int) -> int:
        """Waits until these members (group, client id) hold nothing; returns how many still do after `limit_ms`."""
        clock = self._runtime.clock
        deadline_ms = clock.monotonic_ms() + limit_ms
        holders = list(members)
        while True:
            seen = self._freed.count
            holders = [
                (group, client_id) for group, client_id in holders if self._membership.locks.held(group, client_id)
            ]
            left_ms = deadline_ms - clock.monotonic_ms()
            if not holders or left_ms <= 0:
                return len(holders)
            await self._freed.wait(seen, clock=clock, timeout_ms=left_ms)

    def must_stay(self) -> None:
        """Raises ConnectionFailed while the broker is closing."""
        if self.leaving:
            raise ConnectionFailed(
                f"broker {self._runtime.settings.broker_name} is shutting down; connect again when it is back, "
                f"or to another broker"
            )

    def must_be_member(self, group: str, client_id: str) -> None:
        """Raises PreconditionFailed unless the client is a member of the group at this broker."""
        if self._membership.members.get(group, client_id) is None:
            raise PreconditionFailed(
                f"client {client_id!r} is not in group {group} at broker {self._runtime.settings.broker_name}: "
                "its session was never opened or has ended; open a session and try again"
            )

    def must_not_be_stale(self, group: str, client_id: str, queue: MessageQueue, generation: Generation) -> None:
        """Raises PreconditionFailed if another member got the queue under a newer generation (OC-18)."""
        if self._membership.locks.stale(group, client_id, queue, generation):
            raise PreconditionFailed(
                f"generation {generation.epoch}.{generation.counter} of queue {queue} in group {group} is outdated: "
                f"{self._membership.locks.holder(group, queue) or 'another member'} got it under a newer one; "
                "request your assignment again"
            )

    def must_hold(
        self,
        group: str,
        client_id: str,
        queue: MessageQueue,
        generation: Generation,
        *,
        commits: bool = False,
        owner: bool = False,
    ) -> None:
        """Raises PreconditionFailed unless the caller may read or commit (OC-18). `owner`: it reads as the owner."""
        if self._membership.locks.holds(group, client_id, queue, generation):
            return
        refusal = self.fencing.refusal(group, client_id, queue, generation, commits=commits, owner=owner)
        if refusal is not None:
            raise PreconditionFailed(refusal)

    def may_commit(self, group: str, client_id: str, queue: MessageQueue, generation: Generation) -> bool:
        """True if `must_hold` would accept a commit."""
        if self._membership.locks.holds(group, client_id, queue, generation):
            return True
        return self.fencing.refusal(group, client_id, queue, generation, commits=True) is None

    def drop(self, group: str, client_id: str) -> None:
        """Passes on everything that a member held which is gone; its later reads count as a former owner's."""
        held = self._membership.locks.held(group, client_id)
        # Before the locks go: later reads and commits of this member must fail as a former owner's.
        if held:
            self.fencing.owned(group, client_id)
            deliveries.vanished(self._kernel, group, held)
        self._granted(self._membership.locks.drop(group, client_id))
        self._freed.notify()

    def topic_gone(self, topic: str) -> None:
        """Forgets the owners of a deleted topic's queues; also in the replay."""
        self._membership.locks.forget_topic(topic)
        self._forget(lambda _, queue: queue.topic == topic)

    def group_gone(self, group: str) -> None:
        """Forgets the owners of a deleted group's queues; also in the replay."""
        self._membership.locks.forget_group(group)
        self._forget(lambda name, _: name == group)

    def _forget(self, gone: Callable[[str, MessageQueue], bool]) -> None:
        for known in (self._clearing, self._overdue, self._seen):
            for key in [key for key in known if gone(*key)]:
                del known[key]
        self._freed.notify()

    def tick(self, now_ms: int) -> None:
        """Revokes queues that a newer decision gives to a waiting member, after `revoke_ms`; late commits fail."""
        for key in [key for key, seen_ms in self._seen.items() if now_ms - seen_ms > WAITER_GAP_MS]:
            del self._seen[key]
            del self._overdue[key]
        for group, queue in self._membership.locks.overtaken():
            since_ms = self._overdue.setdefault((group, queue), now_ms)
            self._seen[group, queue] = now_ms
            if now_ms - since_ms >= self._runtime.settings.revoke_ms:
                holder = self._membership.locks.holder(group, queue)
                log.warning(
                    "group %s: queue %s was revoked from member %s, which did not release it for %d ms",
                    group,
                    queue,
                    holder,
                    now_ms - since_ms,
                    extra={"group": group, "queue": str(queue), "client_id": holder},
                )
                deliveries.vanished(self._kernel, group, [queue])
                self._granted(self._membership.locks.release(group, holder, queue))
                del self._overdue[group, queue], self._seen[group, queue]

    def close(self) -> None:
        """End all waits."""
        for future in self._tickets.values():
            future.cancel()

    def _ask_holder(self, group: str, queue: MessageQueue) -> None:
        holder = self._membership.locks.holder(group, queue)
        session = self._session_of(group, holder)
        if session is not None:
            session.queue_wanted(queue, self._runtime.clock.monotonic_ms())

    async def _safe(self) -> None:
        """Waits until the locks are durable, also those that passed on in the step of a release."""
        self._record_locks()
        recording = self._recording
        if recording is None:
            await self._ledger.journal.settled()  # it may own the queue by a record that was rejected
        else:
            try:
                await recording
            finally:
                if self._recording is recording:
                    self._recording = None

    def _record_locks(self) -> None:
        moved = self._membership.locks.moved()
        for name, queue, holder, _ in moved:
            topic, group = self._catalog.topics.get(queue.topic), self._catalog.groups.get(name)
            if topic is not None:
                self._long_polls.look_again(topic.topic_id, queue.queue_id)
            if not holder:
                self._clearing.pop((name, queue), None)
            if topic is not None and group is not None and not holder:
                self._long_polls.ready(group.group_id, topic.topic_id, queue.queue_id)
        if moved and self._ledger.store.failure is None:
            self._recording = self._ledger.journal.record(*starmap(lock_op, moved))

    def _granted(self, grants: Iterable[Grant]) -> None:
        self._record_locks()
        for grant in grants:
            self._begin_clearing(grant.group, grant.client_id, grant.queue)
            future = self._tickets.pop(grant.ticket, None)
            if future is not None and not future.done():
                future.set_result(True)
            if any(self._membership.locks.waiters(grant.group, grant.queue)):
                self._ask_holder(grant.group, grant.queue)


def lock_op(group: str, queue: MessageQueue, client_id: str, generation: Generation) -> Locked:
    """Returns the journal's operation for the holder of a queue."""
    return Locked(group, queue, client_id, generation.epoch, generation.counter)


async def _all_of(futures: Iterable[asyncio.Future[bool]]) -> bool:
    for future in list(futures):
        await asyncio.shield(future)
    return True
