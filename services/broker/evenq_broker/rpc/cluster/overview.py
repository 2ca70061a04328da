"""`evenq.v1.Admin`: the brokers and the cluster at a glance, those that are missing included.

Any broker answers for the whole cluster: it asks the others and adds up, one that does not answer is listed as silent.
"""

from __future__ import annotations

from evenq.errors import Error
from evenq.model.names import is_system_topic
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.loops.assignment.rebalancer_link import RebalancerLink
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.loops.wire.translation import broker_info
from evenq_broker.rpc.access import rpc
from evenq_broker.rpc.answers import parsed
from evenq_broker.runtime import Runtime

__all__ = ["rpcs"]

SERVICE = "/evenq.v1.Admin/"
OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")


def rpcs(
    runtime: Runtime,
    catalog: Catalog,
    ledger: Ledger,
    *,
    cluster: ClusterLink,
    membership: GroupTables,
    rebalancer: RebalancerLink | None,
) -> list[Rpc]:
    """The calls of this module."""
    overview = _Cluster(runtime, catalog, ledger, cluster=cluster, membership=membership, rebalancer=rebalancer)
    return [
        rpc(SERVICE + "ListBrokers", overview.brokers, admin_pb2.ListBrokersResponse),
        rpc(SERVICE + "DescribeCluster", overview.describe, admin_pb2.DescribeClusterResponse),
    ]


class _Cluster:
    def __init__(
        self,
        runtime: Runtime,
        catalog: Catalog,
        ledger: Ledger,
        *,
        cluster: ClusterLink,
        membership: GroupTables,
        rebalancer: RebalancerLink | None,
    ) -> None:
        self._runtime, self._catalog, self._ledger = runtime, catalog, ledger
        self._cluster, self._membership, self._rebalancer = cluster, membership, rebalancer

    async def brokers(self, data: bytes, _context: RpcContext) -> bytes:
        parsed(admin_pb2.ListBrokersRequest, data)
        summaries, _, missing = await self._all()
        return admin_pb2.ListBrokersResponse(status=OK, brokers=summaries, missing=missing).SerializeToString()

    async def describe(self, data: bytes, _context: RpcContext) -> bytes:
        request = parsed(admin_pb2.DescribeClusterRequest, data)
        if request.local:
            summaries, groups, missing = [self._own()], len(self._catalog.groups), self._cluster.known.missing()
        else:
            summaries, groups, missing = await self._all()
        topics = self._catalog.routes.topics()
        return admin_pb2.DescribeClusterResponse(
            status=OK,
            cluster=self._runtime.settings.cluster,
            brokers=summaries,
            nameservers=self._cluster.nameservers,
            rebalancer=self._runtime.settings.rebalancer,
            rebalancer_answers=self._rebalancer is not None and self._rebalancer.connected,
            topics=len([name for name in topics if not is_system_topic(name)]),
            groups=groups,
            missing=missing,
        ).SerializeToString()

    async def _all(self) -> tuple[list[admin_pb2.BrokerSummary], int, list[admin_pb2.MissingBroker]]:
        local_request = admin_pb2.DescribeClusterRequest(local=True).SerializeToString()
        answers = await self._cluster.peers.ask_peers(SERVICE + "DescribeCluster", local_request)
        summaries, groups = [self._own()], len(self._catalog.groups)
        missing = {one.name: one for one in self._cluster.known.missing()}
        for name, result in answers:
            view = self._catalog.routes.broker(name)
            if not isinstance(result, Error):
                response = admin_pb2.DescribeClusterResponse.FromString(result)
                summaries.extend(response.brokers)
                groups = max(groups, response.groups)
                missing |= {one.name: one for one in response.missing if one.name not in missing}
            elif view is not None:
                summaries.append(_silent(view))
        there = {summary.broker.name for summary in summaries}
        gone = [missing[name] for name in sorted(missing) if name not in there]
        return sorted(summaries, key=lambda summary: summary.broker.name), groups, gone

    def _own(self) -> admin_pb2.BrokerSummary:
        own = self._cluster.own.now()
        return admin_pb2.BrokerSummary(
            broker=broker_info(own),
            topics=len(own.topics),
            messages_in=self._runtime.stats.messages_in,
            messages_out=self._runtime.stats.messages_out,
            answered=True,
            log_bytes=self._ledger.store.stats.log_bytes,
            connections=len(self._membership.members),
            draining=self._catalog.draining,
        )


def _silent(view: RegisteredBroker) -> admin_pb2.BrokerSummary:
    return admin_pb2.BrokerSummary(broker=broker_info(view), topics=len(view.topics), answered=False)
