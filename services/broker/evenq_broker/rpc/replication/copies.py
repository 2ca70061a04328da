"""What each copy of a broker group answers at its address for the other copies, leader or not: `DescribeCluster`,
`ElectUnclean` and `ChangeCopies`.

Clients are served by a group's leader alone, once it serves; these calls are how an operator looks at a group that has
none, lets a copy lead that is not in sync, or lowers the minimum of a leader that waits for other copies. The copy
asked asks the others, a second each, and makes one view of it; what another copy has to do, it passes on, once.
"""

from __future__ import annotations

import asyncio

from evenq.errors import BadRequest, ConnectionFailed, Error, PreconditionFailed, RequestTimeout
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.replication.group_view import ReplicaGroupView, combined
from evenq_broker.core.replication.record import NO_LEADER, REASON_MAX
from evenq_broker.core.replication.unclean import UncleanOrder
from evenq_broker.loops.wire.broker_groups import election_message, group_message, group_of, lost_message
from evenq_broker.rpc.access import rpc
from evenq_broker.rpc.answers import parsed
from evenq_broker.rpc.copy_requests import change_of, check_address
from evenq_broker.runtime import GroupControl, Runtime

__all__ = ["copy_rpcs"]

METHOD = "/evenq.v1.Admin/DescribeCluster"
ELECT_UNCLEAN = "/evenq.v1.Admin/ElectUnclean"
CHANGE_COPIES = "/evenq.v1.Admin/ChangeCopies"
PASSED_ON = "x-evenq-passed-on"
"""On a call that another copy passed on: it is not passed on again."""
OTHERS_MS = 1_000
PASS_MS = 5_000
"""Longest wait for the answer of the copy that a call was passed on to, which asks the others itself."""
OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")


def copy_rpcs(runtime: Runtime, control: GroupControl) -> list[Rpc]:
    """The calls of this module."""
    copies = _Copies(runtime, control)
    return [
        rpc(METHOD, copies.describe, admin_pb2.DescribeClusterResponse),
        rpc(ELECT_UNCLEAN, copies.elect_unclean, admin_pb2.ElectUncleanResponse),
        rpc(CHANGE_COPIES, copies.change, admin_pb2.ChangeCopiesResponse),
    ]


class _Copies:
    def __init__(self, runtime: Runtime, control: GroupControl) -> None:
        self._runtime, self._control = runtime, control

    async def describe(self, data: bytes, _context: RpcContext) -> bytes:
        request = parsed(admin_pb2.DescribeClusterRequest, data)
        view = self._control.view() if request.local else await self._everywhere()
        return admin_pb2.DescribeClusterResponse(
            status=OK, cluster=self._runtime.settings.cluster, broker_groups=[group_message(view)]
        ).SerializeToString()

    async def elect_unclean(self, data: bytes, context: RpcContext) -> bytes:
        """The plan; or with the operator's consent the election, carried out by the copy that is to lead."""
        request = parsed(admin_pb2.ElectUncleanRequest, data)
        self._check_name(request.broker_name)
        order = _order(request)
        view = await self._everywhere()
        plan = self._control.unclean_plan(view, order)
        response = admin_pb2.ElectUncleanResponse(
            status=OK,
            group=group_message(view),
            suggested=plan.suggested,
            refusal=plan.refusal,
            lost=map(lost_message, plan.lost),
        )
        if request.accept_data_loss:
            if order is None:
                raise BadRequest("the request names no copy that is to lead")
            if plan.refusal:
                raise PreconditionFailed(
                    f"no unclean election of copy {order.copy}: {plan.refusal}. Nothing was changed"
                )
            if order.copy != self._own_id():
                return await self._pass(ELECT_UNCLEAN, data, context, view, order.copy)
            response.election.CopyFrom(election_message(await self._control.elect_unclean(view, order)))
        return response.SerializeToString()

    async def change(self, data: bytes, context: RpcContext) -> bytes:
        """As a leader serves it for clients, which one that waits for other copies does not do yet."""
        request = parsed(admin_pb2.ChangeCopiesRequest, data)
        change = change_of(request)
        self._check_name(request.broker_name)
        view = await self._everywhere()
        if view.leader not in {NO_LEADER, self._own_id()}:
            return await self._pass(CHANGE_COPIES, data, context, view, view.leader)
        check_address(change, view)
        view = await self._control.change(change)
        return admin_pb2.ChangeCopiesResponse(status=OK, group=group_message(view)).SerializeToString()

    def _own_id(self) -> int:
        return self._control.view().told_by

    def _check_name(self, name: str) -> None:
        own = self._runtime.settings.broker_name
        if name != own:
            raise BadRequest(f"this is a copy of broker group {own}, not of {name[:80]!r}: ask a copy of that one")

    async def _everywhere(self) -> ReplicaGroupView:
        """As all copies see it that answer."""
        view = self._control.view()
        others = [one.address for one in view.copies if one.copy != view.told_by and one.address]
        answers = await asyncio.gather(*map(self._ask, others))
        return combined([view, *(one for one in answers if one is not None)])

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

    async def _pass(self, method: str, data: bytes, context: RpcContext, view: ReplicaGroupView, copy: int) -> bytes:
        known = view.copy(copy)
        if PASSED_ON in context.headers or known is None or not known.address:
            raise PreconditionFailed(f"copy {copy} of broker group {view.broker_name} must be asked itself; try again")
        try:
            return await self._runtime.net.unary(
                known.address, method, data, timeout_ms=PASS_MS, metadata={PASSED_ON: "1"}
            )
        except (ConnectionFailed, RequestTimeout) as error:
            raise ConnectionFailed(
                f"copy {copy} of broker group {view.broker_name} at {known.address} did not answer: {error.message}. "
                "Look with `evenq cluster show` whether it was done"
            ) from error


def _order(request: admin_pb2.ElectUncleanRequest) -> UncleanOrder | None:
    """Raises BadRequest."""
    if len(request.reason) > REASON_MAX:
        raise BadRequest(f"the reason has {len(request.reason)} characters, at most {REASON_MAX} are kept: shorten it")
    if not request.HasField("copy"):
        return None
    return UncleanOrder(
        copy=request.copy, reason=request.reason, despite_better=request.despite_better, epoch=request.epoch
    )
