"""The columns of the source, for Spark and for Arrow.

Called by the source (checks what `.schema(...)` asked for) and by the workers (one Arrow schema per column set, made
once: Spark compares only the first batch's with its own and trusts the others blindly). Any subset and order of the
columns may be read; columns that nobody asked for are never built. pyarrow is imported by the first batch, never by
the module.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from evenq.errors import SettingsError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["DDL", "HEAD", "SYSTEM", "TYPES", "Column", "arrow_schema", "columns", "needs_head", "needs_system"]

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

DDL = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())


@dataclass(frozen=True, slots=True)
class Column:
    """One wanted column."""

    name: str
    nullable: bool


def columns(schema: StructType) -> tuple[Column, ...]:
    """The columns of a schema given by the user. Raises SettingsError for one that the source does not have."""
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if field.name not in TYPES:
            raise SettingsError(f"the evenq source has no column {field.name!r}; its columns are: {DDL}")
        if kind != TYPES[field.name]:
            raise SettingsError(f"column {field.name} is {TYPES[field.name]}, not {kind}; cast it after loading")
    return tuple(Column(field.name, field.nullable) for field in schema.fields)


HEAD = frozenset({"body", "properties"})
"""Columns made of a stored message's head."""
SYSTEM = frozenset({"tag", "keys", "messageId", "messageGroup", "bornTimestamp"})
"""Columns made of its system properties; the others are known without either."""


def needs_head(wanted: tuple[Column, ...]) -> bool:
    """Whether a column is made of the message's head."""
    return any(column.name in HEAD for column in wanted)


def needs_system(wanted: tuple[Column, ...]) -> bool:
    """Whether a column is made of the system properties."""
    return any(column.name in SYSTEM for column in wanted)


@lru_cache(maxsize=64)
def arrow_schema(wanted: tuple[Column, ...]) -> pa.Schema:
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
    }
    return pa.schema([pa.field(column.name, kinds[TYPES[column.name]], column.nullable) for column in wanted])
