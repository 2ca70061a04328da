"""`evenq.v1.Admin`: the brokers and the cluster at a glance, those that are missing included.

Any broker answers for the whole cluster: it asks the others and adds up, one that does not answer is listed as silent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenq.errors import Error
from evenq.model.names import is_system_topic
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.routes import BrokerView
from evenq_broker.loops.translation import broker_info
from evenq_broker.rpc.access import rpc
from evenq_broker.rpc.answers import parsed

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["rpcs"]

SERVICE = "/evenq.v1.Admin/"
OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")


def rpcs(broker: Broker) -> list[Rpc]:
    """The calls of this module."""
    cluster = _Cluster(broker)
    return [
        rpc(SERVICE + "ListBrokers", cluster.brokers, admin_pb2.ListBrokersResponse),
        rpc(SERVICE + "DescribeCluster", cluster.describe, admin_pb2.DescribeClusterResponse),
    ]


class _Cluster:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def brokers(self, request: bytes, _context: RpcContext) -> bytes:
        parsed(admin_pb2.ListBrokersRequest, request)
        summaries, _, missing = await self._all()
        return admin_pb2.ListBrokersResponse(status=OK, brokers=summaries, missing=missing).SerializeToString()

    async def describe(self, request: bytes, _context: RpcContext) -> bytes:
        asked = parsed(admin_pb2.DescribeClusterRequest, request)
        cluster = self._broker.cluster
        if asked.local:
            summaries, groups, missing = [self._own()], len(self._broker.groups), cluster.known.missing()
        else:
            summaries, groups, missing = await self._all()
        topics = self._broker.routes.topics()
        return admin_pb2.DescribeClusterResponse(
            status=OK,
            cluster=self._broker.settings.cluster,
            brokers=summaries,
            nameservers=cluster.nameservers,
            rebalancer=self._broker.settings.rebalancer,
            rebalancer_answers=cluster.rebalancer is not None and cluster.rebalancer.connected,
            topics=len([name for name in topics if not is_system_topic(name)]),
            groups=groups,
            missing=missing,
        ).SerializeToString()

    async def _all(self) -> tuple[list[admin_pb2.BrokerSummary], int, list[admin_pb2.MissingBroker]]:
        told = admin_pb2.DescribeClusterRequest(local=True).SerializeToString()
        answers = await self._broker.cluster.ask_peers(SERVICE + "DescribeCluster", told)
        summaries, groups = [self._own()], len(self._broker.groups)
        missing = {one.name: one for one in self._broker.cluster.known.missing()}
        for name, answer in answers:
            view = self._broker.routes.broker(name)
            if not isinstance(answer, Error):
                response = admin_pb2.DescribeClusterResponse.FromString(answer)
                summaries.extend(response.brokers)
                groups = max(groups, response.groups)
                missing |= {one.name: one for one in response.missing if one.name not in missing}
            elif view is not None:
                summaries.append(_silent(view))
        there = {summary.broker.name for summary in summaries}
        gone = [missing[name] for name in sorted(missing) if name not in there]
        return sorted(summaries, key=lambda summary: summary.broker.name), groups, gone

    def _own(self) -> admin_pb2.BrokerSummary:
        own = self._broker.cluster.own()
        return admin_pb2.BrokerSummary(
            broker=broker_info(own),
            topics=len(own.topics),
            messages_in=self._broker.stats.messages_in,
            messages_out=self._broker.stats.messages_out,
            answered=True,
            log_bytes=self._broker.store.stats.log_bytes,
            connections=len(self._broker.members),
            draining=self._broker.draining,
        )


def _silent(view: BrokerView) -> admin_pb2.BrokerSummary:
    return admin_pb2.BrokerSummary(broker=broker_info(view), topics=len(view.topics), answered=False)
