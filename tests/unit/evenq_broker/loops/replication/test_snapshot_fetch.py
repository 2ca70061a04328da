"""A snapshot is taken whole and as it was sent, or not at all."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from crc32c import crc32c
from evenq_broker.core.replication.snapshot_files import FILES_MAX, SnapshotFile, SnapshotListing
from evenq_broker.loops.replication.incoming_links import IncomingLinks
from evenq_broker.loops.replication.snapshot_fetch import METHOD, STALL_MS, SnapshotRefused, fetch_snapshot
from evenq_broker.loops.wire.replication import PIECE_BYTES_MAX, LinkOpening
from evenq_broker.rpc.replication.replication import replication_rpcs
from evenq_proofs.loop_net import LoopNet
from evenq_proofs.rpcs import fake_rpc

from evenq.errors import BadRequest, ConnectionFailed, Error, NotFound, RequestTimeout
from evenq.runtime.clock import FakeClock
from evenq.serving.auth.calls import CALLS
from evenq.serving.rpc import CallKind, Rpc
from evenq.wire.stubs.evenq.v1 import replication_pb2 as pb

ADDRESS = "host-0:8081"
WHO = LinkOpening("c", "broker-a", 1, 0)


class Sink:
    """Files in memory."""

    def __init__(self) -> None:
        self.listing: SnapshotListing | None = None
        self.files: dict[str, bytes] = {}
        self.whole = False

    async def begin(self, listing: SnapshotListing) -> None:
        self.listing = listing

    async def write(self, name: str, offset: int, data: bytes) -> None:
        assert len(self.files.get(name, b"")) == offset
        self.files[name] = self.files.get(name, b"") + data

    async def done(self) -> None:
        self.whole = True


class Source:
    """Files of a leader."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files

    async def newest(self) -> SnapshotListing:
        return SnapshotListing(70, 30, tuple(SnapshotFile(name, len(data)) for name, data in self.files.items()))

    async def read(self, name: str, offset: int, size: int) -> bytes:
        return self.files[name][offset : offset + size]


class Served:
    """The receiver of the calls."""

    def __init__(self, clock: FakeClock, source: Source) -> None:
        self.incoming = IncomingLinks(
            cluster="c", group="broker-a", own_id=0, members=(0, 1), clock=clock, rng=random.Random(1)
        )
        self.snapshots = source

    def receive(self, envelope: object) -> None:
        raise AssertionError(envelope)

    async def room(self) -> None:
        """There is always room."""


def fetched(rpcs: Callable[[FakeClock], list[Rpc]], *, who: LinkOpening = WHO) -> tuple[Sink, SnapshotListing]:
    async def body() -> tuple[Sink, SnapshotListing]:
        clock, sink = FakeClock(), Sink()
        net = LoopNet(clock)
        net.serve(ADDRESS, rpcs(clock))
        try:
            listing = await clock.during(fetch_snapshot(net, ADDRESS, who, sink, clock=clock))
        except Error:
            assert not sink.whole, "a sink is marked as whole only if it is"
            raise
        finally:
            assert len(asyncio.all_tasks()) == 1, "nothing is left running"
        return sink, listing

    return asyncio.run(body())


