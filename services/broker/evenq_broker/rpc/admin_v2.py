"""`apache.rocketmq.v2.Admin` (wire contract 1.3): no SDK calls it. What is cheap is real; the rest says where to look
instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evenq.errors import GroupNotFound, NotImplementedYet, TopicNotFound
from evenq.serving.rpc import Rpc, RpcContext, Unary
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2, definition_pb2
from evenq_broker.core.resources import qualified
from evenq_broker.rpc.access import ADMIN_V2, rpc
from evenq_broker.rpc.answers import parsed

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["rpcs"]

_NOT_YET: dict[str, Any] = {
    "ChangeLogLevel": admin_pb2.ChangeLogLevelResponse,
    "ListSubscription": admin_pb2.ListSubscriptionResponse,
    "DescribeSubscription": admin_pb2.DescribeSubscriptionResponse,
    "DeleteSubscription": admin_pb2.DeleteSubscriptionResponse,
    "ListConsumerConnection": admin_pb2.ListConsumerConnectionResponse,
    "ResetGroupOffset": admin_pb2.ResetGroupOffsetResponse,
    "QueryMessage": admin_pb2.ListMessageResponse,
    "PrintThreadStackTrace": admin_pb2.PrintThreadStackTraceResponse,
    "VerifyMessage": admin_pb2.VerifyMessageResponse,
    "AdminSendMessage": admin_pb2.AdminSendMessageResponse,
    "GetConsumerRunningInfo": admin_pb2.GetConsumerRunningInfoResponse,
    "GetTopicRoute": admin_pb2.GetTopicRouteResponse,
    "QueryTimeSpan": admin_pb2.QueryTimeSpanResponse,
}


def rpcs(broker: Broker) -> list[Rpc]:
    """All 16 calls."""
    admin = _Admin(broker)
    return [
        *(rpc(ADMIN_V2 + name, _not_yet(name), response) for name, response in _NOT_YET.items()),
        rpc(ADMIN_V2 + "DescribeTopicStatus", admin.topic_status, admin_pb2.DescribeTopicStatusResponse),
        rpc(ADMIN_V2 + "DescribeGroupAccumulation", admin.accumulation, admin_pb2.DescribeGroupAccumulationResponse),
        rpc(ADMIN_V2 + "GetProxyRuntimeStats", admin.stats, admin_pb2.GetProxyRuntimeStatsResponse),
    ]


def _not_yet(name: str) -> Unary:
    async def refuse(request: bytes, context: RpcContext) -> bytes:  # noqa: ARG001
        raise NotImplementedYet(
            f"{name} is not served by this version; `evenq.v1.Admin` and the command line have the rest"
        )

    return refuse


class _Admin:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def topic_status(self, request: bytes, context: RpcContext) -> bytes:
        asked = parsed(admin_pb2.DescribeTopicStatusRequest, request)
        name = qualified(asked.topic, context.namespace)
        topic = self._broker.topics.get(name)
        if topic is None:
            raise TopicNotFound(f"no topic {name!r} on broker {self._broker.settings.broker_name}")
        answer = admin_pb2.DescribeTopicStatusResponse()
        answer.status.code = definition_pb2.OK
        kind = str(topic.message_type)
        if kind != "MIXED":  # the protocol has no word for it
            answer.topic_message_type = definition_pb2.MessageType.Value(kind)
        return answer.SerializeToString()

    async def accumulation(self, request: bytes, context: RpcContext) -> bytes:
        asked = parsed(admin_pb2.DescribeGroupAccumulationRequest, request)
        broker = self._broker
        name = qualified(asked.group, context.namespace)
        group = broker.groups.get(name)
        if group is None:
            raise GroupNotFound(f"no consumer group {name!r} on broker {broker.settings.broker_name}")
        answer = admin_pb2.DescribeGroupAccumulationResponse()
        answer.status.code = definition_pb2.OK
        for queue in broker.progress.queues():
            topic = broker.topics.by_id(queue.topic_id)
            if queue.group_id != group.group_id or topic is None:
                continue
            high = broker.store.queue_range(queue.topic_id, queue.queue_id)[1]
            running = len(queue.pending)
            fresh = max(0, high - queue.next)
            for total in (answer.accumulation, answer.topic_accumulation[topic.name]):
                total.inflight_messages += running
                total.ready_messages += fresh
                total.accumulation += running + fresh
        return answer.SerializeToString()

    async def stats(self, request: bytes, context: RpcContext) -> bytes:  # noqa: ARG002
        parsed(admin_pb2.GetProxyRuntimeStatsRequest, request)
        broker = self._broker
        producers, consumers = broker.clients.counts()
        answer = admin_pb2.GetProxyRuntimeStatsResponse(
            proxy_name=broker.settings.broker_name,
            connections=len(broker.clients),
            producers=producers,
            consumers=consumers,
        )
        answer.status.code = definition_pb2.OK
        return answer.SerializeToString()
