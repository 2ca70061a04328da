"""EndTransaction (wire contract 3.13) at any broker, and RelayCheck between brokers."""

from __future__ import annotations

from evenq.errors import InvalidTransactionId
from evenq.serving.auth.calls import rpc
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.status import OK
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import data_pb2
from evenq_broker.core.transactions.half_messages import transaction_broker_of
from evenq_broker.core.transactions.table import TransactionOutcome
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.transactions.transactions import RELAY, Transactions
from evenq_broker.rpc.answers import OK_STATUS, parsed
from evenq_broker.rpc.cluster.forwarding import forward, owner_of

_OUTCOMES = {1: TransactionOutcome.COMMITTED, 2: TransactionOutcome.ROLLED_BACK}


class EndTransactionHandler:
    def __init__(self, kernel: Kernel, *, cluster: ClusterLink, transactions: Transactions) -> None:
        self._kernel = kernel
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._cluster, self._transactions = cluster, transactions

    async def end(self, data: bytes, context: RpcContext) -> bytes:
        """Commits or rolls back, here or at the broker of the transaction; without a resolution nothing changes."""
        request = parsed(service_pb2.EndTransactionRequest, data, context)
        if not request.transaction_id:
            raise InvalidTransactionId("the transaction id is empty; give the one that SendMessage returned")
        address = owner_of(self._kernel, transaction_broker_of(request.transaction_id), context, cluster=self._cluster)
        if address is not None:
            return await forward(self._runtime, address, data, context)
        named = self._ledger.transaction_ids.read(request.transaction_id)
        topic = self._catalog.topics.by_id(named.topic_id)
        if topic is None or (request.topic.name and topic.name != request.topic.name):
            raise InvalidTransactionId(
                f"the transaction is not of topic {request.topic.name!r}; give the topic that the message was sent to"
            )
        outcome = _OUTCOMES.get(request.resolution)
        if outcome is not None:
            await self._transactions.end(named.number, outcome)
        return OK_STATUS


def rpcs(*, transactions: Transactions) -> list[Rpc]:
    async def relay_check(data: bytes, _context: RpcContext) -> bytes:
        request = parsed(data_pb2.RelayCheckRequest, data)
        sent = transactions.push_check(
            request.topic, request.client_id, request.command, sender_only=request.sender_only
        )
        status = definition_pb2.Status(code=OK, message="OK")  # type: ignore[arg-type]  # a number of the enum
        return data_pb2.RelayCheckResponse(status=status, sent=bool(sent)).SerializeToString()

    return [rpc(RELAY, relay_check)]
