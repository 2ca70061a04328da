"""The query as the only member of its consumer group: its runner joins, holds the locks of all queues, and leaves.

Runs in the runner (the process on the driver that serves one query), in a thread with its own event loop, which the
first call starts. Executors are not members: they read ranges. Brokers accept progress of a queue only from the holder
of its lock. So a runner that was stalled for longer than its session cannot undo its successor's progress: it learns of
the new holder and ends its query. `onGroupBusy` decides what happens if the group has other members. A stream without a
group is not a member of any, and reads all queues.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from evenq import errors
from evenq.model import FilterExpression, MessageModel, QueueOffset
from evenq.model.queue import MessageQueue
from evenq.runtime.clock import SystemClock
from pyspark_evenq.brokers.cluster import Route, by_address
from pyspark_evenq.options.member import OnBusy
from pyspark_evenq.options.source import ReadOptions
from pyspark_evenq.plan.offsets import Positions

if TYPE_CHECKING:
    from evenq.client.core.calls import SessionEvent
    from evenq.client.core.groups.introduction import Introduction
    from evenq.client.loops.clients.background import Background
    from evenq.client.loops.groups.sessions import BrokerSessions
    from evenq.client.rpc.sessions import RpcConsumerCalls
    from evenq.model import Generation

log = logging.getLogger(__name__)

GHOST_MS = 12_000
"""Time after which brokers have dropped a predecessor that crashed: their `session_timeout_ms` and `session_grace_ms`,
and a second."""
ASK_MS = 1_000
SETTLE_MS = 3_000
SAY_MS = 30_000
ENDS_S = 0.1


class GroupBusy(errors.PreconditionFailed):
    """Another member reads in the group, and onGroupBusy is fail."""


class QueueTaken(errors.PreconditionFailed):
    """Another member owns queues that this query owned."""


class StreamMember:
    """One query's membership. Only `sent` and `refused` may be called outside of the runner's main thread."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        name = options.membership.query_name or options.group
        self.client_id = f"{os.uname().nodename}@{os.getpid()}@spark-{name}@{time.time_ns() // 1_000_000:x}"
        self._background: Background | None = None
        self._life: _MemberLoop | None = None
        self._left = False

    def hold(self, route: Route) -> frozenset[MessageQueue]:
        """Returns the owned queues, of all brokers that accept it as a member. Raises GroupBusy and QueueTaken."""
        if not self._options.group:
            return frozenset(route)
        background, life = self._begun()
        return background.run(life.hold(route))

    def sent(self, positions: Positions) -> None:
        if self._life is not None:
            self._life.note(positions)

    def group_progress(self) -> dict[MessageQueue, int]:
        """Returns the group's progress of each queue when this query got its lock, -1 for none."""
        return {} if self._life is None else dict(self._life.group_progress)

    def resets(self) -> dict[MessageQueue, int]:
        """Returns queue -> number of an operator's move that is not followed yet; brokers ignore commits there."""
        return {} if self._life is None else dict(self._life.resets)

    def follow(self, queue: MessageQueue, offset: QueueOffset, number: int) -> None:
        """Notifies the broker that the checkpoint has a batch which begins at the offset of that move."""
        if self._background is not None and self._life is not None:
            self._background.run(self._life.follow(queue, offset, number))

    def refused(self) -> None:
        """Checks all locks again, because a broker refused progress."""
        if self._background is not None and self._life is not None and not self._left:
            self._background.call_soon(self._life.suspect)

    def leave(self, *, timeout_ms: int) -> None:
        """Leaves the group and releases all locks; called after progress is stored."""
        if self._background is None or self._life is None or self._left or self._background.process_id != os.getpid():
            return
        self._left = True
        try:
            self._background.run(self._life.leave(timeout_ms), timeout_ms=timeout_ms + 200)
        except (errors.Error, TimeoutError) as late:
            log.warning("group %s could not be left, brokers drop this member later: %s", self._options.group, late)
        self._background.close()

    def _begun(self) -> tuple[Background, _MemberLoop]:
        if self._background is None or self._life is None or self._background.process_id != os.getpid():
            from evenq.client.loops.clients.background import Background

            self._background = Background()
            self._life = _MemberLoop(self._options, self.client_id)
        return self._background, self._life


