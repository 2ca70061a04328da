"""`evenq.v1.Peers/LiteSubscriptions` at a copy's address for the other copies: what a leader knows of lite consumers.

The others keep it, so that whichever leads next begins with it (`loops.replication.lite_sets`). A copy that does not
serve clients has nothing to tell.
"""

from __future__ import annotations

from collections.abc import Callable

from evenq.errors import BadRequest, HaNotAvailable
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.stubs.evenq.v1 import peers_pb2
from evenq_broker.loops.replication.lite_sets import METHOD
from evenq_broker.loops.wire.lite import LiteNews, lite_news
from evenq_broker.rpc.access import rpc
from evenq_broker.rpc.answers import parsed

__all__ = ["lite_set_rpcs"]


def lite_set_rpcs(broker_name: str, news: Callable[[int], LiteNews | None]) -> list[Rpc]:
    """The call of this module. `news`: of the term that this copy leads, from a known version; None: it leads none."""

    async def lite_subscriptions(data: bytes, _context: RpcContext) -> bytes:
        request = parsed(peers_pb2.LiteSubscriptionsRequest, data)
        if request.broker_name != broker_name:
            raise BadRequest(f"this is a copy of broker group {broker_name}, not of {request.broker_name[:80]!r}")
        newest = news(request.known)
        if newest is None:
            raise HaNotAvailable(f"this copy of broker group {broker_name} does not lead: ask its leader")
        return lite_news(newest)

    return [rpc(METHOD, lite_subscriptions, peers_pb2.LiteSubscriptionsResponse)]
