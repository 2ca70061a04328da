"""`DescribeCluster`, `ElectUnclean` and `ChangeCopies` at the address of each copy for the other copies.

Only a leader that serves answers clients. With these calls an operator inspects a group without a leader, or makes a
copy lead that is not in sync. They also lower the minimum of a leader that waits for other copies. The copy queries the
others, 1 s each, and merges their views. A request for another copy is forwarded to it, once.
"""

from __future__ import annotations

import asyncio

from evenq.errors import BadRequest, ConnectionFailed, Error, PreconditionFailed, RequestTimeout
from evenq.serving.auth.calls import rpc
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.status import check
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.replication.group_view import ReplicaGroupView, combined
from evenq_broker.core.replication.record import NO_LEADER, REASON_MAX
from evenq_broker.core.replication.unclean import UncleanOrder
from evenq_broker.loops.wire.broker_groups import election_message, group_message, group_of, lost_message
from evenq_broker.rpc.answers import OK, parsed
from evenq_broker.rpc.copy_requests import change_of, check_address
from evenq_broker.runtime import GroupControl, Runtime

METHOD = "/evenq.v1.Admin/DescribeCluster"
ELECT_UNCLEAN = "/evenq.v1.Admin/ElectUnclean"
CHANGE_COPIES = "/evenq.v1.Admin/ChangeCopies"
PASSED_ON = "x-evenq-passed-on"
"""Header of a call that another copy forwarded: it is not forwarded again."""
OTHERS_MS = 1_000
PASS_MS = 5_000
"""Longest wait for the answer to a forwarded call: that copy queries the others, too."""


def copy_rpcs(runtime: Runtime, control: GroupControl) -> list[Rpc]:
    copies = _Copies(runtime, control)
    return [
        rpc(METHOD, copies.describe),
        rpc(ELECT_UNCLEAN, copies.elect_unclean),
        rpc(CHANGE_COPIES, copies.change),
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
        """Returns the plan; with the operator's consent also the election, which the chosen copy carries out."""
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
                raise BadRequest("the request names no copy; give the copy that shall lead")
            if plan.refusal:
                raise PreconditionFailed(
                    f"no unclean election of copy {order.copy}: {plan.refusal}. Nothing was changed"
                )
            if order.copy != self._own_id():
                return await self._pass(ELECT_UNCLEAN, data, context, view, order.copy)
            response.election.CopyFrom(election_message(await self._control.elect_unclean(view, order)))
        return response.SerializeToString()

    async def change(self, data: bytes, context: RpcContext) -> bytes:
        """Changes the copies. A serving leader also does it for clients; one that waits for copies does not serve."""
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
            raise BadRequest(f"this is a copy of broker group {own}, not of {name[:80]!r}: call a copy of that group")

    async def _everywhere(self) -> ReplicaGroupView:
        """Returns the merged view of all copies that answer."""
        view = self._control.view()
        others = [one.address for one in view.copies if one.copy != view.told_by and one.address]
        answers = await asyncio.gather(*map(self._ask, others))
        return combined([view, *(one for one in answers if one is not None)])

    async def _ask(self, address: str) -> ReplicaGroupView | None:
        """Returns the view of another copy; None: it does not answer, or belongs to another group."""
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
            raise PreconditionFailed(f"copy {copy} of broker group {view.broker_name} must be called directly; retry")
        try:
            return await self._runtime.net.unary(
                known.address, method, data, timeout_ms=PASS_MS, metadata={PASSED_ON: "1"}
            )
        except (ConnectionFailed, RequestTimeout) as error:
            raise ConnectionFailed(
                f"copy {copy} of broker group {view.broker_name} at {known.address} did not answer: {error.message}. "
                "See with `evenq cluster show` whether it was done"
            ) from error


def _order(request: admin_pb2.ElectUncleanRequest) -> UncleanOrder | None:
    if len(request.reason) > REASON_MAX:
        raise BadRequest(f"the reason has {len(request.reason)} characters, the limit is {REASON_MAX}: shorten it")
    if not request.HasField("copy"):
        return None
    return UncleanOrder(
        copy=request.copy, reason=request.reason, despite_better=request.despite_better, epoch=request.epoch
    )
