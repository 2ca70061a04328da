"""RecallMessage (wire contract 3.13): cancels a delayed message before its time. Recalling twice is OK."""

from __future__ import annotations

from datetime import UTC, datetime

from evenq.errors import BadRequest
from evenq.serving.rpc import RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq_broker.core.sending.recalls import recall_broker_of
from evenq_broker.core.state.frames import text_field
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.rpc.answers import OK_STATUS, parsed
from evenq_broker.rpc.cluster.forwarding import forward, owner_of


class RecallHandler:
    def __init__(self, kernel: Kernel, *, cluster: ClusterLink) -> None:
        self._kernel = kernel
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._cluster = cluster

    async def recall(self, data: bytes, context: RpcContext) -> bytes:
        """Cancels the message's timer, here or at the broker that keeps it."""
        request = parsed(service_pb2.RecallMessageRequest, data, context)
        address = owner_of(self._kernel, recall_broker_of(request.recall_handle), context, cluster=self._cluster)
        if address is not None:
            return await forward(self._runtime, address, data, context)
        named = self._ledger.recalls.read(request.recall_handle)
        topic = self._catalog.topics.by_id(named.topic_id)
        name = request.topic.name
        if topic is None or topic.name != name:
            raise BadRequest(f"the recall handle is not of topic {name!r}; give the topic that the message was sent to")
        recalled = await self._ledger.store.cancel_timers([named.timer_id])
        if not recalled:
            self._must_be_recalled_before(named.timer_id, named.due_ms)
        return OK_STATUS + text_field(2, named.message_id)

    def _must_be_recalled_before(self, timer_id: int, due_ms: int) -> None:
        if due_ms <= self._runtime.clock.now_ms():
            raise BadRequest(
                f"the message was due at {_utc(due_ms)}: it is too late to recall it. It is delivered, "
                "unless it was recalled before"
            )
        stats = self._ledger.store.stats
        if timer_id < stats.log_end - stats.log_bytes:
            raise BadRequest(
                "the message is older than the log that the broker keeps, so this handle cannot recall it any more; it "
                "will be delivered"
            )


def _utc(at_ms: int) -> str:
    """Returns the time as people read it; the broker's own time zone would mislead clients elsewhere."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
