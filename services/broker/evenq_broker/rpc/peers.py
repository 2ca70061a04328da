"""`evenq.v1.Peers`: what brokers say to each other about parked polls. The work is that of `loops.wide_polls`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from evenq.serving.rpc import Kind, Rpc, RpcContext
from evenq.wire.stubs.evenq.v1 import peers_pb2
from evenq_broker.rpc.access import rpc

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["rpcs"]


def rpcs(broker: Broker) -> list[Rpc]:
    """The one call of this module."""

    def interest(requests: AsyncIterator[bytes], _context: RpcContext) -> AsyncIterator[bytes]:
        return broker.wide_polls.serve(requests)

    return [rpc("/evenq.v1.Peers/Interest", interest, peers_pb2.InterestEvent, Kind.BIDI)]
