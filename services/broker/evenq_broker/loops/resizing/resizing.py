"""Changes of the number of queues of a topic here, of their permissions, and of whether this broker takes messages.

A topic shrinks in steps, so that no message is left behind (RT-8). `scale` closes the last queues for writing
immediately, and for reading only when every group has finished them; each further call checks that again. The state
between the steps is the topic itself (fewer write than read queues), so it survives the end of the caller and a
restart. Draining a broker does the same for all topics: no message comes in, all are read. Each change is durable when
its call returns, and is pushed to nameservers, rebalancer and sessions before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from evenq.errors import BadRequest, IllegalTopic, TopicNotFound
from evenq.model import GroupConfig, MessageQueue, MessageType, Permission, TopicConfig
from evenq.model.names import DLQ_PREFIX, is_system_topic
from evenq_broker.core.cluster.unfinished import Hidden, Left, Unfinished
from evenq_broker.core.delivery.queue_progress import LITE_QUEUES_FROM
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.core.sending.schedules import ScheduleTable
from evenq_broker.core.state.records import DrainPut, TopicPut
from evenq_broker.loops.lite.lite_topics import Lites
from evenq_broker.loops.progress.starting import reads_all
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.runtime import Runtime

QUEUES_MAX = 4096
_NOTHING = Hidden((), 0, 0)
_TIMED = {MessageType.DELAY, MessageType.TRANSACTION, MessageType.MIXED}


async def scale(
    kernel: Kernel, name: str, queues: int, *, force: bool = False, close_unread: bool = False, membership: GroupTables
) -> tuple[TopicConfig, Hidden]:
    """Gives the topic `queues` queues HERE, 1 to 4,096. New ones are open immediately. Of too many, the last ones take
    no more messages. They are closed if all groups have finished them, and no message in them was read by no group;
    otherwise the obstacles are returned.

    `close_unread` closes them even if no group has read some messages, `force` in any case: such messages wait until
    the topic grows again. Raises TopicNotFound, IllegalTopic, BadRequest.
    """
    topic = _scalable(kernel, name, queues)
    widest, read_queues = max(topic.queues_ever, queues), max(topic.read_queues, queues)
    if not force:  # groups may have begun to read queues that were closed unread
        behind = [one.queue.queue_id + 1 for one in unfinished(kernel, topic, topic.closed, membership=membership)]
        read_queues = max([read_queues, *behind])
    topic = await _put(kernel, replace(topic, write_queues=queues, read_queues=read_queues, widest=widest))
    if not topic.closing:
        return topic, _NOTHING
    await kernel.ledger.store.flush()  # messages on their way into the queues when they closed count, too
    # Another call may have scaled or deleted it during the flush.
    topic = known_topic(kernel, name)
    left = _hidden(kernel, topic, topic.closing, membership=membership)
    if topic.write_queues != queues or not _may_close(left, force=force, close_unread=close_unread):
        return topic, left
    open_ones = topic
    topic = await _put(kernel, replace(topic, read_queues=queues))
    await kernel.ledger.store.flush()
    late = _hidden(kernel, topic, open_ones.closing, membership=membership)
    may_close = _may_close(late, force=force, close_unread=close_unread)
    if not may_close and known_topic(kernel, name) == topic:  # a send that chose its queue before the closing
        topic = await _put(kernel, replace(topic, read_queues=open_ones.read_queues))
    return topic, late


def hidden_by(kernel: Kernel, name: str, queues: int, *, membership: GroupTables) -> tuple[TopicConfig, Hidden]:
    """Returns what `scale` to `queues` queues would have to close HERE now; changes nothing. Raises its errors."""
    topic = _scalable(kernel, name, queues)
    return topic, _hidden(kernel, topic, range(queues, topic.read_queues), membership=membership)


async def permit(kernel: Kernel, name: str, permission: Permission) -> TopicConfig:
    """Sets the permissions of the topic's queues HERE (TQ-14). Raises TopicNotFound, IllegalTopic."""
    return await _put(kernel, replace(known_topic(kernel, name), permission=permission))


async def drain(kernel: Kernel, *, on: bool) -> None:
    """Rejects new messages from now on, or accepts them again."""
    if kernel.catalog.draining == on:
        await kernel.ledger.journal.settled()
        return
    kernel.catalog.draining = on
    kernel.catalog.topics.touch()  # every topic changes for readers of the catalog
    kernel.catalog.changes.facts_changed()
    await kernel.ledger.journal.record(DrainPut(on))