def hostile(*pieces: pb.SnapshotPiece | bytes, ends: bool = True) -> Callable[[FakeClock], list[Rpc]]:
    """A server that sends these."""

    async def send(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece if isinstance(piece, bytes) else piece.SerializeToString()
        if not ends:
            await asyncio.Event().wait()

    row = fake_rpc(METHOD, send, pb.SnapshotPiece, kind=CallKind.SERVER_STREAM, access=CALLS[METHOD].access)
    return lambda _clock: [row]


def head(*files: tuple[str, int]) -> pb.SnapshotPiece:
    listed = [pb.SnapshotFile(name=name, bytes=size) for name, size in files]
    return pb.SnapshotPiece(head=pb.SnapshotHead(log_offset=70, log_start=30, files=listed))


def piece(data: bytes, **change: Any) -> pb.SnapshotPiece:
    fields = {"name": "timers/1", "offset": 0, "data": data, "total": 3} | change
    one = pb.SnapshotPiece(**{name: value for name, value in fields.items() if value is not None})
    if "crc32c" not in change:
        one.crc32c = crc32c(data)
    return one


HEAD = head(("timers/1", 3))


def test_a_snapshot_comes_whole() -> None:
    files = {"snapshot/00000000000000000070": bytes(range(256)) * 9_000, "timers/1": b"", "timers/2": b"abc"}
    sink, listing = fetched(lambda clock: replication_rpcs(Served(clock, Source(files))))  # type: ignore[arg-type]
    assert sink.whole
    assert sink.files == files
    assert (listing.log_offset, listing.log_start) == (70, 30)
    assert sink.listing == listing


def test_errors_of_the_other_side_keep_their_class() -> None:
    source = Source({"timers/1": b"abc"})
    with pytest.raises(BadRequest, match="this is broker 0"):
        fetched(lambda clock: replication_rpcs(Served(clock, source)), who=LinkOpening("c", "broker-a", 1, 5))  # type: ignore[arg-type]
    gone = Source({})
    with pytest.raises(NotFound, match="cannot be sent"):
        fetched(lambda clock: replication_rpcs(Served(clock, gone)))  # type: ignore[arg-type]
    with pytest.raises(ConnectionFailed):
        fetched(lambda _clock: [])


REFUSED: list[tuple[list[pb.SnapshotPiece | bytes], str]] = [
    ([b"\xff"], "not a piece"),
    ([piece(b"abc")], "without a head"),
    ([head()], "0 files"),
    ([head(("../../etc/passwd", 3))], "not a file of a snapshot"),
    ([head(("/etc/passwd", 3))], "not a file of a snapshot"),
    ([head(("timers/..", 3))], "not a file of a snapshot"),
    ([head(("commitlog/00000000000000000000", 3))], "not a file of a snapshot"),
    ([head(("timers/1", 3), ("timers/1", 3))], "twice"),
    ([head(("timers/1", -3))], "-3 bytes"),
    ([head(*((f"timers/{number}", 1) for number in range(FILES_MAX + 1)))], f"{FILES_MAX + 1} files"),
    ([HEAD, piece(b"abc", name="timers/2")], "'timers/2' of 3 bytes at 0, where timers/1"),
    ([HEAD, piece(b"abc", name="../x")], "'../x' of 3 bytes"),
    ([HEAD, piece(b"abc", total=4)], "of 4 bytes at 0, where timers/1 of 3 bytes"),
    ([HEAD, piece(b"bc", offset=1)], "at 1, where timers/1"),
    ([HEAD, piece(b"a", crc32c=None), piece(b"bc", offset=2)], "at 2, where timers/1 of 3 bytes at 1"),
    ([HEAD, piece(b"abcd")], "a piece of 4 bytes"),
    ([HEAD, piece(b"", crc32c=None)], "a piece of 0 bytes"),
    (
        [head(("timers/1", 2 << 20)), piece(bytes(PIECE_BYTES_MAX + 1), total=2 << 20, crc32c=None)],
        "a piece of 1048577",
    ),
    ([HEAD, piece(b"ab", crc32c=1)], "elsewhere than at its end"),
    ([HEAD, piece(b"abc", crc32c=None)], "elsewhere than at its end"),
    ([HEAD, piece(b"abc", crc32c=1)], "sent was 00000001"),
    ([HEAD, piece(b"abc"), piece(b"abc")], "more than the 1 files"),
]


@pytest.mark.parametrize(("pieces", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_anything_else_is_refused(pieces: list[pb.SnapshotPiece | bytes], words: str) -> None:
    with pytest.raises(SnapshotRefused, match=words.replace("(", r"\(")):
        fetched(hostile(*pieces))


@pytest.mark.parametrize("pieces", [[], [HEAD], [HEAD, piece(b"a", crc32c=None)]])
def test_a_stream_that_ends_early_is_no_snapshot(pieces: list[pb.SnapshotPiece]) -> None:
    with pytest.raises(ConnectionFailed, match="ended the snapshot"):
        fetched(hostile(*pieces))


@pytest.mark.parametrize("pieces", [[], [HEAD, piece(b"a", crc32c=None)], [HEAD, piece(b"abc")]])
def test_a_peer_that_sends_nothing_more_is_given_up(pieces: list[pb.SnapshotPiece]) -> None:
    with pytest.raises(RequestTimeout, match=str(STALL_MS)):
        fetched(hostile(*pieces, ends=False))
