"""Changing how many queues a topic has here, what its queues are for, and whether this broker takes messages at all.

A topic shrinks in steps, so that no message is left behind (RT-8): `scale` closes the last queues for writing at once
and stops reading them only when every group has finished what is in them; called again, it looks again. The state
between the steps is the topic itself (fewer write than read queues), so nothing is lost when the caller goes away or
the broker restarts. A draining broker is the same for all topics: nothing comes in, everything is read. Each change is
durable when its call returns, and is pushed to nameservers, rebalancer and sessions before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from evenq.errors import BadRequest, IllegalTopic, TopicNotFound
from evenq.model import GroupConfig, MessageQueue, MessageType, Permission, StartFrom, TopicConfig
from evenq.model.names import DLQ_PREFIX, is_system_topic
from evenq_broker.core.cluster.unfinished import Hidden, Left, Unfinished
from evenq_broker.core.delivery.queue_progress import LITE_QUEUES_FROM
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.core.state.records import DrainPut, TopicPut
from evenq_broker.loops.lite.lite_topics import Lites
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.runtime import Runtime

__all__ = [
    "drain",
    "hidden_by",
    "known_topic",
    "left_here",
    "permit",
    "scale",
    "stranded",
    "unfinished",
]

QUEUES_MAX = 4096


_NOTHING = Hidden((), 0, 0)


async def scale(
    runtime: Runtime,
    catalog: Catalog,
    ledger: Ledger,
    name: str,
    queues: int,
    *,
    force: bool = False,
    close_unread: bool = False,
    membership: GroupTables,
) -> tuple[TopicConfig, Hidden]:
    """Let the topic have `queues` queues HERE, 1 to 4,096. New ones are open at once. Of too many, the last ones take
    no more messages at once and are closed if all groups have finished them and nothing in them was read by no group;
    else what keeps them open is answered.

    `close_unread` closes them although they hold what no group has read, `force` in any case: it waits until the topic
    grows again. Raises TopicNotFound, IllegalTopic, BadRequest.
    """
    topic = _scalable(runtime, catalog, name, queues)
    widest, read_queues = max(topic.queues_ever, queues), max(topic.read_queues, queues)
    if not force:  # what was closed unread is read after all
        behind = [
            one.queue.queue_id + 1
            for one in unfinished(runtime, catalog, ledger, topic, topic.closed, membership=membership)
        ]
        read_queues = max([read_queues, *behind])
    topic = await _put(catalog, ledger, replace(topic, write_queues=queues, read_queues=read_queues, widest=widest))
    if not topic.closing:
        return topic, _NOTHING
    await ledger.store.flush()  # what was on its way into the queues when they closed counts, too
    # Another call may have scaled or deleted it during the flush.
    topic = known_topic(runtime, catalog, name)
    left = _hidden(runtime, catalog, ledger, topic, topic.closing, membership=membership)
    if topic.write_queues != queues or not _may_close(left, force=force, close_unread=close_unread):
        return topic, left
    open_ones = topic
    topic = await _put(catalog, ledger, replace(topic, read_queues=queues))
    await ledger.store.flush()
    late = _hidden(runtime, catalog, ledger, topic, open_ones.closing, membership=membership)
    may_close = _may_close(late, force=force, close_unread=close_unread)
    if (
        not may_close and known_topic(runtime, catalog, name) == topic
    ):  # a send that had its queue since before the closing
        topic = await _put(catalog, ledger, replace(topic, read_queues=open_ones.read_queues))
    return topic, late


def hidden_by(
    runtime: Runtime, catalog: Catalog, ledger: Ledger, name: str, queues: int, *, membership: GroupTables
) -> tuple[TopicConfig, Hidden]:
    """What `scale` to `queues` queues would have to close HERE, as it is now; nothing is changed. Raises as it does."""
    topic = _scalable(runtime, catalog, name, queues)
    return topic, _hidden(runtime, catalog, ledger, topic, range(queues, topic.read_queues), membership=membership)


async def permit(runtime: Runtime, catalog: Catalog, ledger: Ledger, name: str, permission: Permission) -> TopicConfig:
    """What the topic's queues HERE are for from now on (TQ-14). Raises TopicNotFound, IllegalTopic."""
    return await _put(catalog, ledger, replace(known_topic(runtime, catalog, name), permission=permission))


async def drain(catalog: Catalog, ledger: Ledger, *, on: bool) -> None:
    """Take no new messages from now on, or take them again."""
    if catalog.draining == on:
        await ledger.journal.settled()
        return
    catalog.draining = on
    catalog.topics.touch()  # every topic looks different from outside
    catalog.changes.facts_changed()
    await ledger.journal.record(DrainPut(on))


def unfinished(
    runtime: Runtime,
    catalog: Catalog,
    ledger: Ledger,
    topic: TopicConfig,
    queue_ids: Sequence[int],
    groups: list[GroupConfig] | None = None,
    *,
    membership: GroupTables,
) -> Iterator[Unfinished]:
    """Who has not finished these queues. A group that reads the topic but never this queue will read it whole, one
    that waits for its first message of the topic will too, if it is to begin at the first.
    """
    if groups is None:
        groups = (
            _readers(catalog, topic, ledger.progress.groups_of(topic.topic_id), membership=membership)
            if queue_ids
            else []
        )
    if not groups:
        return
    for queue_id in queue_ids:
        low, high = ledger.store.queue_range(topic.topic_id, queue_id)
        queue = MessageQueue(topic.name, runtime.settings.broker_name, queue_id)
        for group in groups:
            queue_key = (group.group_id, topic.topic_id, queue_id)
            begun = ledger.progress.queue(*queue_key) is not None
            lag = ledger.progress.lag(*queue_key, low, high) if begun else high - low
            if lag:
                yield Unfinished(queue, group.name, lag, ledger.progress.inflight(*queue_key, low, high))


