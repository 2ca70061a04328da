"""The broker's composition: one object that owns the state and is handed to every handler and loop.

`app.py` makes it, calls `open` (store, journal replay), binds the door, then `start` (loops) with the addresses that
clients are told, and `close` at the end. Everything runs on one asyncio loop, so there are no locks.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from operator import attrgetter
from typing import Any

from evenq.errors import Error, Forbidden, GroupNotFound, IllegalGroup, IllegalTopic, TooManyRequests, TopicNotFound
from evenq.model import (
    EVEN_BALANCE,
    MIXED_KINDS,
    BalancePolicy,
    BrokerAddress,
    GroupConfig,
    MessageType,
    Permission,
    StartFrom,
    Subscription,
    TopicConfig,
)
from evenq.model.delay_levels import DelayLevels
from evenq.model.names import RESERVED_TOPICS, group_problem, is_system_topic, topic_problem
from evenq.model.retry import CLASSIC_RETRY, RetryPolicy
from evenq.runtime.clock import Clock
from evenq.runtime.net import Net
from evenq.runtime.tasks import spawn
from evenq.serving.rpc import Rpc, RpcContext
from evenq.store import MessageStore
from evenq.store.disk import Disk
from evenq.wire.addresses import BROKER_HEADER
from evenq_broker.core.backlog import Backlog
from evenq_broker.core.clients import ClientTable
from evenq_broker.core.delayed_retries import DelayedRetries
from evenq_broker.core.delivery import Progress
from evenq_broker.core.handles import Handles
from evenq_broker.core.heads import Heads
from evenq_broker.core.journal import GroupPut, GroupRemoved, TopicPut, TopicRemoved
from evenq_broker.core.locks import LockTable
from evenq_broker.core.members import MemberTable
from evenq_broker.core.name_table import NameTable
from evenq_broker.core.polls import PollTable
from evenq_broker.core.recalls import Recalls
from evenq_broker.core.routes import RouteTable
from evenq_broker.core.trace import Trace
from evenq_broker.core.uids import queue_uid
from evenq_broker.loops.burials import Burials
from evenq_broker.loops.commands import Commands
from evenq_broker.loops.delays import due
from evenq_broker.loops.ending import Ending
from evenq_broker.loops.grants import Grants
from evenq_broker.loops.group_settings import GroupSettings
from evenq_broker.loops.heads import watch_heads
from evenq_broker.loops.journal import Journal
from evenq_broker.loops.lite import Lites
from evenq_broker.loops.liveness import watch_clients
from evenq_broker.loops.once import Once
from evenq_broker.loops.opening import open_store
from evenq_broker.loops.peers import ClusterLink
from evenq_broker.loops.polls import Waiting
from evenq_broker.loops.sessions import Sessions
from evenq_broker.loops.staging import Staging
from evenq_broker.loops.streams import Streams
from evenq_broker.loops.transactions import Transactions
from evenq_broker.loops.wide_polls import WidePolls
from evenq_broker.settings import Settings
from evenq_broker.stats import Stats

__all__ = ["Broker"]


class Broker:
    """The state of one broker."""

    store: MessageStore
    """Open between `open` and `close`."""
    handles: Handles
    """Makes and reads receipt handles; its key is part of the journal."""
    recalls: Recalls
    """The same for delayed messages."""

    def __init__(
        self, settings: Settings, *, clock: Clock, rng: random.Random, net: Net, disk: Disk | None = None
    ) -> None:
        self.settings = settings
        self.disk = disk
        """Stands in for the data folder; None: the folder of the settings."""
        self.clock, self.rng, self.net = clock, rng, net
        self.stats = Stats()
        self.topics: NameTable[TopicConfig] = NameTable(attrgetter("topic_id"))
        self.groups: NameTable[GroupConfig] = NameTable(attrgetter("group_id"))
        self.progress = Progress(inflight_max=settings.inflight_max)
        self.heads = Heads()
        self.backlog = Backlog()
        """How old the oldest unread messages are and how many wait for a retry, as `loops.heads` last saw it."""
        self.delayed_retries = DelayedRetries()
        self.clients = ClientTable(clients_max=settings.clients_max)
        self.draining = False
        """True: no new messages are taken, what there is is read to its end (`loops.resizing`). Durable."""
        self.handle_key = b""
        """Key of receipt handles; from the journal, or made with the store."""
        self.members = MemberTable()
        self.locks = LockTable()
        self.delay_levels = DelayLevels.parse(settings.delay_levels)
        """What a message that was given back waits (RD-9)."""
        self.routes = RouteTable()
        self.polls = PollTable(polls_max=settings.polls_max)
        self.wide_polls = WidePolls(self)
        self.waiting = Waiting(self)
        self.ending = Ending(self)
        self.grants = Grants(self)
        self.burials = Burials(self)
        self.commands = Commands(self)
        self.trace = Trace(settings.trace_bytes, now_ms=clock.now_ms()) if settings.trace_bytes else None
        """What happened to messages lately; None = not remembered."""
        self.streams = Streams(clock, commands_max=settings.stream_commands_max)
        self.transactions = Transactions(self)
        self.lite = Lites(self)
        self.once = Once(self) if settings.duplicates_window_ms else None
        """What producers sent lately; None = a retry is one more message."""
        self.journal = Journal(self)
        self.cluster = ClusterLink(self)
        self.group_settings = GroupSettings(self)
        self.addresses: tuple[BrokerAddress, ...] = ()
        """What clients are told, the default listener first; set by `start`."""
        self.started_ms = clock.now_ms()
        """Wall time of the start, ms since the epoch."""
        self._zero_ms = self.started_ms - clock.monotonic_ms()
        self._tasks: list[asyncio.Task[Any]] = []
        self._creating: dict[str, asyncio.Future[None]] = {}
        self.made_ms: dict[str, int] = {}
        """When topics were made here, ms since the epoch, since this process started: who waited for one reads it
        whole (`loops.beginning`)."""
        self.failed: asyncio.Future[BaseException] | None = None
        """Done with the error when a loop that should never end did; `app.py` then stops the process."""

    @cached_property
    def staging(self) -> Staging:
        """Rows of batch writers that wait for a decision."""
        return Staging(self)

    @property
    def sessions(self) -> Sessions:
        """Members of groups: evenq sessions and leases of v2 clients."""
        return self.cluster.sessions

    def now_ms(self) -> int:
        """Ms since the epoch that never jump while the process lives: for deadlines that are also journalled (D10)."""
        return self._zero_ms + self.clock.monotonic_ms()

    def skip_ms(self, ahead_ms: int) -> None:
        """Let `now_ms` go on that much later: the clock was set back while the broker was down."""
        self._zero_ms += ahead_ms

    # ------------------------------------------------------------------------------------------------ life

    async def open(self) -> None:
        """Open the store and rebuild the state. Raises StoreLocked, StoreCorrupted."""
        await open_store(self)

    async def start(self, addresses: Sequence[BrokerAddress]) -> None:
        """Start the loops. `addresses`: what clients are told, the default listener first."""
        self.addresses = tuple(addresses)
        self.failed = asyncio.get_running_loop().create_future()
        self.store.on_failure = self._store_failed
        self.store.fire_timers(partial(due, self))
        self.staging.start()
        self.waiting.start()
        self.spawn(watch_clients(self), name="client liveness")
        self.spawn(watch_heads(self), name="queue heads")
        self.wide_polls.start()
        self.spawn(self.lite.sweep(), name="lite topics")
        self.spawn(self.lite.learn(), name="lite subscriptions")
        if self.once is not None:
            self.once.start()
        await self.cluster.start()
        await self.group_settings.start()

    async def close(self) -> None:
        """End polls and loops, flush, close the store. Idempotent."""
        self.waiting.close()
        self.wide_polls.close()
        await self.cluster.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await self.transactions.close()
        await self.staging.close()
        if self.once is not None:
            await self.once.close()
        await self.journal.close()
        if hasattr(self, "store"):
            await self.store.close()

    def spawn(self, coroutine: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Start a loop that lives as long as the broker; its unexpected end ends the process (`failed`)."""
        task = spawn(coroutine, name=name)
        self._tasks.append(task)
        task.add_done_callback(self._ended)
        return task

    def _store_failed(self, error: Error) -> None:
        """The store is poisoned: what is on disk is unknown, so the process must end and recover (architecture 5)."""
        if self.failed is not None and not self.failed.done():
            self.failed.set_result(error)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if task in self._tasks:
            self._tasks.remove(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if self.failed is not None and not self.failed.done():
            self.failed.set_result(error)

    def rpcs(self) -> list[Rpc]:
        """Every call this broker answers."""
        from evenq_broker.rpc.every_call import every_call

        return every_call(self)

    async def wait_for_growth(self, queues: Iterable[tuple[int, int, int]], timeout_ms: int) -> bool:
        """Wait until one of `queues` (topic id, queue id, known maximum) has grown past it; False after that time."""
        return await self.waiting.for_growth(queues, timeout_ms)

    def any_broker(self, context: RpcContext) -> bool:
        """True if the address that the caller came through leads to any broker, and the call names none."""
        listener = context.listener
        shared = listener.name in self.settings.shared_door_names or self.routes.shared(listener)
        return shared and not context.header(BROKER_HEADER)

    def members_seen_v2(
        self,
        context: RpcContext,
        group: str,
        client_type: int,
        subscriptions: Sequence[Subscription] | None = None,
        now_ms: int | None = None,
    ) -> None:
        """A v2 client gave a sign of life in a group (loops.sessions); None = this call does not tell subscriptions."""
        self.cluster.sessions.seen_v2(context, group, client_type, subscriptions, now_ms)

    def members_left_v2(self, client_id: str, group: str = "") -> None:
        """A v2 client ends: it leaves the group, or all its groups when none is named."""
        self.cluster.sessions.left_v2(client_id, group)

    # ------------------------------------------------------------------------------------------------ topics and groups

    async def ensure_topic(self, name: str, *, message_type: MessageType | None = None) -> TopicConfig:
        """The topic, created on every broker if that is allowed.

        Raises IllegalTopic, and TopicNotFound if it does not exist and topics are not created automatically; those
        whose names begin with `%` never are.
        """
        topic = self.topics.get(name)
        if topic is not None:
            return topic
        self.may_make(name)
        kind = message_type or MessageType.NORMAL
        await self._once(f"topic {name}", self.cluster.create_topic_everywhere(name, message_type=kind))
        topic = self.topics.get(name)
        if topic is None:
            self._must_belong_here(name)  # the routes may have come meanwhile
            topic = await self.create_topic(name, message_type=kind)
        return topic

    def _must_belong_here(self, name: str) -> None:
        """Raises Forbidden for a topic that somebody gave to other brokers."""
        at = self.routes.route(name)
        if any(one.counts.chosen for one in at):
            names = ", ".join(one.broker.name for one in at)
            own = self.settings.broker_name
            raise Forbidden(f"topic {name} is not on broker {own}, it was given to {names}; ask for its route again")

    def may_make(self, name: str) -> None:
        """Raises as `ensure_topic` if a first message to this topic would not make it."""
        self._check_topic_name(name)
        self._must_belong_here(name)
        if not self._made_by_use(name):
            raise self.no_topic(name)

    def read_topic(self, name: str) -> TopicConfig:
        """The topic, for a reader, who never makes one. Raises IllegalTopic, TopicNotFound, Forbidden."""
        topic = self.topics.get(name)
        if topic is None:
            self._check_topic_name(name)
            self._must_belong_here(name)
            raise self.no_topic(name)
        return topic

    def no_topic(self, name: str) -> TopicNotFound:
        """What is said of a topic that does not exist."""
        if is_system_topic(name) or name.startswith("%"):
            return TopicNotFound(f"topic {name!r} is made by the broker when needed; nothing was stored in it yet")
        by_use = "its first message makes it, or " if self._made_by_use(name) else ""
        return TopicNotFound(
            f"no topic {name!r} on broker {self.settings.broker_name}; {by_use}create it with "
            f"`evenq topic create {name}`"
        )

    def _made_by_use(self, name: str) -> bool:
        return self.settings.auto_create_topics and not is_system_topic(name) and not name.startswith("%")

    async def topic_made(self, name: str) -> None:
        """If this broker is making the topic right now, wait until it is everywhere: a route of half of it would be
        kept by clients for half a minute.
        """
        running = self._creating.get(f"topic {name}")
        if running is not None:
            await asyncio.shield(running)

    async def create_topic(
        self,
        name: str,
        *,
        message_type: MessageType = MessageType.NORMAL,
        queues: int = 0,
        retention_ms: int | None = None,
        chosen: bool = False,
        uid: str = "",
        system: bool = False,
    ) -> TopicConfig:
        """Create or widen a topic HERE; durable when it returns. An existing one is never narrowed and keeps its type,
        or becomes MIXED.

        `queues` 0 = the default. `retention_ms`: None = as it is, 0 = for ever, -1 = the broker's setting. `chosen`:
        somebody chose its brokers, from now on. `uid`: of a new topic, as the other brokers have it; empty: a new one.
        Raises IllegalTopic and TooManyRequests (table full).
        """
        self._check_topic_name(name, system=system)
        old = self.topics.get(name)
        wanted = queues or (old.write_queues if old else self.default_queues(message_type))
        if not 1 <= wanted <= 4096:
            raise IllegalTopic(f"topic {name} asks for {wanted} queues, the range is 1 to 4096")
        kept_ms = _retention(old, retention_ms)
        if old is not None:
            mixes = message_type is MessageType.MIXED and old.message_type in MIXED_KINDS
            message_type = MessageType.MIXED if mixes else old.message_type
        if old is None and len(self.topics) >= self.settings.topics_max:
            raise TooManyRequests(f"this broker has {len(self.topics)} topics, the limit is topics_max")
        topic = TopicConfig(
            name=name,
            topic_id=old.topic_id if old else self.topics.next_id(),
            message_type=message_type,
            read_queues=max(wanted, old.read_queues if old else 0),
            write_queues=max(wanted, old.write_queues if old else 0),
            permission=old.permission if old else Permission.READ_WRITE,
            widest=old.queues_ever if old else 0,
            retention_ms=kept_ms,
            chosen=chosen or (old is not None and old.chosen),
            uid=old.uid if old else self.cluster.uids.shared([uid]),
        )
        if old is not None and replace(topic, widest=old.widest) == old:
            return old
        self.topics.put(topic)
        if old is None:
            self.made_ms[name] = self.clock.now_ms()
        self.cluster.facts_changed(topic=name)
        await self.journal.record(TopicPut(topic))
        return topic

    def queue_uid(self, topic: TopicConfig) -> str:
        """What the offsets of this topic's queues HERE count; see `core.uids`."""
        return queue_uid(topic.uid, self.handle_key, topic.topic_id)

    def default_queues(self, message_type: MessageType) -> int:
        """Queues per broker of a topic of this kind that is made without a number."""
        if message_type is MessageType.LITE:
            return 1  # every lite topic has a queue of its own; this one is for the route
        return self.settings.priority_levels if message_type is MessageType.PRIORITY else self.settings.default_queues

    async def delete_topic(self, name: str, *, everywhere: bool = False) -> None:
        """Forget a topic HERE, with every group's progress on it; durable when it returns. Unknown: nothing.

        `everywhere`: the others do, too, so brokers that are away are not missed for it, and its uid is not used again.
        """
        topic = self.topics.get(name)
        if everywhere:
            if topic is not None:
                self.cluster.uids.end(topic.uid)
            await self.cluster.known.topic_deleted(name)
        topic = self.topics.remove(name)
        self.made_ms.pop(name, None)
        if topic is None:
            return
        self.progress.forget_topic(topic.topic_id)
        self.lite.end_topic(topic)
        self.stats.forget_topic(topic.topic_id)
        self.delayed_retries.forget_topic(topic.topic_id)
        self.waiting.wake_topic(topic.topic_id)
        self.cluster.facts_changed(topic=name)
        await self.journal.record(TopicRemoved(topic.topic_id))

    async def ensure_group(self, name: str) -> GroupConfig:
        """The group, created if that is allowed. Raises IllegalGroup and GroupNotFound."""
        group = self.groups.get(name)
        if group is not None:
            return group
        problem = group_problem(name)
        if problem:
            raise IllegalGroup(problem)
        if not self.settings.auto_create_groups:
            raise GroupNotFound(
                f"no consumer group {name!r} on broker {self.settings.broker_name}; "
                f"create it with `evenq group create {name}`"
            )
        return await self.create_group(name)

    async def create_group(
        self,
        name: str,
        *,
        ordered: bool | None = None,
        max_attempts: int = 0,
        strategy: str | None = None,
        start_from: StartFrom | None = None,
        retry: RetryPolicy | None = None,
        balance: BalancePolicy | None = None,
        revised_ms: int = 0,
    ) -> GroupConfig:
        """Create a group HERE, or change an existing one; durable when it returns.

        What is not told (None, 0) stays as it is, or is the default for a new group. `strategy`: empty takes it away.
        `revised_ms`: when an operator asked for it (`GroupConfig`); 0: none did.
        """
        problem = group_problem(name)
        if problem:
            raise IllegalGroup(problem)
        old = self.groups.get(name)
        if old is None and len(self.groups) >= self.settings.groups_max:
            raise TooManyRequests(f"this broker has {len(self.groups)} groups, the limit is groups_max")
        try:
            group = GroupConfig(
                name=name,
                group_id=old.group_id if old else self.groups.next_id(),
                ordered=(old.ordered if old else False) if ordered is None else ordered,
                max_attempts=max_attempts or (old.max_attempts if old else self.settings.default_group_max_attempts),
                start_from=start_from or (old.start_from if old else StartFrom(self.settings.default_start_from)),
                strategy=(old.strategy if old else "") if strategy is None else strategy,
                retry=retry or (old.retry if old else CLASSIC_RETRY),
                balance=balance or (old.balance if old else EVEN_BALANCE),
                revised_ms=max(revised_ms, old.revised_ms if old else 0),
            )
        except ValueError as error:
            raise IllegalGroup(str(error)) from error
        if group != old:
            self.groups.put(group)
            if old is None or replace(old, revised_ms=group.revised_ms) != group:
                self.cluster.facts_changed(group=name)
                self.cluster.sessions.settings_changed(group)
            await self.journal.record(GroupPut(group))
        return group

    async def delete_group(self, name: str) -> None:
        """Forget a group HERE, with its progress; durable when it returns. Unknown: nothing."""
        group = self.groups.remove(name)
        if group is None:
            return
        self.progress.forget_group(group.group_id)
        self.stats.forget_group(group.group_id)
        self.locks.forget_group(name)
        self.cluster.facts_changed(group=name)
        await self.journal.record(GroupRemoved(group.group_id))

    def _check_topic_name(self, name: str, *, system: bool = False) -> None:
        problem = topic_problem(name)
        if problem is None and name in RESERVED_TOPICS and not system:
            problem = f"the topic name {name!r} is reserved for the broker; choose another one"
        if problem:
            raise IllegalTopic(problem)

    async def _once(self, key: str, work: Coroutine[Any, Any, Any]) -> None:
        # Many first sends to one new topic make it once; the others wait for the first.
        running = self._creating.get(key)
        if running is not None:
            work.close()
            await asyncio.shield(running)
            return
        task = spawn(work, name=f"create {key}")
        self._creating[key] = task
        task.add_done_callback(lambda _: self._creating.pop(key, None))
        await asyncio.shield(task)


def _retention(old: TopicConfig | None, asked_ms: int | None) -> int | None:
    """What a topic's retention becomes when somebody asks for `asked_ms` (see `Broker.create_topic`)."""
    if asked_ms is None:
        return old.retention_ms if old else None
    return None if asked_ms < 0 else asked_ms
