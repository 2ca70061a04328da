"""The waiting side of long polls, and the one timer of the delivery heart.

Owns the futures of `core.polls.poll_table`; one task sleeps until the earliest of: a poll's end, a delivery's end.
Growth comes from the store's dispatch, retries from `Progress.expire`. A poll that is woken and cancelled passes the
wake-up on, so no message waits for the next one to arrive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from evenq.runtime.tasks import spawn
from evenq_broker.core.polls.poll_table import ANY, Poll, PollTable
from evenq_broker.loops.polls.cluster_polls import ClusterPolls
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.runtime import Runtime

__all__ = ["LongPolls"]


class LongPolls:
    """The callers that wait for messages at this broker."""

    def __init__(self, runtime: Runtime, ledger: Ledger, table: PollTable, cluster_polls: ClusterPolls) -> None:
        self._runtime, self._ledger = runtime, ledger
        self.table = self._polls = table
        self._wide = cluster_polls
        self._changed: asyncio.Future[None] | None = None
        self._sleeping_until: int | None = None
        self._closed = False
        self._with_copies = False

    def start(self) -> None:
        """Begin to keep time and to listen to the store."""
        store = self._ledger.store
        store.on_dispatched = self.dispatched
        if self._runtime.leadership.attach is not None:
            self._with_copies = True
            store.on_gathering, store.on_taken_back = self.gathering, self._ledger.taken_back
        self._runtime.spawn(self._keep_time(), name="deadlines")

    def close(self) -> None:
        """Answer every poll empty; new ones are answered at once."""
        self._closed = True
        self.answer_all()

    def answer_all(self) -> None:
        """Answer every poll empty, now; their clients ask again."""
        for poll in self._polls.end_all():
            _finish(poll)

    @property
    def idle(self) -> bool:
        """No poll waits, here or at another broker."""
        return not len(self._polls) and not self._wide.waiters

    async def for_messages(
        self,
        group_id: int,
        topic_id: int,
        *,
        queue_id: int = ANY,
        queues: Iterable[int] | None = None,
        deadline_ms: int,
        client_id: str,
        user: str = "",
        push: bool = False,
        ahead: bool = False,
    ) -> str | None:
        """Wait for something to deliver to the group, in any queue, in one, or in `queues`: the name of the other
        broker that has it, empty for this one; None at `deadline_ms` (of `Broker.now_ms`) or at the client's end.
        `user`: whose share of `polls_max` it takes; None at once if that is full. `ahead`: with copies, messages that
        are not committed yet are taken, too.
        """
        if self._closed:
            return None
        poll = self._polls.park(
            group_id,
            topic_id,
            queue_id=queue_id,
            queues=queues,
            deadline_ms=deadline_ms,
            client_id=client_id,
            user=user,
            push=push,
            ahead=ahead and self._with_copies,
        )
        return poll.source if await self._wait(poll) and poll is not None else None

    async def for_growth(self, queues: Iterable[tuple[int, int, int]], timeout_ms: int, *, user: str = "") -> bool:
        """Wait until one of the queues (topic id, queue id, known maximum) has grown past it; False after
        `timeout_ms`. `user`: as for `for_messages`.
        """
        places = list(queues)
        store = self._ledger.store
        if any(store.queue_range(topic_id, queue_id)[1] > known for topic_id, queue_id, known in places):
            return True
        if timeout_ms <= 0 or self._closed:
            return False
        deadline_ms = self._runtime.now_ms() + timeout_ms
        return await self._wait(self._polls.watch(places, deadline_ms=deadline_ms, user=user))

    def dispatched(self, grown: list[tuple[int, int, int]]) -> None:
        """The store has made these queues longer: (topic id, queue id, new maximum)."""
        elsewhere = self._wide.waiters
        if elsewhere or len(self._polls):
            for topic_id, queue_id, maximum in grown:
                served = self._served(topic_id, queue_id, maximum) if self._with_copies else ()
                woken = self._polls.arrived(topic_id, queue_id, maximum, but=served)
                for poll in woken:
                    _finish(poll)
                if elsewhere:
                    self._wide.arrived(topic_id, {*served, *(poll.group_id for poll in woken)})

    def gathering(self, grown: list[tuple[int, int, int]]) -> bool:
        """These queues (topic id, queue id, end) have messages that are not committed yet; whether a poll takes some.

        It does so in the next turn, and records that behind them in the log; its answer waits until that is committed
        (R12), and so are they then (R11). A group that never read the queue begins with a message that is committed.
        """
        taken = False
        if len(self._polls):
            queue_of = self._ledger.progress.queue
            for topic_id, queue_id, end in grown:
                for group_id in self._polls.groups(topic_id):
                    queue = queue_of(group_id, topic_id, queue_id)
                    if queue is not None and queue.next < end:
                        poll = self._polls.gathering(group_id, topic_id, queue_id)
                        if poll is not None:
                            _finish(poll)
                            taken = True
        return taken

    def _served(self, topic_id: int, queue_id: int, maximum: int) -> list[int]:
        """Groups that took all of the queue before it was committed: another poll of theirs would find nothing."""
        queue_of = self._ledger.progress.queue
        return [
            group_id
            for group_id in self._polls.groups(topic_id)
            if (queue := queue_of(group_id, topic_id, queue_id)) is not None and not queue.untaken(maximum)
        ]

    async def until_done(self, record: asyncio.Future[None], *, deadline_ms: int, client_id: str) -> bool:
        """Wait until a record is committed, but not past `deadline_ms`, nor past the client's end; whether it is.
        Raises what the record failed with.
        """
        if not record.done():
            if self._closed:
                return False
            poll = self._polls.pause(deadline_ms=deadline_ms, client_id=client_id)
            if poll is None:
                await record  # as an answer waits that rests on committed messages
                return True
            waiting = [poll]

            def finished(_: asyncio.Future[None]) -> None:
                self.end(waiting)

            record.add_done_callback(finished)
            try:
                await self._wait(poll)
            finally:
                record.remove_done_callback(finished)
        if not record.done():
            return False
        record.result()
        return True

    def ready(self, group_id: int, topic_id: int, queue_id: int) -> None:
        """Something became deliverable to one group."""
        poll = self._polls.ready(group_id, topic_id, queue_id) if len(self._polls) else None
        if poll is not None:
            _finish(poll)
        elif self._wide.waiters:
            self._wide.ready(group_id, topic_id)

    def ready_elsewhere(self, group_id: int, topic_id: int, *, push: bool, source: str) -> bool:
        """The broker `source` has something for one group: wake one poll for it. False: there is none."""
        poll = self._polls.ready_elsewhere(group_id, topic_id, push=push, source=source)
        if poll is not None:
            _finish(poll)
        return poll is not None

    def refresh(self, client_id: str, topic_id: int) -> None:
        """The client's subscription has changed: its polls look again."""
        for poll in self._polls.refresh(client_id, topic_id):
            _finish(poll)

    def look_again(self, topic_id: int, queue_id: int) -> None:
        """The queue has another owner: polls that wait for it to grow check whether they still may."""
        for poll in self._polls.look_again(topic_id, queue_id):
            _finish(poll)

    def end_client(self, client_id: str) -> None:
        """The client ends: answer its polls now (wire contract 3.3)."""
        for poll in self._polls.end_client(client_id):
            _finish(poll)

    async def until_owned(
        self, topic_id: int, queue_id: int, *, deadline_ms: int, client_id: str, user: str = ""
    ) -> None:
        """Wait while the queue is another member's, at most until `deadline_ms`. `user`: as for `for_messages`."""
        if not self._closed:
            poll = self._polls.hold(topic_id, queue_id, deadline_ms=deadline_ms, client_id=client_id, user=user)
            await self._wait(poll)

    def end(self, polls: Iterable[Poll]) -> None:
        """Answer these empty, now."""
        for poll in self._polls.end(polls):
            _finish(poll)

    def wake_topic(self, topic_id: int) -> None:
        """The topic is gone."""
        for poll in self._polls.end_topic(topic_id):
            _finish(poll)

    def sooner(self, deadline_ms: int) -> None:
        """Something ends at `deadline_ms`: make sure the timer does not sleep past it."""
        if self._sleeping_until is None or deadline_ms < self._sleeping_until:
            self._sleeping_until = deadline_ms
            if self._changed is not None and not self._changed.done():
                self._changed.set_result(None)

    async def _wait(self, poll: Poll | None) -> bool:
        if poll is None:
            return False
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        poll.token = future
        self.sooner(poll.deadline_ms)
        try:
            await future
        except asyncio.CancelledError:
            if poll.parked:
                self._polls.cancel(poll)
            elif poll.source:
                self._wide.not_taken(poll.group_id, poll.topic_id, push=poll.push, source=poll.source)
            elif poll.woken and poll.group_id:
                # What woke it is still there, and nothing else would wake another poll for it.
                for _, queue_id in poll.known or {(0, 0): 0}:
                    self.ready(poll.group_id, poll.topic_id, queue_id)
            raise
        return poll.woken

    async def _keep_time(self) -> None:
        while True:
            now_ms = self._runtime.now_ms()
            for queue in self._ledger.progress.expire(now_ms):
                for _ in range(min(len(queue.ready), 8)):
                    self.ready(queue.group_id, queue.topic_id, queue.queue_id)
            for poll in self._polls.tick(now_ms):
                _finish(poll)
            await self._sleep(now_ms)

    async def _sleep(self, now_ms: int) -> None:
        dues = [due for due in (self._ledger.progress.next_deadline(), self._polls.next_deadline()) if due is not None]
        self._sleeping_until = min(dues, default=None)
        self._changed = asyncio.get_running_loop().create_future()
        if self._sleeping_until is None:
            await self._changed
            return
        sleeper = spawn(self._runtime.clock.sleep_ms(self._sleeping_until - now_ms), name="until the next deadline")
        try:
            await asyncio.wait({sleeper, self._changed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeper.cancel()


def _finish(poll: Poll) -> None:
    future = poll.token
    assert isinstance(future, asyncio.Future)
    if not future.done():
        future.set_result(None)
