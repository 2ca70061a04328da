"""The columns of the source, for Spark and for Arrow.

Called by the source (checks what `.schema(...)` asked for) and by the workers (one Arrow schema per column set, made
once: Spark compares only the first batch's with its own and trusts the others blindly). Any subset and order of the
columns may be read; columns that were not requested are never built. pyarrow is imported by the first batch, never by
the module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from evenq.errors import SettingsError
from pyspark_evenq.options import ReadOptions, SchemaStyle

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = [
    "ALL_TYPES",
    "DDL",
    "HEAD",
    "SYSTEM",
    "TYPES",
    "OutputColumn",
    "arrow_schema",
    "columns",
    "ddl",
    "needs_head",
    "needs_system",
    "types_of",
]

TYPES: dict[str, str] = {
    "topic": "string",
    "brokerName": "string",
    "queueId": "int",
    "queueOffset": "bigint",
    "messageId": "string",
    "tag": "string",
    "keys": "array<string>",
    "messageGroup": "string",
    "body": "binary",
    "properties": "map<string,string>",
    "bornTimestamp": "timestamp",
    "storeTimestamp": "timestamp",
}
"""Spark's type of each column. tag and messageGroup are null where a message has none; keys and properties are empty
then.
"""

SYSTEM_TYPES: dict[str, str] = {
    "bornHost": "string",
    "storeHost": "string",
    "messageType": "string",
    "deliveryTimestamp": "timestamp",
    "deliveryAttempt": "int",
    "priority": "int",
}
"""With `includeSystem`. All but messageType are null where a message has none."""

KAFKA_TYPES: dict[str, str] = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
}
HEADER_TYPES: dict[str, str] = {"headers": "array<struct<key:string,value:binary>>"}
"""As Spark's Kafka source has them; headers with `includeHeaders`, and null where a message has none."""

ALL_TYPES = TYPES | SYSTEM_TYPES | KAFKA_TYPES | HEADER_TYPES


def types_of(options: ReadOptions) -> dict[str, str]:
    """The columns that these options give, in order."""
    if options.schema_style is SchemaStyle.KAFKA:
        return KAFKA_TYPES | (HEADER_TYPES if options.include_headers else {})
    return TYPES | (SYSTEM_TYPES if options.include_system else {})


def ddl(types: Mapping[str, str]) -> str:
    """As Spark reads a schema."""
    return ", ".join(f"{name} {kind}" for name, kind in types.items())


DDL = ddl(TYPES)
"""The columns without any option."""


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """One wanted column."""

    name: str
    nullable: bool


def columns(schema: StructType, types: Mapping[str, str] = TYPES) -> tuple[OutputColumn, ...]:
    """The columns of a schema given by the user. Raises SettingsError for one that the source does not have."""
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if field.name not in types:
            raise SettingsError(f"the evenq source has no column {field.name!r}; its columns are: {ddl(types)}")
        if kind != types[field.name]:
            raise SettingsError(f"column {field.name} is {types[field.name]}, not {kind}; cast it after loading")
    return tuple(OutputColumn(field.name, field.nullable) for field in schema.fields)


HEAD = frozenset({"body", "properties", "value", "headers"})
"""Columns made of a stored message's head."""
SYSTEM = frozenset({"tag", "keys", "messageId", "messageGroup", "bornTimestamp", "key", *SYSTEM_TYPES})
"""Columns made of its system properties; the others are known without either."""


def needs_head(columns: tuple[OutputColumn, ...]) -> bool:
    """Whether a column is made of the message's head."""
    return any(column.name in HEAD for column in columns)


def needs_system(columns: tuple[OutputColumn, ...]) -> bool:
    """Whether a column is made of the system properties."""
    return any(column.name in SYSTEM for column in columns)


@lru_cache(maxsize=64)
def arrow_schema(columns: tuple[OutputColumn, ...]) -> pa.Schema:
    """Exactly what Spark's own conversion gives for these columns."""
    import pyarrow as pa

    kinds: dict[str, pa.DataType] = {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "array<string>": pa.list_(pa.field("element", pa.string())),
        "binary": pa.binary(),
        "map<string,string>": pa.map_(pa.string(), pa.field("value", pa.string())),
        "timestamp": pa.timestamp("us", tz="UTC"),
        HEADER_TYPES["headers"]: pa.list_(
            pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
        ),
    }
    return pa.schema([pa.field(column.name, kinds[ALL_TYPES[column.name]], column.nullable) for column in columns])
