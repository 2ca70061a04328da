"""Calls between the copies of a group: links, the snapshot and the records that another copy may fetch, and the
leader's lite subscriptions.

None of them needs a `Broker`, so followers serve these calls as well. Messages of one link reach `receive` one
by one, in their order. A link is not read while the receiver has no capacity, so its sender waits. A message that is
not valid ends its link with the reason; an internal error ends it like every failed call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from crc32c import crc32c

from evenq.errors import BadRequest, NotFound, TooManyRequests
from evenq.runtime.tasks import spawn
from evenq.serving.auth.calls import rpc
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.stubs.evenq.v1 import peers_pb2
from evenq.wire.stubs.evenq.v1 import replication_pb2 as pb
from evenq_broker.core.lite.subscriptions import LiteSet
from evenq_broker.core.replication.messages import Envelope
from evenq_broker.core.replication.snapshot_files import SnapshotFile, SnapshotListing, SnapshotSource, listing_fault
from evenq_broker.loops.replication.incoming_links import IncomingLink, IncomingLinks, LinkRefused
from evenq_broker.loops.replication.lite_sets import METHOD
from evenq_broker.loops.wire.peers import lite_sets_in
from evenq_broker.loops.wire.records import WantedRecords, record_pieces, wanted_of
from evenq_broker.loops.wire.replication import (
    PIECE_BYTES_MAX,
    STANDS,
    LinkEnd,
    LinkOpening,
    MalformedMessage,
    MessageReader,
    closed_event,
)
from evenq_broker.rpc.answers import OK, parsed

FETCHES_MAX = 2
"""Most snapshots, and most answers with records, that are sent at the same time."""


class RecordSource(Protocol):
    """Records of this copy's log that other copies may have."""

    async def given(self, wanted: WantedRecords) -> bytes:
        """Returns whole, checked records. Raises BadRequest, NotFound, HaNotAvailable."""
        ...


def record_rpcs(links: IncomingLinks, source: RecordSource) -> list[Rpc]:
    """Returns FetchRecords: records for another copy whose own records are damaged. `links` knows the copies.

    Leaders and followers answer at their address for the other copies. Every byte is checked before it is sent. The
    source decides which records may be sent (`loops.replication.record_repair`).
    """
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


class ReplicationReceiver(Protocol):
    """The receiver of messages; implemented by `loops.replication.peer_links.PeerLinks`."""

    @property
    def incoming(self) -> IncomingLinks:
        """The links of senders."""

    @property
    def snapshots(self) -> SnapshotSource | None:
        """Source of snapshots; None: there is none."""

    def receive(self, envelope: Envelope) -> None:
        """Receives one message without waiting."""

    async def room(self) -> None:
        """Waits until one more message may be received."""


def replication_rpcs(receiver: ReplicationReceiver) -> list[Rpc]:
    fetching = _Fetching(receiver)

    def link(requests: AsyncIterator[bytes], context: RpcContext) -> AsyncIterator[bytes]:
        return _link(receiver, requests, context.peer)

    def fetch_snapshot(data: bytes, _context: RpcContext) -> AsyncIterator[bytes]:
        return fetching.serve(data)

    return [
        rpc("/evenq.v1.Replication/Link", link),
        rpc("/evenq.v1.Replication/FetchSnapshot", fetch_snapshot),
    ]


async def _link(receiver: ReplicationReceiver, requests: AsyncIterator[bytes], peer: str) -> AsyncIterator[bytes]:
    links = receiver.incoming
    try:
        link = links.arrived(peer)
    except LinkRefused as refused:
        yield closed_event(LinkEnd(str(refused)))
        return
    reading = spawn(_read(receiver, link, requests), name=f"replication from {peer}")
    try:
        while (end := await link.news()) is None:
            if link.opened:
                yield STANDS
        if reading.done() and not reading.cancelled():
            reading.result()
        yield closed_event(end)
    finally:
        links.left(link)
        reading.cancel()
        await asyncio.wait({reading})


