"""Changing how many queues a topic has here, what its queues are for, and whether this broker takes messages at all.

A topic shrinks in steps, so that no message is left behind (RT-8): `scale` closes the last queues for writing at once
and stops reading them only when every group has finished what is in them; called again, it looks again. The state
between the steps is the topic itself (fewer write than read queues), so nothing is lost when whoever asked goes away or
the broker restarts. A draining broker is the same for all topics: nothing comes in, everything is read. Each change is
durable when its call returns, and is pushed to nameservers, rebalancer and sessions before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from evenq.errors import BadRequest, IllegalTopic, TopicNotFound
from evenq.model import GroupConfig, MessageQueue, MessageType, Permission, StartFrom, TopicConfig
from evenq.model.names import DLQ_PREFIX, is_system_topic
from evenq_broker.core.journal import DrainPut, TopicPut
from evenq_broker.core.queue_progress import LITE_QUEUES_FROM

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = [
    "Hidden",
    "Left",
    "Unfinished",
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


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What one group has not finished of one queue."""

    queue: MessageQueue
    group: str
    lag: int
    """Messages, those in flight included."""
    inflight: int


@dataclass(frozen=True, slots=True)
class Hidden:
    """What lies in queues that are to be closed."""

    unfinished: tuple[Unfinished, ...]
    """By groups that read the topic."""
    unread: int
    """Messages that no group has read: one that comes later would miss them."""
    stored: int
    """All messages."""


@dataclass(frozen=True, slots=True)
class Left:
    """What is left at a broker that is to end. It is empty when the first three are."""

    unfinished: tuple[Unfinished, ...]
    delayed: int
    """Messages whose delivery time has not come, and open transactions."""
    unread: int
    """Messages of topics that no group ever read."""
    dead_letters: int

    @property
    def empty(self) -> bool:
        """True if nobody misses anything when the broker ends. What nobody reads cannot be waited for."""
        return not self.unfinished and not self.delayed


_NOTHING = Hidden((), 0, 0)


async def scale(
    broker: Broker, name: str, queues: int, *, force: bool = False, close_unread: bool = False
) -> tuple[TopicConfig, Hidden]:
    """Let the topic have `queues` queues HERE, 1 to 4,096. New ones are open at once. Of too many, the last ones take
    no more messages at once and are closed if all groups have finished them and nothing in them was read by no group;
    else what keeps them open is told.

    `close_unread` closes them although they hold what no group has read, `force` in any case: it waits until the topic
    grows again. Raises TopicNotFound, IllegalTopic, BadRequest.
    """
    topic = _scalable(broker, name, queues)
    widest, read_queues = max(topic.queues_ever, queues), max(topic.read_queues, queues)
    if not force:  # what was closed unread is read after all
        behind = [one.queue.queue_id + 1 for one in unfinished(broker, topic, topic.closed)]
        read_queues = max([read_queues, *behind])
    topic = await _put(broker, replace(topic, write_queues=queues, read_queues=read_queues, widest=widest))
    if not topic.closing:
        return topic, _NOTHING
    await broker.store.flush()  # what was on its way into the queues when they closed counts, too
    topic = known_topic(broker, name)
    left = _hidden(broker, topic, topic.closing)
    if topic.write_queues != queues or not _may_close(left, force=force, close_unread=close_unread):
        return topic, left
    open_ones = topic
    topic = await _put(broker, replace(topic, read_queues=queues))
    await broker.store.flush()
    late = _hidden(broker, topic, open_ones.closing)
    may_close = _may_close(late, force=force, close_unread=close_unread)
    if not may_close and known_topic(broker, name) == topic:  # a send that had its queue since before the closing
        topic = await _put(broker, replace(topic, read_queues=open_ones.read_queues))
    return topic, late


def hidden_by(broker: Broker, name: str, queues: int) -> tuple[TopicConfig, Hidden]:
    """What `scale` to so many queues would have to close HERE, as it is now; nothing is changed. Raises as it does."""
    topic = _scalable(broker, name, queues)
    return topic, _hidden(broker, topic, range(queues, topic.read_queues))


async def permit(broker: Broker, name: str, permission: Permission) -> TopicConfig:
    """What the topic's queues HERE are for from now on (TQ-14). Raises TopicNotFound, IllegalTopic."""
    return await _put(broker, replace(known_topic(broker, name), permission=permission))


async def drain(broker: Broker, *, on: bool) -> None:
    """Take no new messages from now on, or take them again."""
    if broker.draining == on:
        return
    broker.draining = on
    broker.topics.touch()  # every topic looks different from outside
    broker.cluster.facts_changed()
    await broker.journal.record(DrainPut(on))


