"""`evenq.v1.Data`: offsets, marks and stored records of whole queues, for readers without a group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from evenq.client.core.reading.extents import QueueExtent
from evenq.client.rpc.calls import DATA, Calls
from evenq.client.rpc.translation import model_queue, wire_queue
from evenq.model import MessageQueue
from evenq.wire.status import check
from evenq.wire.stubs.evenq.v1 import data_pb2

BLOCK_BYTES: Final = 1 << 20
RECORDS_VERSION: Final = 1


class ScanCalls(Calls):
    """Calls of one reader."""

    async def extents(self, address: str, queues: Sequence[MessageQueue]) -> list[QueueExtent]:
        """Returns the offsets of queues of one broker."""
        response = await self._query(address, data_pb2.QueryOffsetsRequest(queues=map(wire_queue, queues)))
        return [
            QueueExtent(
                queue=model_queue(one.queue),
                address=address,
                low=one.min_offset,
                high=one.max_offset,
                uid=one.uid,
            )
            for one in response.offsets
        ]

    async def mark(self, address: str, queue: MessageQueue, before: int) -> str:
        """Returns the mark of the message before an offset; empty: it does not exist."""
        request = data_pb2.QueryOffsetsRequest(queues=[wire_queue(queue)], mark_at=[before])
        return "".join(one.mark for one in (await self._query(address, request)).offsets)

    def scan(
        self, address: str, queue: MessageQueue, start: int, end: int, *, uid: str, verifies: bool
    ) -> AsyncIterator[bytes]:
        """Opens a scan of whole records."""
        request = data_pb2.ScanRequest(queue=wire_queue(queue), start=start, end=end, block_bytes=BLOCK_BYTES, uid=uid)
        request.records.version = RECORDS_VERSION
        request.records.head = request.records.system = True
        request.records.verifies = verifies
        return self.stream(address, DATA + "Scan", request.SerializeToString(), timeout_ms=None)

    async def _query(self, address: str, request: data_pb2.QueryOffsetsRequest) -> data_pb2.QueryOffsetsResponse:
        response = data_pb2.QueryOffsetsResponse.FromString(
            await self.unary(address, DATA + "QueryOffsets", request.SerializeToString())
        )
        check(response.status)
        return response
