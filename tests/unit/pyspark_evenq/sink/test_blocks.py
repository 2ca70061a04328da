"""Arrow batches become blocks of columns, parted by where rows go."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from pyspark_evenq.sink.blocks import SinkTarget, joined, pack, parted, pieces

from evenq.errors import SettingsError
from evenq.model.queue import MessageQueue
from evenq.wire.stubs.evenq.v1.staging_pb2 import RowBlock, StageRequest

QUEUES = {"t": tuple(MessageQueue("t", broker, number) for broker in ("a", "b") for number in range(2))}
TEXTS, MAPS = pa.list_(pa.string()), pa.map_(pa.string(), pa.string())


def every() -> pa.RecordBatch:
    return pa.record_batch({
        "body": pa.array(["a", "bb", None, "dddd"]),
        "tag": pa.array(["x", None, "y", "z"]),
        "keys": pa.array([["k1", "k2"], [], None, ["k3"]], TEXTS),
        "properties": pa.array([[("p", "1")], [], None, [("q", "2"), ("r", None)]], MAPS),
        "priority": pa.array([1, None, 2, 3], pa.int32()),
        "deliveryTimestamp": pa.array([None, 5_000_000, None, 1_000], pa.timestamp("us", tz="UTC")),
    })  # fmt: skip


def packed(batch: pa.RecordBatch, first_row: int, born_ms: int) -> RowBlock:
    rows = pack(batch, first_row=first_row, born_ms=born_ms)
    request = StageRequest.FromString(joined(StageRequest(topic="t", token=b"x", sequence=3), rows))
    assert (request.topic, request.token, request.sequence) == ("t", b"x", 3)
    return request.rows


def texts(data: bytes, ends: bytes) -> list[bytes]:
    places = struct.unpack(f"<{len(ends) // 4}i", ends)
    return [data[start:end] for start, end in zip((0, *places), places, strict=False)]


def listed(items: list[Any], rows: bytes) -> list[list[Any]]:
    places = struct.unpack(f"<{len(rows) // 4}i", rows)
    return [items[start:end] for start, end in zip((0, *places), places, strict=False)]


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [1, 2, 3], [3], [0, 1]], ids=str)
@pytest.mark.parametrize("how", ["slice", "take"])
def test_a_part_of_a_batch_is_packed_as_its_rows(rows: list[int], how: str) -> None:
    batch = every()
    part = batch.slice(rows[0], len(rows)) if how == "slice" else batch.take(pa.array(rows))
    block = packed(part, first_row=7, born_ms=8)
    assert (block.count, block.first_row, block.born_ms) == (len(rows), 7, 8)
    expected = batch.to_pylist()
    assert texts(block.bodies, block.body_ends) == [(expected[row]["body"] or "").encode() for row in rows]
    assert texts(block.tags, block.tag_ends) == [(expected[row]["tag"] or "").encode() for row in rows]
    keys = listed(texts(block.keys, block.key_ends), block.key_rows)
    assert keys == [[key.encode() for key in expected[row]["keys"] or ()] for row in rows]
    names = texts(block.property_names, block.property_name_ends)
    values = texts(block.property_values, block.property_value_ends)
    pairs = listed(list(zip(names, values, strict=True)), block.property_rows)
    assert pairs == [
        [(name.encode(), (value or "").encode()) for name, value in expected[row]["properties"] or ()] for row in rows
    ]
    assert struct.unpack(f"<{len(rows)}i", block.priorities) == tuple([1, -1, 2, 3][row] for row in rows)
    assert struct.unpack(f"<{len(rows)}q", block.delivery_ms) == tuple([0, 5_000, 0, 1][row] for row in rows)


def test_kafka_columns_are_keys_and_properties() -> None:
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = pa.record_batch({
        "value": pa.array([b"1", b"2", b"3"]), "key": pa.array([b"k", None, b"l"]),
        "headers": pa.array([[{"key": "h", "value": b"v"}], None, [{"key": "i", "value": b"w"}]], header),
    })  # fmt: skip
    block = packed(batch.slice(1), first_row=0, born_ms=0)
    assert texts(block.bodies, block.body_ends) == [b"2", b"3"]
    assert listed(texts(block.keys, block.key_ends), block.key_rows) == [[], [b"l"]]
    names = texts(block.property_names, block.property_name_ends)
    assert listed(names, block.property_rows) == [[], [b"i"]]


def test_rows_go_by_topic_group_and_broker_and_keep_their_order() -> None:
    batch = pa.record_batch({
        "topic": pa.array(["t"] * 6),
        "body": pa.array([str(number) for number in range(6)]),
        "messageGroup": pa.array(["g", None, "g", None, None, "g"]),
        "brokerName": pa.array([None, "b", None, None, "b", None]),
        "queueId": pa.array([None, 1, None, None, None, None], pa.int32()),
    })  # fmt: skip
    result = {target: part.column("body").to_pylist() for target, part in parted(batch, "", QUEUES)}
    [home] = [target for target, bodies in result.items() if bodies == ["0", "2", "5"]]
    assert (home.topic, home.broker_name in {"a", "b"}, home.queue_id in {0, 1}) == ("t", True, True)
    del result[home]
    assert result == {SinkTarget("t", "b", 1): ["1"], SinkTarget("t"): ["3"], SinkTarget("t", "b"): ["4"]}


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"topic": ["t", None]}, "a row has no topic"),
        ({"topic": ["t", "t"], "brokerName": ["a", "c"]}, "names broker 'c', and topic t has no such writable queue"),
        ({"topic": ["t"] * 2, "brokerName": ["a"] * 2, "queueId": [0, 9]}, "names queue 9 of broker 'a'"),
    ],
)
def test_a_row_that_goes_nowhere_is_an_error(columns: dict[str, list[Any]], says: str) -> None:
    batch = pa.record_batch(
        {"body": pa.array(["1", "2"])} | {name: pa.array(reported) for name, reported in columns.items()}
    )
    with pytest.raises(SettingsError, match=says):
        list(parted(batch, "", QUEUES))


def test_a_batch_is_cut_by_rows_and_by_bytes_always_in_the_same_way() -> None:
    batch = pa.record_batch({"body": pa.array(["x" * 1_000] * 100)})
    assert [piece.num_rows for piece in pieces(batch, rows_max=40, bytes_max=1 << 20)] == [40, 40, 20]
    assert max(piece.num_rows for piece in pieces(batch, rows_max=40, bytes_max=10_500)) == 10
    assert [piece.num_rows for piece in pieces(batch, rows_max=40, bytes_max=1)] == [1] * 100
    assert list(pieces(batch.slice(0, 0), rows_max=4, bytes_max=9)) == []
