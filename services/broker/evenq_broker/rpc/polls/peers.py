"""`evenq.v1.Peers`: calls between brokers about polls, group settings, lite topics, clients and missed changes."""

from __future__ import annotations

from collections.abc import AsyncIterator

from evenq.serving.auth.calls import rpc
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.stubs.evenq.v1 import peers_pb2
from evenq_broker.core.lite.subscriptions import Subscriber
from evenq_broker.loops.cluster.change_sender import ChangeSender
from evenq_broker.loops.groups.departures import Departures
from evenq_broker.loops.groups.settings import GroupSettings
from evenq_broker.loops.lite.lite_topics import Lites
from evenq_broker.loops.polls.cluster_polls import ClusterPolls
from evenq_broker.loops.wire.cluster import changes_of
from evenq_broker.loops.wire.peers import lite_set_messages
from evenq_broker.rpc.answers import OK, parsed
from evenq_broker.rpc.cluster.forwarding import caller_of


def rpcs(
    *,
    cluster_polls: ClusterPolls,
    lite: Lites,
    group_settings: GroupSettings,
    departures: Departures,
    change_sender: ChangeSender,
) -> list[Rpc]:
    def interest(requests: AsyncIterator[bytes], _context: RpcContext) -> AsyncIterator[bytes]:
        return cluster_polls.serve(requests)

    async def settings_of_groups(data: bytes, _context: RpcContext) -> bytes:
        request = parsed(peers_pb2.GroupSettingsRequest, data)
        return group_settings.answer(request.broker_name, back=request.back, after=request.after)

    async def lite_subscriptions(_request: bytes, _context: RpcContext) -> bytes:
        return peers_pb2.LiteSubscriptionsResponse(
            status=OK, sets=lite_set_messages(lite.newest_sets())
        ).SerializeToString()

    async def lite_ready(data: bytes, context: RpcContext) -> bytes:
        request = parsed(peers_pb2.LiteReadyRequest, data)
        who = Subscriber(request.client_id, request.group, request.topic)
        ready = await lite.ready(who, request.wait_ms, user=caller_of(context))
        return peers_pb2.LiteReadyResponse(status=OK, ready=ready).SerializeToString()

    async def clients(data: bytes, _context: RpcContext) -> bytes:
        request = parsed(peers_pb2.ClientsRequest, data)
        known = departures.answer(request.ended, request.asked)
        return peers_pb2.ClientsResponse(
            status=OK, alive=known.alive, silent_ms=known.alive.values(), gone=sorted(known.gone)
        ).SerializeToString()

    async def catalog_changes(data: bytes, _context: RpcContext) -> bytes:
        refused = await change_sender.take(changes_of(parsed(peers_pb2.CatalogChangesRequest, data)))
        return peers_pb2.CatalogChangesResponse(status=OK, refused=refused).SerializeToString()

    return [
        rpc("/evenq.v1.Peers/CatalogChanges", catalog_changes),
        rpc("/evenq.v1.Peers/Clients", clients),
        rpc("/evenq.v1.Peers/LiteReady", lite_ready),
        rpc("/evenq.v1.Peers/Interest", interest),
        rpc("/evenq.v1.Peers/GroupSettings", settings_of_groups),
        rpc("/evenq.v1.Peers/LiteSubscriptions", lite_subscriptions),
    ]