class _MemberLoop:
    """The part of the member that runs in its event loop."""

    def __init__(self, options: ReadOptions, client_id: str) -> None:
        self._options = options
        self._group = options.group
        self._client_id = client_id
        self._clock = SystemClock()
        self._calls: RpcConsumerCalls | None = None
        self._sessions: BrokerSessions | None = None
        self._introduction: Introduction | None = None
        self._addresses: dict[str, str] = {}
        self._strangers: frozenset[str] = frozenset()
        """Brokers without support for members of groups, such as other products: they have no locks to hold."""
        self._subscriptions: dict[str, FilterExpression] = {}
        """Topics for which the check for other members is done."""
        self._held: set[MessageQueue] = set()
        self._reached: dict[MessageQueue, int] = {}
        """Queue -> the furthest progress by this query or before it."""
        self.group_progress: dict[MessageQueue, int] = {}
        self.resets: dict[MessageQueue, int] = {}
        self._moves = 0
        self._taken: QueueTaken | None = None
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    async def hold(self, route: Route) -> frozenset[MessageQueue]:
        sessions, calls = self._opened()
        # Queues that left the topics: their locks end with the session, and their loss is not a `QueueTaken`.
        self._held &= set(route)
        self._addresses = {queue.broker_name: address for queue, address in route.items()}
        await self._subscribe(sessions, calls, route)
        sessions.want({name: at for name, at in self._addresses.items() if name not in self._strangers})
        if not self._held:
            await self._settled(sessions)
        await self._sure(sessions)
        self._must_be_ours()
        for name in sorted(self._addresses):
            missing = [queue for queue in sorted(route) if queue.broker_name == name and queue not in self._held]
            # Without a session a broker has no member to give a lock to; the next trigger tries again.
            if missing and sessions.up(name):
                await self._take(calls, name, missing)
        self._must_be_ours()
        free = {queue for queue in route if queue.broker_name in self._strangers}
        return frozenset(free | {queue for queue in self._held if sessions.sure(queue.broker_name)})

    def _must_be_ours(self) -> None:
        """Raises QueueTaken after the loss of a queue: the query never takes it back from the new owner."""
        if self._taken is not None:
            raise self._taken

    def note(self, positions: Positions) -> None:
        for queue, offset in positions.items():
            self._reached[queue] = max(offset, self._reached.get(queue, -1))

    def suspect(self) -> None:
        for name in {queue.broker_name for queue in self._held}:
            self._ask(name)

    async def follow(self, queue: MessageQueue, offset: QueueOffset, number: int) -> None:
        """Reads at the offset of a move; then the broker accepts the member's commits again."""
        from evenq.model import NO_GENERATION

        _, calls = self._opened()
        try:
            # Out of range is an answer as well: the broker has seen the member's position.
            with suppress(errors.IllegalOffset):
                await calls.pull(
                    self._addresses[queue.broker_name],
                    self._group,
                    queue,
                    offset,
                    batch_max=1,
                    bytes_max=1,
                    wait_ms=0,
                    expression=FilterExpression(),
                    generation=NO_GENERATION,
                    committed=-1,
                )
        except errors.Error as failure:  # retried with the next batch
            log.warning(
                "the offset of %s could not be set to %d at broker %s: %s", queue, offset, queue.broker_name, failure
            )
            return
        if self.resets.get(queue) == number:
            del self.resets[queue]
            log.warning("the offset of group %s on %s was reset: the query continues at %d", self._group, queue, offset)

    async def leave(self, timeout_ms: int) -> None:
        for task in self._asking.values():
            task.cancel()
        if self._sessions is not None:
            await self._sessions.leave(timeout_ms=timeout_ms)
        if self._calls is not None:
            await self._calls.net.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}  # the loop runs only tasks of this member
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=ENDS_S)

    def _opened(self) -> tuple[BrokerSessions, RpcConsumerCalls]:
        if self._sessions is None or self._calls is None:
            from evenq.client.core.groups.introduction import Introduction
            from evenq.client.loops.clients.troubles import Troubles
            from evenq.client.loops.groups.sessions import BrokerSessions
            from evenq.client.rpc.sessions import RpcConsumerCalls
            from evenq.client.wiring import ClientContext

            options, rng = self._options, random.Random()  # noqa: S311  spreads load, keeps no secret
            context = ClientContext(
                clock=self._clock,
                rng=rng,
                credentials=options.credentials(),
                tls=options.tls(),
                endpoint=options.endpoints[0],
            )
            self._calls = RpcConsumerCalls(context.open_net(), endpoint=options.endpoints[0], client_id=self._client_id)
            self._introduction = Introduction(
                group=self._group,
                model=MessageModel.CLUSTERING,
                subscriptions=self._subscriptions,
                zone=os.environ.get("EVENQ_ZONE", ""),
                instance=options.membership.query_name,
                capacity=1.0,
                incarnation=rng.getrandbits(64) | 1,
                now_ms=self._clock.now_ms(),
                hands_over=False,  # after a broker's return it continues at its position: nothing to hand over
                refuses_resets=not options.membership.follows_resets,
            )
            self._sessions = BrokerSessions(
                self._calls,
                clock=self._clock,
                rng=rng,
                join=self._introduction.join,
                heard=self._heard,
                broken=lambda _: self._changed.set(),
                taken=lambda _, why: log.error("group %s: %s", self._group, why),
                suspected=self._ask,
                troubles=Troubles(self._clock, who=f"group {self._group}"),
            )
        return self._sessions, self._calls

    def _heard(self, broker_name: str, event: SessionEvent) -> None:
        from evenq.client.core.calls import Welcome
        from evenq.model.session_events import OffsetsReset

        self._changed.set()
        match event:
            case Welcome():
                self._ask(broker_name)
            case OffsetsReset(queues) if not self._options.membership.follows_resets:  # of an older broker
                log.error(
                    "the offsets of group %s were reset on %d queues; the query does not follow (honorOffsetReset)",
                    self._group,
                    len(queues),
                )
            case OffsetsReset(queues):
                self._moves += 1
                self.resets |= dict.fromkeys(queues, self._moves)
            case _:
                pass

    async def _subscribe(self, sessions: BrokerSessions, calls: RpcConsumerCalls, route: Route) -> None:
        """Subscribes to topics that are new in the route: with a pattern or a retry topic, some appear later."""
        options = self._options
        new = {queue.topic for queue in route} - self._subscriptions.keys()
        if not new:
            return
        await self._meet_others(calls, route, new)
        expression = (
            FilterExpression.sql(options.sql_filter) if options.sql_filter else FilterExpression(options.tags or "*")
        )
        self._subscriptions |= dict.fromkeys(sorted(new), expression)
        if self._introduction is not None:
            self._introduction.changed(self._clock.now_ms())
        sessions.rejoin()

    async def _meet_others(self, calls: RpcConsumerCalls, route: Route, topics: Collection[str]) -> None:
        """Returns when no other member reads these topics in the group, or `onGroupBusy` is takeover. Done before the
        join, because members that share the queues would immediately release some for a member that then leaves.
        """
        give_up_ms, said_ms = self._clock.monotonic_ms() + GHOST_MS, -SAY_MS
        while (
            others := await self._others(calls, route, topics)
        ) and self._options.membership.on_busy is not OnBusy.TAKEOVER:
            said_ms = self._wait_or_fail(others, give_up_ms, said_ms)
            await asyncio.sleep(ASK_MS / 4_000)

    def _wait_or_fail(self, others: Iterable[str], give_up_ms: int, said_ms: int) -> int:
        now_ms, names = self._clock.monotonic_ms(), ", ".join(sorted(set(others)))
        if self._options.membership.on_busy is OnBusy.FAIL and now_ms >= give_up_ms:
            raise GroupBusy(
                f"group {self._group} is busy: {names or 'another member'} reads in it; use a group of its own, "
                "stop the other, or set onGroupBusy to wait or takeover"
            )
        if now_ms - said_ms < SAY_MS:
            return said_ms
        log.warning("group %s is busy, waiting for %s to leave", self._group, names)
        return now_ms

    async def _others(self, calls: RpcConsumerCalls, route: Route, topics: Collection[str]) -> list[str]:
        from evenq.wire.status import check
        from evenq.wire.stubs.evenq.v1 import groups_pb2

        request = groups_pb2.ListMembersRequest(group=self._group).SerializeToString()
        others = set()
        for address, queues in by_address(route).items():
            try:
                content = await calls.unary(address, "/evenq.v1.Groups/ListMembers", request)
                response = groups_pb2.ListMembersResponse.FromString(content)
                check(response.status)
            except (errors.Unsupported, errors.NotImplementedYet):
                log.warning(
                    "%s does not support members of groups: this query is not a member there and locks no queues",
                    address,
                )
                self._strangers |= {queue.broker_name for queue in queues}
                continue
            except errors.Error as failure:
                log.warning("the members of group %s could not be read from %s: %s", self._group, address, failure)
                continue
            for member in response.members:
                read = {subscription.topic for subscription in member.subscriptions}
                if member.model == groups_pb2.CLUSTERING and (not read or not read.isdisjoint(topics)):
                    others.add(member.client_id)
        return sorted(others - {self._client_id})

    async def _settled(self, sessions: BrokerSessions) -> None:
        """Waits up to `SETTLE_MS` until each broker has accepted or failed the session."""
        until_ms = self._clock.monotonic_ms() + SETTLE_MS
        while not sessions.settled and (left_ms := until_ms - self._clock.monotonic_ms()) > 0:
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left_ms / 1000)

    async def _take(self, calls: RpcConsumerCalls, name: str, queues: Collection[MessageQueue]) -> None:
        """Locks all queues of one broker. All queries call brokers in one order, so that one of two gets all."""
        give_up_ms, said_ms, remaining = self._clock.monotonic_ms() + GHOST_MS, -SAY_MS, sorted(queues)
        while remaining:
            try:
                locks = [
                    lock
                    for topic in sorted({queue.topic for queue in remaining})
                    for lock in await calls.lock(
                        self._addresses[name],
                        self._group,
                        [queue for queue in remaining if queue.topic == topic],
                        wait_ms=ASK_MS,
                        generation=self._generation(),
                        anew=True,
                    )
                ]
            except errors.Error as failure:  # the session reports when the broker is back
                log.warning("the queues of group %s could not be locked at broker %s: %s", self._group, name, failure)
                return
            for lock in locks:
                if lock.granted:
                    self._held.add(lock.queue)
                    self.group_progress[lock.queue] = lock.committed
                    self._reached[lock.queue] = max(lock.committed, self._reached.get(lock.queue, -1))
            remaining = [lock.queue for lock in locks if not lock.granted]
            if remaining:
                try:
                    holders = [lock.holder for lock in locks if not lock.granted and lock.holder]
                    said_ms = self._wait_or_fail(holders, give_up_ms, said_ms)
                except GroupBusy:
                    # Otherwise other members would wait for the acquired locks until this session is dropped.
                    await self.leave(SETTLE_MS // 4)
                    raise

    def _generation(self) -> Generation:
        """Returns a generation; that of a takeover is newer than all decisions by members."""
        from evenq.model import NO_GENERATION, Generation

        takes_over = self._options.membership.on_busy is OnBusy.TAKEOVER
        return Generation(0, self._clock.now_ms()) if takes_over else NO_GENERATION

    async def _sure(self, sessions: BrokerSessions) -> None:
        """Checks uncertain locks at their brokers before a batch is planned."""
        for name in {queue.broker_name for queue in self._held}:
            if not sessions.sure(name) and sessions.up(name):
                self._ask(name)
        tasks = [task for task in self._asking.values() if not task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=SETTLE_MS / 1000)

    def _ask(self, name: str) -> None:
        before = self._asking.get(name)
        if before is None or before.done():
            self._asking[name] = asyncio.get_running_loop().create_task(self._again(name), name=f"evenq-relock-{name}")

    async def _again(self, name: str) -> None:
        """Requests this query's locks at a broker again, and records the lost ones."""
        sessions, calls = self._opened()
        # Before the calls: a silence while they run makes their answers unreliable (`LockTrust.confirm`).
        suspicions = sessions.suspicions(name)
        queues = sorted(queue for queue in self._held if queue.broker_name == name)
        for topic in sorted({queue.topic for queue in queues}):
            of_topic = [queue for queue in queues if queue.topic == topic]
            try:
                locks = await calls.lock(
                    self._addresses[name], self._group, of_topic, wait_ms=0, generation=self._generation()
                )
            except errors.Error as failure:
                log.warning("the owners of the queues of %s could not be read from broker %s: %s", topic, name, failure)
                return
            for lock in sorted(locks, key=lambda lock: lock.granted):  # holders are notified first
                if not lock.granted:
                    self._lose(lock.queue, f"{lock.holder or 'no member yet'} has it")
                elif lock.queue not in self.resets and lock.committed > self._reached.get(lock.queue, -1):
                    self._lose(lock.queue, f"it was read up to {lock.committed} meanwhile, by another member")
        sessions.confirm(name, suspicions)

    def _lose(self, queue: MessageQueue, why: str) -> None:
        self._held.discard(queue)
        if self._taken is None:
            self._taken = QueueTaken(
                f"queue {queue} of group {self._group} is not this query's ({self._client_id}) any more: {why}; the "
                "query was away for longer than its session. Its checkpoint is intact: start it again when the other "
                "has left, or with onGroupBusy=takeover"
            )
            log.error("%s", self._taken.message)
