"""Odd rows: what is left out, and what is an error that names the row."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from pyspark_evenq.sink.rows import checked

from evenq.errors import SettingsError

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def batch(count: int = 3, **columns: Any) -> pa.RecordBatch:
    """Of `count` rows: the last one, or the last but the first, is odd."""
    bodies = pa.array([f"row {number}" for number in range(count)])
    return pa.record_batch({"body": bodies, **columns})


def header(name: str | None, value: bytes | None) -> dict[str, Any]:
    return {"key": name, "value": value}


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"body": pa.array(["a", None, "c"])}, "row 8 of the task: body is None; give it a text"),
        ({"body": pa.array([b"a", b"b", b""])}, "row 9 of the task: body is b''; give it a text"),
        (
            {"priority": pa.array([0, None, -5], pa.int32())},
            "row 9 of the task: priority is -5; give 0 or more, or nul",
        ),
        ({"priority": pa.array([0, None, -1], pa.int32())}, "row 9 of the task: priority is -1"),
        (
            {"queueId": pa.array([0, -7, None], pa.int32()), "brokerName": pa.array(["a"] * 3)},
            "row 8 of the task: queueId is -7",
        ),
        (
            {"queueId": pa.array([0, None, 1], pa.int32()), "brokerName": pa.array(["a", None, None])},
            "row 9 of the task: queueId is 1; name its broker in brokerName",
        ),
        (
            {
                "deliveryTimestamp": pa.array(
                    [None, dt.datetime(1970, 1, 1, tzinfo=dt.UTC), None], pa.timestamp("us", "UTC")
                )
            },
            "row 8 of the task: deliveryTimestamp is 0; give a time after 1970",
        ),
        ({"key": pa.array([b"k", None, b"\xff"])}, "row 9 of the task: key is b'\\\\xff'; its bytes must be UTF-8"),
        ({"headers": pa.array([None, [header(None, b"v")], []], HEADERS)}, "row 8 of the task: headers is"),
        ({"headers": pa.array([None, [header("", b"v")], []], HEADERS)}, "row 8 of the task: headers is"),
        (
            {"headers": pa.array([[], [], [header("h", b"1"), header("h", b"2")]], HEADERS)},
            "row 9 of the task: headers",
        ),
        ({"headers": pa.array([[], [None], []], HEADERS)}, "row 8 of the task: headers is"),
        ({"headers": pa.array([[], [header("h", b"\xff")], []], HEADERS)}, "row 8 .* a value that is UTF-8"),
    ],
)
def test_what_can_only_be_a_mistake_is_an_error_that_names_the_row(columns: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        checked(batch(**columns), first_row=7)


def test_what_is_none_is_left_out_and_the_rest_stays_as_it_is() -> None:
    keys = pa.array([["a", None, "", "b"], None, []], pa.list_(pa.string()))
    headers = pa.array([[header("h", None), header("g", b"1")], None, [header("h", b"2")]], HEADERS)
    plain = batch(keys=pa.array([["a"], ["b"], None]), headers=headers, priority=pa.array([0, None, 9], pa.int32()))
    assert checked(plain, first_row=0) is plain
    assert checked(batch(keys=keys), first_row=0).column("keys").to_pylist() == [["a", "b"], None, []]
    key = checked(batch(key=pa.array([b"k", b"", None])), first_row=0).column("key")
    assert key.to_pylist() == [b"k", None, None]


def test_rows_of_a_slice_are_counted_from_its_own_beginning() -> None:
    whole = batch(6, headers=pa.array([[header("h", b"x")]] * 5 + [[header("h", b"1"), header("h", b"2")]], HEADERS))
    assert checked(whole.slice(0, 5), first_row=0).num_rows == 5
    with pytest.raises(SettingsError, match="row 12 of the task"):
        checked(whole.slice(3), first_row=10)


def test_a_batch_without_rows_is_fine() -> None:
    empty = batch(3, keys=pa.array([["a"]] * 3), headers=pa.array([None] * 3, HEADERS)).slice(3)
    assert checked(empty, first_row=0).num_rows == 0
