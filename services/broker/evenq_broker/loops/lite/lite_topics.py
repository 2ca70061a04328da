"""The lite topics of one broker: places, subscriptions and expiry (wire contract 3.14, 5.6).

`rpc.sending.send` queries the queue of a message, `rpc.delivery.receive` the queues of a client; `rpc.lite.lite` passes
subscriptions on. A group that has not read a lite topic begins at its first message, whenever it subscribes. A lite
topic expires when, for `lite_topic_idle_ms`, nothing was sent to it and no client was subscribed to it. Messages that a
live subscription may still read are never dropped. When the parent topic is deleted, subscriptions end immediately, and
clients are notified.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

from evenq.errors import Error, IllegalOffset, TopicNotFound
from evenq.model import GroupConfig, TopicConfig
from evenq.model.lanes import owner_among
from evenq_broker.core.delivery.queue_progress import READY
from evenq_broker.core.groups.resets import within
from evenq_broker.core.lite.lite_topics import LiteTopic, LiteTopics
from evenq_broker.core.lite.subscriptions import (
    LAST,
    MAX,
    MIN,
    LiteSet,
    LiteSubscribeAction,
    LiteSubscriptions,
    RequestedStart,
    Subscriber,
)
from evenq_broker.core.state.records import Committed, LiteClosed, LiteOpened
from evenq_broker.loops.clients.connected import ConnectedClients
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.polls.waiting import LongPolls
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.peers import ASK_LITE_SETS, LiteNews, lite_sets_of
from evenq_broker.loops.wire.telemetry import LITE_CLIENTS, lite_topic_ended

log = logging.getLogger(__name__)

SWEEP_MS = 5_000
NAMES_SENT_MAX = 20_000
CHANGES_MAX = 1_000_000
"""Versions of a term of leadership for each ms between its begin and the next one's."""
AGAIN_MS = 100
UNKNOWN_MS = 500
NOTICE_TRIES = 10  # for a client that does not read; its next receive returns the error
LEARN_METHOD = "/evenq.v1.Peers/LiteSubscriptions"


