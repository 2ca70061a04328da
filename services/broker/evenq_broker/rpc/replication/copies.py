"""`DescribeCluster` as each copy of a broker group serves it at its address for the other copies, leader or not.

Clients are served by a group's leader alone; this call is how an operator looks at a group that has none. The copy
asked asks the others, a second each, and makes one view of it.
"""

from __future__ import annotations

import asyncio

from evenq.errors import Error
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.replication.group_view import ReplicaGroupView, combined
from evenq_broker.loops.wire.broker_groups import group_message, group_of
from evenq_broker.rpc.access import rpc
from evenq_broker.rpc.answers import parsed
from evenq_broker.runtime import GroupControl, Runtime

__all__ = ["copy_rpcs"]

METHOD = "/evenq.v1.Admin/DescribeCluster"
OTHERS_MS = 1_000
OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")


def copy_rpcs(runtime: Runtime, control: GroupControl) -> list[Rpc]:
    """The calls of this module."""
    return [rpc(METHOD, _Copies(runtime, control).describe, admin_pb2.DescribeClusterResponse)]


class _Copies:
    def __init__(self, runtime: Runtime, control: GroupControl) -> None:
        self._runtime, self._control = runtime, control

    async def describe(self, data: bytes, _context: RpcContext) -> bytes:
        request = parsed(admin_pb2.DescribeClusterRequest, data)
        view = self._control.view()
        if not request.local:
            others = [one.address for one in view.copies if one.copy != view.told_by and one.address]
            answers = await asyncio.gather(*map(self._ask, others))
            view = combined([view, *(one for one in answers if one is not None)])
        return admin_pb2.DescribeClusterResponse(
            status=OK, cluster=self._runtime.settings.cluster, broker_groups=[group_message(view)]
        ).SerializeToString()

    async def _ask(self, address: str) -> ReplicaGroupView | None:
        """What another copy knows; None: it does not answer, or for another group."""
        request = admin_pb2.DescribeClusterRequest(local=True).SerializeToString()
        try:
            data = await self._runtime.net.unary(address, METHOD, request, timeout_ms=OTHERS_MS)
            response = admin_pb2.DescribeClusterResponse.FromString(data)
            check(response.status)
        except Error:
            return None
        own = self._runtime.settings.broker_name
        return next((group_of(one) for one in response.broker_groups if one.broker_name == own), None)
