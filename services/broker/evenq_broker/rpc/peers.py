"""`evenq.v1.Peers`: what brokers say to each other about parked polls, settings of groups, and what clients want of
lite topics.

The work is that of `loops.wide_polls`, `loops.group_settings` and `loops.lite`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from evenq.serving.rpc import Kind, Rpc, RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import peers_pb2
from evenq_broker.core.lite_subscriptions import Subscriber
from evenq_broker.rpc.access import rpc
from evenq_broker.rpc.answers import parsed

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["rpcs"]

OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")


def rpcs(broker: Broker) -> list[Rpc]:
    """The calls of this module."""

    def interest(requests: AsyncIterator[bytes], _context: RpcContext) -> AsyncIterator[bytes]:
        return broker.wide_polls.serve(requests)

    async def group_settings(request: bytes, _context: RpcContext) -> bytes:
        asked = parsed(peers_pb2.GroupSettingsRequest, request)
        return broker.group_settings.answer(asked).SerializeToString()

    async def lite_subscriptions(_request: bytes, _context: RpcContext) -> bytes:
        return peers_pb2.LiteSubscriptionsResponse(status=OK, sets=broker.lite.told()).SerializeToString()

    async def lite_ready(request: bytes, _context: RpcContext) -> bytes:
        asked = parsed(peers_pb2.LiteReadyRequest, request)
        who = Subscriber(asked.client_id, asked.group, asked.topic)
        return peers_pb2.LiteReadyResponse(
            status=OK, ready=await broker.lite.ready(who, asked.wait_ms)
        ).SerializeToString()

    return [
        rpc("/evenq.v1.Peers/LiteReady", lite_ready, peers_pb2.LiteReadyResponse),
        rpc("/evenq.v1.Peers/Interest", interest, peers_pb2.InterestEvent, Kind.BIDI),
        rpc("/evenq.v1.Peers/GroupSettings", group_settings, peers_pb2.GroupSettingsResponse),
        rpc("/evenq.v1.Peers/LiteSubscriptions", lite_subscriptions, peers_pb2.LiteSubscriptionsResponse),
    ]
