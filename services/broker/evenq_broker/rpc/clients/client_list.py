"""`evenq.v1.Admin/ListClients`: all who talk to the cluster, producers and consumers of both protocols.

Each broker tells whom it knows; the broker asked adds up: a client with calls at three brokers is one row.
"""

from __future__ import annotations

from evenq.errors import Error
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.groups.members import Member, Protocol
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.loops.clients.connected import ConnectedClients
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.loops.wire.translation import member_message, queue_message
from evenq_broker.rpc.access import rpc
from evenq_broker.rpc.answers import parsed
from evenq_broker.runtime import Runtime

__all__ = ["clients_everywhere", "rpcs"]

METHOD = "/evenq.v1.Admin/ListClients"
OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")
EVENQ_CONSUMER = "EVENQ_CONSUMER"


def rpcs(
    runtime: Runtime, ledger: Ledger, *, cluster: ClusterLink, membership: GroupTables, clients: ConnectedClients
) -> list[Rpc]:
    """The call of this module."""

    async def listed(data: bytes, _context: RpcContext) -> bytes:
        request = parsed(admin_pb2.ListClientsRequest, data)
        if request.local:
            return _here(runtime, ledger, request.group, membership=membership, clients=clients).SerializeToString()
        return (
            await clients_everywhere(
                runtime, ledger, request.group, cluster=cluster, membership=membership, clients=clients
            )
        ).SerializeToString()

    return [rpc(METHOD, listed, admin_pb2.ListClientsResponse)]


async def clients_everywhere(
    runtime: Runtime,
    ledger: Ledger,
    group: str = "",
    *,
    cluster: ClusterLink,
    membership: GroupTables,
    clients: ConnectedClients,
) -> admin_pb2.ListClientsResponse:
    """All clients, or those of one group, ascending by group and id."""
    local_request = admin_pb2.ListClientsRequest(group=group, local=True).SerializeToString()
    answers = await cluster.ask_all(METHOD, local_request)
    response = _here(runtime, ledger, group, membership=membership, clients=clients)
    by_key = {(one.group, one.client_id): one for one in response.clients}
    for name, other in answers:
        if isinstance(other, Error):
            response.silent.append(name)
            continue
        part = admin_pb2.ListClientsResponse.FromString(other)
        check(part.status)
        for one in part.clients:
            known = by_key.setdefault((one.group, one.client_id), one)
            if known is not one:
                _add(known, one)
    ordered = [by_key[key] for key in sorted(by_key)]
    return admin_pb2.ListClientsResponse(status=OK, clients=ordered, silent=response.silent)


def _here(
    runtime: Runtime, ledger: Ledger, group: str, *, membership: GroupTables, clients: ConnectedClients
) -> admin_pb2.ListClientsResponse:
    response = admin_pb2.ListClientsResponse(status=OK)
    held = _held(ledger)
    names = [group] if group else membership.members.groups()
    members = [(name, member) for name in names for member in membership.members.members(name)]
    response.clients.extend(
        _consumer(runtime, name, member, held, membership=membership, clients=clients) for name, member in members
    )
    if not group:
        known = {member.client_id for _, member in members}
        for client_id, client in clients.table.all():
            if client_id not in known:
                response.clients.append(
                    _summary(runtime, client_id, _kind(client.client_type), client.group, held, clients=clients)
                )
    return response


def _consumer(
    runtime: Runtime,
    group: str,
    member: Member,
    held: dict[str, int],
    *,
    membership: GroupTables,
    clients: ConnectedClients,
) -> admin_pb2.ClientSummary:
    client = clients.table.get(member.client_id)
    v2 = member.protocol is Protocol.V2
    kind = _kind(client.client_type if client is not None else 0) if v2 else EVENQ_CONSUMER
    summary = _summary(runtime, member.client_id, kind, group, held, clients=clients)
    wire = member_message(member)
    summary.language, summary.version, summary.protocol = wire.language, wire.version, wire.protocol
    summary.joined_ms = wire.joined_ms
    summary.subscriptions.extend(wire.subscriptions)
    owned = sorted(membership.locks.held(group, member.client_id))
    summary.owned.extend(queue_message(queue) for queue in owned)
    return summary


def _summary(
    runtime: Runtime, client_id: str, kind: str, group: str, held: dict[str, int], *, clients: ConnectedClients
) -> admin_pb2.ClientSummary:
    own = runtime.settings.broker_name
    client = clients.table.get(client_id)
    return admin_pb2.ClientSummary(
        client_id=client_id,
        kind=kind,
        group=group,
        protocol="v2",
        last_seen_ms=0 if client is None else client.here_ms,
        brokers=[own],
        command_brokers=[own] if clients.streams.reaches(client_id) else [],
        inflight=held.get(client_id, 0),
    )


def _kind(number: int) -> str:
    known = definition_pb2.ClientType.values()
    return definition_pb2.ClientType.Name(number) if number and number in known else "UNKNOWN"  # type: ignore[arg-type]  # any int of the wire


def _held(ledger: Ledger) -> dict[str, int]:
    counts: dict[str, int] = {}
    for queue in ledger.progress.queues():
        end = ledger.store.queue_range(queue.topic_id, queue.queue_id)[1]
        for offset, entry in queue.pending.items():
            if entry.client_id and offset < end:
                counts[entry.client_id] = counts.get(entry.client_id, 0) + 1
    return counts


def _add(known: admin_pb2.ClientSummary, other: admin_pb2.ClientSummary) -> None:
    known.brokers.extend(other.brokers)
    known.command_brokers.extend(other.command_brokers)
    known.owned.extend(other.owned)
    known.inflight += other.inflight
    known.last_seen_ms = max(known.last_seen_ms, other.last_seen_ms)
    if other.joined_ms and (not known.joined_ms or other.joined_ms < known.joined_ms):
        known.joined_ms = other.joined_ms
    if known.kind in {"", "UNKNOWN"}:
        known.kind = other.kind
    if not known.subscriptions:
        known.subscriptions.extend(other.subscriptions)
    known.language, known.version = known.language or other.language, known.version or other.version
