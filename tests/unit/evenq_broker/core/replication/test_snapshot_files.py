"""Which names of another process may become paths."""

from __future__ import annotations

import pytest
from evenq_broker.core.replication.snapshot_files import (
    FILES_MAX,
    SnapshotFile,
    SnapshotListing,
    listing_fault,
    name_fault,
)

GOOD = ["snapshot/00000000000000000042", "timers/00000000000000000001", "timers/a", "timers/0001.run"]
BAD = [
    "",
    "snapshot",
    "snapshot/",
    "/snapshot/1",
    "snapshot//1",
    "snapshot/.",
    "snapshot/..",
    "snapshot/../identity",
    "../snapshot/1",
    "snapshot/a/../../b",
    "snapshot/.hidden",
    "snapshot/a..b",
    "snapshot/a/b",
    "snapshot\\1",
    "snapshot/a\\b",
    "snapshot/a\0b",
    "snapshot/a\n",
    "snapshot/ä",
    "snapshot/" + "a" * 200,
    "Snapshot/1",
    "commitlog/00000000000000000000",
    "identity",
    "/etc/passwd",
    "C:/snapshot/1",
]


@pytest.mark.parametrize("name", GOOD)
def test_a_plain_name_in_a_known_folder_is_taken(name: str) -> None:
    assert name_fault(name) == ""


@pytest.mark.parametrize("name", BAD)
def test_any_other_name_is_refused_with_the_rule(name: str) -> None:
    assert "snapshot/FILE or timers/FILE" in name_fault(name)


def listing(*files: SnapshotFile, log_offset: int = 9, log_start: int = 3) -> SnapshotListing:
    return SnapshotListing(log_offset, log_start, files or (SnapshotFile("snapshot/1", 5),))


def test_a_listing_is_judged_as_a_whole() -> None:
    assert listing_fault(listing()) == ""
    assert "begins at 10" in listing_fault(listing(log_start=10))
    assert "begins at -1" in listing_fault(listing(log_start=-1))
    assert "0 files" in listing_fault(SnapshotListing(9, 3, ()))
    assert "names a file twice" in listing_fault(listing(SnapshotFile("timers/1", 1), SnapshotFile("timers/1", 1)))
    assert "'../x'" in listing_fault(listing(SnapshotFile("../x", 1)))
    assert "-1 bytes" in listing_fault(listing(SnapshotFile("timers/1", -1)))
    many = tuple(SnapshotFile(f"timers/{number}", 0) for number in range(FILES_MAX + 1))
    assert f"{FILES_MAX + 1} files" in listing_fault(SnapshotListing(9, 3, many))
    assert listing_fault(SnapshotListing(9, 3, many[:-1])) == ""
