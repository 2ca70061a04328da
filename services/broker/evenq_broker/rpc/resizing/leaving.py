"""`ScaleTopic` to 0 queues: the topic leaves a broker (TQ-4), which `loops.resizing.leaving` does there.

Before, the other brokers hear that an operator chose where the topic is, so that none brings it back by use.
"""

from __future__ import annotations

from evenq.errors import BadRequest, ConnectionFailed, NotFound, TopicNotFound
from evenq.model import MessageType
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.cluster.unfinished import Unfinished
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.loops.cluster.cluster_catalog import ClusterCatalog
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.resizing.leaving import leave, look
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.loops.wire.translation import counts_of, entry_of, queue_message
from evenq_broker.runtime import Runtime

__all__ = ["UNFINISHED_NAMED_MAX", "TopicLeaveHandler", "unfinished_message"]

OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")
UNFINISHED_NAMED_MAX = 1_000


class TopicLeaveHandler:
    """The part of the handler of ScaleTopic for 0 queues."""

    def __init__(
        self,
        runtime: Runtime,
        catalog: Catalog,
        ledger: Ledger,
        *,
        cluster: ClusterLink,
        cluster_catalog: ClusterCatalog,
        membership: GroupTables,
    ) -> None:
        self._runtime, self._catalog, self._ledger = runtime, catalog, ledger
        self._cluster, self._cluster_catalog, self._membership = cluster, cluster_catalog, membership

    async def leave(self, request: admin_pb2.ScaleTopicRequest) -> bytes:
        """One step at the broker that is named, or with `local` here."""
        if request.local:
            resized = await self._here(request)
            return admin_pb2.ScaleTopicResponse(status=OK, brokers=[resized]).SerializeToString()
        await self._cluster.facts_settled()
        self._must_be_leavable(request)
        if not request.dry_run:
            await self._choose_others(request)
        request.local = True
        if request.broker_name == self._runtime.settings.broker_name:
            return await self.leave(request)
        return await self._cluster.peers.ask(
            request.broker_name, "/evenq.v1.Admin/ScaleTopic", request.SerializeToString()
        )

    async def _choose_others(self, request: admin_pb2.ScaleTopicRequest) -> None:
        staying = {
            at.broker.name: 0
            for at in self._catalog.routes.route(request.topic)
            if at.broker.name != request.broker_name
        }
        placements = await self._cluster_catalog.create_topic(request.topic, brokers=staying)
        failed = [f"{one.broker_name} ({one.error})" for one in placements if one.error]
        if failed:
            raise ConnectionFailed(f"topic {request.topic} was not changed on {', '.join(failed)}; do it again")

    def _must_be_leavable(self, request: admin_pb2.ScaleTopicRequest) -> None:
        topic, name, routes = request.topic, request.broker_name, self._catalog.routes
        names = [at.broker.name for at in routes.route(topic)]
        if not names:
            raise TopicNotFound(f"no topic {topic!r} on any live broker; see `evenq topic list`")
        if not name:
            raise BadRequest(
                f"0 queues: a topic leaves one broker at a time, so name it; `evenq topic delete {topic}` ends it "
                "everywhere"
            )
        if name not in names:
            raise NotFound(f"topic {topic} is not on broker {name!r}; it is on {', '.join(names)}")
        if routes.kind_of(topic) is MessageType.LITE:
            raise BadRequest(f"topic {topic} takes LITE messages: its lite topics are spread over all brokers")
        if len(names) == 1:
            raise BadRequest(
                f"topic {topic} is on broker {name} alone; give it to another one first with `evenq topic create "
                f"{topic} --broker NAME`, or end it with `evenq topic delete {topic}`"
            )

    async def _here(self, request: admin_pb2.ScaleTopicRequest) -> admin_pb2.ResizedTopic:
        own = self._runtime.settings.broker_name
        if request.dry_run:
            topic, remains = look(
                self._runtime, self._catalog, self._ledger, request.topic, membership=self._membership
            )
        else:
            topic, remains = await leave(
                self._runtime,
                self._catalog,
                self._ledger,
                request.topic,
                close_unread=request.close_unread,
                force=request.force,
                membership=self._membership,
            )
        return admin_pb2.ResizedTopic(
            broker_name=own,
            entry=entry_of(topic.name, counts_of(own, topic, draining=self._catalog.draining)),
            unfinished=map(unfinished_message, remains.unfinished[:UNFINISHED_NAMED_MAX]),
            unread=remains.unread,
            stored=remains.stored,
            delayed=remains.delayed,
            gone=remains.gone,
        )


def unfinished_message(one: Unfinished) -> admin_pb2.UnfinishedQueue:
    """What a group has to read of a queue, on the wire."""
    queue = queue_message(one.queue)
    return admin_pb2.UnfinishedQueue(queue=queue, group=one.group, lag=one.lag, inflight=one.inflight)
