"""Fetches the leader's newest snapshot for a follower, file by file, and checks all of it.

The stream is checked as it arrives. First the names, which become paths. Then that each file follows the one before it,
from 0 to its end without a gap, and that its checksum fits. Everything else, and a stream that ends early, is an error,
and nothing received may be used. One piece is held at a time, and a peer that sends nothing for `STALL_MS` is given up.
The owner of a replica calls it; `rpc.replication` is the other side.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from crc32c import crc32c

from evenq.errors import BadRequest, ConnectionFailed
from evenq.runtime.clock import Clock
from evenq.runtime.net import Net, frames_within
from evenq_broker.core.replication.snapshot_files import SnapshotFile, SnapshotListing, SnapshotSink, listing_fault
from evenq_broker.loops.wire.records import ReceivedPiece, ask_snapshot, piece_of
from evenq_broker.loops.wire.replication import PIECE_BYTES_MAX, LinkOpening, MalformedMessage

METHOD = "/evenq.v1.Replication/FetchSnapshot"
STALL_MS = 30_000
"""The longest time without a piece."""


class SnapshotRefused(BadRequest):
    """A peer sends an invalid snapshot; the text has the fault."""


async def fetch_snapshot(
    net: Net, address: str, who: LinkOpening, sink: SnapshotSink, *, clock: Clock
) -> SnapshotListing:
    """Puts the newest snapshot of the broker `who.receiver` into the sink; returns its listing. `who.sender` is this
    broker.

    Raises SnapshotRefused, NotFound (there is none, or a newer one replaced it: try again), TooManyRequests (others
    fetch now), ConnectionFailed, and errors of the sink; then the sink is useless.
    """
    async with aclosing(_pieces(net, address, ask_snapshot(who), clock)) as pieces:
        listing = _listing(await anext(pieces, None), address)
        await sink.begin(listing)
        for file in listing.files:
            await _take(file, pieces, sink, address)
        if await anext(pieces, None) is not None:
            raise SnapshotRefused(f"{address} sends more than the {len(listing.files)} files of its snapshot")
    await sink.done()
    return listing


def _listing(piece: ReceivedPiece | None, address: str) -> SnapshotListing:
    if piece is None:
        raise ConnectionFailed(f"{address} ended the snapshot before it began")
    if piece.listing is None:
        raise SnapshotRefused(f"{address} sends a snapshot without a head")
    fault = listing_fault(piece.listing)
    if fault:
        raise SnapshotRefused(f"{address} sends {fault}")
    return piece.listing


async def _take(file: SnapshotFile, pieces: AsyncIterator[ReceivedPiece], sink: SnapshotSink, address: str) -> None:
    """Takes one file, to its checksum."""
    offset, crc = 0, 0
    while True:
        piece = await anext(pieces, None)
        if piece is None:
            raise ConnectionFailed(f"{address} ended the snapshot in {file.name}, at {offset} of {file.size} bytes")
        size = len(piece.data)
        if (piece.name, piece.offset, piece.total) != (file.name, offset, file.size):
            raise SnapshotRefused(
                f"{address} sends {piece.name[:120]!r} of {piece.total} bytes at {piece.offset}, where {file.name} of "
                f"{file.size} bytes at {offset} was expected"
            )
        ends = offset + size == file.size
        if offset + size > file.size or size > PIECE_BYTES_MAX or (not size and not ends):
            raise SnapshotRefused(f"{address} sends a piece of {size} bytes of {file.name} at {offset} of {file.size}")
        if ends != (piece.crc32c is not None):
            raise SnapshotRefused(f"{address} sends a checksum of {file.name} elsewhere than at its end")
        crc = crc32c(piece.data, crc)
        if piece.crc32c is not None and piece.crc32c != crc:
            raise SnapshotRefused(f"{file.name} from {address} has checksum {crc:08x}, sent was {piece.crc32c:08x}")
        await sink.write(file.name, offset, piece.data)
        offset += size
        if ends:
            return


async def _pieces(net: Net, address: str, request: bytes, clock: Clock) -> AsyncGenerator[ReceivedPiece, None]:
    """Yields the decoded stream. Raises SnapshotRefused."""
    silence = f"{address} sent nothing of its snapshot"
    frames = net.stream(address, METHOD, request, timeout_ms=None)
    async with aclosing(frames_within(frames, stall_ms=STALL_MS, silence=silence, clock=clock)) as messages:
        async for message in messages:
            yield _decoded(message, address)


def _decoded(data: bytes, address: str) -> ReceivedPiece:
    try:
        return piece_of(data)
    except MalformedMessage as error:
        raise SnapshotRefused(f"{address} sends {error.message}") from error
