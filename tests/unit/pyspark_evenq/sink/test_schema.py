"""Columns of the sink."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from pyspark_evenq.options.sink import WriteOptions
from pyspark_evenq.sink.schema import check_columns, no_overwrite

from evenq.errors import SettingsError

EVERY = (
    "body string, tag string, keys array<string>, properties map<string,string>, messageGroup string, "
    "deliveryTimestamp timestamp, priority int, brokerName string, queueId int"
)
KAFKA = "value binary, key binary, headers array<struct<key:string,value:binary>>, partition int, brokerName string"


TEXT = StringType()
HEADER = StructType([StructField("key", TEXT), StructField("value", BinaryType())])
TYPES: dict[str, DataType] = {
    "string": TEXT, "binary": BinaryType(), "int": IntegerType(), "timestamp": TimestampType(),
    "array<string>": ArrayType(TEXT), "map<string,string>": MapType(TEXT, TEXT),
    "array<struct<key:string,value:binary>>": ArrayType(HEADER),
}  # fmt: skip


def columns(ddl: str, topic: str = "t", style: str = "evenq") -> tuple[str, ...]:
    options = {"endpoints": "a:1", "schemaStyle": style} | ({"topic": topic} if topic else {})
    fields = [StructField(name, TYPES[kind]) for name, kind in (field.split(" ") for field in ddl.split(", "))]
    return check_columns(StructType(fields), WriteOptions.parse(options))


def test_every_column_of_either_style_is_taken() -> None:
    assert len(columns(EVERY)) == 9
    assert len(columns(KAFKA, style="kafka")) == 5
    assert columns("topic string, body binary", topic="") == ("topic", "body")
    assert columns("topic string, value binary", style="kafka") == ("topic", "value")  # the option wins, as in Kafka's


@pytest.mark.parametrize(
    ("ddl", "topic", "style", "says"),
    [
        ("body string, x int, y int", "t", "evenq", "does not write columns 'x', 'y'; drop them"),
        ("value string", "t", "evenq", "option schemaStyle=kafka takes key, value"),
        ("body int", "t", "evenq", "column body must be string or binary, not int"),
        ("tag string", "t", "evenq", "the column body is missing"),
        ("body string", "", "evenq", "give the option topic, or a column topic"),
        ("body string, topic string", "t", "evenq", "leave out one of the two"),
        ("body string, queueId int", "t", "evenq", "column queueId needs the column brokerName"),
        ("value string, body string", "t", "kafka", "does not write column 'body'"),
    ],
)
def test_a_frame_that_cannot_be_written_says_why(ddl: str, topic: str, style: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        columns(ddl, topic, style)


def test_nothing_is_overwritten() -> None:
    no_overwrite(False, streaming=False)
    with pytest.raises(SettingsError, match=r"mode\('append'\)"):
        no_overwrite(True, streaming=False)
    with pytest.raises(SettingsError, match=r"outputMode\('append'\)"):
        no_overwrite(True, streaming=True)
