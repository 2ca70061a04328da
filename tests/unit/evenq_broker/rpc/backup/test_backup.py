"""Backup/Fetch: a head, a snapshot, the log; what is refused; the hold on the log ends with the stream."""

from typing import Any

import pytest
from crc32c import crc32c

from evenq.errors import BadRequest, NotFound, PreconditionFailed
from evenq.serving.rpc import RpcContext
from evenq.store.copies import snapshot_copy
from evenq.store.log.frame_walk import FrameWalk
from evenq.wire.stubs.evenq.v1 import backup_pb2 as pb

METHOD = "/evenq.v1.Backup/Fetch"


def stream(broker: Any, **wanted: Any) -> Any:
    handler = next(rpc.handler for rpc in broker.rpcs() if rpc.method == METHOD)
    request = pb.FetchBackupRequest(**{"broker_name": "a", **wanted})
    return handler(request.SerializeToString(), RpcContext(METHOD, (), "peer", None))


async def fetched(stage: Any, broker: Any, **wanted: Any) -> tuple[pb.BackupHead, bytes, bytes]:
    async def work() -> list[pb.BackupPiece]:
        return [pb.BackupPiece.FromString(frame) async for frame in stream(broker, **wanted)]

    head, *pieces = await stage.during(work())
    assert head.HasField("head")
    return head.head, b"".join(piece.snapshot for piece in pieces), b"".join(piece.log for piece in pieces)


async def test_the_snapshot_is_of_now_and_the_log_is_whole_up_to_it(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=2))
    head, snapshot, log = await fetched(stage, broker)
    assert (head.broker_name, head.start, head.log_start) == ("a", 0, 0)
    assert (len(snapshot), len(log)) == (head.snapshot_bytes, head.end)
    assert snapshot_copy.parsed(snapshot, origin="test").log_offset == head.snapshot_offset <= head.end
    walk = FrameWalk(0, segment_bytes=head.segment_bytes)
    assert walk.take(memoryview(log), 0) is None
    assert walk.boundary == head.end
    await stage.during(broker.catalog.create_topic("u", queues=1))
    crc = crc32c(log)
    more, _, rest = await fetched(stage, broker, start=head.end, compare_from=0, compare_crc32c=crc)
    assert (more.start, more.compared, len(rest)) == (head.end, True, more.end - head.end)
    again, none, part = await fetched(stage, broker, start=100, compare_from=100, end=head.end)
    assert (again.snapshot_bytes, none, part) == (0, b"", log[100 : head.end])


@pytest.mark.parametrize(
    ("wanted", "refusal", "text"),
    [
        ({"broker_name": "b"}, NotFound, "this is broker a"),
        ({"cluster": "another"}, PreconditionFailed, "belongs to cluster"),
        ({"start": 1 << 40, "compare_from": 1 << 40}, PreconditionFailed, "its log ends at"),
        ({"start": 100, "compare_crc32c": 5}, PreconditionFailed, "holds other bytes from 0 on"),
        ({"start": 1, "compare_from": 2}, BadRequest, "compare_from must not be above start"),
        ({"bytes_per_second": -1}, BadRequest, "none may be negative"),
        ({"start": 0, "end": 1 << 40}, PreconditionFailed, "is requested"),
    ],
)
async def test_another_broker_cluster_or_log_is_refused(
    stage: Any, wanted: Any, refusal: type[Exception], text: str
) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=2))
    with pytest.raises(refusal, match=text):
        await fetched(stage, broker, **wanted)
    assert broker.ledger.store._cleaner.holds.held_from() is None


async def test_the_log_is_held_from_where_the_reader_stands_until_it_leaves_or_its_time_is_over(stage: Any) -> None:
    broker = await stage.broker(backup_hold_ms=1_000)
    await stage.during(broker.catalog.create_topic("t", queues=2))
    holds = broker.ledger.store._cleaner.holds
    frames = stream(broker)
    await stage.during(anext(frames))
    assert holds.held_from() == 0
    await stage.clock.advance(1_000)
    assert holds.held_from() is None, "its time is over"
    await frames.aclose()
    frames = stream(broker)
    await stage.during(anext(frames))
    await frames.aclose()
    assert holds.held_from() is None, "it left"


async def test_a_rate_is_kept(stage: Any) -> None:
    broker = await stage.broker()
    for number in range(60):
        await stage.during(broker.catalog.create_topic(f"topic-{number}" + "x" * 100, queues=1))
    begun_ms = stage.clock.monotonic_ms()
    head, snapshot, log = await fetched(stage, broker, bytes_per_second=1_000)
    last = max(len(log) % (16 << 10), 1)
    assert stage.clock.monotonic_ms() - begun_ms >= len(snapshot) + len(log) - last - (16 << 10)
    assert head.end == len(log)
