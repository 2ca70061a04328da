"""`evenq.v1.Peers/LiteSubscriptions` at a copy: keeps the leader's lite subscriptions, in case it leads next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from evenq.errors import BadRequest
from evenq.serving.auth.calls import rpc
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.stubs.evenq.v1 import peers_pb2
from evenq_broker.core.lite.subscriptions import LiteSet
from evenq_broker.loops.replication.lite_sets import METHOD
from evenq_broker.loops.wire.lite import lite_sets_in
from evenq_broker.rpc.answers import OK, parsed


def lite_set_rpcs(broker_name: str, keep: Callable[[Sequence[LiteSet]], None]) -> list[Rpc]:
    """Returns the call of this module. `keep` takes the subscriptions."""

    async def lite_subscriptions(data: bytes, _context: RpcContext) -> bytes:
        request = parsed(peers_pb2.LiteSubscriptionsRequest, data)
        if request.broker_name != broker_name:
            raise BadRequest(f"this is a copy of broker group {broker_name}, not of {request.broker_name[:80]!r}")
        keep(lite_sets_in(request.sets))
        return peers_pb2.LiteSubscriptionsResponse(status=OK).SerializeToString()

    return [rpc(METHOD, lite_subscriptions)]
