"""EndTransaction (wire contract 3.13), answered by any broker for all; and RelayCheck, with which a broker asks a
producer that is connected to another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenq.errors import InvalidTransactionId
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.status import OK
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import data_pb2
from evenq_broker.core.halves import transaction_broker_of
from evenq_broker.core.transactions import Outcome
from evenq_broker.loops.transactions import RELAY
from evenq_broker.rpc.access import rpc
from evenq_broker.rpc.answers import OK_STATUS, parsed
from evenq_broker.rpc.forwarding import forward, owner_of

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["Ending", "rpcs"]

_OUTCOMES = {1: Outcome.COMMITTED, 2: Outcome.ROLLED_BACK}


class Ending:
    """The handler of EndTransaction."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def end(self, request: bytes, context: RpcContext) -> bytes:
        """Commit or roll back, here or at the broker that keeps it; without a resolution nothing changes."""
        broker = self._broker
        asked = parsed(service_pb2.EndTransactionRequest, request, context)
        if not asked.transaction_id:
            raise InvalidTransactionId("the transaction id is empty; give the one that SendMessage answered")
        address = owner_of(broker, transaction_broker_of(asked.transaction_id), context)
        if address is not None:
            return await forward(broker, address, request, context)
        named = broker.transactions.ids.read(asked.transaction_id)
        topic = broker.topics.by_id(named.topic_id)
        if topic is None or (asked.topic.name and topic.name != asked.topic.name):
            raise InvalidTransactionId(
                f"the transaction is not of topic {asked.topic.name!r}; give the topic that the message was sent to"
            )
        outcome = _OUTCOMES.get(asked.resolution)
        if outcome is not None:
            await broker.transactions.end(named.number, outcome)
        return OK_STATUS


def rpcs(broker: Broker) -> list[Rpc]:
    """What brokers ask each other."""

    async def relay_check(request: bytes, _context: RpcContext) -> bytes:
        asked = parsed(data_pb2.RelayCheckRequest, request)
        sent = broker.transactions.push_check(asked.topic, asked.client_id, asked.command)
        status = definition_pb2.Status(code=OK, message="OK")  # type: ignore[arg-type]  # a number of the enum
        return data_pb2.RelayCheckResponse(status=status, sent=bool(sent)).SerializeToString()

    return [rpc(RELAY, relay_check, data_pb2.RelayCheckResponse)]
