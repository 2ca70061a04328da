"""Names say everything about a table, and the same log is always cut at the same offsets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenq.errors import SettingsError
from evenq.tables.layout import TableChanged, TableQueue, TableRange, TableSettings, must_follow, ranges

QUEUE = TableQueue(topic="NS%orders", uid="u1-b1", broker_name="broker a/1", queue_id=3)


def test_a_path_gives_back_its_queue_whatever_the_broker_is_called() -> None:
    assert QUEUE.folder == "NS%orders/uid=u1-b1/broker=broker%20a%2F1/queue=3"
    assert TableQueue.of(QUEUE.folder) == QUEUE
    assert QUEUE.topic_uid == "u1"


@pytest.mark.parametrize(
    "folder", ["", "orders", "orders/uid=1", "orders/uid=1/broker=b/queue=x", "a/b/uid=1/broker=b"]
)
def test_other_folders_are_not_queues(folder: str) -> None:
    assert TableQueue.of(folder) is None


@given(st.integers(0, 1 << 62), st.integers(1, 1 << 40), st.booleans())
def test_a_name_gives_back_its_range_and_sorts_by_offset(start: int, count: int, gap: bool) -> None:
    part = TableRange(start=start, end=start + count, gap=gap)
    assert TableRange.of(part.name) == part
    later = TableRange(start=part.end, end=part.end + 1, gap=gap)
    assert part.name < later.name
    assert ranges([later.name, part.name]) == [part, later]


@pytest.mark.parametrize(
    "name", ["_table.json", ".lock", "1-2.parquet", f"{5:020d}-{5:020d}.parquet", f"{1:020d}-{2:020d}.tmp"]
)
def test_other_files_are_no_ranges(name: str) -> None:
    assert ranges([name]) == []


def test_a_file_that_overlaps_another_one_is_refused_and_the_same_one_is_not() -> None:
    part = TableRange(start=10, end=20)
    must_follow(part, ["_table.json", part.name, TableRange(start=0, end=10).name, TableRange(start=20, end=21).name])
    for start, end in ((9, 11), (19, 30), (12, 13), (0, 40), (10, 19)):
        with pytest.raises(TableChanged, match=f"{start:020d}"):
            must_follow(part, [TableRange(start=start, end=end).name])


def test_settings_survive_and_others_are_refused() -> None:
    settings = TableSettings(rows_per_file=1_000, close_after_ms=60_000)
    assert TableSettings.decode(settings.encode(), "x") == settings
    for data in (b"", b"[]", b"{}", b'{"version": 1, "rows": 2}'):
        with pytest.raises(SettingsError, match="x does not hold"):
            TableSettings.decode(data, "x")
    with pytest.raises(SettingsError, match="newer evenq"):
        TableSettings.decode(b'{"version": 2}', "x")
    for wrong in ({"rows_per_file": 99}, {"close_after_ms": 999}, {"rows_per_file": 10_000_001}):
        with pytest.raises(SettingsError, match="the range is"):
            TableSettings(**wrong)


def test_files_end_at_multiples_and_windows() -> None:
    settings = TableSettings(rows_per_file=1_000, close_after_ms=60_000)
    assert [settings.limit(start) for start in (0, 999, 1_000, 1_234)] == [1_000, 1_000, 2_000, 2_000]
    assert [settings.window_end_ms(at) for at in (0, 59_999, 60_000)] == [60_000, 60_000, 120_000]