def unfinished(
    broker: Broker, topic: TopicConfig, queue_ids: Sequence[int], groups: list[GroupConfig] | None = None
) -> Iterator[Unfinished]:
    """Who has not finished these queues. A group that reads the topic but never this queue will read it whole, one
    that waits for its first message of the topic will too, if it is to begin at the first.
    """
    if groups is None:
        groups = _readers(broker, topic, broker.progress.groups_of(topic.topic_id)) if queue_ids else []
    if not groups:
        return
    for queue_id in queue_ids:
        low, high = broker.store.queue_range(topic.topic_id, queue_id)
        queue = MessageQueue(topic.name, broker.settings.broker_name, queue_id)
        for group in groups:
            place = (group.group_id, topic.topic_id, queue_id)
            begun = broker.progress.queue(*place) is not None
            lag = broker.progress.lag(*place, low, high) if begun else high - low
            if lag:
                yield Unfinished(queue, group.name, lag, broker.progress.inflight(*place))


def _hidden(broker: Broker, topic: TopicConfig, queue_ids: Sequence[int]) -> Hidden:
    groups = _readers(broker, topic, broker.progress.groups_of(topic.topic_id))
    stored = sum(_size(broker, topic, queue_id) for queue_id in queue_ids)
    left = tuple(unfinished(broker, topic, queue_ids, groups))
    return Hidden(left, 0 if groups else stored, stored)


def _may_close(left: Hidden, *, force: bool, close_unread: bool) -> bool:
    return force or (not left.unfinished and (close_unread or not left.unread))


def stranded(broker: Broker, topic: TopicConfig) -> int:
    """Messages that a group should read and cannot: they are in queues that were closed before it was there (RT-8)."""
    closed = topic.closed if topic.permission.readable else range(topic.queues_ever)
    most: dict[int, int] = {}
    for one in unfinished(broker, topic, closed):
        most[one.queue.queue_id] = max(most.get(one.queue.queue_id, 0), one.lag)
    return sum(most.values())


def left_here(broker: Broker) -> Left:
    """What would be missed if this broker ended now."""
    found: list[Unfinished] = []
    unread = dead_letters = 0
    begun: dict[int, set[int]] = {}
    for queue in broker.progress.queues():
        begun.setdefault(queue.topic_id, set()).add(queue.group_id)
    for topic in broker.topics.all():
        groups = _readers(broker, topic, sorted(begun.get(topic.topic_id, ())))
        stored = sum(_size(broker, topic, queue_id) for queue_id in range(topic.queues_ever))
        if topic.name.startswith(DLQ_PREFIX):
            dead_letters += stored
        elif topic.message_type is MessageType.LITE:
            found += _unfinished_lite(broker, topic, groups)
        elif groups or not is_system_topic(topic.name):
            found += unfinished(broker, topic, range(topic.queues_ever), groups)
            unread += 0 if groups else stored
    return Left(tuple(found), broker.store.timers.stats.pending, unread, dead_letters)


def _unfinished_lite(broker: Broker, topic: TopicConfig, groups: list[GroupConfig]) -> Iterator[Unfinished]:
    queue = MessageQueue(topic.name, broker.settings.broker_name, LITE_QUEUES_FROM)
    for group in groups:
        lag, inflight = broker.lite.lag(group, topic)
        if lag:
            yield Unfinished(queue, group.name, lag, inflight)


def _readers(broker: Broker, topic: TopicConfig, ids: Iterable[int]) -> list[GroupConfig]:
    found = {group.name: group for one in ids if (group := broker.groups.by_id(one)) is not None}
    for name in broker.members.groups():
        group = broker.groups.get(name)
        if group is not None and group.start_from is StartFrom.FIRST and broker.members.readers(name, topic.name):
            found.setdefault(name, group)
    return [found[name] for name in sorted(found)]


def _size(broker: Broker, topic: TopicConfig, queue_id: int) -> int:
    low, high = broker.store.queue_range(topic.topic_id, queue_id)
    return high - low


def _scalable(broker: Broker, name: str, queues: int) -> TopicConfig:
    topic = known_topic(broker, name)
    if not 1 <= queues <= QUEUES_MAX:
        raise BadRequest(f"topic {name} asks for {queues} queues a broker, the range is 1 to {QUEUES_MAX}")
    if topic.message_type is MessageType.LITE:
        raise BadRequest(f"topic {name} takes LITE messages: each lite topic is a queue of its own, none can be added")
    return topic


def known_topic(broker: Broker, name: str) -> TopicConfig:
    """A topic of users that is here. Raises IllegalTopic, TopicNotFound."""
    if is_system_topic(name):
        raise IllegalTopic(f"the topic {name!r} is the broker's own; its queues are not for others to change")
    topic = broker.topics.get(name)
    if topic is None:
        raise TopicNotFound(
            f"no topic {name!r} on broker {broker.settings.broker_name}; create it with `evenq topic create {name}`"
        )
    return topic


async def _put(broker: Broker, topic: TopicConfig) -> TopicConfig:
    if topic != broker.topics.get(topic.name):
        broker.topics.put(topic)
        broker.cluster.facts_changed(topic=topic.name)
        await broker.journal.record(TopicPut(topic))
    return topic
