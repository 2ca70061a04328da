"""`evenq.v1.Admin`: topics, for the command line and other tools.

A request with `local` set, or with the header `x-evenq-local`, comes from another broker and is answered from this
broker alone. Creation is idempotent and reaches every live broker (TQ-2). The answer names brokers that did not answer;
a repeated call completes it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from evenq.errors import (
    BadRequest,
    IllegalTopic,
    MessageTypeConflict,
    TopicNotFound,
)
from evenq.model import MIXED_KINDS, MessageQueue, MessageType, TopicConfig
from evenq.model.names import is_system_topic
from evenq.serving.auth.calls import rpc
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.loops.cluster.cluster_catalog import ClusterCatalog
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.lite.lite_topics import Lites
from evenq_broker.loops.resizing.resizing import stranded
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.cluster import Placement, placement_messages
from evenq_broker.loops.wire.translation import (
    counts_of,
    message_type_number,
    message_type_of,
    permission_of,
    queue_message,
)
from evenq_broker.rpc.admin.everywhere import LOCAL_HEADER, THEY_DELETE_IT, asked_of_others, must_be_complete
from evenq_broker.rpc.answers import OK, parsed

SERVICE = "/evenq.v1.Admin/"
LITE_LISTED_MAX = 10_000
RETENTION_MS_MAX = 100 * 365 * 86_400_000


class Topics:
    def __init__(
        self,
        kernel: Kernel,
        *,
        cluster: ClusterLink,
        cluster_catalog: ClusterCatalog,
        membership: GroupTables,
        lite: Lites,
    ) -> None:
        self._kernel = kernel
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._cluster, self._cluster_catalog, self._membership = cluster, cluster_catalog, membership
        self._lite = lite

    def rpcs(self) -> list[Rpc]:
        return [
            rpc(SERVICE + "CreateTopic", self.create),
            rpc(SERVICE + "DeleteTopic", self.delete),
            rpc(SERVICE + "ListTopics", self.list),
            rpc(SERVICE + "DescribeTopic", self.describe),
        ]

    async def create(self, data: bytes, _context: RpcContext) -> bytes:
        request = parsed(admin_pb2.CreateTopicRequest, data)
        if not 0 <= request.queues <= 4096:
            raise BadRequest(
                f"topic {request.topic!r} requests {request.queues} queues on each broker, the range is 1 to 4096"
            )
        retention_ms = request.retention_ms if request.HasField("retention_ms") else None
        if retention_ms is not None and not -1 <= retention_ms <= RETENTION_MS_MAX:
            raise BadRequest(
                f"topic {request.topic!r} requests a retention of {retention_ms} ms, the range is 1 to "
                f"{RETENTION_MS_MAX}; 0 = no limit, -1 = the broker's setting"
            )
        if request.mixed and request.message_type:
            raise BadRequest(f"topic {request.topic!r} is requested as MIXED and with a type; omit the type")
        unspecified = MessageType.MIXED if request.mixed else MessageType.NORMAL
        kind = message_type_of(request.message_type, unspecified=unspecified)
        if request.local:
            topic = await self._catalog.create_topic(
                request.topic,
                message_type=kind,
                queues=request.queues,
                retention_ms=retention_ms,
                chosen=request.chosen,
                uid=request.uid,
            )
            own = self._runtime.settings.broker_name
            placements = [Placement(own, counts_of(own, topic, draining=self._catalog.draining))]
        else:
            self._must_fit(request, kind)
            placements = await self._cluster_catalog.create_topic(
                request.topic,
                message_type=kind,
                queues=request.queues,
                retention_ms=retention_ms,
                brokers=_chosen(request),
            )
        messages = placement_messages(request.topic, placements)
        return admin_pb2.CreateTopicResponse(status=OK, placements=messages).SerializeToString()

    def _must_fit(self, request: admin_pb2.CreateTopicRequest, kind: MessageType) -> None:
        if is_system_topic(request.topic):
            raise IllegalTopic(f"the topic name {request.topic!r} is reserved for the broker; choose another one")
        for at in self._catalog.routes.route(request.topic):
            was = at.counts.message_type
            if request.mixed and was in MIXED_KINDS:
                continue
            if (request.message_type or request.mixed) and was is not kind:
                raise MessageTypeConflict(
                    f"topic {request.topic} exists with type {was} on {at.broker.name}, not {kind}; omit the "
                    "type, or "
                    + ("accept both: --type MIXED" if {was, kind} <= {*MIXED_KINDS} else "delete the topic first")
                )

    async def delete(self, data: bytes, _context: RpcContext) -> bytes:
        request = parsed(admin_pb2.DeleteTopicRequest, data)
        if request.local:
            await self._cluster_catalog.end_topic(request.topic)
        else:
            if not self._catalog.routes.route(request.topic):
                raise TopicNotFound(f"no topic {request.topic!r} on any live broker; see `evenq topic list`")
            failed = await self._cluster_catalog.delete_topic(request.topic)
            must_be_complete(failed, f"topic {request.topic} is deleted", later=THEY_DELETE_IT)
        return admin_pb2.DeleteTopicResponse(status=OK).SerializeToString()

    async def list(self, data: bytes, context: RpcContext) -> bytes:
        request = parsed(admin_pb2.ListTopicsRequest, data)
        by_name: dict[str, admin_pb2.TopicSummary] = {}
        for topic in self._catalog.topics.all():
            if request.include_system or not is_system_topic(topic.name):
                by_name[topic.name] = admin_pb2.TopicSummary(
                    topic=topic.name,
                    message_type=message_type_number(topic.message_type),
                    brokers=1,
                    queues=topic.read_queues,
                    messages=sum(high - low for low, high in self._ranges(topic)) + self._lite.messages(topic),
                )
        lite = [*self._lite_topics()] if request.lite else []
        if LOCAL_HEADER not in context.headers:
            others, _ = await asked_of_others("ListTopics", data, admin_pb2.ListTopicsResponse, cluster=self._cluster)
            for part in others:
                lite.extend(part.lite_topics)
                for other in part.topics:
                    mine = by_name.setdefault(
                        other.topic, admin_pb2.TopicSummary(topic=other.topic, message_type=other.message_type)
                    )
                    mine.brokers += other.brokers
                    mine.queues += other.queues
                    mine.messages += other.messages
        summaries = [by_name[name] for name in sorted(by_name)]
        lite.sort(key=lambda one: (one.topic, one.lite_topic, one.broker_name))
        response = admin_pb2.ListTopicsResponse(status=OK, topics=summaries, lite_topics=lite[:LITE_LISTED_MAX])
        return response.SerializeToString()

    def _lite_topics(self) -> Sequence[admin_pb2.LiteTopicSummary]:
        lites, own = self._lite, self._runtime.settings.broker_name
        return [
            admin_pb2.LiteTopicSummary(
                topic=topic.name,
                lite_topic=name,
                broker_name=own,
                messages=messages,
                subscribers=len(lites.subscriptions.subscribers(topic.name, name)),
            )
            for topic in self._catalog.topics.all()
            for name, messages in itertools.islice(lites.sizes(topic), LITE_LISTED_MAX)
        ]

    async def describe(self, data: bytes, _context: RpcContext) -> bytes:
        request = parsed(admin_pb2.DescribeTopicRequest, data)
        topic = self._catalog.topics.get(request.topic)
        response = admin_pb2.DescribeTopicResponse(status=OK)
        readers: set[str] = set()
        if topic is not None:
            response.message_type = message_type_number(topic.message_type)
            response.uid = topic.uid
            if topic.retention_ms is not None:
                response.retention_ms = topic.retention_ms
            response.queues.extend([await self._queue(topic, queue_id) for queue_id in self._shown(topic)])
            response.stranded = stranded(self._kernel, topic, membership=self._membership)
            readers.update(self._readers(topic))
        if not request.local:
            local_request = admin_pb2.DescribeTopicRequest(topic=request.topic, local=True).SerializeToString()
            others, _ = await asked_of_others(
                "DescribeTopic", local_request, admin_pb2.DescribeTopicResponse, cluster=self._cluster
            )
            for part in others:
                response.message_type = part.message_type
                response.uid = response.uid or part.uid
                if part.HasField("retention_ms"):
                    response.retention_ms = part.retention_ms
                response.queues.extend(part.queues)
                response.stranded += part.stranded
                readers.update(part.groups)
        if not response.queues:
            raise TopicNotFound(
                f"no topic {request.topic!r} on any live broker; create it with `evenq topic create {request.topic}`"
            )
        response.queues.sort(key=lambda at: (at.queue.broker_name, at.queue.queue_id))
        response.groups.extend(sorted(readers))
        return response.SerializeToString()

    def _ranges(self, topic: TopicConfig) -> Sequence[tuple[int, int]]:
        return [self._ledger.store.queue_range(topic.topic_id, queue_id) for queue_id in range(topic.queues_ever)]

    def _shown(self, topic: TopicConfig) -> Sequence[int]:
        """Returns its queues, and the closed ones that still hold messages (RT-8)."""
        present = max(topic.read_queues, topic.write_queues)
        ranges = self._ranges(topic)
        return [one for one, (low, high) in enumerate(ranges) if one < present or high > low]

    def _readers(self, topic: TopicConfig) -> Sequence[str]:
        ids = self._ledger.progress.groups_of(topic.topic_id)
        return [group.name for group_id in ids if (group := self._catalog.groups.by_id(group_id)) is not None]

    async def _queue(self, topic: TopicConfig, queue_id: int) -> admin_pb2.QueueStatus:
        low, high = self._ledger.store.queue_range(topic.topic_id, queue_id)
        newest = await self._ledger.store.read_at(topic.topic_id, queue_id, [high - 1]) if high > low else []
        counts = counts_of(self._runtime.settings.broker_name, topic, draining=self._catalog.draining)
        return admin_pb2.QueueStatus(
            queue=queue_message(MessageQueue(topic.name, self._runtime.settings.broker_name, queue_id)),
            min_offset=low,
            max_offset=high,
            last_store_ms=newest[0].store_ms if newest else 0,
            permission=permission_of(counts, queue_id),
        )


def _chosen(request: admin_pb2.CreateTopicRequest) -> dict[str, int]:
    chosen: dict[str, int] = {}
    for share in request.brokers:
        if not 0 <= share.queues <= 4096:
            raise BadRequest(
                f"topic {request.topic!r} requests {share.queues} queues on {share.broker_name!r}, "
                "the range is 1 to 4096"
            )
        if share.broker_name in chosen:
            raise BadRequest(f"broker {share.broker_name!r} is named twice for topic {request.topic!r}")
        chosen[share.broker_name] = share.queues
    return chosen
