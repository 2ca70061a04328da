"""A snapshot as it comes from a peer: whole, wanted and small enough, or not at all."""

import pytest
from evenq_broker.core.replication.snapshot_files import SnapshotFile, SnapshotListing
from evenq_broker.loops.replication.snapshots import BYTES_MAX, FetchedSnapshot, FolderSnapshots, IncomingSnapshot

from evenq.errors import NotFound, StoreCorrupted
from evenq.store.io.memory_disk import MemoryDisk


def incoming() -> IncomingSnapshot:
    """Wanted: one behind 100, up to 500."""
    return IncomingSnapshot(origin="peer:1", after=100, until=500)


def listing(log_offset: int, *sizes: int) -> SnapshotListing:
    files = tuple(SnapshotFile(f"snapshots/{number}", size) for number, size in enumerate(sizes))
    return SnapshotListing(log_offset, 40, files)


async def test_a_whole_snapshot_is_known_with_its_bytes() -> None:
    sink = incoming()
    assert sink.known is None
    await sink.begin(listing(500, 6))
    await sink.write("snapshots/0", 0, b"abc")
    assert sink.known == FetchedSnapshot(log_offset=500, log_start=40, origin="peer:1"), "a part is worth nothing"
    await sink.write("snapshots/0", 3, b"def")
    assert sink.known == FetchedSnapshot(log_offset=500, log_start=40, origin="peer:1", data=b"abcdef")


@pytest.mark.parametrize("log_offset", [100, 501])
async def test_one_that_is_not_wanted_is_not_fetched_but_the_peers_log_is_known(log_offset: int) -> None:
    sink = incoming()
    with pytest.raises(NotFound, match=f"peer:1 at {log_offset} is not wanted"):
        await sink.begin(listing(log_offset, 6))
    known = sink.known
    assert known is not None
    assert (known.log_start, known.data) == (40, b"")


@pytest.mark.parametrize("sizes", [(), (1, 1), (BYTES_MAX + 1,)])
async def test_more_than_one_file_and_a_huge_one_are_refused(sizes: tuple[int, ...]) -> None:
    sink = incoming()
    with pytest.raises(StoreCorrupted, match="peer:1 has a snapshot of"):
        await sink.begin(listing(200, *sizes))
    assert sink.known is None


async def test_a_folder_without_snapshots_offers_none() -> None:
    source = FolderSnapshots(MemoryDisk())
    assert await source.newest() is None
