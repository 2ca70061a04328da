"""`evenq.v1.Admin`: topics and groups, for the command line and other tools.

Any broker answers for the whole cluster: it asks the others, each with a deadline, and adds up. A request with `local`
set, or with the header `x-evenq-local`, is such a question from another broker and is answered from here alone.
Creating is idempotent and reaches every live broker (TQ-2); what a broker that does not answer has missed is said, and
doing it again completes it. A group's settings also come to it by themselves (`loops.group_settings`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import Message

from evenq.allocation import strategy_asked
from evenq.errors import (
    BadRequest,
    ConnectionFailed,
    Error,
    GroupNotFound,
    IllegalTopic,
    MessageTypeConflict,
    NotFound,
    PreconditionFailed,
    TopicNotFound,
)
from evenq.model import MIXED_KINDS, GroupConfig, MessageQueue, MessageType, StartFrom, TopicConfig
from evenq.model.names import is_system_topic
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire import status
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.loops.peers import Placement
from evenq_broker.loops.resizing import stranded
from evenq_broker.loops.translation import (
    balance_message,
    balance_of,
    counts_of,
    differing_filters,
    entry_of,
    member_message,
    message_type_number,
    message_type_of,
    permission_of,
    queue_message,
    retry_message,
    retry_of,
)
from evenq_broker.rpc.access import rpc
from evenq_broker.rpc.answers import parsed
from evenq_broker.rpc.group_troubles import add_troubles, troubles_of
from evenq_broker.rpc.rooms import about_rooms

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["LOCAL_HEADER", "describe_group", "rpcs"]

OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")
LITE_LISTED_MAX = 10_000
LOCAL_HEADER = "x-evenq-local"
RETENTION_MS_MAX = 100 * 365 * 86_400_000
M = TypeVar("M", bound=Message)


def rpcs(broker: Broker) -> list[Rpc]:
    """The calls of this module."""
    topics, groups = _Topics(broker), _Groups(broker)
    service = "/evenq.v1.Admin/"
    return [
        rpc(service + "CreateTopic", topics.create, admin_pb2.CreateTopicResponse),
        rpc(service + "DeleteTopic", topics.delete, admin_pb2.DeleteTopicResponse),
        rpc(service + "ListTopics", topics.list, admin_pb2.ListTopicsResponse),
        rpc(service + "DescribeTopic", topics.describe, admin_pb2.DescribeTopicResponse),
        rpc(service + "CreateGroup", groups.create, admin_pb2.CreateGroupResponse),
        rpc(service + "DeleteGroup", groups.delete, admin_pb2.DeleteGroupResponse),
        rpc(service + "ListGroups", groups.list, admin_pb2.ListGroupsResponse),
        rpc(service + "DescribeGroup", groups.describe, admin_pb2.DescribeGroupResponse),
    ]


class _Topics:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def create(self, request: bytes, _context: RpcContext) -> bytes:
        asked = parsed(admin_pb2.CreateTopicRequest, request)
        if not 0 <= asked.queues <= 4096:
            raise BadRequest(f"topic {asked.topic!r} asks for {asked.queues} queues a broker, the range is 1 to 4096")
        retention_ms = asked.retention_ms if asked.HasField("retention_ms") else None
        if retention_ms is not None and not -1 <= retention_ms <= RETENTION_MS_MAX:
            raise BadRequest(
                f"topic {asked.topic!r} asks for a retention of {retention_ms} ms, the range is 1 to "
                f"{RETENTION_MS_MAX}, or 0 for ever, -1 for the broker's setting"
            )
        if asked.mixed and asked.message_type:
            raise BadRequest(f"topic {asked.topic!r} is to be MIXED and of a type; leave the type out")
        unspecified = MessageType.MIXED if asked.mixed else MessageType.NORMAL
        kind = message_type_of(asked.message_type, unspecified=unspecified)
        if asked.local:
            topic = await self._broker.create_topic(
                asked.topic,
                message_type=kind,
                queues=asked.queues,
                retention_ms=retention_ms,
                chosen=asked.chosen,
                uid=asked.uid,
            )
            own = self._broker.settings.broker_name
            entry = entry_of(topic.name, counts_of(own, topic, draining=self._broker.draining))
            placements = [Placement(broker_name=own, entry=entry)]
        else:
            self._must_fit(asked, kind)
            placements = await self._broker.cluster.create_topic_everywhere(
                asked.topic,
                message_type=kind,
                queues=asked.queues,
                retention_ms=retention_ms,
                brokers=_chosen(asked),
            )
        return admin_pb2.CreateTopicResponse(status=OK, placements=placements).SerializeToString()

    def _must_fit(self, asked: admin_pb2.CreateTopicRequest, kind: MessageType) -> None:
        if is_system_topic(asked.topic):
            raise IllegalTopic(f"the topic name {asked.topic!r} is reserved for the broker; choose another one")
        for at in self._broker.routes.route(asked.topic):
            was = at.counts.message_type
            if asked.mixed and was in MIXED_KINDS:
                continue
            if (asked.message_type or asked.mixed) and was is not kind:
                raise MessageTypeConflict(
                    f"topic {asked.topic} exists with type {was} on {at.broker.name}, not {kind}; leave the "
                    "type out, or "
                    + ("let it take both: --type MIXED" if {was, kind} <= {*MIXED_KINDS} else "delete it first")
                )

    async def delete(self, request: bytes, _context: RpcContext) -> bytes:
        asked = parsed(admin_pb2.DeleteTopicRequest, request)
        if asked.local:
            await self._broker.delete_topic(asked.topic, everywhere=True)
        else:
            if not self._broker.routes.route(asked.topic):
                raise TopicNotFound(f"no topic {asked.topic!r} on any live broker; see `evenq topic list`")
            failed = await self._broker.cluster.delete_topic_everywhere(asked.topic)
            _must_be_complete(failed, f"topic {asked.topic} is deleted")
        return admin_pb2.DeleteTopicResponse(status=OK).SerializeToString()

    async def list(self, request: bytes, context: RpcContext) -> bytes:
        asked = parsed(admin_pb2.ListTopicsRequest, request)
        found: dict[str, admin_pb2.TopicSummary] = {}
        for topic in self._broker.topics.all():
            if asked.include_system or not is_system_topic(topic.name):
                found[topic.name] = admin_pb2.TopicSummary(
                    topic=topic.name,
                    message_type=message_type_number(topic.message_type),
                    brokers=1,
                    queues=topic.read_queues,
                    messages=sum(high - low for low, high in self._ranges(topic)) + self._broker.lite.messages(topic),
                )
        lite = [*self._lite_topics()] if asked.lite else []
        if LOCAL_HEADER not in context.headers:
            others, _ = await _others(self._broker, "ListTopics", request, admin_pb2.ListTopicsResponse)
            for answer in others:
                lite.extend(answer.lite_topics)
                for other in answer.topics:
                    mine = found.setdefault(
                        other.topic, admin_pb2.TopicSummary(topic=other.topic, message_type=other.message_type)
                    )
                    mine.brokers += other.brokers
                    mine.queues += other.queues
                    mine.messages += other.messages
        summaries = [found[name] for name in sorted(found)]
        lite.sort(key=lambda one: (one.topic, one.lite_topic, one.broker_name))
        response = admin_pb2.ListTopicsResponse(status=OK, topics=summaries, lite_topics=lite[:LITE_LISTED_MAX])
        return response.SerializeToString()

    def _lite_topics(self) -> Sequence[admin_pb2.LiteTopicSummary]:
        lites, own = self._broker.lite, self._broker.settings.broker_name
        return [
            admin_pb2.LiteTopicSummary(
                topic=topic.name,
                lite_topic=name,
                broker_name=own,
                messages=messages,
                subscribers=len(lites.subscriptions.subscribers(topic.name, name)),
            )
            for topic in self._broker.topics.all()
            for name, messages in itertools.islice(lites.sizes(topic), LITE_LISTED_MAX)
        ]

    async def describe(self, request: bytes, _context: RpcContext) -> bytes:
        asked = parsed(admin_pb2.DescribeTopicRequest, request)
        topic = self._broker.topics.get(asked.topic)
        response = admin_pb2.DescribeTopicResponse(status=OK)
        readers: set[str] = set()
        if topic is not None:
            response.message_type = message_type_number(topic.message_type)
            response.uid = topic.uid
            if topic.retention_ms is not None:
                response.retention_ms = topic.retention_ms
            response.queues.extend([await self._queue(topic, queue_id) for queue_id in self._shown(topic)])
            response.stranded = stranded(self._broker, topic)
            readers.update(self._readers(topic))
        if not asked.local:
            told = admin_pb2.DescribeTopicRequest(topic=asked.topic, local=True).SerializeToString()
            others, _ = await _others(self._broker, "DescribeTopic", told, admin_pb2.DescribeTopicResponse)
            for answer in others:
                response.message_type = answer.message_type
                response.uid = response.uid or answer.uid
                if answer.HasField("retention_ms"):
                    response.retention_ms = answer.retention_ms
                response.queues.extend(answer.queues)
                response.stranded += answer.stranded
                readers.update(answer.groups)
        if not response.queues:
            raise TopicNotFound(
                f"no topic {asked.topic!r} on any live broker; create it with `evenq topic create {asked.topic}`"
            )
        response.queues.sort(key=lambda at: (at.queue.broker_name, at.queue.queue_id))
        response.groups.extend(sorted(readers))
        return response.SerializeToString()

    def _ranges(self, topic: TopicConfig) -> Sequence[tuple[int, int]]:
        return [self._broker.store.queue_range(topic.topic_id, queue_id) for queue_id in range(topic.queues_ever)]

    def _shown(self, topic: TopicConfig) -> Sequence[int]:
        """Its queues, and the closed ones that still hold messages (RT-8)."""
        present = max(topic.read_queues, topic.write_queues)
        ranges = self._ranges(topic)
        return [one for one, (low, high) in enumerate(ranges) if one < present or high > low]

    def _readers(self, topic: TopicConfig) -> Sequence[str]:
        ids = self._broker.progress.groups_of(topic.topic_id)
        return [group.name for group_id in ids if (group := self._broker.groups.by_id(group_id)) is not None]

    async def _queue(self, topic: TopicConfig, queue_id: int) -> admin_pb2.QueueStatus:
        low, high = self._broker.store.queue_range(topic.topic_id, queue_id)
        newest = await self._broker.store.read_at(topic.topic_id, queue_id, [high - 1]) if high > low else []
        counts = counts_of(self._broker.settings.broker_name, topic, draining=self._broker.draining)
        return admin_pb2.QueueStatus(
            queue=queue_message(MessageQueue(topic.name, self._broker.settings.broker_name, queue_id)),
            min_offset=low,
            max_offset=high,
            last_store_ms=newest[0].store_ms if newest else 0,
            permission=permission_of(counts, queue_id),
        )


class _Groups:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def create(self, request: bytes, _context: RpcContext) -> bytes:
        asked = parsed(admin_pb2.CreateGroupRequest, request)
        old = self._broker.groups.get(asked.group)
        if asked.local and asked.HasField("settings"):
            if old is not None and old.revised_ms > asked.settings.revised_ms:
                own = self._broker.settings.broker_name
                raise PreconditionFailed(
                    f"group {asked.group} was changed later at {own}, which tells it to the others"
                )
            await self._broker.group_settings.adopt(asked.group, asked.settings)
            return admin_pb2.CreateGroupResponse(status=OK).SerializeToString()
        strategy = strategy_asked(asked.strategy)  # a name that nobody knows is refused now, not warned of later
        warnings = [] if asked.local or strategy != "MACHINE_ROOM" else about_rooms(self._broker, asked.group)
        group = await self._broker.create_group(
            asked.group,
            ordered=asked.ordered if asked.HasField("ordered") else None,
            max_attempts=asked.max_attempts,
            strategy=strategy,
            start_from=_start_from(asked.start_from),
            retry=retry_of(asked.retry) if asked.HasField("retry") else None,
            balance=balance_of(asked.balance) if asked.HasField("balance") else None,
            revised_ms=max(self._broker.clock.now_ms(), old.revised_ms + 1 if old else 0),
        )
        if not asked.local:
            failed = await self._broker.cluster.create_group_everywhere(asked, group)
            if any(isinstance(error, PreconditionFailed) for _, error in failed):
                self._broker.group_settings.ask_again()
            _must_be_complete(failed, f"group {asked.group} is created")
        return admin_pb2.CreateGroupResponse(status=OK, warnings=warnings).SerializeToString()

    async def delete(self, request: bytes, _context: RpcContext) -> bytes:
        asked = parsed(admin_pb2.DeleteGroupRequest, request)
        members = self._broker.members.members(asked.group)
        if members and not asked.local:
            raise BadRequest(
                f"group {asked.group} has {len(members)} members, among them {members[0].client_id}; stop them first"
            )
        known = self._broker.groups.get(asked.group) is not None
        await self._broker.delete_group(asked.group)
        if not asked.local:
            failed = await self._broker.cluster.delete_group_everywhere(asked.group)
            _must_be_complete(failed, f"group {asked.group} is deleted")
            if not known:
                raise GroupNotFound(f"no consumer group {asked.group!r}; see `evenq group list`")
        return admin_pb2.DeleteGroupResponse(status=OK).SerializeToString()

    async def list(self, request: bytes, context: RpcContext) -> bytes:
        parsed(admin_pb2.ListGroupsRequest, request)
        found = {group.name: self._summary(group) for group in self._broker.groups.all()}
        if LOCAL_HEADER not in context.headers:
            others, silent = await _others(self._broker, "ListGroups", request, admin_pb2.ListGroupsResponse)
            for answer in others:
                for other in answer.groups:
                    _add_group(found, other)
            for summary in found.values():
                summary.silent[:] = silent
        summaries = [found[name] for name in sorted(found)]
        return admin_pb2.ListGroupsResponse(status=OK, groups=summaries).SerializeToString()

    async def describe(self, request: bytes, _context: RpcContext) -> bytes:
        asked = parsed(admin_pb2.DescribeGroupRequest, request)
        group = self._broker.groups.get(asked.group)
        found: dict[str, admin_pb2.GroupSummary] = {}
        silent: list[str] = []
        response = admin_pb2.DescribeGroupResponse(status=OK)
        if group is not None:
            found[group.name] = self._summary(group)
            response.members.extend(member_message(m) for m in self._broker.members.members(group.name))
            response.queues.extend([await self._timed(queue) for queue in self._queues(group)])
            response.troubles.CopyFrom(troubles_of(self._broker, group, response.queues))
        if not asked.local:
            told = admin_pb2.DescribeGroupRequest(group=asked.group, local=True).SerializeToString()
            others, silent = await _others(self._broker, "DescribeGroup", told, admin_pb2.DescribeGroupResponse)
            for answer in others:
                _add_group(found, answer.summary)
                known = {member.client_id for member in response.members}
                response.members.extend(member for member in answer.members if member.client_id not in known)
                response.queues.extend(answer.queues)
                add_troubles(response.troubles, answer.troubles)
        if asked.group not in found:
            where = f" on a broker that answers ({', '.join(silent)} cannot be asked)" if silent else ""
            raise GroupNotFound(
                f"no consumer group {asked.group!r}{where}; create it with `evenq group create {asked.group}`"
            )
        response.summary.CopyFrom(found[asked.group])
        response.summary.silent[:] = silent
        response.members.sort(key=lambda member: member.client_id)
        response.differing_filters.extend(differing_filters(response.members))
        response.summary.members = len(response.members)
        response.summary.topics = len({at.queue.topic for at in response.queues})
        response.queues.sort(key=lambda at: (at.queue.topic, at.queue.broker_name, at.queue.queue_id))
        return response.SerializeToString()

    def _summary(self, group: GroupConfig) -> admin_pb2.GroupSummary:
        queues = self._queues(group)
        return admin_pb2.GroupSummary(
            group=group.name,
            ordered=group.ordered,
            max_attempts=group.max_attempts,
            strategy=group.strategy,
            members=len(self._broker.members.members(group.name)),
            topics=len({at.queue.topic for at in queues}),
            lag=sum(at.lag for at in queues),
            retry=retry_message(group.retry),
            balance=balance_message(group.balance),
        )

    def _queues(self, group: GroupConfig) -> Sequence[admin_pb2.GroupQueue]:
        topics = [self._broker.topics.by_id(topic_id) for topic_id in self._broker.progress.topics_of(group.group_id)]
        return [
            self._queue(group, topic, queue_id)
            for topic in topics
            if topic is not None
            for queue_id in [*range(topic.read_queues), *self._left_behind(group, topic)]
        ]

    def _left_behind(self, group: GroupConfig, topic: TopicConfig) -> Sequence[int]:
        """Closed queues that the group has not finished (RT-8)."""
        lag, store = self._broker.progress.lag, self._broker.store
        return [
            queue_id
            for queue_id in topic.closed
            if lag(group.group_id, topic.topic_id, queue_id, *store.queue_range(topic.topic_id, queue_id))
        ]

    async def _timed(self, queue: admin_pb2.GroupQueue) -> admin_pb2.GroupQueue:
        """With the time at which the next message to read was stored."""
        topic = self._broker.topics.get(queue.queue.topic)
        if topic is not None and queue.committed >= 0:
            at = [max(queue.committed, queue.min_offset)]
            for message in await self._broker.store.read_at(topic.topic_id, queue.queue.queue_id, at):
                queue.next_store_ms = message.store_ms
        return queue

    def _queue(self, group: GroupConfig, topic: TopicConfig, queue_id: int) -> admin_pb2.GroupQueue:
        place = (group.group_id, topic.topic_id, queue_id)
        queue = MessageQueue(topic.name, self._broker.settings.broker_name, queue_id)
        low, high = self._broker.store.queue_range(topic.topic_id, queue_id)
        committed = self._broker.progress.committed(*place)
        first_lite = topic.message_type is MessageType.LITE and queue_id == 0
        lite = self._broker.lite.lag(group, topic) if first_lite else (0, 0)
        return admin_pb2.GroupQueue(
            queue=queue_message(queue),
            committed=-1 if committed is None else committed,
            min_offset=low,
            max_offset=high,
            lag=self._broker.progress.lag(*place, low, high) + lite[0],
            inflight=self._broker.progress.inflight(*place) + lite[1],
            owner=self._broker.locks.holder(group.name, queue),
        )


async def describe_group(broker: Broker, group: str) -> admin_pb2.DescribeGroupResponse:
    """A group, its members and its progress, over all brokers. Raises GroupNotFound."""
    request = admin_pb2.DescribeGroupRequest(group=group).SerializeToString()
    return admin_pb2.DescribeGroupResponse.FromString(
        await _Groups(broker).describe(request, RpcContext("", [], "", None))
    )


async def _others(broker: Broker, rpc: str, request: bytes, response: type[M]) -> tuple[list[M], list[str]]:
    """What the other brokers say, one that does not know the thing nothing; and the names of those that do not answer
    or are missing, ascending: a number without theirs is too small.
    """
    answers = await broker.cluster.ask_peers(f"/evenq.v1.Admin/{rpc}", request, metadata={LOCAL_HEADER: "1"})
    silent = set(broker.cluster.known.out_of_reach())
    told: list[M] = []
    for name, answer in answers:
        try:
            told.append(_checked(answer, response))
        except NotFound:
            continue
        except Error:
            silent.add(name)
    return told, sorted(silent)


def _checked(answer: bytes | Error, response: type[M]) -> M:
    if isinstance(answer, Error):
        raise answer
    message = response.FromString(answer)
    status.check(message.status)  # type: ignore[attr-defined]  # each has one
    return message


def _add_group(found: dict[str, admin_pb2.GroupSummary], other: admin_pb2.GroupSummary) -> None:
    mine = found.get(other.group)
    if mine is None:
        found[other.group] = other
        return
    mine.lag += other.lag
    mine.members = max(mine.members, other.members)
    mine.topics = max(mine.topics, other.topics)


def _chosen(asked: admin_pb2.CreateTopicRequest) -> dict[str, int]:
    chosen: dict[str, int] = {}
    for share in asked.brokers:
        if not 0 <= share.queues <= 4096:
            raise BadRequest(
                f"topic {asked.topic!r} asks for {share.queues} queues on {share.broker_name!r}, the range is 1 to 4096"
            )
        if share.broker_name in chosen:
            raise BadRequest(f"broker {share.broker_name!r} is named twice for topic {asked.topic!r}")
        chosen[share.broker_name] = share.queues
    return chosen


def _start_from(told: str) -> StartFrom | None:
    if not told:
        return None
    if told not in set(StartFrom):
        raise BadRequest(f"start_from {told[:40]!r} is unknown; give one of {', '.join(StartFrom)}")
    return StartFrom(told)


def _must_be_complete(failed: Sequence[tuple[str, Error]], what: str) -> None:
    if failed:
        missing = "; ".join(f"{name}: {error.message}" for name, error in failed)
        raise ConnectionFailed(f"{what} here, but not on every broker ({missing}); do it again when they answer")
