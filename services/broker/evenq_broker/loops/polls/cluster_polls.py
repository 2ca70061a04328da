"""Long polls that a message at any broker of the cluster wakes (wire contract 3.9, checklist 31).

Each broker keeps one line (`evenq.v1.Peers/Interest`) to each other one. On it it reports for which group and topic it
has parked polls. The other broker notifies one broker of a deliverable message that no poll there takes. That one
wakes a poll, which fetches with a receive that does not wait. At rest nothing is sent. A peer that is away or does not
support the call is not waited for. `core.polls.interest` decides what is sent about polls of `core.polls.poll_table`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol

from evenq.errors import ConnectionFailed, Error, Unsupported
from evenq.model import GroupConfig, TopicConfig
from evenq.runtime.backoff import Backoff
from evenq.runtime.tasks import spawn
from evenq_broker.core.polls.interest import PeerNotices, Waiters, Want
from evenq_broker.core.polls.poll_table import PollTable
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.progress.starting import GroupStarts
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.state.signals import Signal
from evenq_broker.loops.wire.peers import (
    WaitingNews,
    interest_hello,
    interest_of,
    notices,
    notices_of,
    waiting_polls,
)

log = logging.getLogger(__name__)

METHOD = "/evenq.v1.Peers/Interest"
GATHER_MS = 2  # polls parked within it are sent together
PUSH_DELAY_MS = 50  # a message waits this long for a poll here before a push consumer's poll elsewhere is woken
UNKNOWN_RETRY_MS = 30_000  # a peer without the call may have been upgraded


class ReadyElsewhere(Protocol):
    """Wakes one poll for a message that another broker has; False: there is none."""

    def __call__(self, group_id: int, topic_id: int, *, push: bool, source: str) -> bool: ...


class PeerListener:
    """The line of a peer that is served here: notices wait until it takes them."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self._notices: list[Want] = []
        self._wake = asyncio.Event()
        self._closed = False

    def notify(self, want: Want) -> None:
        """Adds a notice for one of its polls. Bounded by the polls it announced."""
        self._notices.append(want)
        self._wake.set()

    def close(self) -> None:
        """Ends the line."""
        self._closed = True
        self._wake.set()

    async def take(self) -> list[Want]:
        """Returns the notices since the last time, at least one; none: the line is closed."""
        while not self._notices and not self._closed:
            self._wake.clear()
            await self._wake.wait()
        taken, self._notices = self._notices, []
        return [] if self._closed else taken


class _InterestOutbox:
    """Outgoing messages of one call of a line: gRPC may still read from a broken call, so each has its own."""

    def __init__(self) -> None:
        self._news: dict[Want, int] = {}
        self._wake = asyncio.Event()
        self._over = False

    def tell(self, want: Want, count: int) -> None:
        """Sends a count soon; only the newest of a want counts."""
        self._news[want] = count
        self._wake.set()

    def end(self) -> None:
        """Ends the requests of the call."""
        self._over = True
        self._wake.set()

    async def requests(self, own_name: str) -> AsyncIterator[bytes]:
        """Yields the call's messages."""
        yield interest_hello(own_name)
        while not self._over:
            self._wake.clear()
            if self._news:
                news = waiting_polls(self._news)
                self._news.clear()
                yield news
            else:
                await self._wake.wait()


class _Line:
    """The line to one peer."""

    def __init__(self, name: str, address: str, incarnation: str) -> None:
        self.name = name
        self.address = address
        self.incarnation = incarnation
        self.open = False
        self.notices = PeerNotices()
        self.task: asyncio.Task[None] | None = None
        self._outbox = _InterestOutbox()

    def begin(self) -> _InterestOutbox:
        """Begins a new call: the peer knows nothing."""
        self._outbox.end()
        self._outbox = _InterestOutbox()
        self.notices = PeerNotices()
        self.open = True
        return self._outbox

    def tell(self, want: Want, count: int) -> None:
        """Sends a count on the present call."""
        self._outbox.tell(want, count)

    def end(self) -> None:
        """Ends the call; nothing is sent until the next one."""
        self.open = False
        self._outbox.end()


