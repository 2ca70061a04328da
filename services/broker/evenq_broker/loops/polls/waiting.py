"""The waiting side of long polls, and the one timer of deliveries.

Owns the futures of `core.polls.poll_table`. One task sleeps until the earliest end of a poll or delivery. Growth comes
from the store's dispatch, retries from `Progress.expire`. A poll that is woken and cancelled passes the wake-up on, so
no message waits for the next one to arrive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from evenq.runtime.tasks import spawn
from evenq_broker.core.polls.poll_table import ANY, Poll, PollTable
from evenq_broker.loops.polls.cluster_polls import ClusterPolls
from evenq_broker.loops.state.kernel import Kernel


class LongPolls:
    """The callers that wait for messages at this broker."""

    def __init__(self, kernel: Kernel, table: PollTable, cluster_polls: ClusterPolls) -> None:
        self._runtime, self._ledger = kernel.runtime, kernel.ledger
        self.table = self._polls = table
        self._wide = cluster_polls
        self._changed: asyncio.Future[None] | None = None
        self._sleeping_until: int | None = None
        self._closed = False
        self._with_copies = False

    def start(self) -> None:
        """Starts the timer, and connects to the store."""
        store = self._ledger.store
        store.on_dispatched = self.dispatched
        if self._runtime.leadership.attach is not None:
            self._with_copies = True
            store.on_gathering, store.on_taken_back = self.gathering, self._ledger.taken_back
        self._runtime.spawn(self._keep_time(), name="deadlines")

    def close(self) -> None:
        """Answers every poll empty; new ones are answered immediately."""
        self._closed = True
        self.answer_all()

    def answer_all(self) -> None:
        """Answers every poll empty, now; their clients poll again."""
        for poll in self._polls.end_all():
            _finish(poll)

    @property
    def idle(self) -> bool:
        """True if no poll waits, here or at another broker."""
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
        """Waits for a deliverable message of the group, in any queue, in one, or in `queues`. Returns the name of the
        other broker that has it, "" for this one; None at `deadline_ms` (of `Broker.now_ms`) or at the client's end.
        `user`: whose share of `polls_max` it takes; None immediately if that is full. `ahead`: with copies, also for
        messages that are not committed yet.
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
        """Waits until a queue (topic id, queue id, known maximum) has grown; False after `timeout_ms`."""
        places = list(queues)
        store = self._ledger.store
        if any(store.queue_range(topic_id, queue_id)[1] > known for topic_id, queue_id, known in places):
            return True
        if timeout_ms <= 0 or self._closed:
            return False
        deadline_ms = self._runtime.now_ms() + timeout_ms
        return await self._wait(self._polls.watch(places, deadline_ms=deadline_ms, user=user))

    def dispatched(self, grown: list[tuple[int, int, int]]) -> None:
        """Wakes polls for queues that the store has extended: (topic id, queue id, new maximum)."""
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
        """Wakes polls for messages that are not committed yet: (topic id, queue id, end). True if a poll takes some.

        It takes them in the next step, and records that behind them in the log. Its answer waits until that record is
        committed (R12), and so are they then (R11). A group that never read the queue begins with a committed message.
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
        """Returns groups that took all of the queue before its commit: another poll of theirs would find nothing."""
        queue_of = self._ledger.progress.queue
        return [
            group_id
            for group_id in self._polls.groups(topic_id)
            if (queue := queue_of(group_id, topic_id, queue_id)) is not None and not queue.untaken(maximum)
        ]

    async def until_done(self, record: asyncio.Future[None], *, deadline_ms: int, client_id: str) -> bool:
        """Waits for a commit until `deadline_ms` or the client's end; False: it did not come. Raises its error."""
        if not record.done():
            if self._closed:
                return False
            poll = self._polls.pause(deadline_ms=deadline_ms, client_id=client_id)
            if poll is None:
                await record  # as an answer waits that depends on committed messages
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
        """Wakes a poll for a message that became deliverable to one group."""
        poll = self._polls.ready(group_id, topic_id, queue_id) if len(self._polls) else None
        if poll is not None:
            _finish(poll)
        elif self._wide.waiters:
            self._wide.ready(group_id, topic_id)

    def ready_elsewhere(self, group_id: int, topic_id: int, *, push: bool, source: str) -> bool:
        """Wakes one poll for a message of one group at the broker `source`. False: there is none."""
        poll = self._polls.ready_elsewhere(group_id, topic_id, push=push, source=source)
        if poll is not None:
            _finish(poll)
        return poll is not None

    def refresh(self, client_id: str, topic_id: int) -> None:
        """Makes polls of the client read again: its subscription has changed."""
        for poll in self._polls.refresh(client_id, topic_id):
            _finish(poll)

    def look_again(self, topic_id: int, queue_id: int) -> None:
        """Makes polls that wait for growth of the queue check their right again: it has another owner."""
        for poll in self._polls.look_again(topic_id, queue_id):
            _finish(poll)

    def end_client(self, client_id: str) -> None:
        """Answers the polls of an ended client now (wire contract 3.3)."""
        for poll in self._polls.end_client(client_id):
            _finish(poll)

    async def until_owned(
        self, topic_id: int, queue_id: int, *, deadline_ms: int, client_id: str, user: str = ""
    ) -> None:
        """Waits while the queue is another member's, at most until `deadline_ms`. `user`: as for `for_messages`."""
        if not self._closed:
            poll = self._polls.hold(topic_id, queue_id, deadline_ms=deadline_ms, client_id=client_id, user=user)
            await self._wait(poll)

    def end(self, polls: Iterable[Poll]) -> None:
        """Answers these polls empty, now."""
        for poll in self._polls.end(polls):
            _finish(poll)

    def wake_topic(self, topic_id: int) -> None:
        """Ends the polls of a topic that is gone."""
        for poll in self._polls.end_topic(topic_id):
            _finish(poll)

    def sooner(self, deadline_ms: int) -> None:
        """Makes sure that the timer does not sleep past `deadline_ms`."""
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
                # The message that woke it is still there, and nothing else would wake another poll for it.
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
