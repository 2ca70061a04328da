"""The calls that the brokers of a group make at each other, served for a receiver and no broker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from crc32c import crc32c
from evenq_broker.core.replication.messages import Body, Envelope, FollowerProgress, Nomination, Records
from evenq_broker.core.replication.snapshot_files import SnapshotFile, SnapshotListing
from evenq_broker.loops.replication.incoming_links import OPENING_MS, IncomingLinks
from evenq_broker.loops.wire.replication import (
    PIECE_BYTES_MAX,
    STANDS,
    LinkEnd,
    LinkOpening,
    envelope_pieces,
    link_end,
    opening_message,
)
from evenq_broker.rpc.replication.replication import FETCHES_MAX, replication_rpcs
from evenq_proofs.loop_net import LoopNet

from evenq.errors import BadRequest, ConnectionFailed, Error, InternalError, NotFound, TooManyRequests
from evenq.runtime.clock import FakeClock
from evenq.serving.auth.calls import CALLS
from evenq.serving.rpc import RpcContext
from evenq.wire.stubs.evenq.v1 import replication_pb2 as pb

ADDRESS, LINK, FETCH = "host-0:8081", "/evenq.v1.Replication/Link", "/evenq.v1.Replication/FetchSnapshot"
OPENING = LinkOpening("c", "broker-a", 1, 0)


class Files:
    """A snapshot in memory."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.listing: SnapshotListing | None = SnapshotListing(
            70, 30, tuple(SnapshotFile(name, len(data)) for name, data in files.items())
        )
        self.hold = asyncio.Event()
        self.hold.set()

    async def newest(self) -> SnapshotListing | None:
        return self.listing

    async def read(self, name: str, offset: int, size: int) -> bytes:
        await self.hold.wait()
        return self.files[name][offset : offset + size]


class Receiver:
    """What the calls are served for."""

    def __init__(self, clock: FakeClock) -> None:
        self.incoming = IncomingLinks(
            cluster="c", group="broker-a", own_id=0, members=(0, 1, 2), clock=clock, rng=random.Random(1)
        )
        self.snapshots: Any = None
        self.received: list[Envelope] = []
        self.free = asyncio.Event()
        self.free.set()
        self.error: Exception | None = None

    def receive(self, envelope: Envelope) -> None:
        self.received.append(envelope)
        if self.error is not None:
            raise self.error

    async def room(self) -> None:
        await self.free.wait()


class Sender:
    """The other end of one link, by hand."""

    def __init__(self, net: LoopNet, *messages: bytes) -> None:
        self.requests: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.taken = 0
        self.stands = 0
        self.closed = ""
        self.error: Exception | None = None
        for message in messages:
            self.requests.put_nowait(message)
        self.task = asyncio.ensure_future(self._run(net))

    async def _out(self) -> AsyncIterator[bytes]:
        while (message := await self.requests.get()) is not None:
            self.taken += 1
            yield message

    async def _run(self, net: LoopNet) -> None:
        try:
            async for data in net.stream(ADDRESS, LINK, self._out(), timeout_ms=None):
                if data == STANDS:
                    self.stands += 1
                else:
                    self.closed = str(getattr(link_end(data), "reason", ""))
        except Error as error:
            self.error = error

    def say(self, body: Body, *, sender: int = 1) -> None:
        for piece in envelope_pieces(Envelope("c", sender, "a" * 32, 7, 1, body)):
            self.requests.put_nowait(piece)


class Stage:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.net = LoopNet(self.clock)
        self.receiver = Receiver(self.clock)
        self.net.serve(ADDRESS, replication_rpcs(self.receiver))
        self.senders: list[Sender] = []

    def sender(self, *messages: bytes, opening: LinkOpening | None = OPENING) -> Sender:
        first = () if opening is None else (opening_message(opening),)
        self.senders.append(Sender(self.net, *first, *messages))
        return self.senders[-1]

    async def until(self, state: Callable[[], object]) -> None:
        await self.clock.until(state)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    try:
        yield stage
    finally:
        for sender in stage.senders:
            sender.task.cancel()
        await asyncio.gather(*(sender.task for sender in stage.senders), return_exceptions=True)


