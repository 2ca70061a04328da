"""Names of Iceberg tables, and what of a folder a snapshot lacks. Needs no catalog."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenq.errors import SettingsError
from evenq.tables.checking import QueueFiles
from evenq.tables.folder import FolderTables, place_bytes
from evenq.tables.iceberg_state import IcebergFile, IcebergName, IcebergState, link_of
from evenq.tables.layout import TableChanged, TableQueue, TableRange

QUEUE = TableQueue(topic="orders", uid="u", broker_name="broker-a", queue_id=0)
FIRST, SECOND, THIRD = (TableRange(start=start, end=start + 100) for start in (0, 100, 200))


def folder(*parts: TableRange, size: int = 7) -> QueueFiles:
    return QueueFiles(queue=QUEUE, parts=parts, sizes={part.name: size for part in parts})


def snapshot(*parts: TableRange, start: int = 0) -> IcebergState:
    return IcebergState(
        snapshot_id=1, starts={QUEUE: start}, files={QUEUE: {part: IcebergFile(100, 7) for part in parts}}
    )


@pytest.mark.parametrize("text", ["", "lake", "lake.orders", "lake..orders", ".sales.orders", "lake.sales."])
def test_names_without_three_parts_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"lake\.sales\.orders"):
        IcebergName.of(text)


@pytest.mark.parametrize("link", [b"{", b"[]", b"\xff", b'{"version": 1, "table": 7, "uuid": "u"}', b'{"version": 1}'])
def test_a_damaged_link_is_named(tmp_path: Path, link: bytes) -> None:
    target = FolderTables(tmp_path)
    place_bytes(target, "orders/_iceberg.json", link, lambda _: None)
    with pytest.raises(SettingsError, match=r"orders/_iceberg\.json does not name an Iceberg table .*restore it"):
        link_of(target, "orders")


def test_files_that_the_snapshot_lacks_are_missing_unless_they_were_expired() -> None:
    assert snapshot(FIRST).missing(folder(FIRST, SECOND, THIRD)) == [SECOND, THIRD]
    assert snapshot(start=200).missing(folder(FIRST, SECOND, THIRD)) == [THIRD]


def test_a_range_that_overlaps_a_registered_one_is_refused() -> None:
    with pytest.raises(TableChanged, match="would be in the Iceberg table twice"):
        snapshot(FIRST).missing(folder(TableRange(start=50, end=150)))


def test_registered_files_of_another_size_are_outdated() -> None:
    assert snapshot(FIRST, SECOND).outdated(folder(FIRST, SECOND)) == []
    assert snapshot(FIRST, SECOND).outdated(folder(FIRST, THIRD, size=8)) == [FIRST], (
        "the others are gone, or not there"
    )
