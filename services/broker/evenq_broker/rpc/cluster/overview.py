"""`evenq.v1.Admin`: overview of the brokers and the cluster, including missing brokers; and the calling user.

Any broker answers for the whole cluster: it queries the others and merges their answers. One without an answer is
listed as silent.
"""

from __future__ import annotations

from dataclasses import dataclass

from evenq.errors import Error
from evenq.model.names import is_system_topic
from evenq.serving.auth.calls import rpc
from evenq.serving.auth.users import User
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.loops.assignment.rebalancer_link import RebalancerLink
from evenq_broker.loops.cluster.change_sender import ChangeSender
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.cluster import missing_messages
from evenq_broker.loops.wire.translation import broker_info
from evenq_broker.rpc.answers import OK, parsed
from evenq_broker.rpc.cluster.broker_groups import own_group

SERVICE = "/evenq.v1.Admin/"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Overview:
    """The merged answers of brokers."""

    brokers: list[admin_pb2.BrokerSummary]
    groups: int
    missing: list[admin_pb2.MissingBroker]
    broker_groups: list[admin_pb2.BrokerGroup]


class ClusterOverview:
    def __init__(
        self,
        kernel: Kernel,
        *,
        cluster: ClusterLink,
        membership: GroupTables,
        rebalancer: RebalancerLink | None,
        change_sender: ChangeSender,
    ) -> None:
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._cluster, self._membership, self._rebalancer = cluster, membership, rebalancer
        self._change_sender = change_sender

    def rpcs(self) -> list[Rpc]:
        return [
            rpc(SERVICE + "ListBrokers", self.brokers),
            rpc(SERVICE + "DescribeCluster", self.describe),
            rpc(SERVICE + "DescribeCaller", self.describe_caller),
        ]

    async def brokers(self, data: bytes, _context: RpcContext) -> bytes:
        parsed(admin_pb2.ListBrokersRequest, data)
        response = await self._all()
        return admin_pb2.ListBrokersResponse(
            status=OK, brokers=response.brokers, missing=response.missing
        ).SerializeToString()

    async def describe(self, data: bytes, _context: RpcContext) -> bytes:
        request = parsed(admin_pb2.DescribeClusterRequest, data)
        response = self._here() if request.local else await self._all()
        topics = self._catalog.routes.topics()
        return admin_pb2.DescribeClusterResponse(
            status=OK,
            cluster=self._runtime.settings.cluster,
            brokers=response.brokers,
            nameservers=self._cluster.nameservers,
            rebalancer=self._runtime.settings.rebalancer,
            rebalancer_answers=self._rebalancer is not None and self._rebalancer.connected,
            topics=len([name for name in topics if not is_system_topic(name)]),
            groups=response.groups,
            missing=response.missing,
            broker_groups=response.broker_groups,
        ).SerializeToString()

    async def describe_caller(self, data: bytes, context: RpcContext) -> bytes:
        """Returns the calling user and its grants, as this broker has them: so it learns what it may do without trying
        it. The answer has nothing about other users, and no secret.
        """
        parsed(admin_pb2.DescribeCallerRequest, data)
        response = admin_pb2.DescribeCallerResponse(status=OK, broker_name=self._runtime.settings.broker_name)
        caller = context.caller
        if isinstance(caller, User):
            response.user, response.admin = caller.name, caller.unbound
            for resource, actions in caller.grants():
                response.grants.add(resource=resource, actions=actions)
        return response.SerializeToString()

    def _here(self) -> _Overview:
        return _Overview(
            brokers=[self._own()],
            groups=len(self._catalog.groups),
            missing=missing_messages(self._cluster.known.missing(), self._change_sender.unconfirmed.waiting()),
            broker_groups=[own_group(self._runtime)],
        )

    async def _all(self) -> _Overview:
        local_request = admin_pb2.DescribeClusterRequest(local=True).SerializeToString()
        answers = await self._cluster.peers.ask_peers(SERVICE + "DescribeCluster", local_request)
        own = self._here()
        summaries, groups, broker_groups = own.brokers, own.groups, own.broker_groups
        missing = {one.name: one for one in own.missing}
        for name, result in answers:
            view = self._catalog.routes.broker(name)
            if not isinstance(result, Error):
                response = admin_pb2.DescribeClusterResponse.FromString(result)
                summaries.extend(response.brokers)
                groups = max(groups, response.groups)
                broker_groups.extend(response.broker_groups)
                missing |= {one.name: one for one in response.missing if one.name not in missing}
            elif view is not None:
                summaries.append(_silent(view))
        there = {summary.broker.name for summary in summaries}
        gone = [missing[name] for name in sorted(missing) if name not in there]
        return _Overview(
            brokers=sorted(summaries, key=lambda summary: summary.broker.name),
            groups=groups,
            missing=gone,
            broker_groups=sorted(broker_groups, key=lambda group: group.broker_name),
        )

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