def test_only_the_servers_of_the_cluster_may_call() -> None:
    rpcs = replication_rpcs(Receiver(FakeClock()))
    assert sorted(rpc.method for rpc in rpcs) == [FETCH, LINK]
    assert all(rpc.access == CALLS[rpc.method].access and rpc.access.action == "internal" for rpc in rpcs)


async def test_messages_reach_the_receiver_in_order_and_the_link_says_that_it_stands(stage: Stage) -> None:
    sender = stage.sender()
    await stage.until(lambda: sender.stands == 1)
    for number in range(50):
        sender.say(Nomination(number))
    sender.say(Records(0, 1, 0, (), 0, 0, bytes(2 * PIECE_BYTES_MAX + 1)))
    sender.say(Nomination(50))
    await stage.until(lambda: len(stage.receiver.received) == 52)
    bodies = [envelope.body for envelope in stage.receiver.received]
    assert [body.end for body in bodies if isinstance(body, Nomination)] == list(range(51))
    assert isinstance(bodies[50], Records)
    await stage.clock.advance(10_000)
    assert 9 <= sender.stands <= 12
    assert sender.closed == ""


async def test_a_link_is_not_read_while_the_receiver_has_no_room(stage: Stage) -> None:
    sender = stage.sender()
    await stage.until(lambda: sender.stands)
    stage.receiver.free.clear()
    for number in range(10):
        sender.say(Nomination(number))
    await stage.clock.advance(30_000)
    assert len(stage.receiver.received) == 1
    assert sender.taken == 2, "the opening and one message"
    assert sender.stands >= 29, "it stands all the same"
    stage.receiver.free.set()
    await stage.until(lambda: len(stage.receiver.received) == 10)


@pytest.mark.parametrize(
    ("garbage", "words"),
    [
        (b"\xff\xff\xff", "not a message of replication"),
        (opening_message(OPENING), "second opening"),
        (pb.ReplicationMessage(piece=pb.RecordsPiece(payload=b"x")).SerializeToString(), "piece came where"),
    ],
)
async def test_what_is_no_message_ends_the_link_and_the_sender_waits_a_moment(
    stage: Stage, garbage: bytes, words: str
) -> None:
    other = stage.sender(opening=LinkOpening("c", "broker-a", 2, 0))
    sender = stage.sender()
    await stage.until(lambda: sender.stands)
    sender.say(Nomination(1))
    sender.requests.put_nowait(garbage)
    sender.say(Nomination(2))
    await stage.until(sender.task.done)
    assert words in sender.closed
    assert [envelope.body for envelope in stage.receiver.received] == [Nomination(1)]
    again = stage.sender()
    await stage.until(again.task.done)
    assert "closed for a while" in again.closed
    await stage.clock.advance(1_300)
    again = stage.sender()
    await stage.until(lambda: again.stands)
    assert not other.task.done(), "other links have nothing to do with it"


@pytest.mark.parametrize("sender_id", [2, 0, 77, -1])
async def test_a_message_in_the_name_of_somebody_else_ends_the_link(stage: Stage, sender_id: int) -> None:
    sender = stage.sender()
    await stage.until(lambda: sender.stands)
    sender.say(FollowerProgress(1, 1, wants=True), sender=sender_id)
    await stage.until(sender.task.done)
    assert f"a message of broker {sender_id} on the link of broker 1" in sender.closed
    assert stage.receiver.received == []