def _hidden(
    runtime: Runtime,
    catalog: Catalog,
    ledger: Ledger,
    topic: TopicConfig,
    queue_ids: Sequence[int],
    *,
    membership: GroupTables,
) -> Hidden:
    groups = _readers(catalog, topic, ledger.progress.groups_of(topic.topic_id), membership=membership)
    stored = sum(_size(ledger, topic, queue_id) for queue_id in queue_ids)
    left = tuple(unfinished(runtime, catalog, ledger, topic, queue_ids, groups, membership=membership))
    return Hidden(left, 0 if groups else stored, stored)


def _may_close(left: Hidden, *, force: bool, close_unread: bool) -> bool:
    return force or (not left.unfinished and (close_unread or not left.unread))


def stranded(runtime: Runtime, catalog: Catalog, ledger: Ledger, topic: TopicConfig, *, membership: GroupTables) -> int:
    """Messages that a group should read and cannot: they are in queues that were closed before it was there (RT-8)."""
    closed = topic.closed if topic.permission.readable else range(topic.queues_ever)
    most: dict[int, int] = {}
    for one in unfinished(runtime, catalog, ledger, topic, closed, membership=membership):
        most[one.queue.queue_id] = max(most.get(one.queue.queue_id, 0), one.lag)
    return sum(most.values())


def left_here(runtime: Runtime, catalog: Catalog, ledger: Ledger, *, membership: GroupTables, lite: Lites) -> Left:
    """What would be missed if this broker ended now."""
    remaining: list[Unfinished] = []
    unread = dead_letters = 0
    begun: dict[int, set[int]] = {}
    for queue in ledger.progress.queues():
        begun.setdefault(queue.topic_id, set()).add(queue.group_id)
    for topic in catalog.topics.all():
        groups = _readers(catalog, topic, sorted(begun.get(topic.topic_id, ())), membership=membership)
        stored = sum(_size(ledger, topic, queue_id) for queue_id in range(topic.queues_ever))
        if topic.name.startswith(DLQ_PREFIX):
            dead_letters += stored
        elif topic.message_type is MessageType.LITE:
            remaining += _unfinished_lite(runtime, topic, groups, lite=lite)
        elif groups or not is_system_topic(topic.name):
            remaining += unfinished(
                runtime, catalog, ledger, topic, range(topic.queues_ever), groups, membership=membership
            )
            unread += 0 if groups else stored
    return Left(tuple(remaining), ledger.store.timers.stats.pending, unread, dead_letters)


def _unfinished_lite(
    runtime: Runtime, topic: TopicConfig, groups: list[GroupConfig], *, lite: Lites
) -> Iterator[Unfinished]:
    queue = MessageQueue(topic.name, runtime.settings.broker_name, LITE_QUEUES_FROM)
    for group in groups:
        lag, inflight = lite.lag(group, topic)
        if lag:
            yield Unfinished(queue, group.name, lag, inflight)


def _readers(catalog: Catalog, topic: TopicConfig, ids: Iterable[int], *, membership: GroupTables) -> list[GroupConfig]:
    readers = {group.name: group for one in ids if (group := catalog.groups.by_id(one)) is not None}
    for name in membership.members.groups():
        group = catalog.groups.get(name)
        if group is not None and group.start_from is StartFrom.FIRST and membership.members.readers(name, topic.name):
            readers.setdefault(name, group)
    return [readers[name] for name in sorted(readers)]


def _size(ledger: Ledger, topic: TopicConfig, queue_id: int) -> int:
    low, high = ledger.store.queue_range(topic.topic_id, queue_id)
    return high - low


def _scalable(runtime: Runtime, catalog: Catalog, name: str, queues: int) -> TopicConfig:
    topic = known_topic(runtime, catalog, name)
    if not 1 <= queues <= QUEUES_MAX:
        raise BadRequest(f"topic {name} asks for {queues} queues a broker, the range is 1 to {QUEUES_MAX}")
    if topic.message_type is MessageType.LITE:
        raise BadRequest(f"topic {name} takes LITE messages: each lite topic is a queue of its own, none can be added")
    return topic


def known_topic(runtime: Runtime, catalog: Catalog, name: str) -> TopicConfig:
    """A topic of users that is here. Raises IllegalTopic, TopicNotFound."""
    if is_system_topic(name):
        raise IllegalTopic(f"the topic {name!r} is the broker's own; its queues are not for others to change")
    topic = catalog.topics.get(name)
    if topic is None:
        raise TopicNotFound(
            f"no topic {name!r} on broker {runtime.settings.broker_name}; create it with `evenq topic create {name}`"
        )
    return topic


async def _put(catalog: Catalog, ledger: Ledger, topic: TopicConfig) -> TopicConfig:
    if topic == catalog.topics.get(topic.name):
        await ledger.journal.settled()  # it may be so by a record that is not safe yet (decision 62)
        return topic
    catalog.topics.put(topic)
    catalog.changes.facts_changed(topic=topic.name)
    await ledger.journal.record(TopicPut(topic))
    return topic
