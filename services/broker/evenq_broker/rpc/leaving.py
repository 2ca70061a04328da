"""`ScaleTopic` to 0 queues: the topic leaves a broker (TQ-4), which `loops.leaving` does there.

Before, the other brokers hear that somebody chose where the topic is, so that none brings it back by use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenq.errors import BadRequest, ConnectionFailed, NotFound, TopicNotFound
from evenq.model import MessageType
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.loops.leaving import leave, look
from evenq_broker.loops.resizing import Unfinished
from evenq_broker.loops.translation import counts_of, entry_of, queue_message

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["UNFINISHED_TOLD_MAX", "Leaving", "unfinished_message"]

OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")
UNFINISHED_TOLD_MAX = 1_000


class Leaving:
    """The part of the handler of ScaleTopic for 0 queues."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def leave(self, asked: admin_pb2.ScaleTopicRequest) -> bytes:
        """One step at the broker that is named, or with `local` here."""
        if asked.local:
            resized = await self._here(asked)
            return admin_pb2.ScaleTopicResponse(status=OK, brokers=[resized]).SerializeToString()
        broker = self._broker
        await broker.cluster.facts_settled()
        self._must_be_leavable(asked)
        if not asked.dry_run:
            await self._choose_others(asked)
        asked.local = True
        if asked.broker_name == broker.settings.broker_name:
            return await self.leave(asked)
        return await broker.cluster.ask(asked.broker_name, "/evenq.v1.Admin/ScaleTopic", asked.SerializeToString())

    async def _choose_others(self, asked: admin_pb2.ScaleTopicRequest) -> None:
        broker = self._broker
        staying = {at.broker.name: 0 for at in broker.routes.route(asked.topic) if at.broker.name != asked.broker_name}
        placements = await broker.cluster.create_topic_everywhere(asked.topic, brokers=staying)
        failed = [f"{one.broker_name} ({one.error})" for one in placements if one.error]
        if failed:
            raise ConnectionFailed(f"topic {asked.topic} was not changed on {', '.join(failed)}; do it again")

    def _must_be_leavable(self, asked: admin_pb2.ScaleTopicRequest) -> None:
        topic, name, routes = asked.topic, asked.broker_name, self._broker.routes
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

    async def _here(self, asked: admin_pb2.ScaleTopicRequest) -> admin_pb2.ResizedTopic:
        own = self._broker.settings.broker_name
        if asked.dry_run:
            topic, remains = look(self._broker, asked.topic)
        else:
            topic, remains = await leave(self._broker, asked.topic, close_unread=asked.close_unread, force=asked.force)
        return admin_pb2.ResizedTopic(
            broker_name=own,
            entry=entry_of(topic.name, counts_of(own, topic, draining=self._broker.draining)),
            unfinished=map(unfinished_message, remains.unfinished[:UNFINISHED_TOLD_MAX]),
            unread=remains.unread,
            stored=remains.stored,
            delayed=remains.delayed,
            gone=remains.gone,
        )


def unfinished_message(one: Unfinished) -> admin_pb2.UnfinishedQueue:
    """What a group has to read of a queue, on the wire."""
    queue = queue_message(one.queue)
    return admin_pb2.UnfinishedQueue(queue=queue, group=one.group, lag=one.lag, inflight=one.inflight)