class Lites:
    """Lite topics and subscriptions, connected to the journal, the store and the polls."""

    def __init__(
        self, kernel: Kernel, *, cluster: ClusterLink, clients: ConnectedClients, long_polls: LongPolls
    ) -> None:
        settings = kernel.runtime.settings
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._cluster, self._clients, self._long_polls = cluster, clients, long_polls
        self.topics = LiteTopics(
            all_max=settings.lite_topics_max,
            each_max=settings.lite_topics_per_topic_max,
            users=kernel.runtime.users,
            name_of=kernel.catalog.topic_name,
        )
        kernel.ledger.keeps({LiteOpened: self._replayed, LiteClosed: self._replayed}, self.topics.dump)
        self.subscriptions = LiteSubscriptions(
            each_max=settings.lite_subscriptions_max,
            all_max=settings.lite_subscriptions_all_max,
            keep_ms=settings.lite_subscription_ms,
            users=kernel.runtime.users,
        )
        self.subscriptions.on_change = kernel.runtime.leadership.lite_changed
        self._news = LiteNews(0, ())

    # ------------------------------------------------------------------------------------------------ sending

    def _replayed(self, op: LiteOpened | LiteClosed) -> None:
        self.topics.apply(op, self._runtime.now_ms())
        if isinstance(op, LiteClosed):
            self._ledger.progress.forget_queue(op.topic_id, op.queue_id)

    def owner(self, parent: str, name: str) -> str:
        """Returns the broker that stores the lite topic; this one if no route of the parent is known."""
        own = self._runtime.settings.broker_name
        brokers = [at.broker.name for at in self._catalog.routes.route(parent) if at.counts.permission.writable]
        return owner_among(brokers, parent, name) or own

    def place(self, parent: TopicConfig, name: str) -> int:
        """Returns the queue for one more message; a new one is recorded before it. Raises LiteTopicQuotaExceeded."""
        known = self.topics.get(parent.topic_id, name)
        if known is None:
            if self._catalog.topics.by_id(parent.topic_id) is None:
                raise TopicNotFound(f"topic {parent.name} was deleted")
            queue_id = self.topics.next_queue(parent.topic_id, parent.name)
            base = self._ledger.store.queue_range(parent.topic_id, queue_id)[1]
            known = self.topics.opened(parent.topic_id, name, queue_id, base, self._runtime.now_ms())
            self._ledger.journal.record(LiteOpened(parent.topic_id, queue_id, base, name))
            self._ledger.journal.flush()
            self._refresh(self.subscriptions.subscribers(parent.name, name))
        known.used_ms = self._runtime.now_ms()
        return known.queue_id

    # ------------------------------------------------------------------------------------------------ receiving

    def queues_of(self, client_id: str, group: GroupConfig, parent: TopicConfig) -> list[int]:
        """Returns the queues here of the lite topics that the client is subscribed to."""
        names = self.subscriptions.names(Subscriber(client_id, group.name, parent.name))
        return self.topics.queues(parent.topic_id, names)

    def begin(self, group: GroupConfig, parent: TopicConfig, queue_ids: Iterable[int]) -> None:
        """Begins the group at the first message of each of the queues where it has not begun."""
        for queue_id in queue_ids:
            lite = self.topics.at(parent.topic_id, queue_id)
            start = 0 if lite is None else self._range(lite)[0]
            op = self._ledger.progress.start(group.group_id, parent.topic_id, queue_id, start)
            if op is not None:
                self._ledger.journal.record(op)

    async def ready(self, who: Subscriber, wait_ms: int, *, user: str = "") -> bool:
        """Waits for a message of the client here, without taking it; False after `wait_ms`. `user`: see `LongPolls`."""
        until_ms = self._runtime.now_ms() + max(0, min(wait_ms, self._runtime.settings.poll_max_ms))
        while True:
            group, parent = self._catalog.groups.get(who.group), self._catalog.topics.get(who.parent)
            if group is None or parent is None:  # the client's subscription, or the topic, has not arrived yet
                left_ms = until_ms - self._runtime.now_ms()
                if left_ms <= 0:
                    return False
                await self._runtime.clock.sleep_ms(min(UNKNOWN_MS, left_ms))
                continue
            queues = self.queues_of(who.client_id, group, parent)
            self.begin(group, parent, queues)
            if any(self._deliverable(group, parent, queue_id) for queue_id in queues):
                self._runtime.spawn(self._wake_again(group, parent, queues), name="wake lite receives again")
                return True
            source = await self._long_polls.for_messages(
                group.group_id, parent.topic_id, queues=queues, deadline_ms=until_ms, client_id=who.client_id, user=user
            )
            if source is None:
                return False

    def _deliverable(self, group: GroupConfig, parent: TopicConfig, queue_id: int) -> bool:
        queue = self._ledger.progress.queue(group.group_id, parent.topic_id, queue_id)
        if queue is None:
            return False
        if any((entry := queue.pending.get(one)) is not None and entry.deadline_ms == READY for one in queue.ready):
            return True
        return not queue.lanes and queue.next < self._ledger.store.queue_range(parent.topic_id, queue_id)[1]

    async def _wake_again(self, group: GroupConfig, parent: TopicConfig, queues: Sequence[int]) -> None:
        # The notified client may be gone before it takes the message: then another one gets it.
        await self._runtime.clock.sleep_ms(AGAIN_MS)
        for queue_id in queues:
            if self._deliverable(group, parent, queue_id):
                self._long_polls.ready(group.group_id, parent.topic_id, queue_id)

    def lag(self, group: GroupConfig, parent: TopicConfig) -> tuple[int, int]:
        """Returns the group's unfinished messages in the parent's lite topics here, and those in flight."""
        lag = inflight = 0
        for lite in self.topics.of(parent.topic_id):
            queue_key = (group.group_id, parent.topic_id, lite.queue_id)
            lag += self._ledger.progress.lag(*queue_key, *self._range(lite))
            inflight += self._ledger.progress.inflight(*queue_key, *self._range(lite))
        return lag, inflight

    def messages(self, parent: TopicConfig) -> int:
        """Returns the number of messages stored here in lite topics of the parent."""
        return sum(messages for _, messages in self.sizes(parent))

    def sizes(self, parent: TopicConfig) -> Iterator[tuple[str, int]]:
        """Yields each lite topic here of the parent, with the number of messages stored in it."""
        for lite in self.topics.of(parent.topic_id):
            low, high = self._range(lite)
            yield lite.name, high - low

    def queue_range(self, topic_id: int, queue_id: int) -> tuple[int, int]:
        """Returns the offsets that a queue of any topic holds; of a lite topic only its own."""
        lite = self.topics.at(topic_id, queue_id)
        return self._ledger.store.queue_range(topic_id, queue_id) if lite is None else self._range(lite)

    def _range(self, lite: LiteTopic) -> tuple[int, int]:
        low, high = self._ledger.store.queue_range(lite.topic_id, lite.queue_id)
        return max(low, lite.base), max(high, lite.base)

    # ------------------------------------------------------------------------------------------------ subscribing

    async def sync(
        self, who: Subscriber, action: LiteSubscribeAction, names: Sequence[str], start: RequestedStart | None
    ) -> None:
        """Changes subscriptions; `start` moves the group. Raises LiteSubscriptionQuotaExceeded, IllegalOffset."""
        if start is not None:
            _must_make_sense(start)
        added, changed = self.subscriptions.sync(who, action, names, self._runtime.now_ms())
        if start is not None and (start.moves or start.value != LAST):
            for name in added:
                if not self.subscriptions.is_subscribed(who.parent, name, group=who.group, besides=who):
                    await self._move(who, name, start)
        if changed:
            self._refresh([who])

    def newest_sets(self) -> list[LiteSet]:
        """Returns the clients' subscriptions, for a broker that has just started."""
        now_ms = self._runtime.now_ms()
        return [
            LiteSet(who, names, now_ms - synced_ms)
            for who, names, synced_ms in self.subscriptions.newest(NAMES_SENT_MAX)
        ]

    def news(self) -> LiteNews:
        """Returns the clients' subscriptions for the other copies of this broker's group."""
        # Different from those of any other term: a leader may lead again, and then counts from 0.
        version = self._runtime.started_ms * CHANGES_MAX + self.subscriptions.changes
        if version != self._news.version:
            self._news = LiteNews(version, self.newest_sets())
        return self._news

    def inherit(self, sets: Iterable[LiteSet]) -> None:
        """Takes over the previous leader's sets at the begin of a term: clients repeat theirs only within 30 s."""
        now_ms = self._runtime.now_ms()
        for who, names, age_ms in sets:
            self.subscriptions.learn(who, names, now_ms - age_ms)

    async def learn(self) -> None:
        """Queries each broker once when it appears: clients repeat their sets only every 30 s. Never ends."""
        learned: dict[str, str] = {}
        while True:
            seen = self._catalog.changes.routes.count
            peers = {view.name: view.incarnation for view in self._cluster.peers.all()}
            learned = {name: incarnation for name, incarnation in learned.items() if name in peers}
            for name, incarnation in peers.items():
                if learned.get(name) != incarnation:
                    learned[name] = incarnation
                    await self._learn_from(name)
            await self._catalog.changes.routes.wait(seen, clock=self._runtime.clock)

    async def _learn_from(self, peer: str) -> None:
        try:
            sets = lite_sets_of(await self._cluster.peers.ask(peer, LEARN_METHOD, ASK_LITE_SETS))
        except Error as error:  # a broker of an older version, or one that has gone again
            log.info("broker %s sent no lite subscriptions: %s", peer, error.message, extra={"peer": peer})
            return
        now_ms = self._runtime.now_ms()
        for who, names, age_ms in sets:
            if self.subscriptions.learn(who, names, now_ms - age_ms):
                self._refresh([who])

    async def _move(self, who: Subscriber, name: str, start: RequestedStart) -> None:
        parent, group = self._catalog.topics.get(who.parent), self._catalog.groups.get(who.group)
        lite = self.topics.get(parent.topic_id, name) if parent is not None else None
        if parent is None or group is None or lite is None:
            return  # it begins with its first message
        offset = within(await self._offset(lite, start), *self._range(lite))[0]
        queue_key = (group.group_id, parent.topic_id, lite.queue_id)
        # The lite topic may have ended during the search, and another one have its name.
        if self.topics.get(parent.topic_id, name) is not lite or self._catalog.gone(group, parent):
            return
        if self._ledger.progress.commit(*queue_key, offset, allow_backward=True):
            self._ledger.journal.record(Committed(*queue_key, offset, reset=True))
            self._long_polls.ready(*queue_key)

    async def _offset(self, lite: LiteTopic, start: RequestedStart) -> int:
        low, high = self._range(lite)
        match start.kind:
            case "offset":
                return start.value
            case "tail_n":
                return high - start.value
            case "timestamp":
                return await self._ledger.store.offset_at(lite.topic_id, lite.queue_id, start.value)
        return high if start.value == MAX else low

    def end_client(self, client_id: str) -> None:
        """Ends the subscriptions of a client that ended."""
        self.subscriptions.end_client(client_id)

    def _refresh(self, subscribers: Iterable[Subscriber]) -> None:
        # Parked polls of these clients read their queues again.
        for who in subscribers:
            topic = self._catalog.topics.get(who.parent)
            if topic is not None:
                self._long_polls.refresh(who.client_id, topic.topic_id)

    # ------------------------------------------------------------------------------------------------ ending

    def skip_ms(self, ahead_ms: int) -> None:
        """Moves the times of use on, because the clock jumps ahead by `ahead_ms`: idle times are not shortened."""
        for one in self.topics.all():
            one.used_ms += ahead_ms

    def end_topic(self, parent: TopicConfig) -> None:
        """Ends the subscriptions of a deleted parent, and notifies clients with a telemetry stream here (4.5)."""
        self.topics.forget_topic(parent.topic_id)
        ended = self.subscriptions.end_parent(parent.name)
        if ended:
            self._runtime.spawn(self._notify(ended), name="ended lite subscriptions")

    def is_gone(self, client_id: str, group: str, parent: str, names: list[str]) -> None:
        """Notifies a client that still subscribes to lite topics of a deleted parent, after it missed the deletion."""
        if names and self._clients.streams.reaches(client_id, types=LITE_CLIENTS):
            ended = [(Subscriber(client_id, group, parent), names)]
            self._runtime.spawn(self._notify(ended), name="ended lite subscriptions")

    async def _notify(self, ended: Sequence[tuple[Subscriber, list[str]]]) -> None:
        for who, names in ended:
            patience = NOTICE_TRIES
            for name in names:
                frame = lite_topic_ended(name)
                while not self._clients.streams.push(who.client_id, frame, types=LITE_CLIENTS):  # Go: others panic
                    patience -= 1
                    if patience < 0 or not self._clients.streams.reaches(who.client_id, types=LITE_CLIENTS):
                        break
                    await self._runtime.clock.sleep_ms(AGAIN_MS)

    async def sweep(self) -> None:
        """Forgets subscriptions that clients do not repeat, and idle lite topics. Runs as a loop of the broker."""
        while True:
            await self._runtime.clock.sleep_ms(SWEEP_MS)
            self.tick()

    def tick(self) -> None:
        """Runs one turn of `sweep`."""
        now_ms = self._runtime.now_ms()
        self._refresh(self.subscriptions.expire(now_ms))
        for lite in self.topics.all():
            parent = self._catalog.topics.by_id(lite.topic_id)
            if parent is None or self.subscriptions.is_subscribed(parent.name, lite.name):
                lite.used_ms = now_ms
            elif lite.used_ms + self._runtime.settings.lite_topic_idle_ms <= now_ms:
                self.topics.closed(lite.topic_id, lite.queue_id)
                self._ledger.progress.forget_queue(lite.topic_id, lite.queue_id)
                self._ledger.journal.record(LiteClosed(lite.topic_id, lite.queue_id))
                log.info("idle lite topic %s of %s expired", lite.name, parent.name, extra={"topic": parent.name})


def _must_make_sense(start: RequestedStart) -> None:
    if start.value < 0 or (not start.moves and start.value not in {LAST, MIN, MAX}):
        raise IllegalOffset(f"the start {start.kind} {start.value} of the subscription is not valid; give 0 or more")