async def test_a_newer_link_of_a_sender_ends_the_older_one(stage: Stage) -> None:
    older = stage.sender()
    await stage.until(lambda: older.stands)
    newer = stage.sender()
    await stage.until(lambda: older.task.done() and newer.stands)
    assert "newer link of broker 1" in older.closed
    older.say(Nomination(1))
    newer.say(Nomination(2))
    await stage.until(lambda: stage.receiver.received)
    await stage.clock.advance(100)
    assert [envelope.body for envelope in stage.receiver.received] == [Nomination(2)]
    assert stage.receiver.incoming.senders == {1}


async def test_a_closed_link_is_not_read_any_more_although_nobody_takes_its_answers(stage: Stage) -> None:
    [handler] = [rpc.handler for rpc in replication_rpcs(stage.receiver) if rpc.method == LINK]
    requests: asyncio.Queue[bytes] = asyncio.Queue()

    async def come() -> AsyncIterator[bytes]:
        while True:
            yield await requests.get()

    def say(number: int) -> None:
        [data] = envelope_pieces(Envelope("c", 1, "a" * 32, 7, 1, Nomination(number)))
        requests.put_nowait(data)

    requests.put_nowait(opening_message(OPENING))
    frames: Any = handler(come(), RpcContext(LINK, [], "127.0.0.1:1", None))  # type: ignore[arg-type]
    assert await anext(frames) == STANDS
    say(1)
    await stage.until(lambda: stage.receiver.received)
    stage.receiver.incoming.pause(1, "nonsense")
    say(2)
    await stage.clock.advance(5_000)
    assert [envelope.body for envelope in stage.receiver.received] == [Nomination(1)]
    assert link_end(await anext(frames)) == LinkEnd("nonsense")
    await frames.aclose()


async def test_a_link_without_an_opening_or_for_somebody_else_is_refused(stage: Stage) -> None:
    silent = stage.sender(opening=None)
    stranger = stage.sender(opening=LinkOpening("c", "broker-b", 1, 0))
    early = stage.sender(opening=None)
    early.say(Nomination(1))
    await stage.until(lambda: stranger.task.done() and early.task.done())
    assert "this is a broker of group 'broker-a', not of 'broker-b'" in stranger.closed
    assert "must begin with an opening" in early.closed
    assert (silent.stands, stranger.stands, early.stands) == (0, 0, 0)
    await stage.until(silent.task.done)
    assert OPENING_MS <= stage.clock.monotonic_ms() <= OPENING_MS + 1_100
    assert "no opening" in silent.closed
    assert stage.receiver.incoming._unopened == []


async def test_a_sender_that_ends_its_side_or_goes_away_leaves_nothing_behind(stage: Stage) -> None:
    sender = stage.sender()
    await stage.until(lambda: sender.stands)
    sender.requests.put_nowait(None)
    await stage.until(sender.task.done)
    assert sender.closed == "the sender ended the link"
    gone = stage.sender()
    await stage.until(lambda: gone.stands)
    gone.task.cancel()
    await stage.until(lambda: not stage.receiver.incoming.senders)
    assert len(asyncio.all_tasks()) <= 3


async def test_a_mistake_of_the_receiver_is_an_error_of_the_call(stage: Stage) -> None:
    sender = stage.sender()
    await stage.until(lambda: sender.stands)
    stage.receiver.error = InternalError("a mistake of ours")
    sender.say(Nomination(1))
    await stage.until(sender.task.done)
    assert isinstance(sender.error, InternalError)
    assert sender.closed == ""


# --------------------------------------------------------------------------------------------------------- snapshots


def fetch(**change: Any) -> bytes:
    fields = {"cluster": "c", "broker_name": "broker-a", "sender": 1, "receiver": 0} | change
    return pb.FetchSnapshotRequest(**fields).SerializeToString()


async def fetched(stage: Stage, request: bytes | None = None) -> list[pb.SnapshotPiece]:
    async def collect() -> list[pb.SnapshotPiece]:
        frames = stage.net.stream(ADDRESS, FETCH, fetch() if request is None else request, timeout_ms=None)
        return [pb.SnapshotPiece.FromString(frame) async for frame in frames]

    return await stage.clock.during(collect())


