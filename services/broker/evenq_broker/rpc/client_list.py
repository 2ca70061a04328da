"""`evenq.v1.Admin/ListClients`: everybody who talks to the cluster, producers and consumers of both protocols.

Each broker tells whom it knows; the broker asked adds up: a client with calls at three brokers is one row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenq.errors import Error
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.members import Member, Protocol
from evenq_broker.loops.translation import member_message, queue_message
from evenq_broker.rpc.access import rpc
from evenq_broker.rpc.answers import parsed

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["clients_everywhere", "rpcs"]

METHOD = "/evenq.v1.Admin/ListClients"
OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")
EVENQ_CONSUMER = "EVENQ_CONSUMER"


def rpcs(broker: Broker) -> list[Rpc]:
    """The call of this module."""

    async def clients(request: bytes, _context: RpcContext) -> bytes:
        asked = parsed(admin_pb2.ListClientsRequest, request)
        if asked.local:
            return _here(broker, asked.group).SerializeToString()
        return (await clients_everywhere(broker, asked.group)).SerializeToString()

    return [rpc(METHOD, clients, admin_pb2.ListClientsResponse)]


async def clients_everywhere(broker: Broker, group: str = "") -> admin_pb2.ListClientsResponse:
    """All clients, or those of one group, ascending by group and id."""
    told = admin_pb2.ListClientsRequest(group=group, local=True).SerializeToString()
    answers = await broker.cluster.ask_peers(METHOD, told)
    answer = _here(broker, group)
    found = {(one.group, one.client_id): one for one in answer.clients}
    for name, other in answers:
        if isinstance(other, Error):
            answer.silent.append(name)
            continue
        part = admin_pb2.ListClientsResponse.FromString(other)
        check(part.status)
        for one in part.clients:
            known = found.setdefault((one.group, one.client_id), one)
            if known is not one:
                _add(known, one)
    ordered = [found[key] for key in sorted(found)]
    return admin_pb2.ListClientsResponse(status=OK, clients=ordered, silent=answer.silent)


def _here(broker: Broker, group: str) -> admin_pb2.ListClientsResponse:
    answer = admin_pb2.ListClientsResponse(status=OK)
    held = _held(broker)
    names = [group] if group else broker.members.groups()
    members = [(name, member) for name in names for member in broker.members.members(name)]
    answer.clients.extend(_consumer(broker, name, member, held) for name, member in members)
    if not group:
        known = {member.client_id for _, member in members}
        for client_id, client in broker.clients.all():
            if client_id not in known:
                answer.clients.append(_summary(broker, client_id, _kind(client.client_type), client.group, held))
    return answer


def _consumer(broker: Broker, group: str, member: Member, held: dict[str, int]) -> admin_pb2.ClientSummary:
    client = broker.clients.get(member.client_id)
    v2 = member.protocol is Protocol.V2
    kind = _kind(client.client_type if client is not None else 0) if v2 else EVENQ_CONSUMER
    summary = _summary(broker, member.client_id, kind, group, held)
    wire = member_message(member)
    summary.language, summary.version, summary.protocol = wire.language, wire.version, wire.protocol
    summary.joined_ms = wire.joined_ms
    summary.subscriptions.extend(wire.subscriptions)
    owned = sorted(broker.locks.held(group, member.client_id))
    summary.owned.extend(queue_message(queue) for queue in owned)
    return summary


def _summary(broker: Broker, client_id: str, kind: str, group: str, held: dict[str, int]) -> admin_pb2.ClientSummary:
    own = broker.settings.broker_name
    client = broker.clients.get(client_id)
    return admin_pb2.ClientSummary(
        client_id=client_id,
        kind=kind,
        group=group,
        protocol="v2",
        last_seen_ms=0 if client is None else client.last_ms,
        brokers=[own],
        command_brokers=[own] if broker.streams.reaches(client_id) else [],
        inflight=held.get(client_id, 0),
    )


def _kind(number: int) -> str:
    known = definition_pb2.ClientType.values()
    return definition_pb2.ClientType.Name(number) if number and number in known else "UNKNOWN"  # type: ignore[arg-type]  # any int of the wire


def _held(broker: Broker) -> dict[str, int]:
    counts: dict[str, int] = {}
    for queue in broker.progress.queues():
        for entry in queue.pending.values():
            if entry.client_id:
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