def unfinished(
    kernel: Kernel,
    topic: TopicConfig,
    queue_ids: Sequence[int],
    groups: list[GroupConfig] | None = None,
    *,
    membership: GroupTables,
) -> Iterator[Unfinished]:
    """Yields groups that have not finished these queues, or will begin them at the first message."""
    if groups is None:
        groups = (
            _readers(kernel.catalog, topic, kernel.ledger.progress.groups_of(topic.topic_id), membership=membership)
            if queue_ids
            else []
        )
    if not groups:
        return
    for queue_id in queue_ids:
        low, high = kernel.ledger.store.queue_range(topic.topic_id, queue_id)
        queue = MessageQueue(topic.name, kernel.runtime.settings.broker_name, queue_id)
        for group in groups:
            queue_key = (group.group_id, topic.topic_id, queue_id)
            begun = kernel.ledger.progress.queue(*queue_key) is not None
            lag = kernel.ledger.progress.lag(*queue_key, low, high) if begun else high - low
            if lag:
                yield Unfinished(queue, group.name, lag, kernel.ledger.progress.inflight(*queue_key, low, high))


def _hidden(kernel: Kernel, topic: TopicConfig, queue_ids: Sequence[int], *, membership: GroupTables) -> Hidden:
    begun = kernel.ledger.progress.groups_of(topic.topic_id)
    groups = _readers(kernel.catalog, topic, begun, membership=membership, beginning=True)
    stored = sum(_size(kernel.ledger, topic, queue_id) for queue_id in queue_ids)
    left = tuple(unfinished(kernel, topic, queue_ids, groups, membership=membership))
    return Hidden(left, 0 if groups else stored, stored)


def _may_close(left: Hidden, *, force: bool, close_unread: bool) -> bool:
    return force or (not left.unfinished and (close_unread or not left.unread))


def stranded(kernel: Kernel, topic: TopicConfig, *, membership: GroupTables) -> int:
    """Returns the number of messages in queues that were closed before a group that reads them came (RT-8)."""
    closed = topic.closed if topic.permission.readable else range(topic.queues_ever)
    most: dict[int, int] = {}
    for one in unfinished(kernel, topic, closed, membership=membership):
        most[one.queue.queue_id] = max(most.get(one.queue.queue_id, 0), one.lag)
    return sum(most.values())


def left_here(kernel: Kernel, *, membership: GroupTables, lite: Lites, schedules: ScheduleTable) -> Left:
    """Returns the messages and schedules that would be missed if this broker ended now."""
    remaining: list[Unfinished] = []
    unread = dead_letters = 0
    begun: dict[int, set[int]] = {}
    for queue in kernel.ledger.progress.queues():
        begun.setdefault(queue.topic_id, set()).add(queue.group_id)
    for topic in kernel.catalog.topics.all():
        ids = begun.get(topic.topic_id, ())
        groups = _readers(kernel.catalog, topic, ids, membership=membership, beginning=True)
        stored = sum(_size(kernel.ledger, topic, queue_id) for queue_id in range(topic.queues_ever))
        if topic.name.startswith(DLQ_PREFIX):
            dead_letters += stored
        elif topic.message_type is MessageType.LITE:
            remaining += _unfinished_lite(kernel.runtime, topic, groups, lite=lite)
        elif groups or not is_system_topic(topic.name):
            remaining += unfinished(kernel, topic, range(topic.queues_ever), groups, membership=membership)
            unread += 0 if groups else stored
    names = sorted(f"{kernel.catalog.topic_name(one.schedule.topic_id)} {one.schedule.name}" for one in schedules)
    return Left(tuple(remaining), kernel.ledger.store.timers.stats.pending, unread, dead_letters, tuple(names))


def _unfinished_lite(
    runtime: Runtime, topic: TopicConfig, groups: list[GroupConfig], *, lite: Lites
) -> Iterator[Unfinished]:
    queue = MessageQueue(topic.name, runtime.settings.broker_name, LITE_QUEUES_FROM)
    for group in groups:
        lag, inflight = lite.lag(group, topic)
        if lag:
            yield Unfinished(queue, group.name, lag, inflight)


def _readers(
    catalog: Catalog, topic: TopicConfig, ids: Iterable[int], *, membership: GroupTables, beginning: bool = False
) -> list[GroupConfig]:
    """Returns the groups that read the topic here: those of `ids`, those that read a deleted topic of this name, and
    those with members that will begin at the first message. `beginning`: all groups with members. They are about to
    begin, at an offset that is not known here: a group that began at another broker reads what was stored since.
    """
    ids = {*ids, *catalog.awaiting(topic.name)}
    readers = {group.name: group for one in ids if (group := catalog.groups.by_id(one)) is not None}
    for name in membership.members.groups():
        group = catalog.groups.get(name)
        if group is None or name in readers or not membership.members.readers(name, topic.name):
            continue
        if beginning or reads_all(catalog, group, topic, membership=membership):
            readers[name] = group
    return [readers[name] for name in sorted(readers)]