async def _read(receiver: ReplicationReceiver, link: IncomingLink, requests: AsyncIterator[bytes]) -> None:
    links, reader = receiver.incoming, MessageReader()
    try:
        async for data in requests:
            if link.end is not None:
                return
            envelope = reader.feed(data)
            if not link.opened:
                assert reader.opening is not None
                links.opened(link, reader.opening)
            if envelope is not None:
                if envelope.sender != link.sender:
                    raise MalformedMessage(f"a message of broker {envelope.sender} on the link of broker {link.sender}")
                receiver.receive(envelope)
                del envelope
                await receiver.room()
    except (LinkRefused, MalformedMessage) as error:
        links.refuse(link, str(error))
    finally:
        link.close("the sender ended the link")


class _Fetching:
    def __init__(self, receiver: ReplicationReceiver) -> None:
        self._receiver = receiver
        self._running = 0

    async def serve(self, data: bytes) -> AsyncIterator[bytes]:
        """Yields the pieces of the newest snapshot. Raises BadRequest, NotFound, TooManyRequests."""
        request = parsed(pb.FetchSnapshotRequest, data)
        opening = LinkOpening(request.cluster, request.broker_name, request.sender, request.receiver)
        fault = self._receiver.incoming.fault_of(opening)
        if fault:
            raise BadRequest(fault)
        if self._running >= FETCHES_MAX:
            raise TooManyRequests(f"{FETCHES_MAX} snapshots are being sent, the maximum; retry")
        self._running += 1
        try:
            source = self._receiver.snapshots
            listing = await source.newest() if source is not None else None
            if source is None or listing is None:
                raise NotFound("this broker has no snapshot yet")
            fault = listing_fault(listing)
            if fault:
                raise NotFound(f"this broker's snapshot cannot be sent: {fault}")
            yield _head(listing)
            for file in listing.files:
                async for piece in _pieces(source, file):
                    yield piece
        finally:
            self._running -= 1


def _head(listing: SnapshotListing) -> bytes:
    files = [pb.SnapshotFile(name=file.name, bytes=file.size) for file in listing.files]
    head = pb.SnapshotHead(log_offset=listing.log_offset, log_start=listing.log_start, files=files)
    return pb.SnapshotPiece(head=head).SerializeToString()


async def _pieces(source: SnapshotSource, file: SnapshotFile) -> AsyncIterator[bytes]:
    """Yields one file. Raises NotFound if it has changed meanwhile."""
    offset, crc = 0, 0
    while True:
        size = min(PIECE_BYTES_MAX, file.size - offset)
        data = await source.read(file.name, offset, size) if size else b""
        if len(data) != size:
            raise NotFound(f"{file.name} has no {size} bytes at {offset} any more; fetch the newest snapshot again")
        crc = crc32c(data, crc)
        piece = pb.SnapshotPiece(name=file.name, offset=offset, data=data, total=file.size)
        offset += size
        if offset == file.size:
            piece.crc32c = crc
        yield piece.SerializeToString()
        if offset == file.size:
            return


def lite_set_rpcs(broker_name: str, keep: Callable[[Sequence[LiteSet]], None]) -> list[Rpc]:
    """Returns `Peers/LiteSubscriptions`: `keep` takes the leader's lite subscriptions, in case this copy leads next."""

    async def lite_subscriptions(data: bytes, _context: RpcContext) -> bytes:
        request = parsed(peers_pb2.LiteSubscriptionsRequest, data)
        if request.broker_name != broker_name:
            raise BadRequest(f"this is a copy of broker group {broker_name}, not of {request.broker_name[:80]!r}")
        keep(lite_sets_in(request.sets))
        return peers_pb2.LiteSubscriptionsResponse(status=OK).SerializeToString()

    return [rpc(METHOD, lite_subscriptions)]
