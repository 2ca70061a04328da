"""The topics and consumer groups of one broker: made, changed and deleted HERE; durable when a call returns.

`loops.cluster.cluster_catalog` does it for the whole cluster. Parts that keep state of a topic or group register for
its end (`on_topic_gone`, `on_group_gone`). An id is never given twice, and a name that is gone from the tables has no
progress left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Any

from evenq.errors import Forbidden, GroupNotFound, IllegalGroup, IllegalTopic, TooManyRequests, TopicNotFound
from evenq.model import (
    EVEN_BALANCE,
    MIXED_KINDS,
    BalancePolicy,
    GroupConfig,
    MessageType,
    Permission,
    StartFrom,
    TopicConfig,
)
from evenq.model.names import RESERVED_TOPICS, RETRY_PREFIX, group_problem, is_system_topic, topic_problem
from evenq.model.retry import CLASSIC_RETRY, RetryPolicy
from evenq.serving.auth.users import UserResource
from evenq_broker.core.cluster.routes import RouteTable
from evenq_broker.core.shares import Shares
from evenq_broker.core.state.name_table import NameTable
from evenq_broker.core.state.records import (
    DrainPut,
    GroupPut,
    GroupRemoved,
    KeyPut,
    Op,
    TopicPut,
    TopicRemoved,
    Unsubscribed,
)
from evenq_broker.core.state.uids import TopicUids, local_uid, queue_uid
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.loops.state.signals import Changes
from evenq_broker.runtime import Runtime

_DELETED_MS = 1  # messages of a deleted topic need not be kept
AWAITED_MAX = 10_000


class Catalog:
    """Topics and groups of one broker."""

    def __init__(self, runtime: Runtime, ledger: Ledger) -> None:
        self._runtime, self._ledger = runtime, ledger
        self.topics: NameTable[TopicConfig] = NameTable(attrgetter("topic_id"))
        self.groups: NameTable[GroupConfig] = NameTable(attrgetter("group_id"))
        settings, users = runtime.settings, runtime.users
        self._topic_shares = Shares(
            UserResource.TOPIC, users, limit=settings.topics_max, setting="topics_max", what="topics"
        )
        self._group_shares = Shares(
            UserResource.GROUP, users, limit=settings.groups_max, setting="groups_max", what="groups"
        )
        self.routes = RouteTable()
        """Places of topics in the cluster, from the nameservers."""
        self.uids = TopicUids(runtime.rng)
        self.changes = Changes()
        """Notifications of changes of all of it."""
        self.draining = False
        """True: new messages are rejected, stored ones are read to the end (`loops.resizing.resizing`). Durable."""
        self.made_ms: dict[str, int] = {}
        """When topics were made by this process, ms since the epoch: a member that waited for one reads all of it."""
        self._awaited: dict[tuple[int, str], None] = {}
        """Group id and deleted topic that it read: the group reads all of a new one. The oldest are dropped."""
        self._topic_gone: list[Callable[[TopicConfig], None]] = []
        self._group_gone: list[Callable[[GroupConfig], None]] = []
        self._group_changed: list[Callable[[GroupConfig], None]] = []
        ledger.keeps(
            {
                KeyPut: self._ids_taken,
                DrainPut: self._drain_put,
                TopicPut: lambda op: self.topics.put(op.topic),
                GroupPut: lambda op: self.groups.put(op.group),
                TopicRemoved: lambda op: self._forget_topic(op.topic_id),
                GroupRemoved: lambda op: self._forget_group(op.group_id),
                Unsubscribed: self.unsubscribed,
            },
            self._dump,
        )

    # ------------------------------------------------------------------------------------------------ listeners

    def on_topic_gone(self, listener: Callable[[TopicConfig], None]) -> None:
        """Calls `listener` when a topic was deleted here, also in the replay of the journal."""
        self._topic_gone.append(listener)

    def on_group_gone(self, listener: Callable[[GroupConfig], None]) -> None:
        """Calls `listener` when a group was deleted here, also in the replay of the journal."""
        self._group_gone.append(listener)

    def on_group_changed(self, listener: Callable[[GroupConfig], None]) -> None:
        """Calls `listener` when a group was made or its settings changed here."""
        self._group_changed.append(listener)

    # ------------------------------------------------------------------------------------------------ topics

    def opened(self) -> None:
        """Gives topics of a journal without uids one, the same at each start until the topic is written."""
        for topic in self.topics.all():
            if not topic.uid:
                self.topics.put(replace(topic, uid=local_uid(self._ledger.key, topic.topic_id) * 2))

    def retention_ms(self, topic_id: int) -> int | None:
        """Returns how long the store keeps a topic's messages, ms; None: as long as any, 0: for ever."""
        topic = self.topics.by_id(topic_id)
        return topic.retention_ms if topic is not None else _DELETED_MS

    def may_make(self, name: str) -> None:
        """Raises IllegalTopic, Forbidden or TopicNotFound if a first message to this topic would not make it."""
        self._check_topic_name(name)
        self.must_belong_here(name)
        if not self._made_by_use(name):
            raise self.no_topic(name)

    def prospect(self, name: str, message_type: MessageType) -> TopicConfig:
        """Returns the topic as a first message of this type would make it. Raises the errors of `may_make`."""
        self.may_make(name)
        queues = self.default_queues(message_type)
        return TopicConfig(
            name=name,
            topic_id=0,
            message_type=message_type,
            read_queues=queues,
            write_queues=queues,
            permission=Permission.READ_WRITE,
        )

    def read_topic(self, name: str) -> TopicConfig:
        """Returns the topic for a reader, which never makes one. Raises IllegalTopic, TopicNotFound, Forbidden."""
        topic = self.topics.get(name)
        if topic is None:
            self._check_topic_name(name)
            self.must_belong_here(name)
            raise self.no_topic(name)
        return topic

    def topic_name(self, topic_id: int) -> str:
        """Returns the name of a topic; "" for one that was deleted."""
        topic = self.topics.by_id(topic_id)
        return topic.name if topic is not None else ""

    def must_have_room(self, name: str) -> None:
        """Raises TooManyRequests if one more topic, of this name, does not fit; an existing one always does."""
        _must_fit(self._topic_shares, name, self.topics, remedy="evenq topic delete")

    def must_belong_here(self, name: str) -> None:
        """Raises Forbidden for a topic that an operator gave to other brokers."""
        at = self.routes.route(name)
        if any(one.counts.chosen for one in at):
            names = ", ".join(one.broker.name for one in at)
            own = self._runtime.settings.broker_name
            raise Forbidden(f"topic {name} is not on broker {own}, it was given to {names}; query its route again")

    def no_topic(self, name: str) -> TopicNotFound:
        """Returns the error for a topic that does not exist."""
        if is_system_topic(name) or name.startswith("%"):
            return TopicNotFound(f"topic {name!r} is made by the broker when needed; nothing was stored in it yet")
        by_use = "its first message makes it, or " if self._made_by_use(name) else ""
        return TopicNotFound(
            f"no topic {name!r} on broker {self._runtime.settings.broker_name}; {by_use}create it with "
            f"`evenq topic create {name}`"
        )

    def _made_by_use(self, name: str) -> bool:
        return self._runtime.settings.auto_create_topics and not is_system_topic(name) and not name.startswith("%")

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
        """Creates or widens a topic HERE; durable when it returns. An existing one is never narrowed and keeps its
        type, or becomes MIXED.

        `queues` 0 = the default. `retention_ms`: None = as it is, 0 = for ever, -1 = the broker's setting. `chosen`: an
        operator chose its brokers, from now on. `uid`: of a new topic, as the other brokers have it; empty: a new one.
        Raises IllegalTopic and TooManyRequests (table full).
        """
        self._check_topic_name(name, system=system)
        old = self.topics.get(name)
        count = queues or (old.write_queues if old else self.default_queues(message_type))
        if not 1 <= count <= 4096:
            raise IllegalTopic(f"topic {name} cannot have {count} queues, the range is 1 to 4096")
        kept_ms = _retention(old, retention_ms)
        if old is not None:
            mixes = message_type is MessageType.MIXED and old.message_type in MIXED_KINDS
            message_type = MessageType.MIXED if mixes else old.message_type
        self.must_have_room(name)
        topic = TopicConfig(
            name=name,
            topic_id=old.topic_id if old else self.topics.next_id(),
            message_type=message_type,
            read_queues=max(count, old.read_queues if old else 0),
            write_queues=max(count, old.write_queues if old else 0),
            permission=old.permission if old else Permission.READ_WRITE,
            widest=old.queues_ever if old else 0,
            retention_ms=kept_ms,
            chosen=chosen or (old is not None and old.chosen),
            uid=old.uid if old else self.uids.shared([uid]),
        )
        if old is not None and replace(topic, widest=old.widest) == old:
            # This state may rest on a record that is not durable yet (decision 62).
            await self._ledger.journal.settled()
            return old
        # Visible before it is durable, so that two creators in one step cannot take one id; both wait.
        self.topics.put(topic)
        if old is None:
            self.made_ms[name] = self._runtime.clock.now_ms()
        self.changes.facts_changed(topic=name)
        await self._ledger.journal.record(TopicPut(topic))
        return topic

    def queue_uid(self, topic: TopicConfig) -> str:
        """Returns the identity of the offsets of this topic's queues HERE; see `core.state.uids`."""
        return queue_uid(topic.uid, self._ledger.key, topic.topic_id)

    def gone(self, group: GroupConfig, topic: TopicConfig) -> str:
        """Returns which of the two was deleted HERE since the caller read them, as a sentence; empty: neither was.

        A caller that has awaited must check it before it begins or moves the group's progress: that of a name which is
        gone from the tables would stay in every snapshot.
        """
        if self.topics.by_id(topic.topic_id) is None:
            return f"topic {topic.name} was deleted meanwhile"
        return f"group {group.name} was deleted meanwhile" if self.groups.by_id(group.group_id) is None else ""

    def awaits(self, group: GroupConfig, topic: str) -> bool:
        """True if the group read a topic of this name that was deleted HERE."""
        return (group.group_id, topic) in self._awaited

    def awaiting(self, topic: str) -> list[int]:
        """Returns the ids of such groups."""
        return [group_id for group_id, name in self._awaited if name == topic]

    def default_queues(self, message_type: MessageType) -> int:
        """Returns the queues per broker of a topic of this type that is made without a number."""
        if message_type is MessageType.LITE:
            return 1  # every lite topic has a queue of its own; this one is for the route
        return (
            self._runtime.settings.priority_levels
            if message_type is MessageType.PRIORITY
            else self._runtime.settings.default_queues
        )

    async def delete_topic(self, name: str) -> None:
        """Forgets a topic HERE, with all progress on it; durable when it returns. Does nothing if unknown."""
        topic = self.topics.get(name)
        self.made_ms.pop(name, None)
        if topic is None:
            # Its deletion may not be durable yet: an earlier answer would break at a crash (decision 62).
            await self._ledger.journal.settled()
            return
        self._forget_topic(topic.topic_id)
        self.changes.facts_changed(topic=name)
        await self._ledger.journal.record(TopicRemoved(topic.topic_id))

    # ------------------------------------------------------------------------------------------------ groups

    async def ensure_group(self, name: str) -> GroupConfig:
        """Returns the group, created if that is allowed. Raises IllegalGroup, GroupNotFound and TooManyRequests."""
        group = self.groups.get(name)
        if group is not None:
            return group
        self.may_make_group(name)
        return await self.create_group(name)

    def may_make_group(self, name: str) -> None:
        """Raises IllegalGroup or GroupNotFound if the first use of this name would not make the group."""
        problem = group_problem(name)
        if problem:
            raise IllegalGroup(problem)
        if not self._runtime.settings.auto_create_groups:
            raise GroupNotFound(
                f"no consumer group {name!r} on broker {self._runtime.settings.broker_name}; "
                f"create it with `evenq group create {name}`"
            )

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
        """Creates a group HERE, or changes an existing one; durable when it returns. Values that are not given (None,
        0) stay, or are the defaults of a new group. `strategy`: empty removes it. `revised_ms`: when an operator
        requested it (`GroupConfig`); 0: none did.
        """
        problem = group_problem(name)
        if problem:
            raise IllegalGroup(problem)
        old = self.groups.get(name)
        _must_fit(self._group_shares, name, self.groups, remedy="evenq group delete")
        try:
            group = GroupConfig(
                name=name,
                group_id=old.group_id if old else self.groups.next_id(),
                ordered=(old.ordered if old else False) if ordered is None else ordered,
                max_attempts=max_attempts
                or (old.max_attempts if old else self._runtime.settings.default_group_max_attempts),
                start_from=start_from
                or (old.start_from if old else StartFrom(self._runtime.settings.default_start_from)),
                strategy=(old.strategy if old else "") if strategy is None else strategy,
                retry=retry or (old.retry if old else CLASSIC_RETRY),
                balance=balance or (old.balance if old else EVEN_BALANCE),
                revised_ms=max(revised_ms, old.revised_ms if old else 0),
                made_ms=old.made_ms if old else self._runtime.clock.now_ms(),
            )
        except ValueError as error:
            raise IllegalGroup(str(error)) from error
        if group != old:
            self.groups.put(group)
            if old is None or replace(old, revised_ms=group.revised_ms) != group:
                self.changes.facts_changed(group=name)
                for listener in self._group_changed:
                    listener(group)
            # Left by an older version that deleted a group, or by a deletion while the broker was away.
            left = self._retries_removed(name) if old is None else []
            await self._ledger.journal.record(*left, GroupPut(group))
        else:
            await self._ledger.journal.settled()
        return group

    async def delete_group(self, name: str) -> None:
        """Forgets a group HERE, with its progress and retry topic; durable when it returns. Does nothing if unknown."""
        ops: list[Op] = self._retries_removed(name)
        group = self.groups.get(name)
        if group is not None:
            self._forget_group(group.group_id)
            self.changes.facts_changed(group=name)
            ops.append(GroupRemoved(group.group_id))
        await (self._ledger.journal.record(*ops) if ops else self._ledger.journal.settled())

    async def settled(self) -> None:
        """Waits until all records so far are durable. Raises errors of the journal."""
        await self._ledger.journal.settled()

    # ------------------------------------------------------------------------------------------------ inside

    def _retries_removed(self, group: str) -> list[Op]:
        # A new group of the same name is another group: it must not get messages that this one gave back.
        topic = self.topics.get(RETRY_PREFIX + group)
        if topic is None:
            return []
        self.uids.end(topic.uid)
        self.made_ms.pop(topic.name, None)
        self._forget_topic(topic.topic_id)
        self.changes.facts_changed(topic=topic.name)
        return [TopicRemoved(topic.topic_id)]

    def _forget_topic(self, topic_id: int) -> None:
        topic = self.topics.by_id(topic_id)
        if topic is not None:
            self.topics.remove(topic.name)
            self._await((group_id, topic.name) for group_id in self._ledger.progress.groups_of(topic_id))
        self._ledger.progress.forget_topic(topic_id)
        if topic is not None:
            for listener in self._topic_gone:
                listener(topic)

    def _forget_group(self, group_id: int) -> None:
        group = self.groups.by_id(group_id)
        if group is not None:
            self.groups.remove(group.name)
        self._awaited = {key: None for key in self._awaited if key[0] != group_id}
        self._ledger.progress.forget_group(group_id)
        if group is not None:
            for listener in self._group_gone:
                listener(group)

    def _ids_taken(self, op: KeyPut) -> None:
        self.topics.reserve(op.next_topic_id)
        self.groups.reserve(op.next_group_id)
        self._await(op.awaited)

    def _await(self, readers: Iterable[tuple[int, str]]) -> None:
        for reader in readers:
            self._awaited.pop(reader, None)
            self._awaited[reader] = None
        while len(self._awaited) > AWAITED_MAX:
            del self._awaited[next(iter(self._awaited))]

    def unsubscribed(self, op: Unsubscribed) -> None:
        """Forgets that the group read the topic: it will be a new reader of it."""
        topic = self.topics.by_id(op.topic_id)
        if topic is not None:
            self._awaited.pop((op.group_id, topic.name), None)

    def _drain_put(self, op: DrainPut) -> None:
        self.draining = op.on

    def _dump(self) -> Iterator[Op]:
        # First: ids of deleted topics and groups must stay taken, and no entry below has them.
        yield KeyPut(self._ledger.key, self.topics.next_id(), self.groups.next_id(), tuple(self._awaited))
        if self.draining:
            yield DrainPut(on=True)
        yield from map(TopicPut, self.topics.all())
        yield from map(GroupPut, self.groups.all())

    def _check_topic_name(self, name: str, *, system: bool = False) -> None:
        problem = topic_problem(name)
        if problem is None and name in RESERVED_TOPICS and not system:
            problem = f"the topic name {name!r} is reserved for the broker; choose another one"
        if problem:
            raise IllegalTopic(problem)


def _must_fit(shares: Shares, name: str, table: NameTable[Any], *, remedy: str) -> None:
    if table.get(name) is not None:
        return
    refusal = shares.refusal(name, table.names, total=len(table), version=table.version)
    if refusal:
        raise TooManyRequests(f"{refusal}: remove some (`{remedy}`), or raise the limit at every broker")


def _retention(old: TopicConfig | None, requested_ms: int | None) -> int | None:
    """Returns a topic's retention after a call with `requested_ms` (see `Catalog.create_topic`)."""
    if requested_ms is None:
        return old.retention_ms if old else None
    return None if requested_ms < 0 else requested_ms
