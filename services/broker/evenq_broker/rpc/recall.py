"""RecallMessage (wire contract 3.13): take a delayed message back before its time. Recalling twice is OK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenq.errors import BadRequest
from evenq.serving.rpc import RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq_broker.core.frames import text_field
from evenq_broker.core.recalls import recall_broker_of
from evenq_broker.rpc.answers import OK_STATUS, parsed
from evenq_broker.rpc.forwarding import forward, owner_of

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["Recalling"]


class Recalling:
    """The handler of RecallMessage."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def recall(self, request: bytes, context: RpcContext) -> bytes:
        """End the message's timer, here or at the broker that keeps it."""
        broker = self._broker
        asked = parsed(service_pb2.RecallMessageRequest, request, context)
        address = owner_of(broker, recall_broker_of(asked.recall_handle), context)
        if address is not None:
            return await forward(broker, address, request, context)
        named = broker.recalls.read(asked.recall_handle)
        topic = broker.topics.by_id(named.topic_id)
        name = asked.topic.name
        if topic is None or topic.name != name:
            raise BadRequest(f"the recall handle is not of topic {name!r}; give the topic that the message was sent to")
        recalled = await broker.store.cancel_timers([named.timer_id])
        if not recalled:
            self._must_be_recalled_before(named.timer_id, named.due_ms)
        return OK_STATUS + text_field(2, named.message_id)

    def _must_be_recalled_before(self, timer_id: int, due_ms: int) -> None:
        if due_ms <= self._broker.clock.now_ms():
            raise BadRequest(f"the message was due at {due_ms} ms since the epoch and is delivered; it is too late")
        stats = self._broker.store.stats
        if timer_id < stats.log_end - stats.log_bytes:
            raise BadRequest(
                "the message was sent longer ago than the broker keeps its log, and cannot be recalled by this handle "
                "any more; it will be delivered"
            )
