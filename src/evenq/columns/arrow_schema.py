"""The columns of messages, in Spark's names of types and as an Arrow schema.

Called by the Spark source and by the exporter of tables. There is one Arrow schema object per column set, because Spark
compares only the schema of the first batch with its own. Any subset and order of the columns may be read; other columns
are never built. Only the first batch imports pyarrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

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
"""Spark's type of each column. Without a value, tag and messageGroup are null; keys and properties are empty."""

SYSTEM_TYPES: dict[str, str] = {
    "bornHost": "string",
    "storeHost": "string",
    "messageType": "string",
    "deliveryTimestamp": "timestamp",
    "deliveryAttempt": "int",
    "priority": "int",
}
"""With `includeSystem`. All but messageType are null without a value."""

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
"""As in Spark's Kafka source; headers with `includeHeaders`, null without a value."""

ALL_TYPES = TYPES | SYSTEM_TYPES | KAFKA_TYPES | HEADER_TYPES


def ddl(types: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in types.items())


DDL = ddl(TYPES)


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """One requested column."""

    name: str
    nullable: bool


HEAD = frozenset({"body", "properties", "value", "headers"})
"""Columns made from a stored message's head."""
SYSTEM = frozenset({"tag", "keys", "messageId", "messageGroup", "bornTimestamp", "key", *SYSTEM_TYPES})
"""Columns made from its system properties; the other columns need neither."""


def needs_head(columns: tuple[OutputColumn, ...]) -> bool:
    return any(column.name in HEAD for column in columns)


def needs_system(columns: tuple[OutputColumn, ...]) -> bool:
    return any(column.name in SYSTEM for column in columns)


@lru_cache(maxsize=64)
def arrow_schema(columns: tuple[OutputColumn, ...]) -> pa.Schema:
    """Returns exactly the schema of Spark's own conversion of these columns."""
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
