"""`apache.rocketmq.v2.Admin` (wire contract 1.3), all 16 calls: topics, routes and the broker itself are here, groups
in `admin_v2_groups`, messages and questions to clients in `admin_v2_messages`.

No SDK calls any of it. Each call works at every broker and tells about the whole cluster: it asks the others with the
mark of a forwarded call, which they answer from their own.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from evenq.errors import BadRequest, TopicNotFound
from evenq.model import MessageType
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2, definition_pb2
from evenq_broker.rpc import admin_v2_groups, admin_v2_messages
from evenq_broker.rpc.access import ADMIN_V2, rpc
from evenq_broker.rpc.answers import parsed

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["rpcs"]

log = logging.getLogger(__name__)

OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")
_LEVELS = {0: logging.DEBUG, 1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_RATE_MIN_MS = 1_000
_PERMISSION_READ, _PERMISSION_WRITE = 4, 2  # of the remoting protocol, in GetTopicRoute's text


def rpcs(broker: Broker) -> list[Rpc]:
    """All 16 calls."""
    admin = _Admin(broker)
    return [
        rpc(ADMIN_V2 + "ChangeLogLevel", admin.log_level, admin_pb2.ChangeLogLevelResponse),
        rpc(ADMIN_V2 + "DescribeTopicStatus", admin.topic_status, admin_pb2.DescribeTopicStatusResponse),
        rpc(ADMIN_V2 + "GetTopicRoute", admin.topic_route, admin_pb2.GetTopicRouteResponse),
        rpc(ADMIN_V2 + "GetProxyRuntimeStats", admin.stats, admin_pb2.GetProxyRuntimeStatsResponse),
        *admin_v2_groups.rpcs(broker),
        *admin_v2_messages.rpcs(broker),
    ]


class _Admin:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sample = (broker.clock.monotonic_ms(), 0, 0)
        self._rates = (0.0, 0.0)

    async def log_level(self, request: bytes, _context: RpcContext) -> bytes:
        """Of this process, until its next start."""
        asked = parsed(admin_pb2.ChangeLogLevelRequest, request)
        level = _LEVELS.get(asked.level)
        if level is None:
            raise BadRequest(f"log level {asked.level} is unknown; give 0 (TRACE) to 4 (ERROR)")
        before = logging.getLevelName(logging.root.level)
        logging.root.setLevel(level)
        now = logging.getLevelName(level)
        log.warning("log level changed", extra={"before": before, "now": now})
        own = self._broker.settings.broker_name
        remark = f"broker {own} logs {now} and worse, was {before}; its setting log_level counts again after a restart"
        return admin_pb2.ChangeLogLevelResponse(remark=remark).SerializeToString()

    async def topic_status(self, request: bytes, context: RpcContext) -> bytes:
        asked = parsed(admin_pb2.DescribeTopicStatusRequest, request, context)
        name = asked.topic.name
        topic = self._broker.topics.get(name)
        route = self._broker.routes.route(name)
        if topic is None and not route:
            raise TopicNotFound(f"no topic {name!r} on any live broker; create it with `evenq topic create {name}`")
        kind = topic.message_type if topic is not None else route[0].counts.message_type
        answer = admin_pb2.DescribeTopicStatusResponse(status=OK)
        if kind is not MessageType.MIXED:  # the protocol has no word for it
            answer.topic_message_type = definition_pb2.MessageType.Value(str(kind))
        queues = sum(at.counts.read_queues for at in route)
        answer.description = f"{queues} readable queues on {len(route)} brokers"
        return answer.SerializeToString()

    async def topic_route(self, request: bytes, context: RpcContext) -> bytes:
        """The route as JSON text, in the words of RocketMQ's `TopicRouteData`."""
        asked = parsed(admin_pb2.GetTopicRouteRequest, request, context)
        name = asked.topic.name
        route = self._broker.routes.route(name)
        if not route:
            raise TopicNotFound(f"no topic {name!r} on any live broker; create it with `evenq topic create {name}`")
        told = {
            "brokerDatas": [
                {
                    "brokerAddrs": {str(at.broker.broker_id): at.broker.address(context.listener).target},
                    "brokerName": at.broker.name,
                    "cluster": at.broker.cluster,
                }
                for at in route
            ],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": at.broker.name,
                    "perm": _PERMISSION_READ * at.counts.permission.readable
                    + _PERMISSION_WRITE * at.counts.permission.writable,
                    "readQueueNums": at.counts.read_queues,
                    "topicSysFlag": 0,
                    "writeQueueNums": at.counts.write_queues,
                }
                for at in route
            ],
        }
        return admin_pb2.GetTopicRouteResponse(status=OK, topic_route_data=json.dumps(told)).SerializeToString()

    async def stats(self, request: bytes, _context: RpcContext) -> bytes:
        """Of the broker asked. Rates count since the call before (a second ago at least), at first since the start."""
        parsed(admin_pb2.GetProxyRuntimeStatsRequest, request)
        broker = self._broker
        self._measure()
        producers, consumers = broker.clients.counts()
        return admin_pb2.GetProxyRuntimeStatsResponse(
            status=OK,
            proxy_name=broker.settings.broker_name,
            version=broker.cluster.own().version,
            in_tps=self._rates[0],
            out_tps=self._rates[1],
            connections=len(broker.clients),
            producers=producers,
            consumers=consumers,
        ).SerializeToString()

    def _measure(self) -> None:
        now_ms, stats = self._broker.clock.monotonic_ms(), self._broker.stats
        then_ms, messages_in, messages_out = self._sample
        passed_ms = now_ms - then_ms
        if passed_ms >= _RATE_MIN_MS:
            came, went = stats.messages_in - messages_in, stats.messages_out - messages_out
            self._rates = max(0, came) * 1_000 / passed_ms, max(0, went) * 1_000 / passed_ms
            self._sample = now_ms, stats.messages_in, stats.messages_out
