"""Columns: the same Arrow schema as Spark's own conversion, for every subset."""

import random

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from pyspark_evenq.rows.requested import columns

from evenq.columns.arrow_schema import ALL_TYPES, arrow_schema
from evenq.errors import SettingsError

SPARK: dict[str, DataType] = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "array<string>": ArrayType(StringType()),
    "binary": BinaryType(),
    "map<string,string>": MapType(StringType(), StringType()),
    "timestamp": TimestampType(),
    "array<struct<key:string,value:binary>>": ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
}


def spark_schema(names: list[str], *, nullable: bool = True) -> StructType:
    return StructType([StructField(name, SPARK[ALL_TYPES[name]], nullable) for name in names])


@pytest.mark.parametrize("seed", range(200))
def test_any_subset_in_any_order_equals_sparks_own_conversion(seed: int) -> None:
    chance = random.Random(seed)
    names = chance.sample(sorted(ALL_TYPES), chance.randint(1, len(ALL_TYPES)))
    schema = spark_schema(names, nullable=chance.random() < 0.8)
    ours = arrow_schema(columns(schema, ALL_TYPES))
    assert to_arrow_schema(schema, timezone="UTC").equals(ours, check_metadata=True)


def test_one_column_set_has_one_schema_object() -> None:
    two = columns(spark_schema(["body", "tag"]))
    assert arrow_schema(two) is arrow_schema(columns(spark_schema(["body", "tag"])))


def test_a_column_that_is_not_ours_is_refused_with_the_list_of_ours() -> None:
    with pytest.raises(SettingsError, match=r"no column 'payload'; its columns are: topic string"):
        columns(StructType([StructField("payload", BinaryType())]))
    with pytest.raises(SettingsError, match="body is binary, not string"):
        columns(StructType([StructField("body", StringType())]))
