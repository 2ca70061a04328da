"""A table that is not what its names say is found out."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evenq.errors import NotFound
from evenq.tables.checking import expired, findings, newest_content, table_of
from evenq.tables.files import read_footer
from evenq.tables.folder import FolderTables
from evenq.tables.layout import TableRange
from tests.unit.evenq.tables.fake_log import START_MS, FakeLog
from tests.unit.evenq.tables.test_exporting import FOLDER, LATER_MS, export


@pytest.fixture
def target(tmp_path: Path) -> FolderTables:
    """Files of 0 to 100, 100 to 200, and 200 to 250, which is an hour younger."""
    log, target = FakeLog(), FolderTables(tmp_path)
    log.add(200)
    log.add(50, at_ms=LATER_MS)
    export(log, target, now_ms=LATER_MS + 3_600_000)
    return target


def path_of(target: FolderTables, start: int, end: int) -> Path:
    return target.root / FOLDER / TableRange(start=start, end=end).name


def found(target: FolderTables, *, whole: bool = False) -> list[str]:
    return [finding.what for finding in findings(target, table_of(target, "orders")[0], whole=whole)]


def test_a_table_in_order_has_no_findings(target: FolderTables) -> None:
    [files] = table_of(target, "orders")
    assert (files.start, files.end, files.rows, files.gaps, len(files.files)) == (0, 250, 250, 0, 3)
    assert files.bytes == sum(path.stat().st_size for path in target.root.rglob("*.parquet"))
    assert files.last_store_ms(target) == LATER_MS
    assert found(target, whole=True) == []


def test_a_missing_file_is_a_gap(target: FolderTables) -> None:
    path_of(target, 100, 200).unlink()
    assert found(target) == ["no file has offsets 100 to 199, 100 messages"]


def test_overlapping_files_are_found(target: FolderTables) -> None:
    path_of(target, 100, 200).rename(path_of(target, 90, 200))
    assert "begins before 100" in found(target)[0]


def test_a_name_that_its_file_contradicts_is_found(target: FolderTables) -> None:
    path_of(target, 200, 250).rename(path_of(target, 200, 260))
    assert found(target) == ["has 50 rows, its name says 60"]
    path_of(target, 200, 260).unlink()
    path_of(target, 200, 300).write_bytes(path_of(target, 100, 200).read_bytes())
    assert found(target) == ["has offsets 100 to 199, its name says 200 to 299"]


def test_a_file_that_is_cut_is_found_by_its_footer(target: FolderTables) -> None:
    path = path_of(target, 100, 200)
    path.write_bytes(path.read_bytes()[:-9])
    assert "is damaged or cannot be read" in found(target)[0]


@pytest.mark.parametrize("fact", ["mark", "last_store_ms"])
def test_a_flipped_bit_in_a_fact_of_the_footer_is_found(target: FolderTables, fact: str) -> None:
    path = path_of(target, 100, 200)
    value = str(getattr(read_footer(target, f"{FOLDER}/{path.name}"), fact)).encode()
    data = bytearray(path.read_bytes())
    data[data.rindex(value) + 3] ^= 0x80
    path.write_bytes(data)
    [what] = found(target)
    assert "is damaged or cannot be read" in what


def test_another_time_of_the_last_row_in_the_footer_is_found_by_reading_every_row(target: FolderTables) -> None:
    """`table expire` deletes files by this time."""
    path = path_of(target, 100, 200)
    data = bytearray(path.read_bytes())
    data[data.rindex(str(START_MS).encode()) + 1] ^= 1  # another digit
    path.write_bytes(data)
    assert found(target) == []
    assert found(target, whole=True) == [
        f"has 1600000000000 as the store time of its last row in its footer, which was stored at {START_MS} ms"
    ]


def test_a_file_without_a_column_is_found_by_reading_every_row(target: FolderTables) -> None:
    path = path_of(target, 100, 200)
    pq.write_table(pq.read_table(path).drop_columns(["queueOffset"]), path)
    assert any("has the columns topic" in what for what in found(target))
    assert "is damaged or cannot be read" in found(target, whole=True)[-1]


def test_flipped_bytes_are_found_by_reading_every_row(target: FolderTables) -> None:
    path = path_of(target, 100, 200)
    data = bytearray(path.read_bytes())
    data[40:80] = bytes(40)
    path.write_bytes(data)
    assert found(target) == []
    assert found(target, whole=True)


def flip_a_body(path: Path, body: bytes) -> None:
    """Flips one bit of a body that does not compress, which the file has as it is."""
    data = bytearray(path.read_bytes())
    data[data.index(body) + 7] ^= 1
    path.write_bytes(data)


def test_one_flipped_bit_of_a_body_is_found_by_reading_every_row(tmp_path: Path) -> None:
    chance, log, target = random.Random(7), FakeLog(), FolderTables(tmp_path)
    log.queues[0] = [(START_MS, chance.randbytes(300)) for _ in range(100)]
    export(log, target)
    assert found(target, whole=True) == []
    flip_a_body(path_of(target, 0, 100), log.queues[0][40][1])
    assert found(target) == []
    [what] = found(target, whole=True)
    assert "is damaged" in what


def test_a_file_without_checksums_is_in_order_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, log, target = pq.ParquetWriter, FakeLog(), FolderTables(tmp_path)

    def writer(*arguments: Any, **options: Any) -> Any:
        assert options.pop("write_page_checksum")
        return original(*arguments, **options)

    monkeypatch.setattr(pq, "ParquetWriter", writer)
    log.add(100)
    export(log, target)
    assert found(target, whole=True) == []


def test_rows_out_of_order_or_of_another_queue_are_found(target: FolderTables) -> None:
    path = path_of(target, 100, 200)
    rows = pq.read_table(path)
    pq.write_table(rows.take([*range(50), *range(99, 49, -1)]), path)
    assert "of an offset from 100 on" in found(target, whole=True)[0]
    other = rows.set_column(
        rows.schema.get_field_index("queueId"), rows.schema.field("queueId"), pa.array([9] * 100, pa.int32())
    )
    pq.write_table(other, path)
    assert "has rows of another queue: queueId" in found(target, whole=True)[0]


def test_old_files_are_those_whose_rows_are_all_older_and_never_the_newest(target: FolderTables) -> None:
    [files] = table_of(target, "orders")
    assert [part.start for part in expired(target, files, START_MS)] == []
    assert [part.start for part in expired(target, files, START_MS + 1)] == [0, 100]
    assert [part.start for part in expired(target, files, LATER_MS * 2)] == [0, 100], "the newest one stays"


def test_a_folder_without_the_topic_says_what_it_has(target: FolderTables) -> None:
    with pytest.raises(NotFound, match=r"it has the tables orders; write them: evenq table export calls"):
        table_of(target, "calls")
    with pytest.raises(NotFound, match="evenq table export calls --to"):
        table_of(FolderTables(target.root / "none"), "calls")


def test_the_newest_topic_of_a_name_counts(target: FolderTables) -> None:
    again = FakeLog(uid="u2-b1")
    again.add(10, at_ms=LATER_MS + 1)
    export(again, target, now_ms=LATER_MS + 3_600_000)
    table = table_of(target, "orders")
    assert [one.queue.uid for one in newest_content(target, table)] == ["u2-b1"]
    assert [one.queue.uid for one in newest_content(target, table, "u1")] == ["u1-b1"]