def _size(ledger: Ledger, topic: TopicConfig, queue_id: int) -> int:
    low, high = ledger.store.queue_range(topic.topic_id, queue_id)
    return high - low


def _scalable(kernel: Kernel, name: str, queues: int) -> TopicConfig:
    topic = known_topic(kernel, name)
    if not 1 <= queues <= QUEUES_MAX:
        raise BadRequest(f"topic {name} cannot have {queues} queues per broker, the range is 1 to {QUEUES_MAX}")
    if topic.message_type is MessageType.LITE:
        raise BadRequest(f"topic {name} takes LITE messages: each lite topic is a queue of its own, none can be added")
    return topic


def known_topic(kernel: Kernel, name: str) -> TopicConfig:
    """Returns a user's topic that is here. Raises IllegalTopic, TopicNotFound."""
    if is_system_topic(name):
        raise IllegalTopic(f"the topic {name!r} belongs to the broker; its queues cannot be changed")
    topic = kernel.catalog.topics.get(name)
    if topic is None:
        raise TopicNotFound(
            f"no topic {name!r} on broker {kernel.runtime.settings.broker_name}; "
            f"create it with `evenq topic create {name}`"
        )
    return topic


async def _put(kernel: Kernel, topic: TopicConfig) -> TopicConfig:
    if topic == kernel.catalog.topics.get(topic.name):
        # Its present state may rest on a record that is not durable yet (decision 62).
        await kernel.ledger.journal.settled()
        return topic
    kernel.catalog.topics.put(topic)
    kernel.catalog.changes.facts_changed(topic=topic.name)
    await kernel.ledger.journal.record(TopicPut(topic))
    return topic


@dataclass(frozen=True, slots=True)
class Remains:
    """Messages stored of a topic that is removed or was removed."""

    unfinished: tuple[Unfinished, ...]
    unread: int
    """Messages, if no group reads the topic at all."""
    delayed: int
    """All delayed messages and open transactions of the broker: each may be of this topic. 0 if it takes none."""
    stored: int
    schedules: tuple[str, ...] = ()
    """Names of the topic's schedules here, ascending; they are deleted with it."""
    gone: bool = False


async def leave(
    kernel: Kernel,
    name: str,
    *,
    close_unread: bool,
    force: bool,
    membership: GroupTables,
    schedules: ScheduleTable,
) -> tuple[TopicConfig, Remains]:
    """Runs one step of the topic's removal from this broker; returns the topic and its remains. `close_unread` drops
    unread messages and schedules, `force` all.

    The topic is closed for sends, its messages are read to the end, then it is deleted. The state between the steps is
    the topic itself, closed for writing. The removal ends when every group has finished all messages here. Messages
    that no group has read, delayed messages and schedules prevent it unless the caller allows their loss.
    `rpc.resizing.resizing` has checked before that the topic exists on another broker, and that no broker creates it
    again by use.
    """
    before = kernel.catalog.topics.get(name)
    closed = before.permission.without_writing() if before is not None else Permission.NONE
    topic = await permit(kernel, name, closed)
    remains = Remains((), 0, 0, 0)
    for _ in range(2):  # the second round sees a send that chose its queue before the closing
        await kernel.ledger.store.flush()
        remains = _remains(kernel, topic, membership=membership, schedules=schedules)
        hidden = remains.unread or remains.schedules
        if not force and (remains.unfinished or remains.delayed or (hidden and not close_unread)):
            return topic, remains
    await kernel.catalog.delete_topic(name)
    return topic, replace(remains, gone=True)


def look(
    kernel: Kernel, name: str, *, membership: GroupTables, schedules: ScheduleTable
) -> tuple[TopicConfig, Remains]:
    """Returns what `leave` would find HERE now; changes nothing. Raises the errors of `leave`."""
    topic = known_topic(kernel, name)
    return topic, _remains(kernel, topic, membership=membership, schedules=schedules)


def _remains(kernel: Kernel, topic: TopicConfig, *, membership: GroupTables, schedules: ScheduleTable) -> Remains:
    left = tuple(unfinished(kernel, topic, range(topic.queues_ever), membership=membership))
    ranges = [kernel.ledger.store.queue_range(topic.topic_id, queue_id) for queue_id in range(topic.queues_ever)]
    stored = sum(high - low for low, high in ranges)
    return Remains(
        unfinished=left,
        unread=0 if left or kernel.ledger.progress.groups_of(topic.topic_id) else stored,
        delayed=kernel.ledger.store.timers.stats.pending if topic.message_type in _TIMED else 0,
        stored=stored,
        schedules=tuple(one.schedule.name for one in schedules.of(topic.topic_id)),
    )
