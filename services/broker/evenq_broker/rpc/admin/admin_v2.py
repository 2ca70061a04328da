"""`apache.rocketmq.v2.Admin` (wire contract 1.3): calls about topics, routes and the broker itself. Groups are in
`admin_v2_groups`, messages and commands to clients in `admin_v2_messages`.

No SDK uses these 16 calls. Any broker answers for the whole cluster: it queries the others with the mark of a forwarded
call, which they answer from their own data.
"""

from __future__ import annotations

import json
import logging

from evenq.errors import BadRequest, TopicNotFound
from evenq.model import MessageType
from evenq.serving.auth.calls import ADMIN_V2, rpc
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2, definition_pb2
from evenq_broker.loops.clients.connected import ConnectedClients
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.rpc.answers import OK, parsed

log = logging.getLogger(__name__)

_LEVELS = {0: logging.DEBUG, 1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_RATE_MIN_MS = 1_000
_PERMISSION_READ, _PERMISSION_WRITE = 4, 2  # of the remoting protocol, in GetTopicRoute's text


class BrokerAdmin:
    def __init__(self, kernel: Kernel, *, cluster: ClusterLink, clients: ConnectedClients) -> None:
        self._runtime, self._catalog = kernel.runtime, kernel.catalog
        self._cluster, self._clients = cluster, clients
        self._sample = (kernel.runtime.clock.monotonic_ms(), 0, 0)
        self._rates = (0.0, 0.0)

    def rpcs(self) -> list[Rpc]:
        return [
            rpc(ADMIN_V2 + "ChangeLogLevel", self.log_level),
            rpc(ADMIN_V2 + "DescribeTopicStatus", self.topic_status),
            rpc(ADMIN_V2 + "GetTopicRoute", self.topic_route),
            rpc(ADMIN_V2 + "GetProxyRuntimeStats", self.stats),
        ]

    async def log_level(self, data: bytes, _context: RpcContext) -> bytes:
        """Changes the log level of this process until its next start."""
        request = parsed(admin_pb2.ChangeLogLevelRequest, data)
        level = _LEVELS.get(request.level)
        if level is None:
            raise BadRequest(f"log level {request.level} is unknown; give 0 (TRACE) to 4 (ERROR)")
        before = logging.getLevelName(logging.root.level)
        logging.root.setLevel(level)
        now = logging.getLevelName(level)
        log.warning("log level changed", extra={"before": before, "now": now})
        own = self._runtime.settings.broker_name
        remark = f"broker {own} logs {now} and above, before: {before}; a restart restores its setting log_level"
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
        if kind is not MessageType.MIXED:  # the protocol has no such type
            response.topic_message_type = definition_pb2.MessageType.Value(str(kind))
        queues = sum(at.counts.read_queues for at in route)
        response.description = f"{queues} readable queues on {len(route)} brokers"
        return response.SerializeToString()

    async def topic_route(self, data: bytes, context: RpcContext) -> bytes:
        """Returns the route as JSON text, with the keys of RocketMQ's `TopicRouteData`."""
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
        """Returns figures of this broker. Rates cover the time since the previous call (at least 1 s) or the start."""
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
