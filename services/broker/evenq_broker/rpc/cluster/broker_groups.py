"""`evenq.v1.Admin`: broker groups, at any broker: a call about another group is forwarded to its leader."""

from __future__ import annotations

from evenq.errors import BadRequest, ConnectionFailed, NotFound, PreconditionFailed, RequestTimeout
from evenq.serving.auth.calls import rpc
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.replication.group_view import one_copy
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.broker_groups import group_message
from evenq_broker.rpc.answers import OK, parsed
from evenq_broker.rpc.copy_requests import change_of, check_address
from evenq_broker.runtime import GroupControl, Runtime

METHOD = "/evenq.v1.Admin/MoveLeader"
CHANGE_COPIES = "/evenq.v1.Admin/ChangeCopies"
ELECT_UNCLEAN = "/evenq.v1.Admin/ElectUnclean"


def own_group(runtime: Runtime) -> admin_pb2.BrokerGroup:
    """Returns the group of this broker on the wire; a broker without other copies is a group of one."""
    leadership = runtime.leadership
    if leadership.group is not None:
        return group_message(leadership.group.view())
    address = runtime.addresses[0].address if runtime.addresses else ""
    return group_message(one_copy(runtime.settings.broker_name, broker_id=0, epoch=leadership.epoch, address=address))


class BrokerGroupHandler:
    def __init__(self, kernel: Kernel, *, cluster: ClusterLink) -> None:
        self._runtime, self._catalog, self._cluster = kernel.runtime, kernel.catalog, cluster

    def rpcs(self) -> list[Rpc]:
        return [
            rpc(METHOD, self.move),
            rpc(CHANGE_COPIES, self.change),
            rpc(ELECT_UNCLEAN, self.elect_unclean),
        ]

    async def move(self, data: bytes, _context: RpcContext) -> bytes:
        request = parsed(admin_pb2.MoveLeaderRequest, data)
        name = request.broker_name
        if self._is_elsewhere(name):
            return await self._pass(name, METHOD, data)
        group = self._own(name, "no other one can lead")
        view = group.view()
        leader, epoch = view.leader, view.epoch
        # An older epoch: a repeated request whose answer was lost with the connection to the old leader.
        if not 0 < request.epoch < epoch:
            handed = await group.hand_over(request.to if request.HasField("to") else None)
            leader, epoch = handed.leader, handed.epoch
        return admin_pb2.MoveLeaderResponse(status=OK, leader=leader, epoch=epoch).SerializeToString()

    async def change(self, data: bytes, _context: RpcContext) -> bytes:
        request = parsed(admin_pb2.ChangeCopiesRequest, data)
        change = change_of(request)
        name = request.broker_name
        if self._is_elsewhere(name):
            return await self._pass(name, CHANGE_COPIES, data)
        group = self._own(name, "it is not a group of copies")
        check_address(change, group.view())
        view = await group.change(change)
        return admin_pb2.ChangeCopiesResponse(status=OK, group=group_message(view)).SerializeToString()

    async def elect_unclean(self, data: bytes, _context: RpcContext) -> bytes:
        """Refuses: a group that serves here has a leader. Copies without one answer at `rpc.replication.copies`."""
        request = parsed(admin_pb2.ElectUncleanRequest, data)
        name = request.broker_name
        if self._is_elsewhere(name):
            raise PreconditionFailed(
                f"send the request to a copy of broker group {name}, at its address in replication.members: `evenq "
                f"broker elect-unclean {name} --endpoint HOST:PORT`; brokers do not forward it"
            )
        view = self._own(name, "there is no other copy to lead").view()
        raise PreconditionFailed(f"broker group {name} has a leader, copy {view.leader}, in epoch {view.epoch}")

    def _is_elsewhere(self, name: str) -> bool:
        if not name:
            raise BadRequest("the request names no broker group; `evenq cluster show` lists them")
        return name != self._runtime.settings.broker_name

    def _own(self, name: str, but: str) -> GroupControl:
        group = self._runtime.leadership.group
        if group is None:
            raise PreconditionFailed(
                f"broker {name} has one copy: {but}. docs/operating/replication.md describes how its data becomes the "
                "first copy of a group"
            )
        return group

    async def _pass(self, name: str, method: str, data: bytes) -> bytes:
        await self._cluster.facts_settled()
        routes = self._catalog.routes
        if routes.broker(name) is None:
            if any(one.name == name for one in self._cluster.known.missing()):
                raise PreconditionFailed(
                    f"broker group {name} has no leader now, so no copy can hand over; see the state of its copies "
                    "with `evenq cluster show --endpoint HOST:PORT` and the address of one of them"
                )
            names = ", ".join(view.name for view in routes.brokers())
            raise NotFound(f"no broker group is named {name!r}; the cluster has {names}")
        try:
            return await self._cluster.peers.ask(name, method, data)
        except (ConnectionFailed, RequestTimeout) as error:
            raise ConnectionFailed(f"the leader of broker group {name} did not answer: {error.message}") from error
