"""`evenq.v1.Replication/FetchRecords`: records for another copy of the group, whose disk has damaged its own.

Served at the address for the other copies, leader or not. Every byte is checked before it leaves; what may be given is
judged by the source (`loops.replication.record_repair`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from evenq.errors import BadRequest, TooManyRequests
from evenq.serving.rpc import CallKind, Rpc, RpcContext
from evenq.wire.stubs.evenq.v1 import replication_pb2 as pb
from evenq_broker.loops.replication.incoming_links import IncomingLinks
from evenq_broker.loops.wire.records import WantedRecords, record_pieces, wanted_of
from evenq_broker.rpc.access import rpc
from evenq_broker.rpc.answers import parsed

__all__ = ["FETCHES_MAX", "RecordSource", "record_rpcs"]

FETCHES_MAX = 2
"""Answers that are read and sent at once."""


class RecordSource(Protocol):
    """What this copy may give of its log."""

    async def given(self, wanted: WantedRecords) -> bytes:
        """Whole records, checked. Raises BadRequest, NotFound, HaNotAvailable."""
        ...


def record_rpcs(links: IncomingLinks, source: RecordSource) -> list[Rpc]:
    """The calls of this module. `links` knows who is a copy of the group."""
    serving = _Serving(links, source)

    def fetch_records(data: bytes, _context: RpcContext) -> AsyncIterator[bytes]:
        return serving.serve(data)

    return [rpc("/evenq.v1.Replication/FetchRecords", fetch_records, pb.FetchedRecords, CallKind.SERVER_STREAM)]


class _Serving:
    def __init__(self, links: IncomingLinks, source: RecordSource) -> None:
        self._links, self._source = links, source
        self._running = 0

    async def serve(self, data: bytes) -> AsyncIterator[bytes]:
        """The pieces. Raises what `RecordSource` does, and TooManyRequests."""
        who, wanted = wanted_of(parsed(pb.FetchRecordsRequest, data))
        fault = self._links.fault_of(who)
        if fault:
            raise BadRequest(fault)
        if self._running >= FETCHES_MAX:
            raise TooManyRequests(f"{FETCHES_MAX} answers with records are sent at once, the maximum; ask again")
        self._running += 1
        try:
            for piece in record_pieces(await self._source.given(wanted)):
                yield piece
        finally:
            self._running -= 1
