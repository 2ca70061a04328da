"""`apache.rocketmq.v2.Admin` (wire contract 1.3), all 16 calls: topics, routes and the broker itself are here, groups
in `admin_v2_groups`, messages and questions to clients in `admin_v2_messages`.

No SDK calls any of it. Each call works at every broker and tells about the whole cluster: it asks the others with the
mark of a forwarded call, which they answer from their own.
"""

from __future__ import annotations

import json
import logging

from evenq.errors import BadRequest, TopicNotFound
from evenq.model import MessageType
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2, definition_pb2
from evenq_broker.loops.clients.connected import ConnectedClients
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.rpc.access import ADMIN_V2, rpc
from evenq_broker.rpc.answers import parsed
from evenq_broker.runtime import Runtime

__all__ = ["rpcs"]

log = logging.getLogger(__name__)

OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")
_LEVELS = {0: logging.DEBUG, 1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_RATE_MIN_MS = 1_000
_PERMISSION_READ, _PERMISSION_WRITE = 4, 2  # of the remoting protocol, in GetTopicRoute's text


def rpcs(runtime: Runtime, catalog: Catalog, *, cluster: ClusterLink, clients: ConnectedClients) -> list[Rpc]:
    """The calls of this module."""
    admin = _Admin(runtime, catalog, cluster=cluster, clients=clients)
    return [
        rpc(ADMIN_V2 + "ChangeLogLevel", admin.log_level, admin_pb2.ChangeLogLevelResponse),
        rpc(ADMIN_V2 + "DescribeTopicStatus", admin.topic_status, admin_pb2.DescribeTopicStatusResponse),
        rpc(ADMIN_V2 + "GetTopicRoute", admin.topic_route, admin_pb2.GetTopicRouteResponse),
        rpc(ADMIN_V2 + "GetProxyRuntimeStats", admin.stats, admin_pb2.GetProxyRuntimeStatsResponse),
    ]


class _Admin:
    def __init__(self, runtime: Runtime, catalog: Catalog, *, cluster: ClusterLink, clients: ConnectedClients) -> None:
        self._runtime, self._catalog = runtime, catalog
        self._cluster, self._clients = cluster, clients
        self._sample = (runtime.clock.monotonic_ms(), 0, 0)
        self._rates = (0.0, 0.0)

    async def log_level(self, data: bytes, _context: RpcContext) -> bytes:
        """Of this process, until its next start."""
        request = parsed(admin_pb2.ChangeLogLevelRequest, data)
        level = _LEVELS.get(request.level)
        if level is None:
            raise BadRequest(f"log level {request.level} is unknown; give 0 (TRACE) to 4 (ERROR)")
        before = logging.getLevelName(logging.root.level)
        logging.root.setLevel(level)
        now = logging.getLevelName(level)
        log.warning("log level changed", extra={"before": before, "now": now})
        own = self._runtime.settings.broker_name
        remark = f"broker {own} logs {now} and worse, was {before}; its setting log_level counts again after a restart"
        return admin_pb2.ChangeLogLevelResponse(remark=remark).SerializeToString()

    async def topic_status(self, data: bytes, context: RpcContext) -> bytes:
        request = parsed(admin_pb2.DescribeTopicStatusRequest, data, context)
        name = request.topic.name
        topic = self._catalog.topics.get(name)
        route = self._catalog.routes.route(name)
        if topic is None and not route:
            raise TopicNotFound(f"no topic {name!r} on any live broker; create it with `evenq topic create {name}`")
        kind = topic.message_type if topic is not None else route[0].counts.message_type
        response = admin_pb2.DescribeTopicStatusResponse(status=OK)
        if kind is not MessageType.MIXED:  # the protocol has no word for it
            response.topic_message_type = definition_pb2.MessageType.Value(str(kind))
        queues = sum(at.counts.read_queues for at in route)
        response.description = f"{queues} readable queues on {len(route)} brokers"
        return response.SerializeToString()

    async def topic_route(self, data: bytes, context: RpcContext) -> bytes:
        """The route as JSON text, in the words of RocketMQ's `TopicRouteData`."""
        request = parsed(admin_pb2.GetTopicRouteRequest, data, context)
        name = request.topic.name
        route = self._catalog.routes.route(name)
        if not route:
            raise TopicNotFound(f"no topic {name!r} on any live broker; create it with `evenq topic create {name}`")
        content = {
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
        return admin_pb2.GetTopicRouteResponse(status=OK, topic_route_data=json.dumps(content)).SerializeToString()

    async def stats(self, data: bytes, _context: RpcContext) -> bytes:
        """Of the broker asked. Rates count since the call before (a second ago at least), at first since the start."""
        parsed(admin_pb2.GetProxyRuntimeStatsRequest, data)
        self._measure()
        producers, consumers = self._clients.table.counts()
        return admin_pb2.GetProxyRuntimeStatsResponse(
            status=OK,
            proxy_name=self._runtime.settings.broker_name,
            version=self._cluster.own.now().version,
            in_tps=self._rates[0],
            out_tps=self._rates[1],
            connections=len(self._clients.table),
            producers=producers,
            consumers=consumers,
        ).SerializeToString()

    def _measure(self) -> None:
        now_ms, stats = self._runtime.clock.monotonic_ms(), self._runtime.stats
        then_ms, messages_in, messages_out = self._sample
        passed_ms = now_ms - then_ms
        if passed_ms >= _RATE_MIN_MS:
            came, went = stats.messages_in - messages_in, stats.messages_out - messages_out
            self._rates = max(0, came) * 1_000 / passed_ms, max(0, went) * 1_000 / passed_ms
            self._sample = now_ms, stats.messages_in, stats.messages_out