async def test_a_snapshot_is_sent_file_by_file_in_pieces_of_one_mebibyte(stage: Stage) -> None:
    large = bytes(range(256)) * (9 << 10) + b"end"
    stage.receiver.snapshots = Files({"snapshot/1": large, "timers/0": b"", "timers/1": b"abc"})
    head, *pieces = await fetched(stage)
    assert (head.head.log_offset, head.head.log_start) == (70, 30)
    assert [(file.name, file.bytes) for file in head.head.files] == [
        ("snapshot/1", len(large)),
        ("timers/0", 0),
        ("timers/1", 3),
    ]
    assert [(piece.name, piece.offset) for piece in pieces] == [
        ("snapshot/1", 0),
        ("snapshot/1", PIECE_BYTES_MAX),
        ("snapshot/1", 2 * PIECE_BYTES_MAX),
        ("timers/0", 0),
        ("timers/1", 0),
    ]
    assert b"".join(piece.data for piece in pieces) == large + b"abc"
    assert [piece.HasField("crc32c") for piece in pieces] == [False, False, True, True, True]
    assert [piece.crc32c for piece in pieces[2:]] == [crc32c(large), 0, crc32c(b"abc")]


async def test_a_snapshot_that_is_not_there_or_goes_away_is_not_found(stage: Stage) -> None:
    with pytest.raises(NotFound, match="no snapshot yet"):
        await fetched(stage)
    files = stage.receiver.snapshots = Files({"snapshot/1": b"abcdef"})
    listing, files.listing = files.listing, None
    with pytest.raises(NotFound, match="no snapshot yet"):
        await fetched(stage)
    files.listing, files.files["snapshot/1"] = listing, b"abc"
    with pytest.raises(NotFound, match=r"snapshot/1 has no 6 bytes at 0 any more"):
        await fetched(stage)


async def test_a_name_that_is_no_file_of_a_snapshot_is_never_sent(stage: Stage) -> None:
    stage.receiver.snapshots = Files({"snapshot/../identity": b"secret"})
    with pytest.raises(NotFound, match="cannot be sent"):
        await fetched(stage)


@pytest.mark.parametrize("change", [{"cluster": "x"}, {"broker_name": "x"}, {"sender": 9}, {"receiver": 2}])
async def test_who_means_another_broker_gets_no_snapshot(stage: Stage, change: dict[str, Any]) -> None:
    stage.receiver.snapshots = Files({"snapshot/1": b"abc"})
    with pytest.raises(BadRequest, match=r"this is|not another member"):
        await fetched(stage, fetch(**change))
    with pytest.raises(BadRequest, match="not a valid FetchSnapshotRequest"):
        await fetched(stage, b"\xff")


async def test_a_few_snapshots_are_sent_at_once(stage: Stage) -> None:
    files = stage.receiver.snapshots = Files({"snapshot/1": b"abc"})
    files.hold.clear()
    running = [asyncio.ensure_future(fetched(stage)) for _ in range(FETCHES_MAX)]
    await asyncio.sleep(0.01)
    try:
        with pytest.raises(TooManyRequests, match=f"{FETCHES_MAX} snapshots"):
            await asyncio.wait_for(fetched(stage), 60)
    finally:
        files.hold.set()
    assert [len(pieces) for pieces in await asyncio.gather(*running)] == [2] * FETCHES_MAX
    assert len(await fetched(stage)) == 2


async def test_a_link_breaks_as_a_connection_does_when_the_server_goes(stage: Stage) -> None:
    sender = stage.sender()
    await stage.until(lambda: sender.stands)
    stage.net.stop(ADDRESS)
    await stage.until(sender.task.done)
    assert isinstance(sender.error, ConnectionFailed)
    assert stage.receiver.incoming.senders == set()