class ClusterPolls:
    """Both ends of all lines of one broker."""

    def __init__(self, kernel: Kernel, table: PollTable, *, cluster: ClusterLink, starts: GroupStarts) -> None:
        self._runtime, self._catalog = kernel.runtime, kernel.catalog
        self._cluster, self._starts = cluster, starts
        self._table = table
        self.on_elsewhere: ReadyElsewhere = lambda *_, **__: False
        """Wakes a poll that is parked here for a message at another broker; set at the start."""
        self.waiters = Waiters(wants_max=kernel.runtime.settings.polls_max)
        """Polls parked at other brokers; empty: no poll there waits."""
        self.fetches = 0
        self.fetches_empty = 0
        self._listeners: dict[str, PeerListener] = {}
        self._lines: dict[str, _Line] = {}
        self._dirty: dict[Want, None] = {}
        self._since: dict[Want, int] = {}  # when the last poll of a want ended
        self._later: dict[Want, int] = {}  # push polls elsewhere, and when to wake one
        self._news = Signal()
        self._look_ms: int | None = None

    def start(self) -> None:
        """Opens the lines to all peers, now and as they come and go."""
        self._table.on_wide = self._changed
        self._runtime.spawn(self._keep_lines(), name="lines to peers")
        self._runtime.spawn(self._keep_sending(), name="waiting polls")

    def close(self) -> None:
        """Ends all lines. Idempotent."""
        self._table.on_wide = None
        for line in self._lines.values():
            if line.task is not None:
                line.task.cancel()
        self._lines.clear()
        for listener in self._listeners.values():
            listener.close()

    # ------------------------------------------------------------------------------------------------ polls here

    def _changed(self, key: tuple[int, int, bool]) -> None:
        want = self._want(key) if self._lines else None
        if want is None:
            return
        if key in self._table.wide:
            self._since.pop(want, None)
            if all(line.notices.known(want) for line in self._lines.values()):
                return
            self._dirty[want] = None
            self._news.notify()
        else:
            self._since[want] = self._runtime.now_ms()
            self._dirty[want] = None
            if self._look_ms is None:
                self._news.notify()

    def _want(self, key: tuple[int, int, bool]) -> Want | None:
        group, topic = self._catalog.groups.by_id(key[0]), self._catalog.topics.by_id(key[1])
        return None if group is None or topic is None else Want(group.name, topic.name, key[2])

    def _parked(self, want: Want) -> int:
        group, topic = self._catalog.groups.get(want.group), self._catalog.topics.get(want.topic)
        if group is None or topic is None:
            return 0
        return self._table.wide.get((group.group_id, topic.topic_id, want.push), 0)

    def _tell_all(self) -> None:
        now_ms = self._runtime.now_ms()
        wants, self._dirty = self._dirty, {}
        counts = {want: self._parked(want) for want in wants}
        for line in self._lines.values():
            for want, count, look_ms in line.notices.changes(wants, counts, self._since, now_ms) if line.open else ():
                if count >= 0:
                    line.tell(want, count)
                else:
                    self._dirty[want] = None
                    self._look_at(look_ms)
        for want in wants:
            if want not in self._dirty:
                self._since.pop(want, None)

    def _noticed(self, line: _Line, want: Want) -> None:
        line.notices.used(want)
        group, topic = self._catalog.groups.get(want.group), self._catalog.topics.get(want.topic)
        woken = (
            group is not None
            and topic is not None
            and self.on_elsewhere(group.group_id, topic.topic_id, push=want.push, source=line.name)
        )
        if not woken:
            line.notices.decline(want)
            line.tell(want, 0)
        self._dirty[want] = None
        self._news.notify()

    def fetched(self, group: GroupConfig, topic: TopicConfig, *, push: bool, source: str, found: bool) -> None:
        """Notes the result of a poll that `source` woke."""
        self.fetches += 1
        self.fetches_empty += not found
        line = self._lines.get(source)
        if line is not None:
            want = Want(group.name, topic.name, push)
            line.notices.fetched(want, self._runtime.now_ms(), found=found)
            self._dirty[want] = None
            self._news.notify()

    def not_taken(self, group_id: int, topic_id: int, *, push: bool, source: str) -> None:
        """Passes a message on to another poll or broker: a woken poll was cancelled before it fetched."""
        line, want = self._lines.get(source), self._want((group_id, topic_id, push))
        if line is not None and want is not None:
            self._noticed(line, want)

    # ------------------------------------------------------------------------------------------------ messages here

    def arrived(self, topic_id: int, woken: set[int]) -> None:
        """Offers messages of a grown queue to other brokers; the groups in `woken` take them here."""
        topic = self._catalog.topics.by_id(topic_id)
        if topic is None:
            return
        for want in self.waiters.wants(topic.name):
            group = self._catalog.groups.get(want.group)
            if group is not None and group.group_id not in woken:
                self._starts.begin_at_first(group, topic)  # it waited before the topic was made
                self._offer(want, group, topic)

    def ready(self, group_id: int, topic_id: int) -> None:
        """Offers a deliverable message of one group to other brokers: no poll here takes it."""
        group, topic = self._catalog.groups.by_id(group_id), self._catalog.topics.by_id(topic_id)
        if group is not None and topic is not None:
            for push in (False, True):
                want = Want(group.name, topic.name, push)
                if self.waiters.waits(want):
                    self._offer(want, group, topic)

    def _offer(self, want: Want, group: GroupConfig, topic: TopicConfig) -> None:
        if want.push:
            if want not in self._later:
                self._later[want] = self._runtime.now_ms() + PUSH_DELAY_MS
                self._look_at(self._later[want])
        elif self._starts.deliverable(group, topic):
            self._notify(want)

    def _notify(self, want: Want) -> None:
        peer = self.waiters.take(want)
        listener = self._listeners.get(peer) if peer is not None else None
        if listener is not None:
            listener.notify(want)

    def _notify_late(self) -> None:
        now_ms = self._runtime.now_ms()
        for want, due_ms in list(self._later.items()):
            if due_ms > now_ms:
                self._look_at(due_ms)
                continue
            del self._later[want]
            group, topic = self._catalog.groups.get(want.group), self._catalog.topics.get(want.topic)
            if group is not None and topic is not None and self._starts.deliverable(group, topic):
                self._notify(want)

    # ------------------------------------------------------------------------------------------------ served lines

    def joined(self, peer: str) -> PeerListener:
        """Registers the line of a peer; its older one ends."""
        older = self._listeners.get(peer)
        if older is not None:
            self.left(older)
        listener = self._listeners[peer] = PeerListener(peer)
        return listener

    def left(self, listener: PeerListener) -> None:
        """Removes an ended line and its announcements."""
        listener.close()
        # Otherwise a newer line of that peer has replaced it, and has announced all of its polls again.
        if self._listeners.get(listener.peer) is listener:
            del self._listeners[listener.peer]
            self.waiters.drop(listener.peer)

    async def announced(self, listener: PeerListener, want: Want, count: int) -> None:
        """Notes the number of parked polls of a peer. A group that waits anywhere has begun to read here, too."""
        if self._listeners.get(listener.peer) is not listener:
            return
        topic = self._catalog.topics.get(want.topic)
        group = self._catalog.groups.get(want.group)
        if count > 0 and group is None:
            group = await self._catalog.ensure_group(want.group)
            if self._listeners.get(listener.peer) is not listener:
                return  # its line ended meanwhile, and `left` removed its announcements
        self.waiters.tell(listener.peer, want, count)
        if topic is not None and group is not None:
            if count > 0:
                await self._starts.begin(group, topic)
            if self.waiters.waits(want):
                self._offer(want, group, topic)

    # ------------------------------------------------------------------------------------------------ loops

    def _look_at(self, due_ms: int) -> None:
        if self._look_ms is None or due_ms < self._look_ms:
            self._look_ms = due_ms
            self._news.notify()

    async def _keep_sending(self) -> None:
        clock = self._runtime.clock
        while True:
            seen, look_ms = self._news.count, self._look_ms
            wait_ms = None if look_ms is None else max(0, look_ms - self._runtime.now_ms())
            if await self._news.wait(seen, clock=clock, timeout_ms=wait_ms):
                await clock.sleep_ms(GATHER_MS)
            self._look_ms = None
            self._tell_all()
            self._notify_late()

    async def _keep_lines(self) -> None:
        changes = self._catalog.changes.routes
        while True:
            seen = changes.count
            peers = {view.name: view for view in self._cluster.peers.all()}
            for name, line in list(self._lines.items()):
                view = peers.get(name)
                # A restarted or moved peer does not know the announcements of the old line.
                if view is None or (view.incarnation, self._cluster.peers.address_of(view)) != (
                    line.incarnation,
                    line.address,
                ):
                    assert line.task is not None
                    line.task.cancel()
                    del self._lines[name]
            for name, view in peers.items():
                if name not in self._lines:
                    line = self._lines[name] = _Line(name, self._cluster.peers.address_of(view), view.incarnation)
                    line.task = self._runtime.spawn(self._keep_line(line), name=f"line to {name}")
            await changes.wait(seen, clock=self._runtime.clock)

    async def _keep_line(self, line: _Line) -> None:
        backoff = Backoff(self._runtime.rng, max_ms=2_000)
        while True:
            pause_ms = 0
            try:
                await self._talk(line, backoff)
            except Unsupported:
                log.info("broker %s does not support group-wide polls", line.name, extra={"peer": line.name})
                pause_ms = UNKNOWN_RETRY_MS
            except Error as error:
                log.info("polls at broker %s are interrupted: %s", line.name, error.message, extra={"peer": line.name})
            line.end()
            await self._runtime.clock.sleep_ms(pause_ms or backoff.next_ms())

    async def _talk(self, line: _Line, backoff: Backoff) -> None:
        outbox = line.begin()
        for key in self._table.wide:
            want = self._want(key)
            if want is not None:
                self._dirty[want] = None
        if self._dirty:
            self._news.notify()
        own = self._runtime.settings.broker_name
        requests = outbox.requests(own)
        async for data in self._runtime.net.stream(line.address, METHOD, requests, timeout_ms=None):
            backoff.reset()
            for want in notices_of(data):
                self._noticed(line, want)
        raise ConnectionFailed(f"broker {line.name} ended the line; opening it again")

    async def serve(self, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Handles the call: yields notices to one peer, for as long as its requests come."""
        first = interest_of(await anext(aiter(requests), b""))
        listener = self.joined(first.broker_name)
        listening = spawn(self._listen(listener, first, requests), name=f"line of {listener.peer}")
        try:
            while wants := await listener.take():
                yield notices(wants)
        finally:
            listening.cancel()
            self.left(listener)

    async def _listen(self, listener: PeerListener, first: WaitingNews, requests: AsyncIterator[bytes]) -> None:
        try:
            await self._take(listener, first)
            async for request in requests:
                await self._take(listener, interest_of(request))
        finally:
            listener.close()

    async def _take(self, listener: PeerListener, news: WaitingNews) -> None:
        for want, count in news.counts:
            try:
                await self.announced(listener, want, count)
            except Error as error:  # the group does not exist, or has no space: no poll can wait for it here
                log.info(
                    "a poll of broker %s is rejected: %s", listener.peer, error.message, extra={"peer": listener.peer}
                )
