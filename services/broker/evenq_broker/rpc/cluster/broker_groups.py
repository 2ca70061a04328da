"""`evenq.v1.Admin`: broker groups, each the copies of one broker's data: how they are, and which of them leads.

Any broker answers: what concerns another group goes on to the broker that leads it.
"""

from __future__ import annotations

from evenq.errors import BadRequest, ConnectionFailed, NotFound, PreconditionFailed, RequestTimeout
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.replication.group_view import one_copy
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.wire.broker_groups import group_message
from evenq_broker.rpc.access import rpc
from evenq_broker.rpc.answers import parsed
from evenq_broker.runtime import Runtime

__all__ = ["own_group", "rpcs"]

METHOD = "/evenq.v1.Admin/MoveLeader"
OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")


def rpcs(runtime: Runtime, catalog: Catalog, *, cluster: ClusterLink) -> list[Rpc]:
    """The calls of this module."""
    return [rpc(METHOD, _BrokerGroups(runtime, catalog, cluster=cluster).move, admin_pb2.MoveLeaderResponse)]


def own_group(runtime: Runtime) -> admin_pb2.BrokerGroup:
    """The group of this broker, on the wire; a broker without other copies is a group of one."""
    leadership = runtime.leadership
    if leadership.group is not None:
        return group_message(leadership.group.view())
    address = runtime.addresses[0].address if runtime.addresses else ""
    return group_message(one_copy(runtime.settings.broker_name, broker_id=0, epoch=leadership.epoch, address=address))


class _BrokerGroups:
    def __init__(self, runtime: Runtime, catalog: Catalog, *, cluster: ClusterLink) -> None:
        self._runtime, self._catalog, self._cluster = runtime, catalog, cluster

    async def move(self, data: bytes, _context: RpcContext) -> bytes:
        request = parsed(admin_pb2.MoveLeaderRequest, data)
        name = request.broker_name
        if not name:
            raise BadRequest("the request names no broker group; `evenq cluster show` lists them")
        if name != self._runtime.settings.broker_name:
            return await self._pass(name, data)
        group = self._runtime.leadership.group
        if group is None:
            raise PreconditionFailed(
                f"broker {name} has one copy: no other one can lead. A group of copies begins with empty folders "
                "(docs/operating/replication.md)"
            )
        view = group.view()
        leader, epoch = view.leader, view.epoch
        # An older epoch: a repeat of what was done, whose answer was lost with the old leader's connection.
        if not 0 < request.epoch < epoch:
            handed = await group.hand_over(request.to if request.HasField("to") else None)
            leader, epoch = handed.leader, handed.epoch
        return admin_pb2.MoveLeaderResponse(status=OK, leader=leader, epoch=epoch).SerializeToString()

    async def _pass(self, name: str, data: bytes) -> bytes:
        await self._cluster.facts_settled()
        routes = self._catalog.routes
        if routes.broker(name) is None:
            if any(one.name == name for one in self._cluster.known.missing()):
                raise PreconditionFailed(
                    f"broker group {name} has no leader now, so nobody can hand over; `evenq cluster show --endpoint "
                    "HOST:PORT` with the address of one of its copies says how they are"
                )
            names = ", ".join(view.name for view in routes.brokers())
            raise NotFound(f"no broker group is named {name!r}; the cluster has {names}")
        try:
            return await self._cluster.peers.ask(name, METHOD, data)
        except (ConnectionFailed, RequestTimeout) as error:
            raise ConnectionFailed(f"the leader of broker group {name} did not answer: {error.message}") from error
