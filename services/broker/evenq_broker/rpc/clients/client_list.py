"""`evenq.v1.Admin/ListClients`: all clients of both protocols, merged over all brokers to one row each."""

from __future__ import annotations

from evenq.serving.auth.calls import rpc
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.groups.members import Member, Protocol
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.loops.clients.connected import ConnectedClients
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.translation import member_message, queue_message
from evenq_broker.rpc.answers import OK, answers_of, parsed

METHOD = "/evenq.v1.Admin/ListClients"
EVENQ_CONSUMER = "EVENQ_CONSUMER"


class ClientList:
    """The clients of this broker, and of all."""

    def __init__(
        self, kernel: Kernel, *, cluster: ClusterLink, membership: GroupTables, clients: ConnectedClients
    ) -> None:
        self._runtime, self._ledger = kernel.runtime, kernel.ledger
        self._cluster, self._membership, self._clients = cluster, membership, clients

    def rpcs(self) -> list[Rpc]:
        return [rpc(METHOD, self.listed)]

    async def listed(self, data: bytes, _context: RpcContext) -> bytes:
        request = parsed(admin_pb2.ListClientsRequest, data)
        response = self._here(request.group) if request.local else await self.everywhere(request.group)
        return response.SerializeToString()

    async def everywhere(self, group: str = "") -> admin_pb2.ListClientsResponse:
        """Returns all clients, or those of one group, ascending by group and id."""
        local_request = admin_pb2.ListClientsRequest(group=group, local=True).SerializeToString()
        answers = await self._cluster.ask_all(METHOD, local_request)
        response = self._here(group)
        by_key = {(one.group, one.client_id): one for one in response.clients}
        for part in answers_of(admin_pb2.ListClientsResponse, answers, silent=response.silent):
            for one in part.clients:
                known = by_key.setdefault((one.group, one.client_id), one)
                if known is not one:
                    _add(known, one)
        ordered = [by_key[key] for key in sorted(by_key)]
        return admin_pb2.ListClientsResponse(status=OK, clients=ordered, silent=response.silent)

    def _here(self, group: str) -> admin_pb2.ListClientsResponse:
        response = admin_pb2.ListClientsResponse(status=OK)
        held = self._held()
        names = [group] if group else self._membership.members.groups()
        members = [(name, member) for name in names for member in self._membership.members.members(name)]
        response.clients.extend(self._consumer(name, member, held) for name, member in members)
        if not group:
            known = {member.client_id for _, member in members}
            for client_id, client in self._clients.table.all():
                if client_id not in known:
                    response.clients.append(self._summary(client_id, _kind(client.client_type), client.group, held))
        return response

    def _consumer(self, group: str, member: Member, held: dict[str, int]) -> admin_pb2.ClientSummary:
        client = self._clients.table.get(member.client_id)
        v2 = member.protocol is Protocol.V2
        kind = _kind(client.client_type if client is not None else 0) if v2 else EVENQ_CONSUMER
        summary = self._summary(member.client_id, kind, group, held)
        wire = member_message(member)
        summary.language, summary.version, summary.protocol = wire.language, wire.version, wire.protocol
        summary.joined_ms = wire.joined_ms
        summary.subscriptions.extend(wire.subscriptions)
        owned = sorted(self._membership.locks.held(group, member.client_id))
        summary.owned.extend(queue_message(queue) for queue in owned)
        return summary

    def _summary(self, client_id: str, kind: str, group: str, held: dict[str, int]) -> admin_pb2.ClientSummary:
        own = self._runtime.settings.broker_name
        client = self._clients.table.get(client_id)
        return admin_pb2.ClientSummary(
            client_id=client_id,
            kind=kind,
            group=group,
            protocol="v2",
            last_seen_ms=0 if client is None else client.here_ms,
            brokers=[own],
            command_brokers=[own] if self._clients.streams.reaches(client_id) else [],
            inflight=held.get(client_id, 0),
        )

    def _held(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for queue in self._ledger.progress.queues():
            end = self._ledger.store.queue_range(queue.topic_id, queue.queue_id)[1]
            for offset, entry in queue.pending.items():
                if entry.client_id and offset < end:
                    counts[entry.client_id] = counts.get(entry.client_id, 0) + 1
        return counts


def _kind(number: int) -> str:
    known = definition_pb2.ClientType.values()
    return definition_pb2.ClientType.Name(number) if number and number in known else "UNKNOWN"  # type: ignore[arg-type]  # any int of the wire


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
