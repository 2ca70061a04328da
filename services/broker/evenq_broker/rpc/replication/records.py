"""`evenq.v1.Replication/FetchRecords`: records for another copy of the group whose own records are damaged.

Leaders and followers answer at their address for the other copies. Every byte is checked before it is sent. The source
decides which records may be sent (`loops.replication.record_repair`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from evenq.errors import BadRequest, TooManyRequests
from evenq.serving.auth.calls import rpc
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.stubs.evenq.v1 import replication_pb2 as pb
from evenq_broker.loops.replication.incoming_links import IncomingLinks
from evenq_broker.loops.wire.records import WantedRecords, record_pieces, wanted_of
from evenq_broker.rpc.answers import parsed

FETCHES_MAX = 2
"""Most answers that are read and sent at the same time."""


class RecordSource(Protocol):
    """Records of this copy's log that other copies may have."""

    async def given(self, wanted: WantedRecords) -> bytes:
        """Returns whole, checked records. Raises BadRequest, NotFound, HaNotAvailable."""
        ...


def record_rpcs(links: IncomingLinks, source: RecordSource) -> list[Rpc]:
    """Returns the call of this module. `links` knows the copies of the group."""
    serving = _Serving(links, source)

    def fetch_records(data: bytes, _context: RpcContext) -> AsyncIterator[bytes]:
        return serving.serve(data)

    return [rpc("/evenq.v1.Replication/FetchRecords", fetch_records)]


class _Serving:
    def __init__(self, links: IncomingLinks, source: RecordSource) -> None:
        self._links, self._source = links, source
        self._running = 0

    async def serve(self, data: bytes) -> AsyncIterator[bytes]:
        """Yields pieces. Raises the errors of `RecordSource`, and TooManyRequests."""
        who, wanted = wanted_of(parsed(pb.FetchRecordsRequest, data))
        fault = self._links.fault_of(who)
        if fault:
            raise BadRequest(fault)
        if self._running >= FETCHES_MAX:
            raise TooManyRequests(f"{FETCHES_MAX} answers with records are being sent, the maximum; retry")
        self._running += 1
        try:
            for piece in record_pieces(await self._source.given(wanted)):
                yield piece
        finally:
            self._running -= 1
